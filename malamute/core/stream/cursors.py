"""The cursors of streams: named positions of readers, whose they are, and the memory that they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from malamute.core.identity.holdings import Holdings, Owners
from malamute.core.iteration.stored_values import StoredValues
from malamute.errors import CursorLost, MalamuteError, TooMany
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import CURSORS, OWNERS

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.protocol.limits import Limits

CURSOR_BYTES = 400
"""Bytes of a cursor beside its name, here and in the store's own tables."""


class CursorBudget:
    """The memory of the cursors of all streams, in bytes, and the parts of users."""

    def __init__(self, limits: Limits, held: Holdings) -> None:
        self.bytes = 0
        self.held = held
        self.each_max = limits.cursors
        """Cursors that one stream may have."""
        self._bytes_max = limits.cursors_bytes

    def check(self, name: str) -> None:
        """Raise `TooMany` unless there is room for one more cursor, of this name."""
        if self.bytes + cursor_bytes(name) > self._bytes_max:
            raise TooMany(f"too many cursors: those of all streams take {self.bytes} bytes")

    def check_share(self, name: str, user: str) -> None:
        """Raise `QuotaExceeded` unless a user may have one more cursor, of this name."""
        self.held.check(user, cursor_bytes(name), self._bytes_max - self.bytes)


class Cursors(StoredValues[str, int]):
    """The cursors of a stream, which are counted in bytes together with those of all others."""

    __slots__ = ("_budget", "_effects", "_lost_going", "_stream", "lost", "owners", "reserved")

    def __init__(self, stream: str, effects: Effects, budget: CursorBudget) -> None:
        super().__init__(effects.stage)
        self._stream = stream
        self._effects = effects
        self._budget = budget
        self.reserved: Counter[str] = Counter()
        """How many changes are under way that may make a cursor, which has its room already."""
        self.owners = Owners(effects.stage, budget.held, cursor_bytes)
        """The users of the cursors that readers have."""
        self.lost: set[str] = set()
        """Cursors whose positions were in a part of the store that is damaged."""
        self._lost_going: Counter[str] = Counter()
        """Lost cursors that go with deletions under way."""

    def __setitem__(self, name: str, sequence: int) -> None:
        if not self._has_room(name):
            self._budget.bytes += cursor_bytes(name)
        super().__setitem__(name, sequence)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a cursor that may be there."""
        if name in self and name not in self.reserved:
            self._budget.bytes -= cursor_bytes(name)
        return super().pop(name, *default)

    def reserve(self, name: str) -> None:
        """Keep room for a cursor that may come, until `release`."""
        if not self._has_room(name):
            self._budget.bytes += cursor_bytes(name)
        self.reserved[name] += 1

    def release(self, name: str) -> None:
        """Give back room that was kept: its cursor is there now, or will not be."""
        self.reserved -= Counter((name,))
        if not self._has_room(name):
            self._budget.bytes -= cursor_bytes(name)

    def _has_room(self, name: str) -> bool:
        return name in self or name in self.reserved

    def check(self, name: str, user: str | None = None) -> None:
        """Check that there is a cursor of this name, or room for one, which a user is to have.

        Raises:
            TooMany: there is no room.
            QuotaExceeded: the user has as many as its quota allows, or as it leaves to others.
        """
        if self._has_room(name):
            return
        known = self.keys() | self.reserved.keys() | self.lost
        left = self._budget.each_max - len(known)
        if name not in known and left <= 0:
            raise TooMany(
                f"too many cursors of the stream {self._stream!r}: expected at most {self._budget.each_max}"
            )
        self._budget.check(name)
        if user is not None and name not in known:
            self._budget.held.check(user, 1, left, self.owners.counts[user])
            self._budget.check_share(name, user)

    def check_known(self, name: str) -> None:
        """Raise `CursorLost` if there is a cursor of this name, and nobody knows where it stands."""
        if name in self.lost:
            raise CursorLost(
                f"position of the cursor {name!r} in the stream {self._stream!r} was lost: set it again"
            )

    def commit(self, name: str, sequence: int, user: str | None = None) -> None:
        """Store that the reader with this cursor is done with all up to a sequence.

        A cursor that nobody with a name has is that of the first `user` who commits it.
        """
        if user is not None and not self.owners.get(name) and (user or name not in self.owners):
            self.give(name, user)
        self.put(name, sequence)
        self._effects.stage.store(PutValue(CURSORS, (self._stream, name), sequence))
        self._find_again(name)

    def give(self, name: str, user: str) -> None:
        """Store whose a cursor is."""
        self.owners.put(name, user)
        if user:
            self._effects.stage.store(PutValue(OWNERS, (self._stream, name), user))

    def delete(self, name: str) -> None:
        """Forget a cursor, or one that is lost."""
        if self.owners.get(name):
            self._effects.stage.store(DeleteValue(OWNERS, (self._stream, name)))
        if name in self.owners:
            self.owners.put(name, None)
        self.put(name, None)
        self._effects.stage.store(DeleteValue(CURSORS, (self._stream, name)))
        self._find_again(name)

    def _find_again(self, name: str) -> None:
        """Forget that a cursor was lost, when this iteration is stored."""
        if name not in self.lost:
            return

        def found(error: MalamuteError | None) -> None:
            if error is None:
                self.lost.discard(name)

        self._effects.stage.when_stored(found)

    def store_anew(self) -> None:
        """Store all cursors and their owners once more, in an iteration that removes the stored ones."""
        for values in (self, self.owners):
            values.rely_on_changes(lambda cursor: True)
        # The positions of lost ones are unknown: their readers get a GAP for everything.
        lost = self.lost - self._lost_going.keys()
        for name, sequence in [*self.items(), *((name, 0) for name in lost)]:
            self.commit(name, sequence)
        for name, user in [*self.owners.stored()]:
            self.give(name, user)

    def delete_all(self) -> Callable[[], None]:
        """Forget all cursors with a deletion in this iteration. Returns the function to call after it."""
        going = Counter(self.lost)
        self._lost_going += going
        for name in [*self.owners]:
            self.owners.put(name, None)
        for name in [*self]:
            self.put(name, None)

        def settled(error: MalamuteError | None) -> None:
            self._lost_going -= going

        def gone() -> None:
            self.lost -= going.keys()

        self._effects.stage.when_stored(settled, awaited=False)
        return gone


def cursor_bytes(name: str) -> int:
    """Return the bytes that a cursor of this name takes."""
    return CURSOR_BYTES + len(name.encode())
