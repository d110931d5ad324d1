"""The gateway as one ASGI application. It is given engines, settings and a registry, and knows no configuration file.

Engines are started and stopped by whoever owns them, not here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import Engine
from llm_inference.errors import LLMInferenceError
from llm_inference.gateway import document
from llm_inference.gateway.admission.admission import Admission
from llm_inference.gateway.admission.engines import full_engines
from llm_inference.gateway.auth import OPEN_PATHS, AuthMiddleware, KeyRing, Keys
from llm_inference.gateway.body_budget import BodyBudget
from llm_inference.gateway.dispatch import GatewayApp, refusal
from llm_inference.gateway.engine_figures import EngineFigures
from llm_inference.gateway.failure import http_response
from llm_inference.gateway.middleware import ErrorBoundary, RequestContext
from llm_inference.gateway.record import record_of
from llm_inference.gateway.routes import Route, all_routes
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing_figures import report_routing
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.gateway.state import Gateway
from llm_inference.gateway.tenants import access
from llm_inference.gateway.tenants.headers import NAMES as RATE_LIMIT_HEADERS
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.gateway.ui.page import Page
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.tracing import Tracing
from llm_inference.version import __version__


def create_app(
    engines: Mapping[str, Engine] | Router,
    settings: GatewaySettings,
    *,
    registry: CollectorRegistry,
    tenants: Tenants | None = None,
    metrics: Metrics | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application. `app.state.gateway` is the `Gateway`: what an orderly start and end need is there.

    `tenants` brings keys of its own, which then are all there are. `metrics`: where they exist on `registry` already.
    """
    router = engines if isinstance(engines, Router) else Router.of_engines(engines, settings.aliases)
    metrics = metrics or Metrics(registry)
    gateway = Gateway(router, settings, metrics, _admission(settings, router), tenants)
    keys = _keys(settings, tenants)
    page = Page(settings.api_prefix).handlers if settings.page else {}
    metrics.watch_in_flight(lambda: gateway.admission.in_flight)
    if gateway.admission.rules.max_queue_requests:
        metrics.watch("admission_queue_depth", lambda: {(): float(gateway.admission.num_waiting)})
    figures = EngineFigures(gateway.engines)
    metrics.watch_engines(figures.read)
    metrics.before_scrape(figures.refresh)
    report_routing(lambda: gateway.router, metrics)

    app = GatewayApp(
        title="llm-inference",
        version=__version__,
        redirect_slashes=False,  # another spelling of a path is another path
        docs_url=None,  # their pages load scripts from elsewhere; the document itself is at /openapi.json
        redoc_url=None,
        middleware=_middleware(gateway, keys, page, tracing),
        exception_handlers={LLMInferenceError: _on_error, HTTPException: _on_http_exception},
    )
    app.state.gateway = gateway
    routes = all_routes(settings.api_prefix)
    for route in routes:
        app.add_direct(route.method, route.path, _endpoint(route))
    for path, handler in page.items():
        app.add_route(path, handler, methods=["GET"], include_in_schema=False)
    written: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not written:
            written.update(document.openapi(routes, with_keys=keys is not None))
        return written

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to replace the document
    return app


def _admission(settings: GatewaySettings, router: Router) -> Admission:
    rules = settings.admission
    return Admission(settings.max_concurrent_requests, rules, busy=full_engines(router, rules.max_kv_cache_usage))


def _keys(settings: GatewaySettings, tenants: Tenants | None) -> Keys | None:
    """None: nobody needs a key. A store without a key in it is not that: it lets nobody in."""
    if tenants is not None and tenants.keys is not None:
        return tenants.keys
    return KeyRing(settings.api_keys) if settings.api_keys else None


def _middleware(
    gateway: Gateway, keys: Keys | None, open_files: Iterable[str], tracing: Tracing | None
) -> list[Middleware]:
    """Outermost first; see middleware.py for the picture. `open_files` are paths of the page."""
    settings = gateway.settings
    stack = [
        Middleware(
            RequestContext,
            metrics=gateway.metrics,
            tenants=gateway.tenants,
            recent=gateway.recent,
            tracing=tracing,
        ),
    ]
    if settings.cors_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("x-request-id", "x-served-by", "x-degraded", "retry-after", *RATE_LIMIT_HEADERS),
            )
        )
    stack.append(Middleware(ErrorBoundary))
    if keys is not None:
        open_paths = OPEN_PATHS if settings.open_metrics else OPEN_PATHS - {"/metrics"}
        stack.append(Middleware(AuthMiddleware, keys=keys, open_paths=open_paths.union(open_files)))
    stack.append(Middleware(BodyBudget, max_body_bytes=settings.max_body_bytes))
    return stack


def _endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
    group, metered = route.group, route.body is not None

    async def endpoint(request: Request) -> Response:
        record = record_of(request.scope)
        record.route = route.path
        record.metered = metered
        if route.path not in OPEN_PATHS or record.key is not None:
            access.check_route(record, group)
        return await route.handler(request)

    return endpoint


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LLMInferenceError)
    return refusal(request.scope, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return http_response(error.status_code, request.method, request.url.path, headers)
