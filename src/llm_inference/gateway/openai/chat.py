"""`POST /chat/completions`: request → `GenerateRequest`, deltas → chunks or one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.types import (
    ChatPrompt,
    Delta,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from llm_inference.gateway import sse
from llm_inference.gateway.generation import EventStream, WholeReply
from llm_inference.gateway.openai import replies, tools
from llm_inference.gateway.openai.fields import StreamOptions
from llm_inference.gateway.openai.intake import Envelope, log_prompt, take_in
from llm_inference.gateway.openai.protocol import ChatCompletionRequest
from llm_inference.gateway.openai.sampling import sampling_params
from llm_inference.gateway.openai.streaming import check_stream
from llm_inference.gateway.openai.values import fail


async def chat_completions(request: Request) -> Response:
    intake = await take_in(request, ChatCompletionRequest)
    fields = intake.fields
    options = check_stream(fields.stream, fields.stream_options)
    envelope = Envelope.new("chatcmpl", intake)
    work = generate_request(fields, envelope, intake.engine.info)
    await log_prompt(intake, list(fields.messages))
    if fields.stream:
        writer = ChatStream(envelope, fields, options)
        return EventStream(intake.gateway, intake.engine, [work], writer)
    return WholeReply(intake.gateway, intake.engine, [work], ChatAnswer(envelope, fields))


def generate_request(fields: ChatCompletionRequest, envelope: Envelope, info: ModelInfo) -> GenerateRequest:
    """The engine's form of `fields`. Raises `InvalidRequestError` for what contradicts itself."""
    if fields.max_tokens == 0:
        raise fail("max_tokens", "must be at least 1.")
    if fields.top_logprobs is not None and not fields.logprobs:
        raise fail("top_logprobs", "would have no effect without logprobs=true.")
    tools.check_choice(fields.tool_choice, fields.tools)
    if not fields.parallel_tool_calls and not fields.tools:
        raise fail("parallel_tool_calls", "would have no effect without tools.")
    return GenerateRequest(
        request_id=envelope.id,
        model=envelope.model,
        prompt=ChatPrompt(
            messages=fields.messages,
            tools=fields.tools,
            add_generation_prompt=_add_generation_prompt(fields),
            continue_final_message=fields.continue_final_message,
            template_kwargs=_template_kwargs(fields),
        ),
        sampling=sampling_params(
            fields, info, n=fields.n, logprobs=(fields.top_logprobs or 0) if fields.logprobs else None
        ),
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        tool_choice=fields.tool_choice,
        parallel_tool_calls=fields.parallel_tool_calls,
    )


def _add_generation_prompt(fields: ChatCompletionRequest) -> bool:
    if not fields.continue_final_message:
        return fields.add_generation_prompt is not False
    if fields.add_generation_prompt:
        raise fail("add_generation_prompt", "contradicts continue_final_message: a message is continued or begun.")
    if fields.messages[-1]["role"] != "assistant":
        raise fail("continue_final_message", "needs a last message of role 'assistant' to go on from.")
    return False


def _template_kwargs(fields: ChatCompletionRequest) -> dict[str, Any]:
    kwargs = dict(fields.chat_template_kwargs)
    if fields.reasoning_effort is not None:
        if kwargs.get("reasoning_effort", fields.reasoning_effort) != fields.reasoning_effort:
            raise fail("reasoning_effort", "differs from chat_template_kwargs.reasoning_effort; send one.")
        kwargs["reasoning_effort"] = fields.reasoning_effort
    return kwargs


