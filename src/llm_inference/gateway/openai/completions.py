"""`POST /completions`: text, token ids, and lists of either; choices of prompt p stand at p * n and after."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.types import Delta, FinishReason, GenerateRequest, ModelInfo, Prompt, TokenLogprob, Usage
from llm_inference.errors import ContextLengthError
from llm_inference.gateway import sse
from llm_inference.gateway.generation import EventStream, WholeReply
from llm_inference.gateway.openai import replies, values
from llm_inference.gateway.openai.fields import StreamOptions
from llm_inference.gateway.openai.intake import Envelope, log_prompt, take_in
from llm_inference.gateway.openai.protocol import CompletionRequest
from llm_inference.gateway.openai.sampling import sampling_params
from llm_inference.gateway.openai.streaming import check_stream
from llm_inference.gateway.openai.values import fail

#: Over all prompts of one request.
MAX_TOTAL_CHOICES = 2048


async def completions(request: Request) -> Response:
    intake = await take_in(request, CompletionRequest)
    fields = intake.fields
    options = check_stream(fields.stream, fields.stream_options)
    envelope = Envelope.new("cmpl", intake)
    work = generate_requests(fields, envelope, intake.engine.info)
    await log_prompt(intake, list(fields.prompt))
    if fields.stream:
        writer = CompletionStream(envelope, fields, options)
        return EventStream(intake.gateway, intake.engine, work, writer)
    return WholeReply(intake.gateway, intake.engine, work, CompletionAnswer(envelope, fields))


def generate_requests(fields: CompletionRequest, envelope: Envelope, info: ModelInfo) -> list[GenerateRequest]:
    """One engine request per prompt. Raises `InvalidRequestError` for what contradicts itself or the model."""
    if fields.max_tokens == 0 and not fields.echo:
        raise fail("max_tokens", "must be at least 1; 0 is only for echo, which scores the prompt alone.")
    if fields.stream and fields.best_of is not None and fields.best_of > fields.n:
        raise fail("best_of", "cannot be streamed: the best of several is known at their end.")
    if len(fields.prompt) * fields.n > MAX_TOTAL_CHOICES:
        raise fail("n", f"{len(fields.prompt)} prompts times n={fields.n} exceed {MAX_TOTAL_CHOICES} choices.")
    for prompt in fields.prompt:
        check_prompt(prompt, info)
    sampling = sampling_params(
        fields,
        info,
        n=fields.n,
        best_of=fields.best_of,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
    )
    return [
        GenerateRequest(
            request_id=envelope.id if len(fields.prompt) == 1 else f"{envelope.id}-{place}",
            model=envelope.model,
            prompt=prompt,
            sampling=sampling,
            echo=fields.echo,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            add_special_tokens=fields.add_special_tokens,
        )
        for place, prompt in enumerate(fields.prompt)
    ]


def check_prompt(prompt: Prompt, info: ModelInfo) -> None:
    """What can be said of a prompt of token ids without an engine: ids in the vocabulary, length in the context."""
    if not isinstance(prompt, tuple):
        return
    # The length first: it bounds the work of looking at every id.
    if len(prompt) > info.max_model_len:
        raise ContextLengthError(
            f"prompt: has {len(prompt)} tokens; the context of {info.name!r} is {info.max_model_len} tokens.",
            param="prompt",
        )
    values.check_range(prompt, "prompt", info.vocab_size)


class CompletionStream:
    """Deltas → SSE frames."""

    def __init__(self, envelope: Envelope, fields: CompletionRequest, options: StreamOptions) -> None:
        self._envelope = envelope
        self._n = fields.n
        self._num_top = fields.logprobs
        self._with_token_ids = fields.return_token_ids
        self._include_usage = bool(options.include_usage)
        self.continuous_usage = bool(options.continuous_usage_stats)

    def frames(self, prompt_index: int, delta: Delta, usage: Usage | None) -> bytes:
        logprobs = None
        if self._num_top is not None and delta.logprobs:
            logprobs = replies.completion_logprobs(delta.logprobs, self._num_top)
        token_ids = list(delta.token_ids) if self._with_token_ids and delta.token_ids else UNSET
        prompt_ids: list[int] | UnsetType = UNSET
        if self._with_token_ids and delta.prompt_token_ids is not None:
            prompt_ids = list(delta.prompt_token_ids)
        says_something = delta.text or delta.finish_reason or logprobs
        if not says_something and token_ids is UNSET and prompt_ids is UNSET:
            return b""
        choice = replies.CompletionChoice(
            prompt_index * self._n + delta.index,
            delta.text,
            delta.finish_reason,
            logprobs,
            UNSET if delta.stop_reason is None else delta.stop_reason,
            token_ids,
            prompt_ids,
        )
        return self._frame([choice], usage)

    def last(self, usage: Usage) -> bytes:
        return self._frame([], usage) if self._include_usage else b""

    def _frame(self, choices: list[replies.CompletionChoice], usage: Usage | None) -> bytes:
        chunk = replies.Completion(
            self._envelope.id,
            self._envelope.created,
            self._envelope.model,
            choices,
            service_tier=self._envelope.service_tier,
            usage=UNSET if usage is None else replies.usage_reply(usage),
        )
        return sse.frame(replies.encoder.encode(chunk))


@dataclass(slots=True)
class _Choice:
    """One choice while it grows."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class CompletionAnswer:
    """Deltas → one `text_completion`, its choices in the order of the prompts."""

    def __init__(self, envelope: Envelope, fields: CompletionRequest) -> None:
        self._envelope = envelope
        self._fields = fields
        self._choices = [_Choice() for _ in range(len(fields.prompt) * fields.n)]
        self._prompt_token_ids: dict[int, tuple[int, ...]] = {}

    def add(self, prompt_index: int, delta: Delta) -> None:
        if delta.prompt_token_ids is not None:
            self._prompt_token_ids[prompt_index] = delta.prompt_token_ids
        choice = self._choices[prompt_index * self._fields.n + delta.index]
        choice.text.append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            choice.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason

    def body(self, usage: Usage) -> bytes:
        num_top = self._fields.logprobs
        with_ids = self._fields.return_token_ids
        choices = [
            replies.CompletionChoice(
                index,
                "".join(choice.text),
                choice.finish_reason,
                None if num_top is None else replies.completion_logprobs(choice.logprobs, num_top),
                UNSET if choice.stop_reason is None else choice.stop_reason,
                choice.token_ids if with_ids else UNSET,
                list(self._prompt_token_ids.get(index // self._fields.n, ())) if with_ids else UNSET,
            )
            for index, choice in enumerate(self._choices)
        ]
        answer = replies.Completion(
            self._envelope.id,
            self._envelope.created,
            self._envelope.model,
            choices,
            service_tier=self._envelope.service_tier,
            usage=replies.usage_reply(usage),
        )
        return replies.encoder.encode(answer)
