"""Engines that answer "prompt in, text out" over HTTP, as an `Engine`: everything that is the same for all of them.

    GenerateRequest ─► PromptSide (thread) ─► one call for each choice ─► Backend ─► Reader ─► Answer ─► Delta, …

Done here, around the engine: chat templates and token counts with our tokenizer, `n` by as many calls (a seed counts
up), stop strings with hold-back, tool calls and reasoning read out of the text, the prompt taken off the output,
aborting by closing the connection. What an engine's protocol looks like is its `Dialect`'s business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import msgspec

from llm_inference.adapters.backend import Backend
from llm_inference.adapters.dialect import Call, Dialect, refuse
from llm_inference.adapters.emulation import seed_of
from llm_inference.adapters.generate_choice import Answer, Piece
from llm_inference.adapters.generate_prompt import PreparedPrompt, PromptSide
from llm_inference.adapters.merging import merged
from llm_inference.engine.base import Capabilities, EngineStats, Health
from llm_inference.engine.in_flight import InFlight
from llm_inference.engine.types import (
    ChatPrompt,
    Delta,
    GenerateRequest,
    GenerationDefaults,
    ModelInfo,
    Prompt,
    SamplingParams,
    TokenizeResult,
)
from llm_inference.errors import ConfigError, EngineError, InvalidRequestError, NotReadyError

logger = logging.getLogger(__name__)

_READY_TIMEOUT_S = 600.0
_POLL_S = 1.0


class GenerateAPIEngine:
    """One model behind one URL. `model` is the name that the server knows; `stream=False`: whole replies only."""

    def __init__(
        self,
        dialect: Dialect,
        backend: Backend,
        info: ModelInfo,
        *,
        model: str,
        prompts: PromptSide | None,
        defaults: GenerationDefaults | None = None,
        stream: bool = True,
        limit_is_configured: bool = False,
        poll_s: float = _POLL_S,
        ready_timeout_s: float = _READY_TIMEOUT_S,
    ) -> None:
        assert prompts is not None or not dialect.needs_tokenizer
        self._dialect = dialect
        self._backend = backend
        self._info = info
        self._model = model
        self._prompts = prompts
        self._defaults = defaults or GenerationDefaults()
        self._stream = stream and dialect.streams
        self._limit_is_configured = limit_is_configured
        self._poll_s = poll_s
        self._ready_timeout_s = ready_timeout_s
        self._in_flight = InFlight()

    @property
    def capabilities(self) -> Capabilities:
        table = self._dialect.capabilities
        return table if self._prompts is not None else msgspec.structs.replace(table, tokenize=False)

    @property
    def info(self) -> ModelInfo:
        return self._info

    def stats(self) -> EngineStats:
        return EngineStats(num_running=self._in_flight.num, known=("num_running",), per_process=True)

    async def start(self) -> None:
        """Waits while the server loads. Raises `ConfigError` when nobody answers, or the server says other limits."""
        await self._backend.open()
        try:
            await self._wait_until_ready()
            facts = await self._dialect.probe(self._backend, self._model)
        except NotReadyError as error:
            raise ConfigError(f"url: {error.detail or error.message}") from error
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            message = (
                f"what the server at {self._backend.url} says of itself has no known form; is it {self._dialect.name}?"
            )
            raise ConfigError(f"url: {message}") from error
        limit = facts.max_model_len
        if limit is None:
            if not self._info.max_model_len:
                raise ConfigError(f"max_model_len: the server at {self._backend.url} does not say it; set it")
            return
        if self._limit_is_configured and self._info.max_model_len > limit:
            raise ConfigError(
                f"max_model_len is {self._info.max_model_len}, but the server at {self._backend.url} takes prompt and "
                f"answer of at most {limit} tokens; set it to {limit} or less, or start the server with more"
            )
        if not self._limit_is_configured:
            self._info = msgspec.structs.replace(self._info, max_model_len=limit)

    async def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while not (health := await self._ask()).ready:
            if time.monotonic() > deadline:
                raise ConfigError(f"url: the server at {self._backend.url} did not become ready: {health.reason}")
            logger.info("waiting for %s: %s", self._backend.url, health.reason)
            await asyncio.sleep(self._poll_s)

    async def health(self) -> Health:
        try:
            return await self._ask()
        except NotReadyError as error:
            return Health(live=True, ready=False, reason=error.message)

    async def _ask(self) -> Health:
        status, _ = await self._backend.get(self._dialect.health_path)
        if self._dialect.is_ready(status):
            return Health(live=True, ready=True)
        return Health(live=True, ready=False, reason=f"{self._dialect.health_path} answers with status {status}")

    async def stop(self, grace_s: float) -> None:
        await self._in_flight.drained(grace_s)
        await self._backend.close()

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        side = self._require_tokenizer("prompt")

        def work() -> TokenizeResult:
            ids = side.encode(prompt, add_special_tokens=add_special_tokens) if prompt != "" else ()
            return TokenizeResult(ids, tuple(map(side.tokenizer.token_text, ids)), self._info.max_model_len)

        return await asyncio.to_thread(work)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        side = self._require_tokenizer("tokens")
        side.check_ids(token_ids, "tokens")
        return side.tokenizer.decode(token_ids, skip_special_tokens=False)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if request.sampling.max_tokens == 0:
            raise refuse(self._dialect.name, "max_tokens", "it cannot score a prompt without generating; send 1")
        self._dialect.check(request)
        prompt = await self._prepare(request)
        if prompt is not None:
            request = self._read_as(request, prompt)
        sampling = self._resolve(request.sampling, prompt)
        answer = Answer(
            request,
            sampling,
            prompt,
            count=self._prompts.count if self._prompts is not None else None,
            strips_prompt=self._dialect.strips_prompt,
        )
        streams = [self._run(call, first, answer) for first, call in self._calls(request, sampling, prompt)]
        with self._in_flight:
            async with aclosing(merged(streams)) as deltas:
                async for delta in deltas:
                    yield delta

    async def _prepare(self, request: GenerateRequest) -> PreparedPrompt | None:
        """None: a chat for a server with a template of its own. Such a server may do without our tokenizer."""
        if isinstance(request.prompt, ChatPrompt) and not self._dialect.needs_tokenizer:
            return None
        if self._prompts is not None:
            return await asyncio.to_thread(self._prompts.prepare, request, self._info.max_model_len)
        if not isinstance(request.prompt, str):
            raise refuse(self._dialect.name, "prompt", "it takes text alone; set `tokenizer:` to decode token ids")
        if not request.prompt:
            raise InvalidRequestError("The prompt is empty; send some text.", param="prompt")
        return PreparedPrompt((), request.prompt, request.prompt, True, request.prompt)

    def _read_as(self, request: GenerateRequest, prompt: PreparedPrompt) -> GenerateRequest:
        """The request as the engine must be asked, so that tool calls can be read out of its text."""
        output, table = prompt.output, self._dialect.capabilities
        if output.grammar is not None:
            if table.support("tool_choice") == "refused":
                raise refuse(self._dialect.name, "tool_choice", table.reasons["tool_choice"])
            request = prompt.forced(request)
        if output.tool is not None and output.keeps_special_tokens:
            if table.support("skip_special_tokens") == "refused":
                why = "it leaves out the special tokens by which this model calls tools"
                raise refuse(self._dialect.name, "tools", why)
            sampling = msgspec.structs.replace(request.sampling, skip_special_tokens=False)
            request = msgspec.structs.replace(request, sampling=sampling)
        return request

    def _resolve(self, sampling: SamplingParams, prompt: PreparedPrompt | None) -> SamplingParams:
        """What nobody said is filled in: with the defaults that we know, then the API's, unless the server has own."""
        asked = sampling.max_tokens
        if self._dialect.own_defaults:
            known = {name: getattr(self._defaults, name) for name in self._defaults.__struct_fields__}
            unsaid = {name: value for name, value in known.items() if getattr(sampling, name) is None}
            sampling = msgspec.structs.replace(sampling, **unsaid)
        else:
            sampling = sampling.resolve(self._defaults)
        if prompt is not None and prompt.token_ids and asked is None:
            room = self._info.max_model_len - len(prompt.token_ids)
            limit = sampling.max_tokens
            sampling = msgspec.structs.replace(sampling, max_tokens=room if limit is None else min(limit, room))
        return sampling

    def _calls(
        self, request: GenerateRequest, sampling: SamplingParams, prompt: PreparedPrompt | None
    ) -> Iterable[tuple[int, Call]]:
        """(index of its first choice, call)."""
        together = self._dialect.choices_in_one_call(sampling)
        stream = self._stream and not together and not self._dialect.must_not_stream(request)
        # A stream is cut by us at the exact place; a whole reply would be paid for to its end.
        tell_stop = not stream and not sampling.include_stop_str_in_output and not sampling.min_tokens
        for index in range(1 if together else sampling.n):
            seed = sampling.seed if sampling.seed is None else seed_of(sampling.seed, index)
            yield (
                index,
                Call(
                    model=self._model,
                    request=request,
                    sampling=msgspec.structs.replace(sampling, seed=seed),
                    prompt=prompt,
                    max_model_len=self._info.max_model_len,
                    stream=stream,
                    num_choices=sampling.n if together else 1,
                    stop=sampling.stop if tell_stop else (),
                ),
            )

    async def _run(self, call: Call, first: int, answer: Answer) -> AsyncGenerator[Delta, None]:
        route, reader = self._dialect.route(call), self._dialect.reader(call)
        choices = answer.choices[first : first + call.num_choices]
        async with aclosing(self._backend.post(route.path, route.body, route.framing)) as values:
            async for value in values:
                try:
                    pieces = list(reader(value))
                except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
                    message = f"{self._dialect.name}: the engine's answer has no known form: {repr(value)[:200]}"
                    raise EngineError(message) from error
                for piece in pieces:
                    for delta in answer.feed(first + piece.index, piece):
                        yield delta
                if all(choice.finished for choice in choices):
                    return
        if not self._dialect.ends_with_body or not answer.has_opened(first):
            raise EngineError(f"{self._dialect.name}: the engine's answer ended before its end; send the request again")
        for delta in answer.feed(first, Piece(final=True)):
            yield delta

    def _require_tokenizer(self, field: str) -> PromptSide:
        if self._prompts is None:
            raise InvalidRequestError("no tokenizer is known for this model; set `tokenizer:` for it", param=field)
        return self._prompts
