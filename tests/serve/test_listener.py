from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llm_inference.config.schema import ApiConfig
from llm_inference.errors import PortInUseError, StartupError
from llm_inference.serve.listener import bind


def test_any_free_port_and_no_child_inherits_it() -> None:
    with bind(ApiConfig(port=0)) as listener:
        assert listener.getsockname()[1] > 0
        assert not listener.get_inheritable()


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"127.0.0.1:{port} is in use.*--port"):
            bind(ApiConfig(port=port))


def test_workers_share_an_address() -> None:
    with bind(ApiConfig(port=0), reuse_port=True) as first:
        port = first.getsockname()[1]
        with bind(ApiConfig(port=port), reuse_port=True) as second:
            assert second.getsockname() == first.getsockname()


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"cannot (listen on|resolve)"):
        bind(ApiConfig(host="192.0.2.1"))
    with pytest.raises(StartupError, match="cannot resolve"):
        bind(ApiConfig(host="no.such.host.invalid"))
    with bind(ApiConfig(uds=str(tmp_path / "socket"))) as listener:
        assert listener.family == socket.AF_UNIX


def test_the_socket_file_of_a_killed_server_is_taken_over_and_a_living_one_is_not(tmp_path: Path) -> None:
    api = ApiConfig(uds=str(tmp_path / "socket"))
    bind(api).close()  # the file stays, as after kill -9
    with bind(api) as living:
        living.listen()
        with pytest.raises(PortInUseError):
            bind(api)
