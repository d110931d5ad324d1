"""The native engine's front: the `Engine` that the gateway sees. Asynchronous, torch-free.

    GenerateRequest ─► Preparer (thread pool) ─► CoreClient ─► [core process] ─► Choice ─► Delta, Delta, …
    EmbedRequest ─► embed.prepare, embed.run ──────────┘                     └─► vectors

It owns the core's process through the supervisor, or, in a further gateway worker, attaches to one that another
process owns. Sampling parameters are *enforced* in `scheduler.py` (lengths, stop ids), `sampler.py` (everything about
probabilities) and `choice.py` (stop strings); here they only pass through.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from llm_inference.engine.base import Capabilities, EngineStats, Health
from llm_inference.engine.in_flight import InFlight
from llm_inference.engine.supervisor import Child, ChildSpec, in_public
from llm_inference.engine.types import (
    Delta,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    ModelInfo,
    Prompt,
    TokenizeResult,
)
from llm_inference.errors import StartupError
from llm_inference.native import embed
from llm_inference.native.answer import Answer
from llm_inference.native.capabilities import CAPABILITIES, ENCODER_CAPABILITIES
from llm_inference.native.client import CoreClient
from llm_inference.native.front_profiler import FrontProfiler
from llm_inference.native.grammar import GrammarCompiler
from llm_inference.native.grammar_guard import GrammarGuard
from llm_inference.native.plan import NativePlan
from llm_inference.native.prepare import Preparer
from llm_inference.native.wire import CoreReport
from llm_inference.telemetry.logging import pass_on
from llm_inference.telemetry.profiling.figures import ProfileOrder, ProfileResult

logger = logging.getLogger(__name__)

#: Work in flight and no step for this long, or no sign of life: something hangs.
STALLED_AFTER_S = 60.0


class NativeEngine:
    """One model on the native core. `owns_core=False`: another process supervises the core; this one only attaches."""

    def __init__(self, plan: NativePlan, run_dir: Path, *, owns_core: bool = True) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._socket_path = str(run_dir / "core.sock")
        #: Written by the owner when the core is given up, so that attached workers know it too.
        self._failure_file = run_dir / "core.failed"
        self._client = CoreClient(self._socket_path)
        self._profiler = FrontProfiler(self._client, run_dir)
        self._child: Child | None = self._make_child() if owns_core else None
        self._preparer: Preparer | None = None
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="prepare")
        #: Requests with a grammar queue here: what a hostile one costs, only they wait for.
        self._grammar_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare-grammar")
        self._guard: GrammarGuard | None = None
        self._ids = itertools.count()
        self._id_prefix = uuid.uuid4().hex[:8]
        self._report: CoreReport | None = None
        self._attach: asyncio.Task[None] | None = None
        self._in_flight = InFlight()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES if self._plan.setup.kind == "decoder" else ENCODER_CAPABILITIES

    @property
    def info(self) -> ModelInfo:
        return self._plan.info

    @property
    def pid(self) -> int | None:
        """The core's, where it is ours; None while there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def report(self) -> CoreReport | None:
        """What loading came to; None before `start`."""
        return self._report

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        preparer = await loop.run_in_executor(self._pool, self._plan.make_preparer)
        if isinstance(preparer.grammars, GrammarCompiler):
            self._guard = GrammarGuard(preparer.grammars)
            preparer = dataclasses.replace(preparer, grammars=self._guard)
        self._preparer = preparer
        if self._child is not None:
            setup = msgspec.structs.replace(self._plan.setup, socket_path=self._socket_path)
            setup_file = self._run_dir / "core.json"
            setup_file.write_bytes(msgspec.json.encode(setup))
            await self._child.start()
        else:
            await self._connect()
            self._client.on_lost = self._on_lost

    async def stop(self, grace_s: float) -> None:
        await self._in_flight.drained(grace_s)
        self._client.on_lost = lambda reason: None  # that it is gone now is no reason to wait for it
        if self._attach is not None:
            self._attach.cancel()
            await asyncio.gather(self._attach, return_exceptions=True)
        self._client.close()
        if self._child is not None:
            await self._child.stop(grace_s=5.0)
        for pool in (self._pool, self._grammar_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._guard is not None:
            self._guard.close()

    async def health(self) -> Health:
        stalled_s = self._client.stalled_s
        if stalled_s > STALLED_AFTER_S:
            reason = f"requests are in flight and no step has completed for {stalled_s:.0f} s"
            return Health(live=True, ready=False, progressing=False, reason=reason)
        silent_s = self._client.silent_s
        if silent_s > STALLED_AFTER_S:
            reason = f"the engine's process has not been heard of for {silent_s:.0f} s"
            return Health(live=True, ready=False, progressing=False, reason=reason)
        if not self._client.connected:
            if self._failure_file.exists():
                return Health(live=False, ready=False, reason=in_public(self._failure_file.read_text()))
            state = self._child.state.value if self._child is not None else "restarting"
            reason = f"the engine is {state}"
            if self._child is not None and self._child.reason:
                reason += f": {self._child.public_reason}"
            return Health(live=True, ready=False, reason=reason)
        return Health(live=True, ready=True)

    def stats(self) -> EngineStats:
        restarts = self._child.num_restarts if self._child is not None else 0
        return msgspec.structs.replace(self._client.stats, num_restarts=restarts)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        preparer = self._require_preparer()

        def work() -> TokenizeResult:
            token_ids = preparer.encode(prompt, add_special_tokens=add_special_tokens) if prompt != "" else ()
            tokens = tuple(preparer.tokenizer.token_text(token_id) for token_id in token_ids)
            return TokenizeResult(token_ids, tokens, self.info.max_model_len)

        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        preparer = self._require_preparer()

        def work() -> str:
            preparer.check_ids(token_ids, "tokens")
            return preparer.tokenizer.decode(token_ids, skip_special_tokens=False)

        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        accepted_s = time.monotonic()
        preparer = self._require_preparer()
        core_id = f"{self._id_prefix}-{next(self._ids)}"
        self._plan.require_generation()
        loop = asyncio.get_running_loop()
        constrained = request.sampling.grammar is not None or request.tool_choice not in (None, "none", "auto")
        pool = self._grammar_pool if constrained else self._pool
        prepare = self._profiler.staged("tokenizer", preparer.prepare)
        prepared = await loop.run_in_executor(pool, prepare, request, core_id)
        finished = False
        with self._in_flight:
            try:
                queue = self._client.submit(prepared.core_request)
                answer = Answer(request, prepared, preparer.tokenizer, accepted_s)
                while not answer.finished:
                    items = [await queue.get()]
                    while not queue.empty():  # a slow reader gets what has piled up in one go
                        items.append(queue.get_nowait())
                    with self._profiler.stages("detokenizer"):
                        deltas = answer.take(items)
                    for delta in deltas:
                        yield delta
                    for index in answer.stopped_by_text():
                        self._client.abort(core_id, index)
                    if answer.error is not None:
                        raise answer.error
                finished = True
                self._client.release(core_id)
            finally:
                if not finished:
                    self._client.abort(core_id)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        preparer, plan = self._require_preparer(), self._plan
        core_id = f"{self._id_prefix}-{next(self._ids)}"
        loop = asyncio.get_running_loop()
        prepare = self._profiler.staged("tokenizer", embed.prepare)
        requests = await loop.run_in_executor(self._pool, prepare, request, preparer, plan.embedding, core_id)
        with self._in_flight:
            return await embed.run(self._client, requests, 2 * plan.setup.max_num_batched_tokens)

    async def profile(self, order: ProfileOrder) -> ProfileResult:
        return await self._profiler.run(order, self._plan.setup.max_num_seqs)

    def _require_preparer(self) -> Preparer:
        assert self._preparer is not None, "start() comes first"
        return self._preparer

    def _make_child(self) -> Child:
        return Child(
            ChildSpec(
                name=f"the engine of {self._plan.info.name}",
                argv=(sys.executable, "-m", "llm_inference.native.server", str(self._run_dir / "core.json")),
                ready=self._connect,
                ready_timeout_s=3600.0,  # a large model on a slow disk; a core that died is noticed at once
                env=self._plan.core_env,
                on_exit=self._on_exit,
                on_ready=lambda: self._failure_file.unlink(missing_ok=True),
                on_failed=self._on_failed,
                on_line=pass_on,
            )
        )

    async def _connect(self) -> None:
        self._report = await self._client.connect()

    def _on_exit(self, reason: str) -> None:
        logger.error("%s; restarting it", reason)
        self._client.lost("the engine's process ended while this request was running; it is being restarted")

    def _on_failed(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._failure_file.write_text(reason)

    def _on_lost(self, reason: str) -> None:
        """Attached only: whoever owns the core restarts it; wait for it."""

        async def attach() -> None:
            while True:
                with contextlib.suppress(StartupError):
                    await self._connect()
                    return
                await asyncio.sleep(0.5)

        logger.warning("%s; waiting for it to come back", reason)
        self._attach = asyncio.create_task(attach(), name="attach")
