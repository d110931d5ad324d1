"""A model in a Ray cluster as the `Engine` that the gateway sees."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from llm_inference.adapters.ray.deployment import attach, connect, deploy, find, remove
from llm_inference.adapters.ray.fragments import Description, Failure, Fragment
from llm_inference.adapters.ray.options import app_name
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities, EngineStats, Health
from llm_inference.engine.in_flight import InFlight
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import (
    Delta,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    ModelInfo,
    Prompt,
    TokenizeResult,
)
from llm_inference.errors import EngineError, LLMInferenceError, NotReadyError, OverloadedError

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 2.0
#: A cluster that fetches images and models for its first replicas takes its time.
_ATTACH_TIMEOUT_S = 1800.0
#: The cluster's state costs a call to its controller: probes that come faster see the last answer.
_STATUS_LASTS_S = 1.0

_T = TypeVar("_T")


class RayEngine:
    """Has `Tokenizes` and `Embeds` whatever the engine; `capabilities` say whether they may be asked."""

    def __init__(self, model: ModelConfig, context: EngineContext) -> None:
        self._config = model.ray
        self._model = model
        self._context = context
        self._name = app_name(model)
        self._handle: DeploymentHandle | None = None
        self._described: Description | None = None
        self._in_flight = InFlight()
        self._health = Health(live=False, ready=False, reason="not started")
        self._health_at = 0.0
        self._asking: asyncio.Task[Health] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._fragments = msgspec.msgpack.Decoder(Fragment)

    @property
    def capabilities(self) -> Capabilities:
        return self._description.capabilities

    @property
    def info(self) -> ModelInfo:
        return self._description.info

    @property
    def _description(self) -> Description:
        assert self._described is not None, "start() comes first"
        return self._described

    @property
    def _replicas(self) -> DeploymentHandle:
        assert self._handle is not None, "start() comes first"
        return self._handle

    async def start(self) -> None:
        """Raises `StartupError` when the cluster or a replica cannot be had."""
        if self._config.attach:
            timeout_s = _ATTACH_TIMEOUT_S
            self._handle = await asyncio.to_thread(attach, self._config.address, self._model, timeout_s)
        elif self._context.owns_core:
            await asyncio.to_thread(connect, self._config.address)
            self._handle = await asyncio.to_thread(deploy, self._model, self._context.log_level)
        else:  # the parent of the gateway's workers has deployed it, maybe into a cluster that it began
            await asyncio.to_thread(connect, self._config.address or "auto")
            self._handle = await asyncio.to_thread(find, self._model)
        self._described = msgspec.msgpack.decode(await self._replicas.describe.remote(), type=Description)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As `Engine.generate`. A replica that dies before its first token is replaced by another, once."""
        payload = self._encoder.encode(request)
        begun = False
        with self._in_flight:
            for is_last in (False, True):
                try:
                    async with contextlib.aclosing(self._fragments_of(payload)) as fragments:
                        async for fragment in fragments:
                            for delta in fragment.deltas:
                                begun = True
                                yield delta
                            if fragment.failure is not None:
                                raise fragment.failure.as_error()
                    return
                except (BackPressureError, RayError, DeploymentUnavailableError) as exc:
                    if begun or is_last or isinstance(exc, BackPressureError):
                        raise _translated(exc) from exc
                    logger.warning("request %s goes to another replica: %s", request.request_id, _brief(exc))

    async def _fragments_of(self, payload: bytes) -> AsyncGenerator[Fragment, None]:
        response: DeploymentResponseGenerator = self._replicas.options(stream=True).generate.remote(payload)
        ended = False
        try:
            async for part in response:
                yield self._fragments.decode(part)
            ended = True
        finally:
            if not ended:
                response.cancel()

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        return await self._ask("embed", EmbedResult, self._encoder.encode(request))

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        return await self._ask("tokenize", TokenizeResult, self._encoder.encode(prompt), add_special_tokens)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        return await self._ask("detokenize", str, list(token_ids))

    async def _ask(self, method: str, kind: type[_T], *args: Any) -> _T:
        response = getattr(self._replicas, method).remote(*args)
        try:
            reply = await response
        except (BackPressureError, RayError, DeploymentUnavailableError) as exc:
            raise _translated(exc) from exc
        except asyncio.CancelledError:
            response.cancel()
            raise
        result: _T | None
        result, failure = msgspec.msgpack.decode(reply, type=tuple[kind | None, Failure | None])  # type: ignore[valid-type]
        if failure is not None:
            raise failure.as_error()
        assert result is not None
        return result

    def stats(self) -> EngineStats:
        """The requests of this gateway; what the engines of the replicas do is theirs to export."""
        return EngineStats(num_running=self._in_flight.num, known=("num_running",), per_process=True)

    async def health(self) -> Health:
        if self._asking is None:
            if time.monotonic() - self._health_at <= _STATUS_LASTS_S:
                return self._health
            # One at a time: a controller that hangs holds one thread, however often somebody probes.
            self._asking = asyncio.create_task(asyncio.to_thread(self._ask_controller))
            self._asking.add_done_callback(self._on_answer)
        return await asyncio.shield(self._asking)

    def _on_answer(self, asking: asyncio.Task[Health]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            self._health, self._health_at = asking.result(), time.monotonic()

    def _ask_controller(self) -> Health:
        try:
            app = serve.status().applications.get(self._name)
        except (RayError, RuntimeError) as exc:
            return Health(live=False, ready=False, reason=f"the Ray cluster does not answer: {_brief(exc)}")
        if app is None:
            return Health(live=False, ready=False, reason=f"the application {self._name!r} is not in the Ray cluster")
        states: dict[str, int] = {}
        for deployment in app.deployments.values():
            states |= {str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()}
        ready = states.get("RUNNING", 0) > 0
        reason = "" if ready else f"no replica runs: {states or app.message or 'none'}"
        return Health(live=True, ready=ready, reason=reason)

    async def stop(self, grace_s: float) -> None:
        """Wait for this gateway's own requests; then the replicas go, unless `ray.keep` or `ray.attach` is set."""
        await self._in_flight.drained(grace_s)
        leave = self._config.keep or self._config.attach
        if self._handle is not None and self._context.owns_core and not leave:
            with contextlib.suppress(RayError, RuntimeError):
                await asyncio.to_thread(remove, self._name)


def _translated(exc: Exception) -> LLMInferenceError:
    if isinstance(exc, BackPressureError):
        return OverloadedError(
            "all replicas are busy and their queue is full (ray_replica.max_queued_requests); retry later.",
            retry_after_s=_RETRY_AFTER_S,
        )
    if isinstance(exc, DeploymentUnavailableError):
        return NotReadyError("no replica is in service; retry later.", retry_after_s=_RETRY_AFTER_S)
    return EngineError(f"the replica that answered is gone: {_brief(exc)}")


def _brief(exc: Exception) -> str:
    """Ray's errors are pages; their first line says it."""
    return next(iter(str(exc).strip().splitlines()), type(exc).__name__)
