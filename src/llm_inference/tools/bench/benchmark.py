"""One benchmark from settings to report: ask the server what it takes, make the prompts, warm up, load, measure."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import aiohttp
import msgspec
from tqdm import tqdm

from llm_inference.errors import ConfigError
from llm_inference.telemetry.devices import available_cpus
from llm_inference.tools.bench.api import Api, Call, ModelCard, open_api
from llm_inference.tools.bench.arrivals import arrival_times
from llm_inference.tools.bench.dialect import Dialect, learn
from llm_inference.tools.bench.load import closed_loop, open_loop
from llm_inference.tools.bench.loop_lag import watched_loop
from llm_inference.tools.bench.report import ClientFacts, Report, ServerFacts, make_report
from llm_inference.tools.bench.settings import (
    DEFAULT_NUM_PROMPTS,
    DEFAULT_NUM_PROMPTS_FOR_DURATION,
    BenchSettings,
)
from llm_inference.tools.bench.statistics import summary
from llm_inference.tools.bench.timeline import Timeline
from llm_inference.tools.bench.workload import Workload, WorkloadBuilder

_PACKAGES = ("llm-inference", "aiohttp", "uvloop", "numpy")
_WARMUP_CONCURRENCY = 8


def run(settings: BenchSettings, *, progress: bool = False) -> Report:
    """Measure, in an event loop of its own (uvloop's where there is one). `progress` draws bars on stderr.

    Raises `ConfigError` when the server cannot be reached, has no such model or refuses the plainest request,
    `EngineError` when it fails at that one. Requests that fail later are in the report.
    """
    if sys.platform == "win32":
        return asyncio.run(run_async(settings, progress=progress))
    import uvloop

    report: Report = uvloop.run(run_async(settings, progress=progress))
    return report


async def run_async(settings: BenchSettings, *, progress: bool = False) -> Report:
    """`run` for those who have a loop already; what else runs in it is measured, too."""
    count = _count(settings)
    async with open_api(settings) as api:
        model = await _choose_model(api, settings)
        wanted = Dialect(ignore_eos=settings.ignore_eos, continuous_usage=settings.continuous_usage)
        dialect, notes = await learn(lambda one: api.stream(_hello(one, settings, model)), wanted)
        workload = await _build(api, settings, model, dialect, count, progress)
        version = await api.version()
        notes += [*workload.notes, *await _warm_up(api, workload)]
        started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        total = len(workload.calls) if settings.duration_s is None else None
        bar: tqdm[Any] = tqdm(total=total, desc="requests", unit="req", disable=not progress)
        with bar:
            async with watched_loop() as lag:
                timelines = await _load(api, settings, workload.calls, _ticker(bar))
                client = ClientFacts(
                    versions=_versions(),
                    platform=f"{platform.system()} {platform.machine()}",
                    num_cpus=available_cpus(),
                    cpu_share=lag.cpu_share,
                    loop_lag_s=summary(lag.lags_s),
                )
    if settings.duration_s is not None and settings.request_rate is None and len(timelines) == len(workload.calls):
        notes.append(f"all {len(timelines)} prompts were sent before --duration was over; raise --num-prompts")
    return make_report(
        settings,
        timelines,
        started_at=started_at,
        server=ServerFacts(model=model.id, max_model_len=model.max_model_len, version=version),
        client=client,
        prompts_from=workload.source,
        notes=notes,
    )


async def _choose_model(api: Api, settings: BenchSettings) -> ModelCard:
    """The model that was asked for, or the first. A server that lists none is taken at the caller's word."""
    try:
        cards = await api.models()
    except aiohttp.ClientResponseError as error:
        if settings.model is not None and error.status not in (401, 403):
            return ModelCard(settings.model)
        hint = "check --url and --api-key, or say --model"
        raise ConfigError(f"{settings.api_url}/models answers {error.status}; {hint}") from error
    except msgspec.MsgspecError as error:
        if settings.model is not None:
            return ModelCard(settings.model)
        raise ConfigError(f"{settings.api_url}/models is no list of models ({error}); check --url") from error
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise ConfigError(
            f"nothing answers at {settings.url} ({error}); start a server (`llm-inference serve`) or check --url"
        ) from error
    for card in cards:
        if settings.model in (None, card.id):
            return card
    if settings.model is None:
        raise ConfigError(f"{settings.api_url}/models lists no model; say which with --model")
    # Aliases and adapters are not always listed; the first request will tell.
    return ModelCard(settings.model)


def _hello(dialect: Dialect, settings: BenchSettings, model: ModelCard) -> Call:
    return Call(body=msgspec.json.encode(dialect.body(model.id, settings.endpoint, "Hello", 1)))


def _count(settings: BenchSettings) -> int | None:
    """Requests to make ready; None: as many as the dataset has. Raises `ConfigError` for a schedule without any."""
    count = settings.num_prompts
    if settings.request_rate is not None and settings.duration_s is not None:
        count = len(_arrivals(settings, settings.request_rate, count))
        if not count:
            raise ConfigError("no request is due before --duration is over; raise it, or --request-rate")
    if count is None and settings.dataset is None:
        return DEFAULT_NUM_PROMPTS if settings.duration_s is None else DEFAULT_NUM_PROMPTS_FOR_DURATION
    return count


def _arrivals(settings: BenchSettings, rate: float, count: int | None) -> list[float]:
    return arrival_times(
        rate, settings.seed, burstiness=settings.burstiness, count=count, duration_s=settings.duration_s
    )


async def _build(
    api: Api, settings: BenchSettings, model: ModelCard, dialect: Dialect, count: int | None, progress: bool
) -> Workload:
    with tqdm(desc="prompts", unit="prompt", disable=not progress, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return await WorkloadBuilder(api, settings, model, dialect, show).build(count)


async def _warm_up(api: Api, workload: Workload) -> list[str]:
    timelines = await closed_loop(api.stream, workload.warmup, _WARMUP_CONCURRENCY, api.now_s)
    failed = [timeline.failure for timeline in timelines if timeline.failure is not None]
    if not failed:
        return []
    return [f"{len(failed)} of {len(timelines)} warm-up requests failed: {failed[0].kind}: {failed[0].detail}"]


async def _load(
    api: Api, settings: BenchSettings, calls: Sequence[Call], on_done: Callable[[Timeline], None]
) -> list[Timeline]:
    limit = settings.max_in_flight
    if settings.request_rate is not None:
        arrivals = _arrivals(settings, settings.request_rate, len(calls))
        api.restart_clock()
        return await open_loop(api.stream, calls, arrivals, api.now_s, max_in_flight=limit, on_done=on_done)
    assert limit is not None
    api.restart_clock()
    return await closed_loop(api.stream, calls, limit, api.now_s, duration_s=settings.duration_s, on_done=on_done)


def _ticker(bar: tqdm[Any]) -> Callable[[Timeline], None]:
    failed = 0

    def tick(timeline: Timeline) -> None:
        nonlocal failed
        if not timeline.ok:
            failed += 1
            bar.set_postfix(failed=failed)
        bar.update()

    return tick


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
