"""Reading a request's body: bounded while it arrives, decoded off the event loop where it is large.

It knows JSON and sizes, not what a field means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from llm_inference.errors import InvalidRequestError, PayloadTooLargeError
from llm_inference.gateway.head import header

_T = TypeVar("_T")

#: Above this, decoding and checking go to a thread: they would hold the loop for milliseconds.
THREAD_BYTES = 256 * 1024

#: After a refusal for size, this much and this long is read on, so that a client that sends before it reads still
#: finds the answer instead of a reset connection.
_LINGER_BYTES = 8 * 1024 * 1024
_LINGER_S = 2.0


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises `PayloadTooLargeError` as soon as it is known to exceed `max_bytes`,
    `InvalidRequestError` for another content type than JSON, `ClientDisconnect` when the client leaves.
    """
    _check_content_type(request)
    declared = header(request.scope, b"content-length")
    if declared.isdigit() and int(declared) > max_bytes:
        if header(request.scope, b"expect").lower() != "100-continue":  # else nothing has been sent yet
            await _linger(request)
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            chunks.clear()
            if message.get("more_body", False):
                await _linger(request)
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def decoded(raw: bytes, parse: Callable[[dict[str, Any]], _T]) -> _T:
    """`parse` of the JSON object in `raw`, in a thread when `raw` is large. Raises `InvalidRequestError`."""
    if len(raw) > THREAD_BYTES:
        return await asyncio.to_thread(_decode, raw, parse)
    return _decode(raw, parse)


def _decode(raw: bytes, parse: Callable[[dict[str, Any]], _T]) -> _T:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        # msgspec is strict JSON: NaN, Infinity, 1e999, lone surrogates and invalid UTF-8 all end here.
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequestError(f"The body is not valid JSON: {reason}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The body must be a JSON object.", code="invalid_json")
    return parse(value)


def _check_content_type(request: Request) -> None:
    media_type = header(request.scope, b"content-type").partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json")):
        return
    # Browsers may send any other type across origins without asking first, so this is a wall, not a formality.
    given = f"{media_type[:100]!r}" if media_type else "none"
    raise InvalidRequestError(
        f"The body must be JSON: send the header Content-Type: application/json (given: {given}).",
        code="unsupported_media_type",
    )


def _too_large(max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The body is larger than {max_bytes} bytes, the limit of this server (api.max_body_bytes)."
    )


async def _linger(request: Request) -> None:
    async def discard() -> None:
        size = 0
        while size < _LINGER_BYTES:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    try:
        await asyncio.wait_for(discard(), _LINGER_S)
    except asyncio.TimeoutError:
        return
