"""`POST /admin/profile`: where the time of a live engine's next steps goes, while it goes on serving.

One at a time for each engine, and bounded: by a number of steps, and by seconds. The gateway knows the profile as
figures; how they are taken is the engine's business.
"""

from __future__ import annotations

import base64

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import Engine, Profiles
from llm_inference.engine.held import Held
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.body import decoded, read_body
from llm_inference.gateway.openai.fields import RequestFields
from llm_inference.gateway.record import record_of
from llm_inference.gateway.routing.deployment import Group
from llm_inference.gateway.state import gateway_of
from llm_inference.gateway.tenants import access
from llm_inference.telemetry.profiling.diagnosis import Finding, diagnose
from llm_inference.telemetry.profiling.figures import Profile, ProfileOrder
from llm_inference.telemetry.profiling.words import described

MAX_STEPS = 100
MAX_SECONDS = 60.0


class ProfileSteps(RequestFields):
    """`replica`: as `GET /admin/models` calls it; without it the first that can be profiled. `trace`: send it too."""

    replica: str | None = Field(default=None, min_length=1, max_length=200)
    steps: int = Field(default=20, ge=1, le=MAX_STEPS)
    seconds: float = Field(default=10.0, gt=0, le=MAX_SECONDS, allow_inf_nan=False)
    trace: bool = False


class ProfileReport(msgspec.Struct, frozen=True):
    """`text`: the diagnosis for people. `trace_gz`: the Chrome trace, packed, in base64; null unless asked for."""

    model: str
    replica: str
    findings: list[Finding]
    text: list[str]
    profile: Profile
    trace_gz: str | None = None


async def profile(request: Request) -> Response:
    """400 where the engine cannot be profiled, 503 while another profile of it runs."""
    gateway = gateway_of(request)
    wanted = await decoded(await read_body(request, gateway.settings.max_body_bytes), ProfileSteps.parse)
    group = access.find(gateway.router, wanted.model, record_of(request.scope).key).group
    name, engine = _engine(group, wanted.replica)
    result = await engine.profile(ProfileOrder(num_steps=wanted.steps, max_s=wanted.seconds))
    findings = diagnose(result.profile)
    report = ProfileReport(
        group.name,
        name,
        findings,
        described(result.profile, findings),
        result.profile,
        base64.b64encode(result.trace_gz).decode() if wanted.trace else None,
    )
    return Response(msgspec.json.encode(report), media_type="application/json")


def _engine(group: Group, wanted: str | None) -> tuple[str, Profiles]:
    replicas = {replica.id: _behind(replica.engine) for entry in group.deployments for replica in entry.replicas}
    if wanted is not None and wanted not in replicas:
        names = ", ".join(map(repr, replicas))
        raise InvalidRequestError(f"{group.name} has no replica {wanted[:200]!r}; it has {names}.", param="replica")
    for name, engine in replicas.items():
        if wanted in (None, name) and isinstance(engine, Profiles):
            return name, engine
    kinds = ", ".join(sorted({engine.info.engine for engine in replicas.values()}))
    raise InvalidRequestError(
        f"Only the native engine can be profiled; {wanted or group.name} runs on {kinds}, which has tools of its own.",
        param="model" if wanted is None else "replica",
    )


def _behind(engine: Engine) -> Engine:
    return engine.engine if isinstance(engine, Held) else engine
