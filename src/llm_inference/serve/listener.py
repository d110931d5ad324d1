"""The bound socket: a port in use is known before a model is loaded."""

from __future__ import annotations

import contextlib
import errno
import socket
import stat
from pathlib import Path
from typing import Any

from llm_inference.config.schema import ApiConfig
from llm_inference.errors import PortInUseError, StartupError


def bind(api: ApiConfig, *, reuse_port: bool = False) -> socket.socket:
    """A bound socket that does not listen yet. Raises `PortInUseError` or `StartupError` with the reason."""
    address: Any
    if api.uds is not None:
        family, address, shown = socket.AF_UNIX, api.uds, api.uds
        _remove_stale(Path(api.uds))
    else:
        try:
            family, _, _, _, address = socket.getaddrinfo(api.host, api.port, type=socket.SOCK_STREAM)[0]
        except socket.gaierror as exc:
            raise StartupError(f"api.host: cannot resolve {api.host!r}: {exc.strerror}") from exc
        shown = f"{api.host}:{api.port}"
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"{shown} is in use by another process; stop it, or choose another with --port (0 takes any free one)"
            ) from exc
        raise StartupError(f"cannot listen on {shown}: {exc.strerror}") from exc
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a server that was killed: nobody answers there. Anything else stays."""
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
