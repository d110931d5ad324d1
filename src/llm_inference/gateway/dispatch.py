"""The application's inside: our own routes are found by one look into a table, below the framework's layers.

    RequestContext … BodyBudget (middleware.py) ─► Dispatch ──method and path known──► the handler
                                                      └── else ──► the framework: templated paths, 404, 405, HEAD

A request costs the framework's half dozen of layers and its walk through patterns otherwise. The table and the API
document (document.py) are made of the same routes, so neither can say what the other does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_inference.errors import LLMInferenceError
from llm_inference.gateway.failure import response_of
from llm_inference.gateway.record import record_of

Endpoint = Callable[[Request], Awaitable[Response]]


class Dispatch:
    """Pure ASGI. `endpoints`: (method, path) → who answers."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[tuple[str, str], Endpoint]) -> None:
        self._framework = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await self._framework(scope, receive, send)
            return
        try:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
        except LLMInferenceError as error:
            if record_of(scope).status:
                raise  # too late for another status
            await refusal(scope, error)(scope, receive, send)


def refusal(scope: Scope, error: LLMInferenceError) -> Response:
    """The answer to a request that ends with `error`; its record says so, too."""
    record_of(scope).failed(error)
    return response_of(error)


class GatewayApp(FastAPI):
    """A FastAPI whose outer layers are the given middleware alone.

    The framework's own net for defects and its telemetry are left out: `ErrorBoundary` and `RequestContext` are ours.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._endpoints: dict[tuple[str, str], Endpoint] = {}

    def add_direct(self, method: str, path: str, endpoint: Endpoint) -> None:
        """A route of the framework; without placeholders in its path also one of the table."""
        self.add_route(path, endpoint, methods=[method], include_in_schema=False)
        if "{" not in path:
            self._endpoints[method, path] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What Starlette does, without FastAPI's question to its telemetry at every request."""
        scope["app"] = self
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = AsyncExitStackMiddleware(self.router)
        app = ExceptionMiddleware(app, handlers=self.exception_handlers, debug=False)
        app = Dispatch(app, self._endpoints)
        for layer, args, kwargs in reversed(self.user_middleware):
            app = layer(app, *args, **kwargs)
        return app
