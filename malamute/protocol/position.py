"""Positions in streams that name their store, for programs that keep a position outside of the broker.

A sequence counts in one store alone. So a position for later use, perhaps at another broker or at one that
has lost its store, is written `N@STORE`: N is the last processed sequence, and STORE is the id of the
broker and, after a restore from a backup, its incarnation.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from malamute.protocol.limits import NUMBER_MAX

_FORM = re.compile(r"([0-9]{1,19})@(([0-9a-f]{32})(?:\.[1-9][0-9]{0,18})?)")


def store_name(broker: bytes, incarnation: int) -> str:
    """Return the name of the store of a broker, as positions have it."""
    return f"{broker.hex()}.{incarnation}" if incarnation else broker.hex()


def broker_of(store: str) -> str:
    """Return the id of the broker of a store, in hexadecimal."""
    return store.partition(".")[0]


class StorePosition(NamedTuple):
    """A position: the last processed sequence, and its store."""

    sequence: int
    store: str

    @classmethod
    def parse(cls, text: str) -> StorePosition | None:
        """Return the position that a text names; None if it names none."""
        found = _FORM.fullmatch(text)
        if found is None or int(found[1]) > NUMBER_MAX:
            return None
        return cls(int(found[1]), found[2])

    @property
    def broker(self) -> str:
        """The id of the broker, in hexadecimal."""
        return broker_of(self.store)

    def __str__(self) -> str:
        return f"{self.sequence}@{self.store}"
