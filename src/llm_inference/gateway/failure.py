"""Errors as HTTP sees them: `{"error": {"message", "type", "param", "code"}}`, status and headers.

Handlers raise from `llm_inference.errors`; what is not from that tree is a defect and leaves nothing of its inside.
"""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from llm_inference.errors import LLMInferenceError


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


def body_of(error: BaseException) -> ErrorBody:
    """The public face of `error`; for a foreign exception a sentence without its text."""
    if isinstance(error, LLMInferenceError):
        return ErrorBody(error.message, type(error).type, error.param, error.public_code)
    return ErrorBody(
        "Something failed inside the server. The log has the details under this response's x-request-id.",
        LLMInferenceError.type,
        None,
        "server_error",
    )


def encode(error: BaseException) -> bytes:
    return msgspec.json.encode(ErrorResponse(body_of(error)))


def response_of(error: BaseException) -> Response:
    """The whole response. `Retry-After` is whole seconds, never 0 (which clients read as "not given")."""
    headers: dict[str, str] = {}
    status = 500
    if isinstance(error, LLMInferenceError):
        status = type(error).status
        if error.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        if status == 413:
            headers["connection"] = "close"  # what the client still sends belongs to nobody
    return Response(encode(error), status, headers, "application/json")


def http_response(status: int, method: str, path: str, headers: dict[str, str] | None = None) -> Response:
    """For the framework's own refusals: no such route, wrong method."""
    if status == 404:
        message, code = f"There is no route {method} {path[:200]}. GET /openapi.json lists the routes.", "not_found"
    elif status == 405:
        allowed = (headers or {}).get("Allow", "another method")
        message, code = f"{method} is not allowed on {path[:200]}; use {allowed}.", "method_not_allowed"
    else:
        phrase = HTTPStatus(status).phrase
        message, code = f"{phrase}.", phrase.lower().replace(" ", "_")
    kind = "invalid_request_error" if status < 500 else LLMInferenceError.type
    payload = msgspec.json.encode(ErrorResponse(ErrorBody(message, kind, None, code)))
    return Response(payload, status, headers, "application/json")
