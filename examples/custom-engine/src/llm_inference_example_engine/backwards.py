"""`engine: backwards`: says the prompt's last text from its end to its beginning, a token for each character."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from llm_inference.adapters.emulation import fan_out, until_stop
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities, EngineStats, Health
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, ModelInfo, Prompt, Usage
from llm_inference.errors import ConfigError, ContextLengthError, NotReadyError

#: Fields that are not named here are refused: a request that asks for one is a 400 that says so.
CAPABILITIES = Capabilities(
    fields={"n": "emulated", "include_stop_str_in_output": "emulated"},
    reasons={"seed": "nothing here is left to chance", "logprobs": "there is no model that knows them"},
)


class BackwardsEngine:
    """Five methods and two properties; `stats` is an optional power."""

    def __init__(self, name: str, max_model_len: int, pace_s: float) -> None:
        self.capabilities = CAPABILITIES
        self.info = ModelInfo(
            name=name, max_model_len=max_model_len, engine="backwards", created=int(time.time()), vocab_size=0x110000
        )
        self._pace_s = pace_s
        self._started = False
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        self._started = True

    async def stop(self, grace_s: float) -> None:
        self._started = False
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)

    async def health(self) -> Health:
        if not self._started:
            return Health(live=True, ready=False, reason="not started")
        return Health(live=True, ready=True)

    def stats(self) -> EngineStats:
        return EngineStats(num_running=self._num_running)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if not self._started:
            raise NotReadyError("the engine is not started; try again shortly", retry_after_s=1.0)
        deltas = fan_out(self._generate_one, request) if request.sampling.n > 1 else self._generate_one(request)
        async with aclosing(deltas):  # whoever closes us closes what we read from
            async for delta in deltas:
                yield delta

    def _generate_one(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        sampling = request.sampling
        if not sampling.stop:
            return self._speak(request)
        return until_stop(self._speak(request), sampling.stop, 1, include=sampling.include_stop_str_in_output)

    async def _speak(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        text = _text(request.prompt)
        limit = self._room(request, len(text))
        output = text[::-1][:limit]
        self._num_running += 1
        self._idle.clear()
        try:
            for place, character in enumerate(output, 1):
                await asyncio.sleep(self._pace_s)
                yield Delta(text=character, token_ids=(ord(character),), usage=Usage(len(text), place))
            cut = len(text) > limit or len(output) == request.sampling.max_tokens
            yield Delta(finish_reason="length" if cut else "stop", usage=Usage(len(text), len(output)))
        finally:  # also when the client has left: the generator is closed, and nothing runs on
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

    def _room(self, request: GenerateRequest, num_prompt: int) -> int:
        """Tokens that the answer may have. Raises `ContextLengthError` when prompt and answer do not fit."""
        context, wanted = self.info.max_model_len, request.sampling.max_tokens
        if num_prompt + (wanted or 1) > context:
            raise ContextLengthError(
                f"The prompt has {num_prompt} tokens and the answer may have {wanted or 1}; the context of "
                f"{self.info.name!r} is {context} tokens. Shorten one of them.",
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
            )
        return wanted if wanted is not None else context - num_prompt


def create(model: ModelConfig, context: EngineContext) -> BackwardsEngine:
    """What the entry point names: checks the configuration, plans, starts nothing."""
    pace_s = model.engine_args.get("pace_s", 0.001)
    if isinstance(pace_s, bool) or not isinstance(pace_s, (int, float)) or pace_s < 0:
        raise ConfigError(f"engine_args.pace_s: must be seconds of at least 0, not {pace_s!r}")
    return BackwardsEngine(model.name, model.max_model_len or 4096, float(pace_s))


def _text(prompt: Prompt) -> str:
    """What is to be said backwards: the last message, the text, or the characters that token ids are."""
    if isinstance(prompt, ChatPrompt):
        return str(prompt.messages[-1].get("content") or "")
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))
