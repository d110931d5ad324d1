"""What is sent back: the shapes of answers and chunks as msgspec structs, and the conversions of logprobs and usage.

Fields that only some answers have are UNSET by default and then not written at all; the others are always there, null
included, as the public API document requires. No NaN or infinity leaves: a logprob is at least `MIN_LOGPROB`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from llm_inference.engine.types import FinishReason, TokenLogprob, Usage

#: Stands for minus infinity (a token that a mask made impossible): JSON has none.
MIN_LOGPROB = -9999.0

encoder = msgspec.json.Encoder()


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageReply(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry per token. The first of an echoed prompt has null where nothing predicts it."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class FunctionReply(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCallReply(msgspec.Struct, frozen=True):
    id: str
    function: FunctionReply
    type: Literal["function"] = "function"


class ChatMessageReply(msgspec.Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessageReply
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallChunk(msgspec.Struct, frozen=True):
    """`id`, `type` and `function.name` come once, in the first chunk of each index."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallChunk] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | UnsetType = UNSET
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    service_tier: str | UnsetType = UNSET
    usage: UsageReply | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """Of answers and of chunks; `finish_reason` is null in all chunks but a choice's last."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: CompletionLogprobs | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True):
    """Also the chunk of a stream, then mostly without usage."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    service_tier: str | UnsetType = UNSET
    usage: UsageReply | UnsetType = UNSET


class BatchCompletionItem(msgspec.Struct, frozen=True):
    """`tokens_used` counts the generated tokens of this prompt's answer."""

    text: str
    tokens_used: int
    finish_reason: FinishReason


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    max_model_len: int
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class TokenizeReply(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeReply(msgspec.Struct, frozen=True):
    prompt: str


class Embedding(msgspec.Struct, frozen=True):
    """`embedding`: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


def usage_reply(usage: Usage) -> UsageReply:
    return UsageReply(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        PromptTokensDetails(usage.cached_tokens),
        CompletionTokensDetails(usage.reasoning_tokens),
    )


def safe_logprob(logprob: float | None) -> float:
    """A number that JSON has; NaN, which no distribution holds, counts as impossible."""
    if logprob is None or not math.isfinite(logprob):
        return 0.0 if logprob == math.inf else MIN_LOGPROB
    return max(logprob, MIN_LOGPROB)


def chat_logprobs(tokens: Iterable[TokenLogprob], num_top: int) -> list[ContentLogprob]:
    return [
        ContentLogprob(
            token.token,
            safe_logprob(token.logprob),
            list(token.token_bytes or token.token.encode()),
            [
                TopLogprob(text, safe_logprob(logprob), list(raw or text.encode()))
                for _, text, logprob, raw in token.top[:num_top]
            ],
        )
        for token in tokens
    ]


def completion_logprobs(tokens: Iterable[TokenLogprob], num_top: int) -> CompletionLogprobs:
    """The legacy form. Alternatives that read alike (bytes of one character) are one key: the likeliest counts."""
    texts: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for token in tokens:
        texts.append(token.token)
        offsets.append(token.text_offset)
        if token.logprob is None:
            logprobs.append(None)
            tops.append(None)
            continue
        logprobs.append(safe_logprob(token.logprob))
        top: dict[str, float] = {}
        for _, text, logprob, _ in token.top[:num_top]:
            top.setdefault(text, safe_logprob(logprob))
        if num_top:
            # The chosen token is always there, also when it is not among the likeliest.
            top.setdefault(token.token, safe_logprob(token.logprob))
        tops.append(top)
    return CompletionLogprobs(texts, logprobs, tops if num_top else None, offsets)
