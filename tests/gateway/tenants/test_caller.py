from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants.caller import TrustedProxies


def scope(client: str | None, *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    return {"type": "http", "client": None if client is None else (client, 1), "headers": headers}


@pytest.mark.parametrize(
    ("trusted", "client", "forwarded", "expected"),
    [
        ((), "192.0.2.1", (), "192.0.2.1"),
        ((), "192.0.2.1", ("203.0.113.9",), "192.0.2.1"),  # nobody is trusted: the header is the client's word
        (("10.0.0.0/8",), "10.1.2.3", ("203.0.113.9",), "203.0.113.9"),
        (("10.0.0.0/8",), "192.0.2.1", ("203.0.113.9",), "192.0.2.1"),
        # What a client wrote itself stands left of what the proxy added.
        (("10.0.0.0/8",), "10.1.2.3", ("198.51.100.7, 203.0.113.9",), "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.2.3", ("198.51.100.7", "203.0.113.9, 10.9.9.9"), "203.0.113.9"),
        (("10.0.0.0/8",), "10.1.2.3", ("rubbish, 10.9.9.9",), "10.9.9.9"),
        (("10.0.0.0/8",), "10.1.2.3", ("",), "10.1.2.3"),
        (("10.0.0.0/8",), "10.1.2.3", ("203.0.113.9:4711",), "203.0.113.9"),
        (("10.0.0.1",), "::ffff:10.0.0.1", ("203.0.113.9",), "203.0.113.9"),
        ((), "2001:db8:1:2:3:4:5:6", (), "2001:db8:1:2::/64"),
        (("10.0.0.0/8",), "10.1.2.3", ("[2001:db8:1:2::9]:443",), "2001:db8:1:2::/64"),
        ((), None, ("203.0.113.9",), "unix"),
        (("unix",), None, ("203.0.113.9",), "203.0.113.9"),
        (("unix",), None, (), "unix"),
    ],
)
def test_whose_word_is_taken(
    trusted: tuple[str, ...], client: str | None, forwarded: tuple[str, ...], expected: str
) -> None:
    assert TrustedProxies(trusted).client_of(scope(client, *forwarded)) == expected


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'api\.trusted_proxies: "proxy\.local"'):
        TrustedProxies(("proxy.local",))
