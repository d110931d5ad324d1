"""The front's ZeroMQ socket on an event loop: whole messages come by callback, as does the end of the connection.

Reads the socket itself instead of through pyzmq's own asyncio layer, whose futures and timers cost more than all else
that is done with a token between the core and the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

#: Messages that are handed on in one go before other callbacks of the loop have their turn.
_MAX_IN_ONE_GO = 256


class FrontSocket:
    """A DEALER that connects to `path`, now or as soon as somebody binds it. All methods belong to one event loop."""

    def __init__(self, path: str, on_message: Callable[[bytes], None], on_disconnected: Callable[[], None]) -> None:
        """`on_disconnected`: the peer closed the connection, or its process ended."""
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_disconnected = on_disconnected
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):  # no limit: nothing blocks, and nothing is dropped
            self._socket.setsockopt(option, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._drain_is_due = False
        self._closed = False
        self._loop.add_reader(_descriptor(self._socket), self._drain)
        self._loop.add_reader(_descriptor(self._monitor), self._watch)
        self._socket.connect(f"ipc://{path}")
        # The descriptors speak up only once they have been found empty.
        self._drain_soon()
        self._loop.call_soon(self._watch)

    def send(self, message: bytes) -> None:
        self._socket.send(message, zmq.NOBLOCK)
        # Sending may take the signal that something has come: the descriptor then stays silent about it.
        self._drain_soon()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for socket in (self._socket, self._monitor):
            self._loop.remove_reader(_descriptor(socket))
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._context.destroy(linger=0)

    def _drain_soon(self) -> None:
        if not self._drain_is_due:
            self._drain_is_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Hand on what has come. The descriptor speaks up again only once nothing is left."""
        self._drain_is_due = False
        for _ in range(_MAX_IN_ONE_GO):
            if self._closed:
                return
            try:
                message = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(message)
        self._drain_soon()

    def _watch(self) -> None:
        with contextlib.suppress(zmq.Again):
            while not self._closed:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                if event["event"] == zmq.EVENT_DISCONNECTED:
                    self._drain()  # what the peer had still said
                    self._on_disconnected()


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))
