"""Addresses of peers: which of them are one sender's, and from which many users come."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network

_MAPPED = bytes(10) + b"\xff\xff"
"""How an address of IPv4 begins that a listener of IPv6 tells."""

OF_THIS_MACHINE = frozenset(("127.0.0.1", "::1", "::ffff:127.0.0.1"))
"""A program of this machine has other ways to be in the way, and a proxy may bring everybody from there."""


def network_of(address: str) -> bytes:
    """What one sender has: an address of IPv4, or of IPv6 the 64 bits of a customer. Empty for others."""
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
