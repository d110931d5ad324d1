"""The page at `/`: a few static files of this package, read once, the same for everybody.

They hold no secrets and need no key; what they show they ask for over the API, with the key that the user types in.
The policy that goes with each forbids everything from elsewhere, and scripts and styles that are not these files.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from llm_inference.gateway.record import record_of
from llm_inference.version import __version__

#: Where the files are, below the page itself.
FOLDER = "ui"
_INDEX = "index.html"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # kept, and asked about each time: a new version is seen at once
}

Handler = Callable[[Request], Awaitable[Response]]


class Page:
    """`handlers` maps each path to what answers it. The paths are exact, and all there are."""

    def __init__(self, api_prefix: str) -> None:
        """`api_prefix`: where the page's scripts find the API, "" or "/something"."""
        self.handlers: dict[str, Handler] = {}
        for entry in files(__package__).joinpath("static").iterdir():
            kind = entry.name.rpartition(".")[2]
            if kind not in _TYPES:
                continue
            content = entry.read_bytes()
            if entry.name == _INDEX:
                content = _filled(content.decode(), api_prefix)
            path = "/" if entry.name == _INDEX else f"/{FOLDER}/{entry.name}"
            self.handlers[path] = _handler(path, content, f"{_TYPES[kind]}; charset=utf-8")


def _filled(text: str, api_prefix: str) -> bytes:
    for name, value in (("api_prefix", api_prefix), ("version", __version__)):
        text = text.replace(f"[[ {name} ]]", html.escape(value))
    return text.encode()


def _handler(path: str, content: bytes, media_type: str) -> Handler:
    headers = {**_HEADERS, "content-type": media_type, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def answer(request: Request) -> Response:
        record = record_of(request.scope)
        record.route, record.quiet = path, True
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return answer
