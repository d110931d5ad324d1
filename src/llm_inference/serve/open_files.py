"""Says when this process has no file descriptor left, and when it has some again.

The event loop takes a connection that it has no descriptor for and closes it at once, without a word: serving goes on
and recovers, and only the client would know. So somebody looks.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import time

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
#: Of a process at its limit that comes and goes, not more than one line in that time.
SAY_EVERY_S = 60.0


class OpenFiles:
    """Looks whether one more descriptor can be had, by having one. `say_every_s`: between two complaints, at least."""

    def __init__(self, *, say_every_s: float = SAY_EVERY_S) -> None:
        self._say_every_s = say_every_s
        self._said_at: float | None = None
        self._out_since: float | None = None
        self._told = False  # of this shortage

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        now = time.monotonic()
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._none_left(now, error)
                return
        if self._out_since is not None:
            if self._told:
                logger.warning("file descriptors are free again, after %.1f s", now - self._out_since)
            self._out_since, self._told = None, False

    def _none_left(self, now: float, error: OSError) -> None:
        if self._out_since is None:
            self._out_since = now
        if self._said_at is not None and now - self._said_at < self._say_every_s:
            return
        self._said_at, self._told = now, True
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        whose = f"this process may have {limit} open" if error.errno == errno.EMFILE else "the whole system has none"
        logger.error(
            "out of file descriptors (%s): new connections are closed at once, and other work may fail, until some are "
            "free; allow more (ulimit -n, LimitNOFILE=), or let fewer clients keep connections open",
            whose,
        )
