"""`GET /status.json`: how the service is now, for the page, `llm-inference top` and scripts.

A caller sees the models that its key may use. The errors of others are shown to keys with the route group `metrics` or
`admin` alone, and to everybody where there are no keys. With several workers the figures of requests are those of the
worker that answers; an engine's own load is the same from all.
"""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import EngineStats, ReportsStats
from llm_inference.gateway import health
from llm_inference.gateway.record import record_of
from llm_inference.gateway.state import gateway_of
from llm_inference.gateway.tenants import access
from llm_inference.gateway.tenants.key import ApiKey
from llm_inference.gateway.ui.recent import Figures, Finished
from llm_inference.version import __version__


class ModelStatus(msgspec.Struct, frozen=True):
    """Of all replicas together. `load` is null for an engine that tells nothing."""

    live: bool
    ready: bool
    progressing: bool
    reason: str
    engine: str
    max_model_len: int
    load: EngineStats | None
    recent: Figures


class RecentError(msgspec.Struct, frozen=True):
    """`code` is an error's code, "" for a status alone; `time` is in Unix seconds."""

    time: float
    status: int
    code: str
    model: str
    route: str
    request_id: str


class StatusReport(msgspec.Struct, frozen=True):
    status: health.State
    version: str
    time: float
    uptime_s: float
    in_flight: int
    num_queued: int  # wait at the door; an engine's own queue is in its load
    max_concurrent_requests: int
    recent: Figures
    models: dict[str, ModelStatus]
    tiers: dict[str, Figures]
    errors: list[RecentError]
    operator: bool = False  # the caller may load, unload, restart and drain engines


async def status(request: Request) -> Response:
    record = record_of(request.scope)
    record.quiet = True
    gateway = gateway_of(request)
    recent = gateway.recent
    key = record.key
    state, states = await health.examine(gateway)
    # A reload may have brought a model meanwhile: it is shown the next time.
    names = [name for name in access.visible(gateway.router, key) if name in states]
    requests = [one for one in recent.requests() if one.model in names or _is_own(one, key)]
    engines = dict(gateway.router.items())
    models: dict[str, ModelStatus] = {}
    for name in names:
        now, engine = states[name], engines[name]
        models[name] = ModelStatus(
            live=now.live,
            ready=now.ready,
            progressing=now.progressing,
            reason=now.reason,
            engine=engine.info.engine,
            max_model_len=engine.info.max_model_len,
            load=engine.stats() if isinstance(engine, ReportsStats) else None,
            recent=recent.figures([one for one in requests if one.model == name]),
        )
    tiers = sorted({one.tier for one in requests if one.tier})
    report = StatusReport(
        status=state,
        version=__version__,
        time=time.time(),
        uptime_s=recent.uptime_s,
        in_flight=gateway.admission.in_flight,
        num_queued=gateway.admission.num_waiting,
        max_concurrent_requests=gateway.settings.max_concurrent_requests,
        recent=recent.figures(requests),
        models=models,
        tiers={tier: recent.figures([one for one in requests if one.tier == tier]) for tier in tiers},
        errors=[
            RecentError(one.at, one.status, one.error, one.model, one.route, one.request_id)
            for one in recent.errors()
            if _sees_all(key) or _is_own(one, key)
        ],
        operator=gateway.fleet is not None and key is not None and "admin" in key.scope.routes,
    )
    return Response(msgspec.json.encode(report), media_type="application/json", headers={"cache-control": "no-store"})


def _sees_all(key: ApiKey | None) -> bool:
    return key is None or bool({"metrics", "admin"} & set(key.scope.routes))


def _is_own(one: Finished, key: ApiKey | None) -> bool:
    return one.key_id == ("" if key is None else key.id)
