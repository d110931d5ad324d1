"""Single headers of a request as the server received them, without an object for all of them."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str:
    """The value of the first header called `name` (lower case); "" where there is none."""
    for given, value in scope["headers"]:
        if given == name:
            return str(value, "latin-1")
    return ""
