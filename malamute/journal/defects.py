"""What was found damaged in a store, each thing once, from whichever thread meets it."""

from __future__ import annotations

import threading

from malamute.store.operations import Damage, Defect

DEFECTS_MAX = 1000
"""Defects that are remembered one by one."""


class Defects:
    """The defects of one store. `count` counts all, `known` has the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.known: dict[tuple[str, str, int], Defect] = {}
        self._new: list[Defect] = []
        self._lock = threading.Lock()

    def add(self, defect: Defect) -> None:
        """Take note of a defect, if it is new."""
        place = defect.kind, defect.name, defect.first
        with self._lock:
            if place in self.known or len(self.known) >= DEFECTS_MAX:
                return
            self.count += 1
            self.known[place] = defect
            self._new.append(defect)

    def add_ranges(self, stream: str, found: object) -> None:
        """Take note of the damages among what was read of a stream."""
        assert isinstance(found, list)
        for item in found:
            if type(item) is Damage:
                self.add(Defect("chunk", stream, item.first, item.last, "readers get a gap"))

    def pop(self) -> list[Defect]:
        """Those that are new since the last time."""
        if not self._new:
            return []
        with self._lock:
            new, self._new = self._new, []
            return new
