"""A library in a worker process, as an `Engine`: everything that is the same for all of them.

    GenerateRequest ─► PromptSide (thread) ─► WorkerClient ─► [worker process] ─► TokenReader ─► Answer ─► Delta, …

Done here, around the library: chat templates, tokens and text, `n` by as many sequences (a seed counts up), stop
strings with hold-back, tool calls and reasoning, usage. It owns the worker's process through the supervisor, or, in a
further gateway worker, attaches to one that another process owns. What one library refuses or wants in other words is
its `Translate`'s matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec

from llm_inference.adapters.generate_choice import Answer
from llm_inference.adapters.generate_prompt import PreparedPrompt, PromptSide
from llm_inference.adapters.library.client import WorkerClient
from llm_inference.adapters.library.plan import LibraryPlan
from llm_inference.adapters.library.reading import TokenReader
from llm_inference.adapters.library.sampling import Translate, worker_sampling
from llm_inference.adapters.library.wire import WorkerSampling
from llm_inference.adapters.merging import merged
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities, EngineStats, Health
from llm_inference.engine.in_flight import InFlight
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.supervisor import Child, ChildSpec, RestartPolicy, in_public
from llm_inference.engine.types import Delta, GenerateRequest, ModelInfo, Prompt, TokenizeResult
from llm_inference.errors import LLMInferenceError, StartupError
from llm_inference.telemetry.logging import pass_on

logger = logging.getLogger(__name__)

#: Work in flight and no step for this long, or no sign of life: something hangs.
STALLED_AFTER_S = 120.0
_READY_TIMEOUT_S = 3600.0


class LibraryEngine:
    """One model in one worker. `owns_worker=False`: another process supervises it; this one only attaches."""

    def __init__(
        self,
        profile: Profile,
        plan: LibraryPlan,
        run_dir: Path,
        prompts: PromptSide,
        translate: Translate,
        *,
        owns_worker: bool = True,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._profile = profile
        self._plan = plan
        self._info = plan.info
        self._run_dir = run_dir
        self._prompts = prompts
        self._translate = translate
        self._socket_path = str(run_dir / "worker.sock")
        #: Written by the owner when the worker is given up, so that attached fronts know it too.
        self._failure_file = run_dir / "worker.failed"
        self._client = WorkerClient(self._socket_path)
        self._child = self._make_child(policy or RestartPolicy()) if owns_worker else None
        self._attach: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._id_prefix = uuid.uuid4().hex[:8]
        self._in_flight = InFlight()

    @property
    def capabilities(self) -> Capabilities:
        return self._profile.capabilities

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def pid(self) -> int | None:
        """Of the worker; None where another process owns it."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> None:
        if self._child is None:
            await self._connect()
            self._client.on_lost = self._on_lost
            return
        setup = {**self._plan.setup, "socket_path": self._socket_path}
        (self._run_dir / "worker.json").write_bytes(msgspec.json.encode(setup))
        await self._child.start()

    async def stop(self, grace_s: float) -> None:
        await self._in_flight.drained(grace_s)
        self._client.on_lost = lambda reason: None
        if self._attach is not None:
            self._attach.cancel()
            await asyncio.gather(self._attach, return_exceptions=True)
        await self._client.close()
        if self._child is not None:
            await self._child.stop(grace_s=5.0)

    async def health(self) -> Health:
        for seconds, what in (
            (self._client.stalled_s, "requests are in flight and no step has completed"),
            (self._client.silent_s, "the engine's process has not been heard of"),
        ):
            if seconds > STALLED_AFTER_S:
                return Health(live=True, ready=False, progressing=False, reason=f"{what} for {seconds:.0f} s")
        if self._client.connected:
            return Health(live=True, ready=True)
        if self._failure_file.exists():
            return Health(live=False, ready=False, reason=in_public(self._failure_file.read_text()))
        reason = f"the engine is {self._child.state.value if self._child is not None else 'restarting'}"
        if self._child is not None and self._child.reason:
            reason += f": {self._child.public_reason}"
        return Health(live=True, ready=False, reason=reason)

    def stats(self) -> EngineStats:
        restarts = self._child.num_restarts if self._child is not None else 0
        return msgspec.structs.replace(self._client.stats, num_restarts=restarts)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        side = self._prompts

        def work() -> TokenizeResult:
            ids = side.encode(prompt, add_special_tokens=add_special_tokens) if prompt != "" else ()
            return TokenizeResult(ids, tuple(map(side.tokenizer.token_text, ids)), self._info.max_model_len)

        return await asyncio.to_thread(work)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        self._prompts.check_ids(token_ids, "tokens")
        return self._prompts.tokenizer.decode(token_ids, skip_special_tokens=False)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        side = self._prompts
        prompt = await asyncio.to_thread(side.prepare, request, self._info.max_model_len)
        request = prompt.forced(request)
        resolved, sampling = worker_sampling(request, prompt, side, self._plan, self._translate)
        answer = Answer(request, resolved, prompt, count=side.count, strips_prompt=False)
        if sampling.num_beams > 1:
            streams = [self._run(request, prompt, sampling, answer, range(resolved.n))]
        else:
            streams = [
                self._run(request, prompt, _with_seed(sampling, index), answer, range(index, index + 1))
                for index in range(resolved.n)
            ]
        with self._in_flight:
            async with aclosing(merged(streams)) as deltas:
                async for delta in deltas:
                    yield delta

    async def _run(
        self, request: GenerateRequest, prompt: PreparedPrompt, sampling: WorkerSampling, answer: Answer, places: range
    ) -> AsyncGenerator[Delta, None]:
        """The choices in `places`, from one request to the worker. Closing it aborts that."""
        worker_id = f"{self._id_prefix}-{next(self._ids)}"
        tokenizer = self._prompts.tokenizer
        skip = request.sampling.skip_special_tokens and not prompt.output.keeps_special_tokens
        readers = [TokenReader(tokenizer, prompt.token_ids, sampling, skip_special_tokens=skip) for _ in places]
        choices = [answer.choices[place] for place in places]
        queue = self._client.submit(worker_id, prompt.token_ids, sampling)
        try:
            while not all(choice.finished for choice in choices):
                item = await queue.get()
                if isinstance(item, LLMInferenceError):
                    self._client.release(worker_id)
                    raise item
                for piece in readers[item.index].read(item):
                    for delta in answer.feed(places[item.index], piece):
                        yield delta
                if item.finish_reason is not None and len(places) == 1:
                    self._client.release(worker_id)
        finally:
            self._client.abort(worker_id)  # nothing where it has ended by itself

    def _make_child(self, policy: RestartPolicy) -> Child:
        plan = self._plan
        name = f"the engine {self._profile.name!r} of {plan.info.name}"
        return Child(
            ChildSpec(
                name=name,
                argv=(*plan.argv, str(self._run_dir / "worker.json")),
                ready=self._connect,
                ready_timeout_s=_READY_TIMEOUT_S,  # a worker that died is noticed at once
                env=plan.env,
                on_exit=self._on_exit,
                on_ready=lambda: self._failure_file.unlink(missing_ok=True),
                on_failed=self._on_failed,
                on_line=lambda line: pass_on(f"{self._profile.name}: {line}"),
                policy=policy,
            )
        )

    async def _connect(self) -> None:
        ready = await self._client.connect()
        self._info = msgspec.structs.replace(self._plan.info, precision=str(ready.report.get("precision", "")))
        logger.info("%s: %s %s", self._info.name, self._profile.name, ready.report)

    def _on_exit(self, reason: str) -> None:
        logger.error("%s; restarting it", reason)
        self._client.lost("the engine's process ended while this request was running; it is being restarted")

    def _on_failed(self, reason: str) -> None:
        logger.critical("%s", reason)
        self._failure_file.write_text(reason)

    def _on_lost(self, reason: str) -> None:
        """Attached only: whoever owns the worker restarts it; wait for it."""

        async def attach() -> None:
            while True:
                with contextlib.suppress(StartupError):
                    await self._connect()
                    return
                await asyncio.sleep(0.5)

        logger.warning("%s; waiting for it to come back", reason)
        self._attach = asyncio.create_task(attach(), name="attach")


def _with_seed(sampling: WorkerSampling, index: int) -> WorkerSampling:
    return sampling if sampling.seed is None else msgspec.structs.replace(sampling, seed=sampling.seed + index)


def open_library(
    model: ModelConfig,
    context: EngineContext,
    profile: Profile,
    translate: Translate,
    make_plan: Callable[[ModelConfig, EngineContext], tuple[LibraryPlan, PromptSide]],
) -> LibraryEngine:
    """Raises `StartupError`. Whoever owns the worker plans; further gateway workers read that plan."""
    file = context.run_dir / "plan.json"
    if context.owns_core:
        plan, prompts = make_plan(model, context)
        file.write_bytes(msgspec.json.encode(plan))
    else:
        plan = msgspec.json.decode(file.read_bytes(), type=LibraryPlan)
        prompts = PromptSide.load(model, progress=False)
    return LibraryEngine(profile, plan, context.run_dir, prompts, translate, owns_worker=context.owns_core)
