"""The first half of every handler: door, body, checks, model. What comes out is ready to become engine requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from llm_inference.engine.base import Engine
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.admission.turn import caller_of
from llm_inference.gateway.body import decoded, read_body
from llm_inference.gateway.openai.fields import RequestFields
from llm_inference.gateway.openai.sampling import check_capabilities
from llm_inference.gateway.record import RequestRecord, record_of
from llm_inference.gateway.routing.table import Target
from llm_inference.gateway.routing.wish import Wish
from llm_inference.gateway.state import Gateway, gateway_of
from llm_inference.gateway.tenants import access
from llm_inference.telemetry.redaction import redact

#: More of a session's name would tell no more sessions apart.
MAX_SESSION_CHARS = 1024

FieldsT = TypeVar("FieldsT", bound=RequestFields)


@dataclass(frozen=True, slots=True)
class Intake(Generic[FieldsT]):
    """A parsed request and the engine that will answer it."""

    gateway: Gateway
    record: RequestRecord
    fields: FieldsT
    model: str  # the served name
    engine: Engine


class Envelope(msgspec.Struct, frozen=True):
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str
    record: RequestRecord | None = None

    @classmethod
    def new(cls, prefix: str, intake: Intake[Any]) -> Envelope:
        # The engine's request ids derive from it, so it is ours alone: clients may repeat their x-request-id.
        return cls(f"{prefix}-{intake.record.nonce}", int(time.time()), intake.model, intake.record)

    @property
    def service_tier(self) -> str | UnsetType:
        """The tier that answers, known with the first delta; UNSET for a model without tiers."""
        return (self.record.tier if self.record is not None else "") or UNSET


async def take_in(request: Request, fields: type[FieldsT]) -> Intake[FieldsT]:
    """Raises from `llm_inference.errors`: full or draining, the caller's limits, body, fields, model, capabilities."""
    gateway = gateway_of(request)
    record = record_of(request.scope)
    gateway.admission.check(caller_of(record, request.scope))
    if gateway.tenants is not None:
        gateway.tenants.check(record, request.scope)
    raw = await read_body(request, gateway.settings.max_body_bytes)
    parsed = await decoded(raw, fields.parse)
    target = access.find(gateway.router, parsed.model, record.key)
    record.model = target.group.name
    record.asked_tier = getattr(parsed, "service_tier", None) or ""
    engine = gateway.router.route(target, _wish(request, record, parsed, target))
    check_capabilities(parsed, engine.capabilities, engine.info)
    return Intake(gateway, record, parsed, record.model, engine)


def _wish(request: Request, record: RequestRecord, fields: RequestFields, target: Target) -> Wish:
    """What this request says about who should answer it."""
    tier = getattr(fields, "service_tier", None)
    if target.group.only is not None:
        return Wish(tier=tier, diary=record)

    def fits(engine: Engine) -> bool:
        try:
            check_capabilities(fields, engine.capabilities, engine.info)
        except InvalidRequestError:
            return False
        return True

    session = request.headers.get("x-session-id") or getattr(fields, "user", None) or ""
    return Wish(tier, session[:MAX_SESSION_CHARS], record.key.scope if record.key is not None else None, record, fits)


async def log_prompt(intake: Intake[Any], prompt: Any) -> None:
    """Put the prompt into the request's log line, where the settings say so."""
    settings = intake.gateway.settings
    if settings.log_prompts:
        intake.record.prompt = await asyncio.to_thread(redact, prompt) if settings.redact_prompts else prompt