class ChatStream:
    """Deltas → SSE frames. Each choice begins with a chunk of its role alone."""

    def __init__(self, envelope: Envelope, fields: ChatCompletionRequest, options: StreamOptions) -> None:
        self._envelope = envelope
        self._num_top = fields.top_logprobs or 0
        self._with_logprobs = fields.logprobs
        self._with_token_ids = fields.return_token_ids
        self._include_usage = bool(options.include_usage)
        self.continuous_usage = bool(options.continuous_usage_stats)
        self._begun: set[int] = set()

    def frames(self, prompt_index: int, delta: Delta, usage: Usage | None) -> bytes:
        out = b""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            role = replies.ChatChunkChoice(delta.index, replies.ChatDelta(role="assistant", content=""))
            out = self._frame([role], usage, delta.prompt_token_ids if self._with_token_ids else None)
        choice = self._choice(delta)
        return out if choice is None else out + self._frame([choice], usage, None)

    def last(self, usage: Usage) -> bytes:
        return self._frame([], usage, None) if self._include_usage else b""

    def _choice(self, delta: Delta) -> replies.ChatChunkChoice | None:
        logprobs: replies.ChatLogprobs | UnsetType = UNSET
        if self._with_logprobs and delta.logprobs:
            logprobs = replies.ChatLogprobs(replies.chat_logprobs(delta.logprobs, self._num_top))
        token_ids = list(delta.token_ids) if self._with_token_ids and delta.token_ids else UNSET
        says_something = delta.text or delta.reasoning or delta.tool_calls or delta.finish_reason
        if not says_something and logprobs is UNSET and token_ids is UNSET:
            return None
        return replies.ChatChunkChoice(
            delta.index,
            replies.ChatDelta(
                content=delta.text or UNSET,
                reasoning=delta.reasoning or UNSET,
                reasoning_content=delta.reasoning or UNSET,
                tool_calls=[_call_chunk(call) for call in delta.tool_calls] or UNSET,
            ),
            delta.finish_reason,
            logprobs,
            UNSET if delta.stop_reason is None else delta.stop_reason,
            token_ids,
        )

    def _frame(
        self, choices: list[replies.ChatChunkChoice], usage: Usage | None, prompt_ids: tuple[int, ...] | None
    ) -> bytes:
        chunk = replies.ChatCompletionChunk(
            self._envelope.id,
            self._envelope.created,
            self._envelope.model,
            choices,
            service_tier=self._envelope.service_tier,
            usage=UNSET if usage is None else replies.usage_reply(usage),
            prompt_token_ids=UNSET if prompt_ids is None else list(prompt_ids),
        )
        return sse.frame(replies.encoder.encode(chunk))


def _call_chunk(call: ToolCallDelta) -> replies.ToolCallChunk:
    first = call.id is not None
    return replies.ToolCallChunk(
        call.index,
        replies.FunctionDelta(UNSET if call.name is None else call.name, call.arguments),
        UNSET if call.id is None else call.id,
        "function" if first else UNSET,
    )


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    """One choice while it grows."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        if delta.text:
            self.text.append(delta.text)
        if delta.reasoning:
            self.reasoning.append(delta.reasoning)
        for fragment in delta.tool_calls:
            call = self.calls.setdefault(fragment.index, _Call())
            call.id = fragment.id or call.id
            call.name = fragment.name or call.name
            call.arguments.append(fragment.arguments)
        if delta.logprobs:
            self.logprobs.extend(delta.logprobs)
        self.token_ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class ChatAnswer:
    """Deltas → one `chat.completion`."""

    def __init__(self, envelope: Envelope, fields: ChatCompletionRequest) -> None:
        self._envelope = envelope
        self._fields = fields
        self._choices = [_Choice() for _ in range(fields.n)]
        self._prompt_token_ids: tuple[int, ...] | None = None

    def add(self, prompt_index: int, delta: Delta) -> None:
        if delta.prompt_token_ids is not None:
            self._prompt_token_ids = delta.prompt_token_ids
        self._choices[delta.index].add(delta)

    def body(self, usage: Usage) -> bytes:
        with_ids = self._fields.return_token_ids
        answer = replies.ChatCompletion(
            self._envelope.id,
            self._envelope.created,
            self._envelope.model,
            [self._reply(index, choice) for index, choice in enumerate(self._choices)],
            replies.usage_reply(usage),
            service_tier=self._envelope.service_tier,
            prompt_token_ids=list(self._prompt_token_ids or ()) if with_ids else UNSET,
        )
        return replies.encoder.encode(answer)

    def _reply(self, index: int, choice: _Choice) -> replies.ChatChoice:
        text, reasoning = "".join(choice.text), "".join(choice.reasoning)
        calls = [
            replies.ToolCallReply(call.id, replies.FunctionReply(call.name, "".join(call.arguments)))
            for _, call in sorted(choice.calls.items())
        ]
        logprobs = None
        if self._fields.logprobs:
            content = replies.chat_logprobs(choice.logprobs, self._fields.top_logprobs or 0)
            logprobs = replies.ChatLogprobs(content)
        return replies.ChatChoice(
            index,
            replies.ChatMessageReply(
                None if calls and not text else text,
                reasoning=reasoning or UNSET,
                reasoning_content=reasoning or UNSET,
                tool_calls=calls or UNSET,
            ),
            choice.finish_reason,
            logprobs,
            UNSET if choice.stop_reason is None else choice.stop_reason,
            choice.token_ids if self._fields.return_token_ids else UNSET,
        )
