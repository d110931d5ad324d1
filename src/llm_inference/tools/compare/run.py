"""Runs a comparison: rounds, in each of them every contender in turn, started, measured and stopped before the next.

A contender that fails is written down with its reason and the others go on. From the second round on a workload is
left out for who was less than half as good at it as the best of the class: its figure will not decide anything, and
the time is better spent on the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import uvloop

from llm_inference.errors import ConfigError, LLMInferenceError
from llm_inference.model_spec import ModelSpec
from llm_inference.sources.resolve import resolve
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.compare.comparison import (
    Comparison,
    Entry,
    Run,
    higher_is_better,
    main_figure,
)
from llm_inference.tools.compare.contender import Contender
from llm_inference.tools.compare.machine import measure_peaks, this_machine
from llm_inference.tools.compare.measured import Measured, measure
from llm_inference.tools.compare.memory import PeakMemory
from llm_inference.tools.compare.roofline import ModelCosts, decode_share, needs
from llm_inference.tools.compare.start import started
from llm_inference.tools.compare.target import Started
from llm_inference.tools.compare.workloads import NAMES, Suite, Workload, make_suite
from llm_inference.version import __version__

_WORTH_REPEATING = 0.5
_NO_TOKENIZER = ("fake",)

#: Told one line at a time what is going on.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """`tokenizer`: a model's source whose tokenizer counts the prompts; None: the first contender's own model.

    `limit_s`: a workload that takes longer is cut off, and its rate is over that time. `quick`: workloads of a few
    requests and no exact peaks, to see that everything works.
    """

    workloads: tuple[str, ...] = NAMES
    rounds: int = 2
    limit_s: float = 120.0
    tokenizer: str | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"--rounds: is {self.rounds}, must be at least 1")
        if not self.limit_s > 0:
            raise ConfigError(f"--limit: is {self.limit_s:g}, must be above 0 seconds")


def compare(
    contenders: Sequence[Contender],
    settings: CompareSettings,
    *,
    say: Say = lambda line: None,
    save: Callable[[Comparison], None] = lambda comparison: None,
) -> Comparison:
    """Measure. `save` is called whenever there is something new. Ctrl-C and SIGTERM end it early, with what there is.

    Raises `ConfigError` and `StartupError` for what concerns all contenders, such as the model.
    """
    comparison: Comparison = uvloop.run(_until_stopped(Comparer(contenders, settings, say, save)))
    return comparison


async def _until_stopped(comparer: Comparer) -> Comparison:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        # Where the loop is not the main thread's, nobody sends it signals.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(signum, task.cancel)
    try:
        return await comparer.run()
    except asyncio.CancelledError:
        if comparer.comparison is None:
            raise KeyboardInterrupt from None
        comparer.comparison.interrupted = True
        return comparer.comparison


class Comparer:
    """`comparison` is None until the workloads are made."""

    def __init__(
        self, contenders: Sequence[Contender], settings: CompareSettings, say: Say, save: Callable[[Comparison], None]
    ) -> None:
        self._contenders = contenders
        self._settings = settings
        self._say = say
        self._save = save
        self._spec: ModelSpec | None = None
        self._gguf_bytes: int | None = None
        self.comparison: Comparison | None = None

    async def run(self) -> Comparison:
        settings = self._settings
        tokenizer = await asyncio.to_thread(self._load_model)
        suite = await asyncio.to_thread(make_suite, tokenizer, settings.workloads, quick=settings.quick)
        comparison = self.comparison = Comparison(
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            version=__version__,
            machine=this_machine(),
            model=self._source() or "not known",
            rounds=settings.rounds,
            limit_s=settings.limit_s,
            workloads={work.name: work.title for work in suite.workloads},
            entries=[Entry.of(one) for one in self._contenders],
        )
        if tokenizer is None:
            comparison.notes.append("the model's tokenizer is not known: a word is taken for a token")
        self._say("measuring what the machine can do")
        comparison.peaks = await measure_peaks(quick=settings.quick)
        for number in range(1, settings.rounds + 1):
            for contender, entry in zip(self._contenders, comparison.entries, strict=True):
                wanted = self._wanted(contender, entry, suite, number)
                if wanted is None:
                    continue
                self._say(f"round {number} of {settings.rounds}: {contender.title}: starting")
                await self._one(contender, entry, wanted, tokenizer, number)
                self._save(comparison)
        return comparison

    async def _one(
        self, contender: Contender, entry: Entry, suite: Suite, tokenizer: Tokenizer | None, number: int
    ) -> None:
        """One contender in one round, into `entry`, whatever becomes of it."""
        measured: dict[str, Measured] = {}
        errors: dict[str, str] = {}
        roofline: dict[str, float] = {}
        startup_s = error = peak = None
        begun_s = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="llm-inference-bench-") as folder:
                async with started(contender, suite, tokenizer, self._settings.limit_s, Path(folder)) as one:
                    startup_s = time.monotonic() - begun_s
                    entry.versions.update(one.versions)
                    entry.notes += [note for note in one.notes if note not in entry.notes]
                    with PeakMemory(one.pids) as memory:
                        try:
                            await self._measure(one, suite, contender, measured, errors, roofline)
                        finally:
                            memory.look()
                            peak = memory.peak_bytes or None
        except Exception as failure:  # whatever it is, it is this contender's, and the others go on
            message = (
                failure.message if isinstance(failure, LLMInferenceError) else f"{type(failure).__name__}: {failure}"
            )
            if startup_s is None:
                error = message
            else:
                errors["run"] = message
            self._say(f"  {message.splitlines()[0]}")
        finally:
            run = Run(
                round=number,
                startup_s=startup_s,
                peak_rss_bytes=peak,
                measured=measured,
                roofline=roofline,
                errors=errors,
                error=error,
            )
            if measured or error is not None or errors:
                entry.runs.append(run)

    async def _measure(
        self,
        one: Started,
        suite: Suite,
        contender: Contender,
        measured: dict[str, Measured],
        errors: dict[str, str],
        roofline: dict[str, float],
    ) -> None:
        await one.target.warm_up(suite.warmup)
        for workload in suite.workloads:
            self._say(f"  {workload.name}: {workload.title}")
            try:
                result = measure(await one.target.run(workload, self._settings.limit_s))
            except LLMInferenceError as failure:
                errors[workload.name] = failure.message
                self._say(f"  {workload.name} fails: {failure.message.splitlines()[0]}")
                continue
            measured[workload.name] = result
            share = self._share(workload, contender, result)
            if share is not None:
                roofline[workload.name] = share
            self._say(f"  {workload.name}: {_line(workload.name, result)}")

    def _share(self, workload: Workload, contender: Contender, result: Measured) -> float | None:
        """Of the roofline; None where it is not known, or nothing was measured in full."""
        comparison = self.comparison
        if self._spec is None or comparison is None or comparison.peaks is None:
            return None
        costs = ModelCosts.of(self._spec, contender.precision, self._gguf_bytes)
        if costs is None:
            return None
        if workload.name == "W1":
            rate = result.decode_tokens_per_s
            return None if rate is None else decode_share(workload, costs, comparison.peaks, rate)
        wanted = needs(workload, costs, comparison.peaks)
        if wanted is None or not result.duration_s or result.num_failed:
            return None
        # Of a run that was cut off, as much of the need as it produced of the output.
        total = sum(one.max_tokens for one in workload.requests)
        return wanted.ideal_s * min(result.output_tokens / total, 1.0) / result.duration_s

    def _wanted(self, contender: Contender, entry: Entry, suite: Suite, number: int) -> Suite | None:
        """The workloads that this contender does in this round; None where there are none."""
        if number > 1 and entry.error is not None:
            return None
        kept = tuple(
            work
            for work in suite.workloads
            if work.name in contender.bench.workloads and (number == 1 or self._is_close(entry, work.name))
        )
        return Suite(suite.warmup, kept) if kept else None

    def _is_close(self, entry: Entry, workload: str) -> bool:
        """Whether it came near the best of its class so far; who has no figure has failed, and is tried again."""
        assert self.comparison is not None
        own = entry.main(workload)
        if own is None or entry.is_ours:
            return True
        rivals = [one.main(workload) for one in self.comparison.entries if one.precision == entry.precision]
        medians = [rival.median for rival in rivals if rival is not None]
        if higher_is_better(workload):
            return own.median >= _WORTH_REPEATING * max(medians)
        return own.median * _WORTH_REPEATING <= min(medians)

    def _source(self) -> str | None:
        if self._settings.tokenizer is not None:
            return self._settings.tokenizer
        models = [one.model for one in self._contenders if one.model is not None]
        return models[0].model if models and models[0].engine not in _NO_TOKENIZER else None

    def _load_model(self) -> Tokenizer | None:
        """The tokenizer that counts, and beside it the model's shapes."""
        source = self._source()
        if source is None:
            return None
        resolved = resolve(source, progress=False)
        self._spec = ModelSpec.from_directory(resolved.directory)
        self._gguf_bytes = resolved.gguf.stat().st_size if resolved.gguf is not None else None
        return Tokenizer.load(resolved.directory)


def _said(failure: Exception) -> str:
    return failure.message if isinstance(failure, LLMInferenceError) else f"{type(failure).__name__}: {failure}"


def _line(workload: str, result: Measured) -> str:
    value = main_figure(workload)(result)
    if value is None:
        text = "nothing was measured"
    else:
        text = f"{value * 1000:,.0f} ms at p99" if workload == "W4" else f"{value:,.1f} tokens/s"
    parts = [f"{result.num_cut} cut off" if result.num_cut else "", *result.doubts]
    return "; ".join([text, *(part for part in parts if part)])
