"""A stream for log lines that never waits for whoever reads them.

A pipe that nobody reads, or a terminal on hold, is full sooner or later, and the next write would stop the whole
process. So every write asks first whether the system takes a page at once:

    it does                 written here and now
    it does not             kept, up to MAX_WAITING_BYTES, for a thread that waits in our place and then ends
    too much is kept        lost and counted; one line says how many, as soon as lines go out again

Lines keep their order. Knows nothing of records and formats.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MAX_WAITING_BYTES = 1 << 20
#: What a pipe that is ready takes without waiting: POSIX promises 512, Linux a page.
_PIECE_BYTES = select.PIPE_BUF
#: How long the thread waits before it looks again; only so that a closed stream is noticed everywhere.
_LOOK_AGAIN_MS = 1000


class LogStream:
    """Writes to `stream`. `lost_line(count)` is the line that tells of lost ones, its line break included.

    Files and streams without a descriptor are written to directly: they do not wait for a reader.
    """

    def __init__(
        self, stream: TextIO, lost_line: Callable[[int], str], *, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.stream = stream
        self.lost_line = lost_line
        self._max_waiting_bytes = max_waiting_bytes
        self._fd = _descriptor_of_one_that_waits(stream)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._ready = select.poll()
        if self._fd is not None:
            self._ready.register(self._fd, select.POLLOUT)
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._num_waiting_bytes = 0
        self._num_lost = 0
        self._thread: threading.Thread | None = None  # while something waits

    def write(self, text: str) -> None:
        """`text` is whole lines. Raises `OSError` or `ValueError` where the stream is closed."""
        if self._fd is None:
            self.stream.write(text)
            self.stream.flush()
            return
        data = text.encode(self._encoding, "backslashreplace")
        with self._lock:
            if self._thread is None:
                data = self._write_what_goes(data)
                if not data:
                    return
                self._thread = threading.Thread(target=self._write_the_rest, name="log", daemon=True)
                self._keep(data)
                self._thread.start()
            elif not self._num_lost and self._num_waiting_bytes + len(data) <= self._max_waiting_bytes:
                self._keep(data)
            else:  # and everything after it, so that there is one gap, where the line that tells of it stands
                self._num_lost += data.count(b"\n")

    def close(self, timeout_s: float) -> None:
        """Wait that long, at most, for what is still to be written; the stream stays open."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _keep(self, data: bytes) -> None:
        self._waiting.append(data)
        self._num_waiting_bytes += len(data)

    def _write_what_goes(self, data: bytes, wait_ms: int = 0) -> bytes:
        """What is left of `data`."""
        assert self._fd is not None
        while data and self._ready.poll(wait_ms):
            data = data[os.write(self._fd, data[:_PIECE_BYTES]) :]
        return data

    def _write_the_rest(self) -> None:
        """The thread's work: ends when nothing waits any more, or nobody can read it."""
        while True:
            with self._lock:
                if not self._waiting and self._num_lost:
                    self._keep(self.lost_line(self._num_lost).encode(self._encoding, "backslashreplace"))
                    self._num_lost = 0
                if not self._waiting:
                    self._thread = None
                    return
                data = self._waiting.popleft()
            left = data
            try:
                while left:
                    left = self._write_what_goes(left, _LOOK_AGAIN_MS)
            except (OSError, ValueError):  # closed, by us or by the reader
                with self._lock:
                    self._waiting.clear()
                    self._num_waiting_bytes = self._num_lost = 0
                    self._thread = None
                return
            with self._lock:
                self._num_waiting_bytes -= len(data)


def _descriptor_of_one_that_waits(stream: TextIO) -> int | None:
    """Of a pipe, a socket or a terminal."""
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return fd if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None
