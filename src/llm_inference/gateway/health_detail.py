"""`/health/detail`: how the service and each engine are, with reasons, for people; with keys it needs one."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import ReportsStats
from llm_inference.gateway.canary import CanaryResult
from llm_inference.gateway.health import State, examine
from llm_inference.gateway.state import gateway_of
from llm_inference.version import __version__


class EngineDetail(msgspec.Struct, frozen=True):
    """None: the engine does not know, or nobody has asked it."""

    engine: str
    live: bool
    ready: bool
    progressing: bool
    reason: str = ""
    num_running: int | None = None
    num_waiting: int | None = None
    kv_cache_usage: float | None = None
    num_steps: int | None = None
    num_restarts: int | None = None
    canary: CanaryResult | None = None


class DetailReport(msgspec.Struct, frozen=True):
    status: State
    version: str
    uptime_s: float
    in_flight: int
    models: dict[str, EngineDetail]


async def detail(request: Request) -> Response:
    """200 whatever the state is: it answers the question."""
    gateway = gateway_of(request)
    status, models = await examine(gateway)
    engines = dict(gateway.router.items())  # of several replicas one that stands for all
    groups = gateway.router.table.groups
    found = {}
    for name, model in models.items():
        engine = engines.get(name)
        stats = engine.stats() if isinstance(engine, ReportsStats) else None
        known: set[str] = (
            set(stats.__struct_fields__ if stats.known is None else stats.known) if stats is not None else set()
        )
        replicas = [replica.id for replica in groups[name].replicas] if name in groups else []
        answers = [gateway.canary_results[one] for one in replicas if one in gateway.canary_results]
        figures = {field: getattr(stats, field) for field in EngineDetail.__struct_fields__ if field in known}
        found[name] = EngineDetail(
            engine=engine.info.engine if engine is not None else "",
            live=model.live,
            ready=model.ready,
            progressing=model.progressing,
            reason=model.reason,
            canary=min(answers, key=lambda answer: answer.ok, default=None),
            **figures,
        )
    report = DetailReport(
        status, __version__, round(time.monotonic() - gateway.started, 3), gateway.admission.in_flight, found
    )
    return Response(msgspec.json.encode(report), 200, media_type="application/json")
