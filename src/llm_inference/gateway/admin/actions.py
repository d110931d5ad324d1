"""`POST /admin/reload` and `POST /admin/tiers/restore`: what an operator may do."""

from __future__ import annotations

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.errors import InvalidRequestError, StartupError
from llm_inference.gateway.body import decoded, read_body
from llm_inference.gateway.openai.fields import RequestFields
from llm_inference.gateway.state import gateway_of


class RestoreTier(RequestFields):
    """`POST /admin/tiers/restore`: the tier of `model` that may take requests again."""

    tier: str = Field(min_length=1, max_length=200)


class Restored(msgspec.Struct, frozen=True):
    """`was_demoted` is false where there was nothing to restore."""

    model: str
    tier: str
    was_demoted: bool


async def reload(request: Request) -> Response:
    """Read the configuration anew. 400 with the reason where it is wrong; what runs then goes on as it was."""
    reloading = gateway_of(request).reload
    if reloading is None:
        raise InvalidRequestError("This server cannot reload its configuration: it has several workers, or no file.")
    try:
        report = await reloading()
    except StartupError as exc:
        raise InvalidRequestError(f"The configuration was not taken, the old one goes on: {exc.message}") from exc
    return Response(msgspec.json.encode(report), media_type="application/json")


async def restore(request: Request) -> Response:
    gateway = gateway_of(request)
    wanted = await decoded(await read_body(request, gateway.settings.max_body_bytes), RestoreTier.parse)
    group = gateway.router.find(wanted.model).group
    if wanted.tier not in group.ladder:
        tiers = ", ".join(group.ladder) or "none"
        raise InvalidRequestError(f"{group.name} has no tier {wanted.tier!r}; it has {tiers}.", param="tier")
    done = Restored(group.name, wanted.tier, group.restore(wanted.tier))
    return Response(msgspec.json.encode(done), media_type="application/json")
