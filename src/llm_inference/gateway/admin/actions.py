"""What an operator may do: `POST /admin/reload`, `/admin/tiers/restore`, `/admin/models/load|unload|restart|drain`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.errors import InvalidRequestError, StartupError
from llm_inference.gateway.admin.fleet import Action, EngineState, Fleet
from llm_inference.gateway.body import decoded, read_body
from llm_inference.gateway.openai.fields import RequestFields
from llm_inference.gateway.record import record_of
from llm_inference.gateway.state import gateway_of
from llm_inference.gateway.tenants import access

_LOG = logging.getLogger("llm_inference.gateway")

#: Without `wait`: what takes no longer than this is told as done, or as failed.
_FIRST_LOOK_S = 0.1

SUMMARIES: dict[Action, str] = {
    "load": "Load a model, or let a drained one take requests again",
    "unload": "Let a model finish what it runs, then unload it",
    "restart": "Stop and start a model's engines; requests wait meanwhile",
    "drain": "Give a model no more requests; it stays loaded",
}


class RestoreTier(RequestFields):
    """`POST /admin/tiers/restore`: the tier of `model` that may take requests again."""

    tier: str = Field(min_length=1, max_length=200)


class Restored(msgspec.Struct, frozen=True):
    """`was_demoted` is false where there was nothing to restore."""

    model: str
    tier: str
    was_demoted: bool


class OnReplicas(RequestFields):
    """`POST /admin/models/…`: all replicas of `model`, or the one with this id."""

    replica: str | None = Field(default=None, min_length=1, max_length=400)
    wait: bool = True  # answer when it is done


class Acted(msgspec.Struct, frozen=True):
    """The replicas by id, as they are now. Without `wait` it has just begun."""

    replicas: dict[str, EngineState]


def on_replicas(action: Action) -> Callable[[Request], Awaitable[Response]]:
    """The handler of one of load, unload, restart and drain."""

    async def act(request: Request) -> Response:
        """404 for a model that is not served, 400 for another one's replica, 503 with the reason for a failed load."""
        gateway = gateway_of(request)
        wanted = await decoded(await read_body(request, gateway.settings.max_body_bytes), OnReplicas.parse)
        fleet = _fleet(request)
        group = access.find(gateway.router, wanted.model, record_of(request.scope).key).group
        known = [replica.id for replica in group.replicas]
        if wanted.replica is not None and wanted.replica not in known:
            raise InvalidRequestError(
                f"{group.name} has no replica {wanted.replica!r}; it has {', '.join(known)}.", param="replica"
            )
        chosen = known if wanted.replica is None else [wanted.replica]
        acting = asyncio.ensure_future(fleet.act(action, chosen))
        gateway.acting.add(acting)
        acting.add_done_callback(gateway.acting.discard)
        acting.add_done_callback(_told)
        done, _ = await asyncio.wait({acting}, timeout=None if wanted.wait else _FIRST_LOOK_S)  # it goes on without us
        for one in done:
            one.result()
        engines = (await fleet.report()).engines
        report = Acted({name: engines[name] for name in chosen if name in engines})
        return Response(msgspec.json.encode(report), media_type="application/json")

    return act


async def reload(request: Request) -> Response:
    """Read the configuration anew. 400 with the reason where it is wrong; what runs then goes on as it was."""
    try:
        report = await _fleet(request).reload()
    except StartupError as exc:
        raise InvalidRequestError(f"The configuration was not taken, the old one goes on: {exc.message}") from exc
    return Response(msgspec.json.encode(report), media_type="application/json")


async def restore(request: Request) -> Response:
    gateway = gateway_of(request)
    wanted = await decoded(await read_body(request, gateway.settings.max_body_bytes), RestoreTier.parse)
    group = access.find(gateway.router, wanted.model, record_of(request.scope).key).group
    if wanted.tier not in group.ladder:
        tiers = ", ".join(group.ladder) or "none"
        raise InvalidRequestError(f"{group.name} has no tier {wanted.tier!r}; it has {tiers}.", param="tier")
    done = Restored(group.name, wanted.tier, group.restore(wanted.tier))
    return Response(msgspec.json.encode(done), media_type="application/json")


def _fleet(request: Request) -> Fleet:
    fleet = gateway_of(request).fleet
    if fleet is None:
        raise InvalidRequestError("This server's engines are not kept by it: nothing can be loaded or reloaded here.")
    return fleet


def _told(acting: asyncio.Future[None]) -> None:
    """Also where nobody waits for the end any more."""
    if not acting.cancelled() and (error := acting.exception()) is not None:
        _LOG.error("what an operator asked for failed: %s", error)
