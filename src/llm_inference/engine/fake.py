"""A deterministic engine without a model: for tests of everything around engines, and for `engine: fake`.

Its tokens are the bytes of UTF-8 (byte_tokens.py), so every text is reversible and every count can be worked out by
hand. It answers what its script says, or repeats what it was told, and fails, waits or hangs on command. It keeps the
whole contract of `Engine`; it computes nothing.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from llm_inference.engine.base import Capabilities, EngineStats, Health
from llm_inference.engine.byte_tokens import VOCAB_SIZE, count, decode, encode, token_bytes, token_text
from llm_inference.engine.fake_vectors import SIZE, vector_of
from llm_inference.engine.types import (
    ChatPrompt,
    Delta,
    EmbedRequest,
    EmbedResult,
    FinishReason,
    GenerateRequest,
    Grammar,
    ModelInfo,
    Prompt,
    Timing,
    TokenizeResult,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError

#: The logprob of every chosen token; alternatives follow at one less each.
LOGPROB = -0.5

_FIELDS = (
    "top_k",
    "min_p",
    "seed",
    "logprobs",
    "top_logprobs",
    "echo",
    "n",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "cache_salt",
    "priority",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "return_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "reasoning_effort",
    "add_special_tokens",
)

#: Taken without complaint; what a script answers does not depend on most of them.
FAKE_CAPABILITIES = Capabilities(
    fields=dict.fromkeys(_FIELDS, "enforced"),
    reasons={
        "best_of": "a script has no better and worse answers",
        "num_beams": "a script has no beams",
        "length_penalty": "a script has no beams",
        "early_stopping": "a script has no beams",
    },
    tokenize=True,
    embeddings=True,
)


@dataclass(frozen=True, slots=True)
class FakeScript:
    """What the engine does with every request.

    `answers[i % len]` is the text of choice i; a callable makes them from the request; None repeats the prompt's last
    text. `fail_after` tokens of a choice `error` is raised (0: before the first delta). After `hang_after` tokens
    nothing more comes until the request is aborted.
    """

    answers: Sequence[str] | Callable[[GenerateRequest], Sequence[str]] | None = None
    reasoning: str = ""
    first_delay_s: float = 0.0
    delay_s: float = 0.0  # before every token
    start_delay_s: float = 0.0  # before it is ready
    fail_after: int | None = None
    error: Exception | None = None  # default: an EngineError
    hang_after: int | None = None
    logprob: float = LOGPROB  # of chosen tokens; -inf and NaN are worth trying


class FakeEngine:
    """See the module. `requests`, `finished` and `aborted` tell a test what happened, by request id."""

    def __init__(
        self,
        name: str = "fake",
        *,
        script: FakeScript | None = None,
        max_model_len: int = 4096,
        max_batch_size: int | None = 8,
        capabilities: Capabilities = FAKE_CAPABILITIES,
    ) -> None:
        self.capabilities = capabilities
        self.info = ModelInfo(
            name=name,
            max_model_len=max_model_len,
            engine="fake",
            source="fake",
            created=int(time.time()),
            vocab_size=VOCAB_SIZE,
            max_num_seqs=max_batch_size,
            max_batch_size=max_batch_size,
        )
        self.script = script or FakeScript()
        self.health_now = Health(live=True, ready=True)
        self.requests: list[GenerateRequest] = []
        self.embed_requests: list[EmbedRequest] = []
        self.finished: list[str] = []
        self.aborted: list[str] = []
        self._num_running = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    async def start(self) -> None:
        if self.script.start_delay_s:
            await asyncio.sleep(self.script.start_delay_s)
        self.health_now = Health(live=True, ready=True)

    async def stop(self, grace_s: float) -> None:
        """Nothing runs outside of the generators, which belong to their callers."""
        self.health_now = Health(live=False, ready=False, reason="stopped")

    async def health(self) -> Health:
        return self.health_now

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self._num_running,
            kv_cache_usage=0.0,
            num_steps=self._num_generated_tokens,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_generated_tokens,
        )

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        ids = encode(prompt, add_special_tokens=add_special_tokens)
        return TokenizeResult(ids, tuple(token_text(token) for token in ids), self.info.max_model_len)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        return decode(token_ids)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Vectors that depend on the tokens alone. The script's delays, failure and hanging count before the first."""
        self.embed_requests.append(request)
        started = time.perf_counter()
        if request.dimensions is not None and request.dimensions > SIZE:
            raise InvalidRequestError(f"dimensions is {request.dimensions}, of {SIZE}.", param="dimensions")
        inputs = [encode(given, add_special_tokens=request.add_special_tokens) for given in request.inputs]
        for place, ids in enumerate(inputs):
            if len(ids) > self.info.max_model_len:
                raise ContextLengthError(f"input[{place}] has {len(ids)} tokens.", param=f"input[{place}]")
        ended = False
        try:
            await asyncio.sleep(self.script.first_delay_s)
            await self._pause(0)
            pooling, normalize = request.pooling or "mean", request.normalize is not False
            vectors = tuple(vector_of(ids, pooling, request.dimensions, normalize) for ids in inputs)
            ended = True
            self.finished.append(request.request_id)
        except Exception:
            ended = True
            raise
        finally:
            if not ended:
                self.aborted.append(request.request_id)
        usage = Usage(prompt_tokens=sum(map(len, inputs)))
        return EmbedResult(vectors=vectors, usage=usage, timing=Timing(total_s=time.perf_counter() - started))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Choices take turns, one token each. Raises what the script says, and `ContextLengthError`."""
        self.requests.append(request)
        started = time.perf_counter()
        self._check(request)
        prompt_ids = encode(request.prompt, add_special_tokens=request.add_special_tokens)
        self._num_running += 1
        self._num_prompt_tokens += len(prompt_ids)
        ended = False
        try:
            await asyncio.sleep(self.script.first_delay_s)
            if self.script.fail_after == 0:
                raise self._error()
            room = self.info.max_model_len - len(prompt_ids)
            limit = room if request.sampling.max_tokens is None else min(request.sampling.max_tokens, room)
            texts = self._answers(request)
            choices = [
                _Choice(request, index, texts[index % len(texts)], limit, prompt_ids, self.script)
                for index in range(request.sampling.n)
            ]
            first_token_s = 0.0
            num_generated = 0
            open_choices = list(choices)
            while open_choices:
                for choice in list(open_choices):
                    await self._pause(choice.num_tokens)
                    delta = choice.step()
                    num_generated += len(delta.token_ids)
                    self._num_generated_tokens += len(delta.token_ids)
                    first_token_s = first_token_s or time.perf_counter() - started
                    if delta.finish_reason is not None:
                        open_choices.remove(choice)
                    timing = None if open_choices else Timing(0.0, first_token_s, time.perf_counter() - started)
                    usage = Usage(len(prompt_ids), num_generated)
                    yield msgspec.structs.replace(delta, usage=usage, timing=timing)
            ended = True
            self.finished.append(request.request_id)
        except Exception:
            ended = True
            raise
        finally:
            self._num_running -= 1
            if not ended:
                self.aborted.append(request.request_id)

    async def _pause(self, num_tokens: int) -> None:
        if self.script.fail_after is not None and num_tokens >= self.script.fail_after:
            raise self._error()
        if self.script.hang_after is not None and num_tokens >= self.script.hang_after:
            await asyncio.Event().wait()
        await asyncio.sleep(self.script.delay_s)

    def _error(self) -> Exception:
        return self.script.error or EngineError("The fake engine failed, as its script says.")

    def _check(self, request: GenerateRequest) -> None:
        context = self.info.max_model_len
        wanted = request.sampling.max_tokens
        num_tokens = count(request.prompt, add_special_tokens=request.add_special_tokens)
        if num_tokens + (1 if wanted is None else wanted) > context:
            asked = "" if wanted is None else f" and {wanted} tokens of output were asked for"
            raise ContextLengthError(
                f"The prompt has {num_tokens} tokens{asked}; the context of {self.info.name!r} is {context} tokens.",
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
            )
        if request.sampling.grammar is not None:
            _check_grammar(request.sampling.grammar)

    def _answers(self, request: GenerateRequest) -> Sequence[str]:
        answers = self.script.answers
        if callable(answers):
            return answers(request)
        if answers is not None:
            return answers
        grammar = request.sampling.grammar
        if grammar is not None:
            return [json.loads(grammar.source)[0] if grammar.kind == "choice" else "{}"]
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            return [str(prompt.messages[-1]["content"])]
        return [prompt if isinstance(prompt, str) else decode(prompt)]


class _Choice:
    """One choice's progress. `step` is one token, or the end of the text."""

    def __init__(
        self,
        request: GenerateRequest,
        index: int,
        answer: str,
        limit: int,
        prompt_ids: tuple[int, ...],
        script: FakeScript,
    ) -> None:
        self._request = request
        self._index = index
        self._logprob = script.logprob
        self._reasoning = script.reasoning
        self._prompt_ids = prompt_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.num_tokens = 0
        self._offset = len(decode(prompt_ids)) if request.echo else 0
        self._tool_calls = _forced_calls(request)
        text, self._stop = _cut(answer, request)
        tokens = b"" if self._tool_calls else text.encode()
        if request.sampling.ignore_eos and tokens:
            tokens = (tokens * (limit // len(tokens) + 1))[:limit]
        self._finish: FinishReason = "tool_calls" if self._tool_calls else "stop"
        if len(tokens) > limit or (limit == len(tokens) and request.sampling.ignore_eos):
            tokens, self._finish, self._stop = tokens[:limit], "length", None
        self._tokens: Iterator[int] = iter(tokens)
        self._left = len(tokens)
        self._first = True

    def step(self) -> Delta:
        token = next(self._tokens, None)
        last = self._left <= 1
        text = ""
        logprobs: list[TokenLogprob] = []
        if self._first and self._request.echo:
            text = decode(self._prompt_ids)
            if self._request.sampling.logprobs is not None:
                logprobs.extend(self._prompt_logprobs())
        if token is not None:
            self.num_tokens += 1
            self._left -= 1
            piece = self._decoder.decode(bytes([token]), last)
            if self._request.sampling.logprobs is not None:
                logprobs.append(self._entry(token, self._offset, self._logprob))
            self._offset += len(piece)
            text += piece
        delta = Delta(
            index=self._index,
            text=text,
            token_ids=() if token is None else (token,),
            reasoning=self._reasoning if self._first else "",
            tool_calls=self._tool_calls if self._first else (),
            logprobs=tuple(logprobs) if self._request.sampling.logprobs is not None else None,
            finish_reason=self._finish if last else None,
            stop_reason=self._stop if last else None,
            prompt_token_ids=self._prompt_ids if self._first and self._index == 0 else None,
        )
        self._first = False
        return delta

    def _prompt_logprobs(self) -> Iterator[TokenLogprob]:
        offset = 0
        for place, token in enumerate(self._prompt_ids):
            yield self._entry(token, offset, None if place == 0 else self._logprob)
            offset += len(token_text(token))

    def _entry(self, token: int, offset: int, logprob: float | None) -> TokenLogprob:
        num_top = self._request.sampling.logprobs or 0
        top: tuple[tuple[int, str, float, bytes], ...] = ()
        if logprob is not None:
            ids = [(token + step) % 256 for step in range(num_top)]
            top = tuple((other, token_text(other), logprob - step, bytes([other])) for step, other in enumerate(ids))
        return TokenLogprob(token, token_text(token), logprob, token_bytes(token), top, offset)


def _cut(answer: str, request: GenerateRequest) -> tuple[str, str | None]:
    """The answer up to the earliest stop string, and that string."""
    found = [(place, stop) for stop in request.sampling.stop if (place := answer.find(stop)) >= 0]
    if not found:
        return answer, None
    place, stop = min(found)
    return answer[: place + (len(stop) if request.sampling.include_stop_str_in_output else 0)], stop


def _forced_calls(request: GenerateRequest) -> tuple[ToolCallDelta, ...]:
    """The call that `tool_choice` demands: of the named tool, or of the first."""
    choice = request.tool_choice
    if not isinstance(request.prompt, ChatPrompt) or not request.prompt.tools or choice in (None, "none", "auto"):
        return ()
    name = request.prompt.tools[0]["function"]["name"]
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = choice["function"]["name"]
    # In fragments, as an engine that parses text would send them.
    return (ToolCallDelta(0, f"call_{request.request_id}", name, "{"), ToolCallDelta(0, None, None, "}"))


def _check_grammar(grammar: Grammar) -> None:
    if grammar.kind == "regex":
        try:
            re.compile(grammar.source)
        except re.error as error:
            raise InvalidRequestError(
                f"structured_outputs.regex: {error}.", param="structured_outputs.regex"
            ) from error
    if grammar.kind == "json_schema":
        kind = json.loads(grammar.source).get("type", "object")
        if kind not in ("object", "array", "string", "number", "integer", "boolean", "null"):
            raise InvalidRequestError(f"response_format: there is no JSON type {kind!r}.", param="response_format")
