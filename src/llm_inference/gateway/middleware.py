"""The two outer rings around every exchange, pure ASGI: its identity and record, and the net below its defects.

RequestContext   x-request-id in and out, the record's beginning and end
  └─ CORS          (Starlette's, only where origins are configured)
       └─ ErrorBoundary   a defect becomes a 500 with the error body; a client that left becomes nothing
            └─ AuthMiddleware (auth.py), BodyBudget (body_budget.py), then the routes
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_inference.errors import NotReadyError
from llm_inference.gateway import sse
from llm_inference.gateway.admission.admission import DRAIN_RETRY_AFTER_S
from llm_inference.gateway.failure import encode, response_of
from llm_inference.gateway.record import RequestRecord, attach, record_of
from llm_inference.gateway.routing.replica import header_value
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.gateway.ui.recent import Recent
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.tracing import Tracing

_LOG = logging.getLogger("llm_inference.gateway")
#: How long the end of the server waits for a client that does not read.
_GOODBYE_S = 1.0
_NONCE_BYTES, _NUM_NONCES = 16, 128
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestContext:
    """Attaches a `RequestRecord` to the scope and finishes it, whatever happens inside."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        tenants: Tenants | None = None,
        recent: Recent | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._recent = recent
        self._tracing = tracing
        self._nonces = _Nonces()
        self._ledger = tenants if tenants is not None and tenants.ledger is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = self._nonces.new()
        request_id = _request_id(scope) or b"req_" + nonce.encode()
        record = RequestRecord(request_id.decode("ascii"), self._metrics, nonce, scope["method"], scope["path"])
        if self._tracing is not None:
            record.trace = self._tracing.begin(scope["headers"])
        attach(scope, record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message.get("headers", ()), *record.headers, (b"x-request-id", request_id)]
                if record.replica:
                    headers.append((b"x-served-by", header_value(record.replica)))
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            record.aborted = True
            record.error = record.error or "cancelled"
            raise
        finally:
            record.finish()
            if self._recent is not None:
                self._recent.keep(record)
            if self._ledger is not None and record.metered:
                self._ledger.write_down(record)


class ErrorBoundary:
    """Nothing passes: a traceback goes to the log, a plain 500 to the client.

    Who is cancelled has had its time to finish, since the server ends: its client is told so.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = record_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            record.aborted = True
            record.error = record.error or "client_disconnected"
        except asyncio.CancelledError:
            record.aborted = True
            record.error = "shutting_down"
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._say_goodbye(record, scope, receive, send), _GOODBYE_S)
        except Exception as error:
            _LOG.exception("unhandled error in request %s", record.request_id)
            record.error = record.error or "server_error"
            if record.status:
                raise  # the response has begun: only the server can cut it off
            await response_of(error)(scope, receive, send)

    async def _say_goodbye(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        error = NotReadyError(
            "This server was stopped before the request was finished; send it again.",
            code="shutting_down",
            retry_after_s=DRAIN_RETRY_AFTER_S,
        )
        if not record.status:
            await response_of(error)(scope, receive, send)
        elif record.stream:
            await send({"type": "http.response.body", "body": sse.frame(encode(error)), "more_body": False})


class _Nonces:
    """Names that nobody can guess, made many at once: to ask the kernel for each costs more than the rest."""

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new(self) -> str:
        if not self._ready:
            digits = secrets.token_hex(_NONCE_BYTES * _NUM_NONCES)
            size = 2 * _NONCE_BYTES
            self._ready = [digits[start : start + size] for start in range(0, len(digits), size)]
        return self._ready.pop()


def _request_id(scope: Scope) -> bytes | None:
    """The client's `x-request-id` where it is short and plain."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return bytes(value)
    return None
