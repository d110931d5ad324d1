"""One replica: an engine inside a Ray actor, started and stopped with it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import msgspec

from llm_inference.adapters.ray.fragments import Description, Failure, Fragment
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Embeds, Tokenizes
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.engine.types import Delta, EmbedRequest, GenerateRequest, Prompt
from llm_inference.errors import EngineError

_STOP_GRACE_S = 1.0


class EngineReplica:
    """Ray Serve makes it, asks it for its health, and drains it before it goes. All payloads are msgpack."""

    async def __init__(self, model: str, log_level: str) -> None:  # type: ignore[misc]  # Serve awaits it
        """`model`: a `ModelConfig` as JSON. Raises `StartupError`, which Serve reports."""
        config = ModelConfig.model_validate_json(model)
        self._run_dir = Path(tempfile.mkdtemp(prefix="llm-inference-replica-"))
        self._encoder = msgspec.msgpack.Encoder()
        context = EngineContext(run_dir=self._run_dir, progress=False, log_level=log_level, log_format="json")
        try:
            self._engine = await asyncio.to_thread(engine_factory(config.engine), config, context)
            await self._engine.start()
        except BaseException:
            shutil.rmtree(self._run_dir, ignore_errors=True)
            raise

    async def describe(self) -> bytes:
        return self._encoder.encode(Description(self._engine.capabilities, self._engine.info))

    async def generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """`Fragment`s of a `GenerateRequest`. What came while the last one was on its way goes out as one."""
        request = msgspec.msgpack.decode(payload, type=GenerateRequest)
        waiting: list[Delta] = []
        news = asyncio.Event()
        pump = asyncio.create_task(self._pump(request, waiting, news))
        try:
            while not pump.done():
                await news.wait()
                news.clear()
                if waiting:
                    deltas = tuple(waiting)
                    waiting.clear()
                    yield self._encoder.encode(Fragment(deltas))
                else:
                    await asyncio.sleep(0)  # the pump has said its last word and is about to be done
            error = pump.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            failure = None if error is None else Failure.of(error)
            if waiting or failure is not None:
                yield self._encoder.encode(Fragment(tuple(waiting), failure))
        finally:
            pump.cancel()  # closes the engine's generator, which frees the work
            await asyncio.wait({pump})

    async def _pump(self, request: GenerateRequest, waiting: list[Delta], news: asyncio.Event) -> None:
        try:
            async with contextlib.aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    waiting.append(delta)
                    news.set()
        finally:
            news.set()

    async def embed(self, payload: bytes) -> bytes:
        """`[EmbedResult, null]` or `[null, Failure]`, as the two below."""
        request = msgspec.msgpack.decode(payload, type=EmbedRequest)
        assert isinstance(self._engine, Embeds)  # else the gateway does not ask
        return await self._reply(self._engine.embed(request))

    async def tokenize(self, payload: bytes, add_special_tokens: bool) -> bytes:
        prompt = msgspec.msgpack.decode(payload, type=Prompt)  # type: ignore[arg-type, unused-ignore]  # a union
        assert isinstance(self._engine, Tokenizes)
        return await self._reply(self._engine.tokenize(prompt, add_special_tokens=add_special_tokens))

    async def detokenize(self, token_ids: list[int]) -> bytes:
        assert isinstance(self._engine, Tokenizes)
        return await self._reply(self._engine.detokenize(tuple(token_ids)))

    async def _reply(self, work: Awaitable[Any]) -> bytes:
        try:
            return self._encoder.encode((await work, None))
        except Exception as exc:
            return self._encoder.encode((None, Failure.of(exc)))

    async def check_health(self) -> None:
        """Serve replaces a replica for which this raises."""
        health = await self._engine.health()
        if not (health.live and health.progressing):
            raise EngineError(f"the engine of this replica is not well: {health.reason}")

    async def __del__(self) -> None:  # Serve awaits it, after the replica has been drained
        await self._engine.stop(_STOP_GRACE_S)
        shutil.rmtree(self._run_dir, ignore_errors=True)
