"""An engine that may be away for a while: one face for requests, behind which it is loaded, unloaded and replaced.

    unloaded ──load──► loading ──► loaded ──drain──► draining ──unload──► unloaded
       ▲                  │           ▲                 │
       └──── it failed ───┘           └───── load ──────┘

Who loads and unloads is somebody else (its keeper), told by `wake` that a request needs it. Here requests wait for
that, at most `max_wait_s`, and are counted, so that nothing is taken away from under them. One event loop, no locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Literal, cast

from llm_inference.engine.base import Capabilities, Embeds, Engine, EngineStats, Health, ReportsStats, Tokenizes
from llm_inference.engine.in_flight import InFlight
from llm_inference.engine.types import (
    Delta,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    ModelInfo,
    Prompt,
    TokenizeResult,
)
from llm_inference.errors import NotReadyError

HeldState = Literal["unloaded", "loading", "loaded", "draining"]
#: What clients who come in vain should wait, where nothing better is known.
RETRY_AFTER_S = 5.0


class Held:
    """Make it with `hold`, which adds the optional powers that the engine has.

    `wake` is awaited when a request needs an engine that is not loaded: it returns when `open` was called, or raises
    `NotReadyError`. None: a request does not bring it back.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        state: HeldState = "loaded",
        wake: Callable[[], Awaitable[None]] | None = None,
        max_wait_s: float = 120.0,
    ) -> None:
        self._engine = engine
        self._state: HeldState = state
        self._reason = ""
        self._barred = False
        self._wake = wake
        self._waking: asyncio.Future[None] | None = None
        self._max_wait_s = max_wait_s
        self._changed = asyncio.Event()
        self._using = InFlight()
        self._num_waiting = 0
        self._last_used = self._since = time.monotonic()
        self.num_requests = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def info(self) -> ModelInfo:
        """As of the last plan, also while it is not loaded."""
        return self._engine.info

    # --- what routing and operators see

    @property
    def engine(self) -> Engine:
        """What is behind it now, loaded or not."""
        return self._engine

    @property
    def state(self) -> HeldState:
        return self._state

    @property
    def lazy(self) -> bool:
        """A request brings it back."""
        return self._wake is not None

    @property
    def takes(self) -> bool:
        """A request would be answered, perhaps after a wait."""
        return self._state == "loaded" or (self._wake is not None and not self._barred)

    @property
    def in_flight(self) -> int:
        return self._using.num

    @property
    def idle_s(self) -> float:
        """Since the last request was over; 0 while one runs."""
        return 0.0 if self._using.num else time.monotonic() - self._last_used

    # --- for its keeper

    def mark(self, state: HeldState, reason: str = "", *, barred: bool = False) -> None:
        """It is not for requests now. `barred`: an operator's word, no request brings it back."""
        self._state, self._reason, self._barred = state, reason, barred
        self._since = time.monotonic()
        self._change()

    def open(self, engine: Engine) -> None:
        """`engine` is started: from now on it has the requests."""
        self._engine = engine
        self._state, self._reason, self._barred = "loaded", "", False
        self._since = self._last_used = time.monotonic()
        self._change()

    def lazy_by(self, wake: Callable[[], Awaitable[None]] | None) -> None:
        """Another `wake`, or none any more."""
        self._wake = wake

    def shut_if_idle(self, for_s: float) -> bool:
        """Let nobody in any more, if nothing runs and nothing has for `for_s` seconds. False: it is as it was."""
        # Who waited for it has it first: two models that share the memory would push each other out for ever.
        if self._state == "loaded" and (self._using.num or self._num_waiting or self.idle_s < for_s):
            return False
        if self._state == "loaded":
            self.mark("draining", "it is being unloaded")
        return True

    async def drained(self, within_s: float) -> bool:
        """Wait for what runs. False: something still does."""
        return await self._using.drained(within_s)

    # --- the contract

    async def start(self) -> None:
        """Nothing: its keeper starts it."""

    async def stop(self, grace_s: float) -> None:
        """Nothing: its keeper stops it."""

    async def health(self) -> Health:
        if self._state == "loaded":
            return await self._engine.health()
        waits = self.takes and not self._reason
        reason = self._reason or self._what()
        return Health(live=True, ready=waits, reason=reason)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Like `Engine.generate`. Raises `NotReadyError` where it is not loaded and does not come in time."""
        await self._entered()
        with self._counted():
            async with aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    yield delta

    # --- inside

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.num_requests += 1
        with self._using:
            try:
                yield
            finally:
                self._last_used = time.monotonic()

    async def _entered(self) -> None:
        """Return when it is loaded; the caller counts itself at once. Raises `NotReadyError`."""
        deadline = time.monotonic() + self._max_wait_s
        self._num_waiting += 1
        try:
            while self._state != "loaded":
                await self._awake(deadline - time.monotonic())
        finally:
            self._num_waiting -= 1

    async def _awake(self, within_s: float) -> None:
        """Wait until it may be loaded; the caller looks. Raises `NotReadyError`."""
        if not self.takes and self._state != "loading":
            raise NotReadyError(
                f"The model {self.info.name!r} is not served now: {self._reason or self._what()}; retry later.",
                code="model_unavailable",
                retry_after_s=RETRY_AFTER_S,
            )
        # Other gateway processes may need longer to attach to it: what counts is that it is open here.
        changed = asyncio.ensure_future(self._changed.wait())
        waiting: set[asyncio.Future[Any]] = {changed}
        if self._wake is not None:
            if self._waking is None or self._waking.done():
                # One for all who wait; it goes on when they leave, for those who come after.
                self._waking = asyncio.ensure_future(self._wake())
                self._waking.add_done_callback(_heard)
            waiting.add(self._waking)
        try:
            done, _ = await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if not done:
            raise NotReadyError(
                f"The model {self.info.name!r} is still {self._state} after {self._max_wait_s:g} s "
                "(loading.max_wait_s); retry later.",
                code="model_loading",
                retry_after_s=RETRY_AFTER_S,
            )
        if self._state != "loaded":
            for one in done - {changed}:
                one.result()

    def _what(self) -> str:
        seconds = time.monotonic() - self._since
        if self._state == "unloaded" and self.takes:
            return "unloaded; it is loaded when a request comes"
        return f"{self._state} for {seconds:.0f} s"

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def hold(
    engine: Engine,
    *,
    state: HeldState = "loaded",
    wake: Callable[[], Awaitable[None]] | None = None,
    max_wait_s: float = 120.0,
) -> Held:
    """`engine` behind such a face, with its optional powers: protocols are known by the methods of a class."""
    kind = type(engine)
    # What nobody has thought of here is passed on as it is.
    added: dict[str, Any] = {
        name: _POWERS.get(name) or _passed_on(name)
        for name in dir(kind)
        if not name.startswith("_") and not hasattr(Held, name)
    }
    return cast(
        Held, type("Held" + kind.__name__, (Held,), added)(engine, state=state, wake=wake, max_wait_s=max_wait_s)
    )


def _passed_on(name: str) -> property:
    return property(lambda self: getattr(self._engine, name))


def _stats(self: Held) -> EngineStats:
    """Nothing while nothing is there."""
    return cast(ReportsStats, self._engine).stats() if self._state == "loaded" else EngineStats()


async def _embed(self: Held, request: EmbedRequest) -> EmbedResult:
    await self._entered()
    with self._counted():
        return await cast(Embeds, self._engine).embed(request)


async def _tokenize(self: Held, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
    await self._entered()
    with self._counted():
        return await cast(Tokenizes, self._engine).tokenize(prompt, add_special_tokens=add_special_tokens)


async def _detokenize(self: Held, token_ids: tuple[int, ...]) -> str:
    await self._entered()
    with self._counted():
        return await cast(Tokenizes, self._engine).detokenize(token_ids)


async def _own_stats(self: Held) -> EngineStats | None:
    return await cast(Any, self._engine).own_stats() if self._state == "loaded" else None


_POWERS: dict[str, Any] = {
    "stats": _stats,
    "embed": _embed,
    "tokenize": _tokenize,
    "detokenize": _detokenize,
    "own_stats": _own_stats,
}


def _heard(task: asyncio.Future[None]) -> None:
    """That nobody waits for a failure any more is no defect."""
    if not task.cancelled():
        task.exception()
