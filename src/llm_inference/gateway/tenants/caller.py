"""Who calls where nobody shows a key: the client's address, as far as it can be believed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import Scope

from llm_inference.errors import ConfigError

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The address of whoever comes over a Unix socket without a trusted `x-forwarded-for`, and its name in the settings.
UNIX = "unix"
#: One customer of a provider has as many IPv6 addresses as he likes, within one of these.
_IPV6_PREFIX = 64


class TrustedProxies:
    """Whose `x-forwarded-for` is believed. Its entries are read from the right: the left ones are the client's words.

    `networks` are addresses, networks (10.0.0.0/8) and `unix`. Raises `ConfigError`.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._unix = False
        self._networks: list[_Network] = []
        for text in networks:
            if text == UNIX:
                self._unix = True
                continue
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError as error:
                raise ConfigError(
                    f'api.trusted_proxies: "{text}" is neither an address nor a network such as 10.0.0.0/8, nor "unix"'
                ) from error

    def client_of(self, scope: Scope) -> str:
        """The client's address; of IPv6 its /64 network; `unix` where there is none."""
        client = scope.get("client")
        address = str(client[0]) if client and client[0] else UNIX
        if self._trusts(address):
            for given in reversed(_forwarded(scope)):
                parsed = _address(given)
                if parsed is None:
                    break  # not an address: nothing left of it can be believed
                address = str(parsed)
                if not self._trusts(address):
                    break
        return _grouped(address)

    def _trusts(self, address: str) -> bool:
        if address == UNIX:
            return self._unix
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def _forwarded(scope: Scope) -> list[str]:
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return [part.strip() for value in values for part in value.split(",")]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _grouped(address: str) -> str:
    parsed = _address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address if parsed is None else str(parsed)
