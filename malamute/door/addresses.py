"""Addresses of peers: networks of one sender, and gateways with many users."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network

_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address on a listener of IPv6."""

OF_THIS_MACHINE = frozenset(("127.0.0.1", "::1", "::ffff:127.0.0.1"))
"""Loopback: a proxy on this machine may have many users."""


def network_of(address: str) -> bytes:
    """Return the network of one sender: an IPv4 address, or the 64 bits of an IPv6 customer; else empty."""
    try:
        return socket.inet_pton(socket.AF_INET, address)
    except (OSError, ValueError):
        pass
    try:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except (OSError, ValueError):
        return b""
    return packed[12:] if packed.startswith(_MAPPED) else packed[:8]


class Gateways:
    """The addresses and networks of gateways and proxies: many users come from each of them."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ip_network(network) for network in networks]

    def __contains__(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
        return any((mapped or found) in network for network in self._networks)


NO_GATEWAYS = Gateways()
