"""How much of all requests' bodies together may be in the house. Pure ASGI, around the routes.

One body is bounded by `api.max_body_bytes` (body.py); thousands at once are bounded here, since a body becomes Python
objects many times its size. The bytes count from their arrival until the answer is out. Who would go over is told to
come back, like everybody whom a full server refuses.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_inference.errors import OverloadedError
from llm_inference.gateway.admission.admission import RETRY_AFTER_S

#: Bodies of the largest size that fit at once. Usual ones are a thousandth of that.
NUM_LARGEST_BODIES = 4


class BodyBudget:
    """Raises `OverloadedError` out of `receive` when the bodies in flight exceed `NUM_LARGEST_BODIES` largest ones."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_bytes = NUM_LARGEST_BODIES * max_body_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = 0

        async def counted() -> Message:
            nonlocal own
            message = await receive()
            # What comes beyond the largest body is read to be thrown away (body.py), and held by nobody.
            size = min(len(message.get("body", b"")), max(self._max_body_bytes - own, 0))
            own += size
            self._held += size
            if self._held > self._max_bytes and size:
                raise OverloadedError(
                    f"The requests in flight hold {self._max_bytes} bytes together, which is the limit of this server "
                    f"({NUM_LARGEST_BODIES} times api.max_body_bytes); retry later.",
                    retry_after_s=RETRY_AFTER_S,
                )
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= own
