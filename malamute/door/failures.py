"""Wrong proofs by address: guessing has to be slow."""

from __future__ import annotations

from collections import OrderedDict

from malamute.door.addresses import NO_GATEWAYS, OF_THIS_MACHINE, Gateways, network_of

FAILURES_MAX = 10
"""Wrong passwords, or refused tokens, from one address in FAILURE_SECONDS, after which no other is tried."""

FAILURE_SECONDS = 60.0

ADDRESSES_MAX = 10_000
"""Addresses whose failures are remembered: those of the newest."""


class Failures:
    """Wrong proofs by their senders: an address, with IPv6 the network of one customer.

    A gateway, or a proxy on this machine, has many users: failures there count by the claimed user, and not
    at all without one.
    """

    def __init__(self, gateways: Gateways = NO_GATEWAYS) -> None:
        self._gateways = gateways
        self._found: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, address: str, now: float, user: str | None = None) -> None:
        """Add a wrong proof."""
        sender = self._sender(address, user)
        if sender is None:
            return
        count, since = self._recent(sender, now)
        self._found[sender] = (count + 1, since)
        self._found.move_to_end(sender)
        if len(self._found) > ADDRESSES_MAX:
            self._found.popitem(last=False)

    def too_many(self, address: str, now: float, user: str | None = None) -> bool:
        """Whether proofs of a sender have to wait."""
        sender = self._sender(address, user)
        return sender is not None and self._recent(sender, now)[0] >= FAILURES_MAX

    def _sender(self, address: str, user: str | None) -> str | None:
        if address in OF_THIS_MACHINE or address in self._gateways:
            return None if user is None else f"{address} {user}"
        return network_of(address).hex() or address

    def _recent(self, sender: str, now: float) -> tuple[int, float]:
        count, since = self._found.get(sender, (0, now))
        return (count, since) if now < since + FAILURE_SECONDS else (0, now)
