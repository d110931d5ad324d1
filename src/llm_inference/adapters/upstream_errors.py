"""What a foreign server says when it refuses or fails → one error of ours.

Bodies differ: `{"error": {"message", "code", …}}`, `{"error": "text"}`, `{"message", "code": 400}` with
`"object": "error"`, FastAPI's `{"detail": "text"}` and its list of fields, plain text, nothing. Pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import msgspec

from llm_inference.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    LLMInferenceError,
    NotReadyError,
    OverloadedError,
    PayloadTooLargeError,
    RequestTimeoutError,
)

MAX_MESSAGE_CHARS = 2000
#: No client waits for longer.
_MAX_RETRY_AFTER_S = 86_400.0
_CONTEXT = re.compile(
    r"context (?:length|size|window)|maximum context|max_model_len|exceed_context_size|"
    r"longer than the model|must be <= \d+\. Given: \d+ `inputs` tokens",
    re.IGNORECASE,
)
_CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")


class Refusal(msgspec.Struct, frozen=True):
    """What could be read of an error body."""

    message: str
    code: str | None = None  # a word; numbers are statuses, not codes
    param: str | None = None
    status: int | None = None  # a number given as `code`
    type: str | None = None


def read_refusal(body: Any) -> Refusal:
    """Of a decoded body, whatever its shape."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, dict):
        return Refusal(_clip(body if isinstance(body, str) else _dump(body)))
    inner = body.get("error", body)
    if isinstance(inner, str):
        return Refusal(_clip(inner), type=_word(body.get("error_type")))
    if not isinstance(inner, dict):
        inner = body
    code = inner.get("code")
    message = inner.get("message")
    detail = inner.get("detail", message if isinstance(message, list) else None)
    param = _word(inner.get("param"))
    if isinstance(detail, list):
        message, param = _fields(detail, param)
    elif message is None:
        message = detail
    return Refusal(
        _clip(message if isinstance(message, str) and message else _dump(inner)),
        code=code if isinstance(code, str) and not code.isdigit() else None,
        param=param,
        status=_status(code),
        type=_word(inner.get("type")),
    )


def from_response(status: int, headers: Mapping[str, str], raw: bytes, *, where: str) -> LLMInferenceError:
    """The error for a reply that is not 200. `headers`: names in lower case, or of any case where they are read so.

    `where` names the engine, and no address: clients read it.
    """
    try:
        body: Any = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        body = raw[:MAX_MESSAGE_CHARS].decode("utf-8", "replace").strip()
    refusal = read_refusal(body) if body else Refusal("(an empty body)")
    return from_refusal(status, refusal, where=where, retry_after_s=retry_after(headers.get("retry-after")))


def from_refusal(status: int, refusal: Refusal, *, where: str, retry_after_s: float | None = None) -> LLMInferenceError:
    """One error of ours. 401, 402 and 403 are our configuration's fault, not the caller's key's."""
    message = refusal.message
    if status in (401, 402, 403):
        return EngineError(f"{where} refuses our key ({status}): {message}. Set `api_key` of this model.")
    if status == 429:
        return OverloadedError(f"{where} is at its limit: {message}", retry_after_s=retry_after_s or 1.0)
    if status == 503:
        if re.search(r"loading|starting|not ready|unavailable_error", f"{message} {refusal.type}", re.IGNORECASE):
            return NotReadyError(f"{where} is not ready: {message}", retry_after_s=retry_after_s or 2.0)
        return OverloadedError(f"{where} is overloaded: {message}", retry_after_s=retry_after_s or 1.0)
    if status in (408, 504):
        return RequestTimeoutError(f"{where} gave up ({status}): {message}")
    if status in (404, 405):
        # The model's name is ours to translate, so a name that the server does not know is a wrong configuration.
        return EngineError(f"{where} has no such model or route ({status}): {message}. Check `model` and `url`.")
    if status == 413:
        return PayloadTooLargeError(message)
    if 400 <= status < 500:
        if refusal.code in _CONTEXT_CODES or refusal.type in _CONTEXT_CODES or _CONTEXT.search(message):
            return ContextLengthError(message, param=refusal.param)
        return InvalidRequestError(message, param=refusal.param)
    return EngineError(f"{where} failed ({status}): {message}")


def from_event(body: Any, *, where: str) -> LLMInferenceError:
    """The error for an error object inside a stream whose status was 200. A 4xx code in it is the caller's fault."""
    refusal = read_refusal(body)
    status = refusal.status or _IMPLIED_STATUS.get(refusal.type or "", 500)
    if refusal.code == "context_length_exceeded":
        status = 400
    return from_refusal(status, refusal, where=where)


_IMPLIED_STATUS = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "validation": 422,
    "exceed_context_size_error": 400,
    "overloaded": 429,
    "overloaded_error": 503,
}


def retry_after(value: str | None) -> float | None:
    """Seconds, from a number or a date; None for neither."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None


def _fields(items: list[Any], param: str | None) -> tuple[str, str | None]:
    """FastAPI's list of wrong fields: all messages, and the first field's path."""
    parts = []
    for item in items:
        if not isinstance(item, dict):
            parts.append(str(item))
            continue
        steps = item.get("loc")
        place = [str(step) for step in steps if step != "body"] if isinstance(steps, list) else []
        path = ".".join(place)
        param = param or path or None
        text = str(item.get("msg", _dump(item)))
        parts.append(f"{path}: {text}" if path else text)
    return "; ".join(parts), param


def _status(code: Any) -> int | None:
    if isinstance(code, str) and re.fullmatch("[0-9]{3}", code):
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _dump(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _clip(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
