"""The last messages of deleted streams, by name, for readers that come back to one.

A reader that resumes under the name of a deleted stream gets a GAP for its messages, and under a new name
none. The store keeps a row for each of the names that are known, in the transaction of the deletion, and
one row, under no name, for all others.
"""

from __future__ import annotations

from malamute.core.iteration.stage import StoreStage
from malamute.core.iteration.stored_values import StoredValues
from malamute.store.operations import FLOOR, DeleteValue, PutValue, Recovered
from malamute.store.tables import DELETED, OTHERS

DELETED_MAX = 1_000
"""Deleted streams whose last messages are remembered by name."""


class DeletedStreams:
    """The last sequences of deleted streams; beyond `DELETED_MAX` names, the highest."""

    def __init__(self, stage: StoreStage) -> None:
        self._stage = stage
        self._last: StoredValues[str, int] = StoredValues(stage)
        self._others = 0
        """The highest sequence of any stream that is not known by its name."""

    def restore(self, recovered: Recovered) -> None:
        """Restore the names that the store has.

        The floor stands for deletions without a row: those by an earlier version, or in a damaged part, and
        the epoch of streams without a journal that a crash left.
        """
        state = recovered.streams.get(FLOOR)
        floor = self._others = state.reserved if state else 0
        rows = dict(recovered.table(DELETED))
        others, known_floor = rows.pop(OTHERS, (0, 0))
        for (name,), last in rows.items():
            self._last[name] = int(last)
        if floor <= known_floor and not recovered.defects:
            self._others = int(others)

    def add(self, name: str, last: int, floor: int) -> None:
        """Store the last message of a stream that this iteration deletes; 0 if the stream never had any."""
        if last:
            self._put(name, last)
        if len(self._last) > DELETED_MAX:
            oldest = next(iter(self._last))
            self._others = max(self._others, self._last[oldest])
            self._put(oldest, None)
        self._stage.store(PutValue(DELETED, OTHERS, (self._others, floor)))

    def _put(self, name: str, last: int | None) -> None:
        self._last.put(name, last)
        key = (name,)
        self._stage.store(DeleteValue(DELETED, key) if last is None else PutValue(DELETED, key, last))

    def last(self, name: str) -> int:
        """Return the last message that there may have been in a deleted stream of this name."""
        return self._last.get(name, self._others)
