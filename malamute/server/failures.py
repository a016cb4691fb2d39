"""Proofs that were wrong, by the addresses that they came from: guessing has to be slow."""

from __future__ import annotations

from collections import OrderedDict

FAILURES_MAX = 10
"""Wrong passwords, or refused tokens, from one address in FAILURE_SECONDS, after which no other is tried."""

FAILURE_SECONDS = 60.0

ADDRESSES_MAX = 10_000
"""Addresses whose failures are remembered: those of the newest."""


class Failures:
    """Wrong proofs by the addresses that they came from."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, address: str, now: float) -> None:
        """One more."""
        count, since = self._recent(address, now)
        self._found[address] = (count + 1, since)
        self._found.move_to_end(address)
        if len(self._found) > ADDRESSES_MAX:
            self._found.popitem(last=False)

    def too_many(self, address: str, now: float) -> bool:
        """Whether nothing more is tried from there for now."""
        return self._recent(address, now)[0] >= FAILURES_MAX

    def _recent(self, address: str, now: float) -> tuple[int, float]:
        count, since = self._found.get(address, (0, now))
        return (count, since) if now < since + FAILURE_SECONDS else (0, now)
