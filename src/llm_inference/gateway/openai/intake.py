"""The first half of every handler: door, body, checks, model. What comes out is ready to become engine requests."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from llm_inference.engine.base import Engine
from llm_inference.gateway.body import decoded, read_body
from llm_inference.gateway.openai.fields import RequestFields
from llm_inference.gateway.openai.sampling import check_capabilities
from llm_inference.gateway.record import RequestRecord, record_of
from llm_inference.gateway.state import Gateway, gateway_of
from llm_inference.gateway.tenants import access

FieldsT = TypeVar("FieldsT", bound=RequestFields)


@dataclass(frozen=True, slots=True)
class Intake(Generic[FieldsT]):
    """A parsed request and the engine that will answer it."""

    gateway: Gateway
    record: RequestRecord
    fields: FieldsT
    model: str  # the served name
    engine: Engine


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> Envelope:
        # The engine's request ids derive from it, so it is ours alone: clients may repeat their x-request-id.
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)


async def take_in(request: Request, fields: type[FieldsT]) -> Intake[FieldsT]:
    """Raises from `llm_inference.errors`: full or draining, the caller's limits, body, fields, model, capabilities."""
    gateway = gateway_of(request)
    record = record_of(request.scope)
    gateway.admission.check()
    if gateway.tenants is not None:
        gateway.tenants.check(record, request.scope)
    raw = await read_body(request, gateway.settings.max_body_bytes)
    parsed = await decoded(raw, fields.parse)
    model, engine = access.resolve(gateway.router, parsed.model, record.key)
    record.model = model
    check_capabilities(parsed, engine.capabilities, engine.info)
    return Intake(gateway, record, parsed, model, engine)


def log_prompt(intake: Intake[Any], prompt: Any) -> None:
    """Put the prompt into the request's log line, where the settings say so."""
    if intake.gateway.settings.log_prompts:
        intake.record.prompt = prompt
