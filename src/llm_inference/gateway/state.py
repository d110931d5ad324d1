"""What all handlers share: router, admission, tenants, metrics and settings. Built once by `create_app`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from llm_inference.engine.base import Engine
from llm_inference.gateway.admin.fleet import Fleet
from llm_inference.gateway.admission.admission import Admission
from llm_inference.gateway.canary import CanaryResult
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.gateway.ui.recent import Recent
from llm_inference.telemetry.metrics import Metrics


@dataclass(slots=True)
class Gateway:
    """`app.state.gateway`. Its methods that begin and end something are for whoever runs the process."""

    router: Router
    settings: GatewaySettings
    metrics: Metrics
    admission: Admission
    tenants: Tenants | None = None
    recent: Recent = field(default_factory=Recent)
    fleet: Fleet | None = None  # who keeps the engines; None: nobody that could be asked
    #: What operators have begun and may not have waited for.
    acting: set[asyncio.Future[None]] = field(default_factory=set)
    warming_up: bool = False
    canary_results: dict[str, CanaryResult] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def begin_warm_up(self) -> None:
        """`/ready` says 503 `warming_up` until `end_warm_up`. Requests that come all the same are answered."""
        self.warming_up = True

    def end_warm_up(self) -> None:
        self.warming_up = False

    def begin_drain(self) -> None:
        """`/ready` turns 503 `shutting_down`, new requests are refused with 503, what is in flight goes on."""
        self.admission.begin_drain()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait for the last request in flight. False if `timeout_s` passed first."""
        return await self.admission.wait_idle(timeout_s)

    def engines(self) -> dict[str, Engine]:
        """By replica; of a model that has only one, by its name."""
        return {replica.id: replica.engine for replica in self.router.replicas()}


def gateway_of(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)
