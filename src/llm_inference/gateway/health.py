"""Probes and figures for machines: `/health`, `/ready`, `/version`, `/metrics`. They need no key and take no permit.

`/health` is 200 while every engine lives, restarts included, and says the state; 503 once one is beyond help or
stands still with work queued: restart the process then. `/ready` is 503 unless some model would answer a request now.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import Engine, Health
from llm_inference.gateway.record import record_of
from llm_inference.gateway.state import Gateway, gateway_of
from llm_inference.telemetry.metrics import CONTENT_TYPE
from llm_inference.version import __version__

#: An engine that does not say how it is within this time is taken for one that stands still.
_HEALTH_TIMEOUT_S = 2.0

State = Literal["ok", "warming_up", "restarting", "stalled", "dead", "shutting_down", "not_ready"]


class ModelHealth(msgspec.Struct, frozen=True):
    live: bool
    ready: bool
    progressing: bool
    reason: str = ""


class HealthReport(msgspec.Struct, frozen=True):
    status: State
    models: dict[str, ModelHealth]


class VersionReport(msgspec.Struct, frozen=True):
    version: str


async def health(request: Request) -> Response:
    record_of(request.scope).quiet = True
    status, models = await examine(gateway_of(request))
    return _reply(HealthReport(status, models), 503 if status in ("dead", "stalled") else 200)


async def ready(request: Request) -> Response:
    record_of(request.scope).quiet = True
    gateway = gateway_of(request)
    models = await _examine(gateway)
    status: State = "ok"
    if gateway.admission.draining:
        status = "shutting_down"
    elif not any(model.ready and model.live for model in models.values()):
        status = "not_ready"
    elif gateway.warming_up:
        status = "warming_up"
    return _reply(HealthReport(status, models), 200 if status == "ok" else 503)


async def version(request: Request) -> Response:
    record_of(request.scope).quiet = True
    return _reply(VersionReport(__version__), 200)


async def metrics(request: Request) -> Response:
    record_of(request.scope).quiet = True
    gateway = gateway_of(request)
    models = await _examine(gateway)
    # Not in a thread, though it is milliseconds of string work: engines are asked for their load on their own loop.
    gateway.metrics.set_health({name: (model.ready, model.progressing) for name, model in models.items()})
    return Response(await gateway.metrics.scrape(), headers={"content-type": CONTENT_TYPE})


async def examine(gateway: Gateway) -> tuple[State, dict[str, ModelHealth]]:
    """What `/health` says, and of each model."""
    models = await _examine(gateway)
    status: State = "ok"
    if not all(model.live for model in models.values()):
        status = "dead"
    elif not all(model.progressing for model in models.values()):
        status = "stalled"
    elif gateway.admission.draining:
        status = "shutting_down"
    elif not all(model.ready for model in models.values()):
        status = "restarting"
    elif gateway.warming_up:
        status = "warming_up"
    return status, models


async def _examine(gateway: Gateway) -> dict[str, ModelHealth]:
    items = list(gateway.router.items())
    states = await asyncio.gather(*(_health_of(engine) for _, engine in items))
    return {
        name: ModelHealth(state.live, state.ready, state.progressing, state.reason)
        for (name, _), state in zip(items, states, strict=True)
    }


async def _health_of(engine: Engine) -> Health:
    try:
        return await asyncio.wait_for(engine.health(), _HEALTH_TIMEOUT_S)
    except asyncio.TimeoutError:
        reason = f"the engine did not answer its health check within {_HEALTH_TIMEOUT_S:g} s"
        return Health(live=True, ready=False, progressing=False, reason=reason)
    except Exception as error:
        return Health(live=False, ready=False, progressing=False, reason=f"the health check failed: {error}")


def _reply(report: HealthReport | VersionReport, status: int) -> Response:
    return Response(msgspec.json.encode(report), status, media_type="application/json")
