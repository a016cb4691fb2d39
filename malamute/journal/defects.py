"""The damaged values found in a store, each once; any thread may report one."""

from __future__ import annotations

import threading

from malamute.protocol.messages import DELETED
from malamute.store.operations import Damage, Defect

DEFECTS_MAX = 1000
"""Defects that are remembered one by one."""


class Defects:
    """The `known` defects of one store by kind, name and first number, at most `DEFECTS_MAX`."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str, int], Defect] = {}
        self._new: list[Defect] = []
        self._lock = threading.Lock()

    def add(self, defect: Defect) -> None:
        """Add a defect, if it is new."""
        place = defect.kind, defect.name, defect.first
        with self._lock:
            if place in self.known or len(self.known) >= DEFECTS_MAX:
                return
            self.known[place] = defect
            self._new.append(defect)

    def add_ranges(self, stream: str, found: object) -> None:
        """Add a defect for each damage in the result of a read."""
        assert isinstance(found, list)
        for item in found:
            if type(item) is Damage and item.reason != DELETED:
                self.add(Defect("chunk", stream, item.first, item.last, "readers get a gap"))

    def pop(self) -> list[Defect]:
        """Return the defects that are new since the last call."""
        if not self._new:
            return []
        with self._lock:
            new, self._new = self._new, []
            return new
