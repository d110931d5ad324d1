"""An engine behind an OpenAI-compatible HTTP API, made to fulfil our contract.

    GenerateRequest ─► openai_body ─► upstream (HTTP) ─► openai_stream ─► emulation ─► Delta, Delta, …

The server is always asked to stream. Which fields it takes and how it spells them is its profile's business; what it
lacks is added by `emulation`. One server or several of the same model; remote, or started by `managed.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from llm_inference.adapters import emulation, engine_metrics
from llm_inference.adapters.dialect import GREEDY_BELOW
from llm_inference.adapters.openai_body import make_body, path_of, with_defaults
from llm_inference.adapters.openai_stream import StreamReading
from llm_inference.adapters.probe import Probe, probe
from llm_inference.adapters.profile import Profile
from llm_inference.adapters.upstream import Upstream
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
    Usage,
)
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError, LLMInferenceError
from llm_inference.text.chat import encode_chat
from llm_inference.text.parsers.tool_grammar import allowed_tools, forces_call
from llm_inference.text.parsing import PLAIN_TEXT, OutputFormat, forced_output, require_tools
from llm_inference.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

#: The context of a model whose server does not tell it: no context is as long. The server refuses what is too long.
UNKNOWN_MODEL_LEN = 2**24
#: Below the time that the gateway gives to all of a model's servers together.
HEALTH_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """One served model behind one or more addresses. `model` is its name there, `name` its name here."""

    name: str
    model: str
    urls: tuple[str, ...]
    api_key: str | None = None
    max_model_len: int | None = None  # None: what the server says
    max_num_seqs: int | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    engine: str = "openai"
    files_max_model_len: int | None = None  # what the model's files say, for a server that does not


class OpenAIEngine:
    """See the module. `tokenizer`: ours for this model, where it is at hand: it counts what the server does not.

    `recognise`: from the `owned_by` of the server's model list to a profile that fits better than `profile`, or None.
    """

    def __init__(
        self,
        settings: OpenAISettings,
        profile: Profile,
        tokenizer: Tokenizer | None = None,
        *,
        recognise: Callable[[str], Profile | None] = lambda owned_by: None,
    ) -> None:
        self._settings = settings
        self._recognise = recognise
        self._profile = profile
        self._capabilities = profile.capabilities  # asked for with every request, and a table each time
        self._has_defaults = settings.defaults != GenerationDefaults()
        self._tokenizer = tokenizer
        self._upstream = Upstream(
            settings.urls, name=settings.engine, api_prefix=profile.api_prefix, api_key=settings.api_key
        )
        self._max_model_len = settings.max_model_len
        self._created = int(time.time())
        self._info = self._make_info()  # asked for several times with every request
        self._in_flight = InFlight()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def profile(self) -> Profile:
        return self._profile

    @property
    def info(self) -> ModelInfo:
        return self._info

    def _make_info(self) -> ModelInfo:
        settings = self._settings
        return ModelInfo(
            name=settings.name,
            max_model_len=self._max_model_len or UNKNOWN_MODEL_LEN,
            engine=settings.engine,
            source=settings.model,
            created=self._created,
            vocab_size=self._tokenizer.vocab_size if self._tokenizer is not None else None,
            max_num_seqs=settings.max_num_seqs,
            max_batch_size=settings.max_num_seqs,
        )

    async def start(self) -> None:
        """Asks the servers what they serve. Raises `StartupError` if none answers or none has the model."""
        await self._upstream.open()
        try:
            found = await probe(self._upstream, self._settings.model, self._profile)
        except BaseException:
            await self._upstream.close()
            raise
        self._take(found)

    async def stop(self, grace_s: float) -> None:
        await self._in_flight.drained(grace_s)
        await self._upstream.close()

    async def health(self) -> Health:
        """Ready if one of the servers says so."""
        pool = self._upstream.pool
        urls = [self._upstream.root_url(endpoint, self._profile.health_path) for endpoint in pool.endpoints]
        asked = await asyncio.gather(*map(self._is_well, urls))
        return Health(live=True, ready=not all(asked), reason="; ".join(dict.fromkeys(asked)) if all(asked) else "")

    async def _is_well(self, url: str) -> str:
        """What is wrong with the server there; "" where nothing is."""
        try:
            reply = await self._upstream.ask(url, timeout_s=HEALTH_TIMEOUT_S)
        except LLMInferenceError as error:
            return error.message
        # A server without such a route, or with a guarded one, is there all the same.
        where = f"the engine {self._settings.engine!r}"
        return "" if reply.status < 500 else f"{where} answers {reply.status} to its health check"

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self._in_flight.num,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            known=("num_running", "prompt_tokens", "generation_tokens"),
            per_process=True,
        )

    async def own_stats(self) -> EngineStats | None:
        """By the servers' own /metrics, where their engine has one that we can read and all of them answer."""
        if self._profile.name not in engine_metrics.NAMES:
            return None
        upstream = self._upstream
        urls = [upstream.root_url(endpoint, engine_metrics.PATH) for endpoint in upstream.pool.endpoints]
        replies = [await upstream.ask(url, timeout_s=1.0) for url in urls]
        if any(reply.status != 200 for reply in replies):
            return None
        return engine_metrics.read(self._profile.name, [str(reply.body) for reply in replies])

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        """By the server's own tokenizer. Raises `InvalidRequestError` where its profile has none."""
        if not self._profile.tokenize:
            raise InvalidRequestError(
                f"The engine {self._settings.engine!r} shows no tokenizer.", param="model", code="unsupported_operation"
            )
        body: dict[str, object] = {"model": self._settings.model, "return_token_strs": True}
        if isinstance(prompt, ChatPrompt):
            body |= {"messages": prompt.messages, "add_generation_prompt": prompt.add_generation_prompt}
            body |= {"continue_final_message": True} if prompt.continue_final_message else {}
            body |= {"tools": prompt.tools} if prompt.tools else {}
            body |= {"chat_template_kwargs": prompt.template_kwargs} if prompt.template_kwargs else {}
        elif isinstance(prompt, tuple):
            return TokenizeResult(prompt, (), self.info.max_model_len)
        else:
            body |= {"prompt": prompt, "add_special_tokens": add_special_tokens}
        reply = await self._upstream.call("/tokenize", body)
        if not isinstance(reply, dict) or not isinstance(reply.get("tokens"), list):
            raise EngineError(f"the engine {self._settings.engine!r} answers /tokenize without `tokens`.")
        texts = tuple(reply.get("token_strs") or ())
        return TokenizeResult(tuple(reply["tokens"]), texts, reply.get("max_model_len") or self.info.max_model_len)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        reply = await self._upstream.call("/detokenize", {"model": self._settings.model, "tokens": list(token_ids)})
        return str(reply.get("prompt", "")) if isinstance(reply, dict) else str(reply)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        sampling = request.sampling
        if self._has_defaults:
            sampling = with_defaults(sampling, self._settings.defaults)
            request = msgspec.structs.replace(request, sampling=sampling)
        usage: Usage | None = None
        with self._in_flight:
            deltas = await self._answer(request) if not self._alone(sampling) else self._one_by_one(request)
            try:
                async for delta in deltas:
                    usage = delta.usage or usage
                    yield delta
            finally:
                await deltas.aclose()
                if usage is not None:
                    self._prompt_tokens += usage.prompt_tokens
                    self._generation_tokens += usage.completion_tokens

    def _alone(self, sampling: SamplingParams) -> bool:
        """Whether several choices are as many requests there."""
        if sampling.n == 1:
            return False
        greedy = sampling.temperature is not None and sampling.temperature < GREEDY_BELOW
        return self._profile.support("n") == "emulated" or (greedy and self._profile.one_greedy_choice)

    def _one_by_one(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        async def generate(one: GenerateRequest) -> AsyncGenerator[Delta, None]:
            async with aclosing(await self._answer(one)) as deltas:
                async for delta in deltas:
                    yield delta

        return emulation.fan_out(generate, request)

    async def _answer(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """One upstream call, not yet begun, and what is emulated around it."""
        profile, sampling = self._profile, request.sampling
        request = self._as_text(request)
        upstream_stops = profile.stop_strings and len(sampling.stop) <= (profile.max_stop_strings or len(sampling.stop))
        if sampling.include_stop_str_in_output and profile.support("include_stop_str_in_output") == "emulated":
            upstream_stops = False
        output = PLAIN_TEXT
        if isinstance(request.prompt, ChatPrompt):
            request, output = self._with_tools(request, request.prompt)
        body = make_body(
            request,
            profile,
            self._settings.model,
            max_tokens=await self._room(request),
            upstream_stops=upstream_stops,
        )
        deltas = self._read(request, body)
        if sampling.stop and not upstream_stops:
            include = sampling.include_stop_str_in_output
            deltas = emulation.until_stop(deltas, sampling.stop, sampling.n, include=include)
        if self._tokenizer is not None:
            deltas = emulation.with_usage(deltas, sampling.n, lambda texts: self._count(request, texts))
        if output is not PLAIN_TEXT:
            deltas = emulation.with_calls(deltas, sampling.n, output)
        return deltas

    async def _read(self, request: GenerateRequest, body: dict[str, object]) -> AsyncGenerator[Delta, None]:
        where = f"the engine {self._settings.engine!r}"
        reading = StreamReading(request.sampling.n, where=where, cumulative_text=self._profile.cumulative_text)
        events = self._upstream.stream(
            path_of(request),
            body,
            request_id=request.request_id,
            keep_alive=self._profile.keep_alive,
            context=request.trace_context,
        )
        try:
            async for together in events:
                for event in together:
                    for delta in reading.take_event(event):
                        yield delta
        except EngineError:
            if not reading.finished:  # what breaks after the last choice's end has cost nothing but the usage
                raise
        finally:
            await events.aclose()
        for delta in reading.end():
            yield delta

    def _with_tools(self, request: GenerateRequest, prompt: ChatPrompt) -> tuple[GenerateRequest, OutputFormat]:
        """The request as this server takes it, and how its answer is to be read where it forces no call by itself.

        Raises `InvalidRequestError` for tools that would not reach the model.
        """
        if not prompt.tools or self._profile.support("tools") == "refused":
            return request, PLAIN_TEXT
        emulated = self._profile.support("tool_choice") == "emulated"
        if emulated:
            tools = allowed_tools(prompt.tools, request.tool_choice)
            prompt = msgspec.structs.replace(prompt, tools=tuple(dict(tool) for tool in tools))
            output = forced_output(request, prompt)
            if output is not None:
                sampling = msgspec.structs.replace(request.sampling, grammar=output.grammar)
                request = msgspec.structs.replace(request, prompt=prompt, sampling=sampling, tool_choice="none")
                return request, output
            choice = request.tool_choice if request.tool_choice in (None, "none") else "auto"
            request = msgspec.structs.replace(request, prompt=prompt, tool_choice=choice)
        template = self._tokenizer.chat_template if self._tokenizer is not None else None
        if template is not None and prompt.tools and not forces_call(request.tool_choice):
            require_tools(template.tool_source or template.source)
        return request, PLAIN_TEXT

    def _as_text(self, request: GenerateRequest) -> GenerateRequest:
        """Token ids as text for a server that takes text alone."""
        if not isinstance(request.prompt, tuple) or self._profile.token_prompts:
            return request
        if self._tokenizer is None:
            raise InvalidRequestError(
                f"prompt: the engine {self._settings.engine!r} takes text, not token ids; send text, or set "
                "`tokenizer` of this model to the directory of its tokenizer.",
                param="prompt",
            )
        text = self._tokenizer.decode(request.prompt, skip_special_tokens=False)
        return msgspec.structs.replace(request, prompt=text, add_special_tokens=True)

    async def _room(self, request: GenerateRequest) -> int | None:
        """The rest of the context, for a server that stops at a few tokens when no number is sent.

        Raises `ContextLengthError` where the server itself would not mind that the prompt is too long.
        """
        cuts = self._profile.cuts_max_tokens and request.sampling.max_tokens is not None
        if cuts or self._profile.completion_length == "always":
            return await self._rest_of_context(request)
        if (
            request.sampling.max_tokens is not None
            or isinstance(request.prompt, ChatPrompt)
            or self._profile.completion_length != "number"
        ):
            return None
        num_tokens = None
        if isinstance(request.prompt, tuple):
            num_tokens = len(request.prompt)
        elif self._tokenizer is not None:
            num_tokens = len(self._tokenizer.encode(request.prompt))
        elif self._profile.tokenize and self._max_model_len is not None:
            num_tokens = len((await self.tokenize(request.prompt)).token_ids)
        if num_tokens is None or self._max_model_len is None:
            raise InvalidRequestError(
                f"max_tokens: the engine {self._settings.engine!r} would stop after 16 tokens without it; send it.",
                param="max_tokens",
            )
        return max(self._max_model_len - num_tokens, 1)

    async def _rest_of_context(self, request: GenerateRequest) -> int | None:
        if self._tokenizer is None or self._max_model_len is None:
            return None
        counted = await self._count(request, ())
        if counted is None:
            return None
        wanted = request.sampling.max_tokens
        if counted.prompt_tokens + (wanted or 1) > self._max_model_len:
            raise ContextLengthError(
                f"The prompt has {counted.prompt_tokens} tokens{f' and max_tokens is {wanted}' if wanted else ''}; the "
                f"context of this model is {self._max_model_len} tokens. Shorten the prompt or max_tokens.",
                param="max_tokens" if wanted and counted.prompt_tokens < self._max_model_len else None,
            )
        return self._max_model_len - counted.prompt_tokens

    async def _count(self, request: GenerateRequest, texts: Sequence[str]) -> Usage | None:
        """By our tokenizer, off the event loop. A chat needs its template, too."""
        tokenizer, prompt = self._tokenizer, request.prompt
        assert tokenizer is not None
        if isinstance(prompt, ChatPrompt) and tokenizer.chat_template is None:
            return None

        def work() -> Usage:
            if isinstance(prompt, ChatPrompt):
                num_prompt = len(encode_chat(tokenizer, prompt))
            else:
                ids = prompt if isinstance(prompt, tuple) else tokenizer.encode(prompt, request.add_special_tokens)
                num_prompt = len(ids)
            return Usage(num_prompt, sum(len(tokenizer.encode(text, False)) for text in texts))

        return await asyncio.get_running_loop().run_in_executor(None, work)

    def _take(self, found: Probe) -> None:
        settings = self._settings
        self._max_model_len = settings.max_model_len or found.max_model_len or settings.files_max_model_len
        if self._max_model_len is None:
            logger.warning("the server of %s does not say how long its context is; set max_model_len", settings.model)
        recognised = self._recognise(found.owned_by) if found.owned_by is not None else None
        if recognised is not None:
            self._profile = recognised
            self._capabilities = recognised.capabilities
        self._info = self._make_info()
