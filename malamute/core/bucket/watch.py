"""A source of a session that has the states of some keys of a bucket.

A source that is behind has each key at most once: the states in between are passed over. So a client that is
slow, or takes nothing, costs no more than its keys, and needs no credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from malamute.core.bucket.entry import unpack_entry
from malamute.errors import InvalidValue
from malamute.protocol.messages import Changed
from malamute.protocol.time_units import to_ms, to_ns

if TYPE_CHECKING:
    from malamute.core.bucket.bucket import StoredBucket
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.stage import WhenStored
    from malamute.core.session.session import Session
    from malamute.protocol.fields import Ranges

WATCH_BYTES = 1_000
"""Memory of a source beside its keys."""

WATCHED_KEY_BYTES = 500
"""Memory of a key in it, beside its own bytes."""

SENT_BYTES = 256 * 1024
"""Bytes of values in one CHANGED; one of them may be larger when it is alone."""

ROW_WORK = 2
"""The work of one row, in about microseconds."""

NO_ROW = 0, None, 0


class Watching:
    """A source: the keys of a bucket that a session watches."""

    def __init__(
        self, session: Session, source: int, bucket: StoredBucket, keys: Sequence[str], effects: Effects
    ) -> None:
        self.session = session
        self.source = source
        self.bucket = bucket
        self.keys: dict[str, None] = dict.fromkeys(keys)
        self.cost_bytes = 0
        self._effects = effects
        self._due = dict(self.keys)
        """The keys with a state that the client has not been sent."""
        self._is_scheduled = False
        self._ended = False
        bucket.watch(self)
        self._schedule()

    def note(self, key: str) -> None:
        """A key has another state."""
        self._due[key] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._effects.later(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if self._ended or self.session.blocked or not self._due:
            return
        rows: list[list[Any]] = []
        size_bytes = 0
        for key in [*self._due]:
            row = row_of(self.bucket.durable(key), self._effects.now)
            size_bytes += len(row[1] or b"")
            if rows and size_bytes > SENT_BYTES:
                break
            rows.append([key, *row])
            del self._due[key]
        self._effects.work -= ROW_WORK * len(rows)
        self._effects.send(self.session.peer, Changed(self.source, rows))
        if self._due:
            self._schedule()

    # As a source of a session

    def grant(self, messages: int, size_bytes: int) -> None:
        """Raise `InvalidValue`: it takes no credit."""
        raise InvalidValue(f"source {self.source} watches keys: expected no credit for it")

    def drain(self, held: Ranges, drained: WhenStored) -> None:
        """Raise `InvalidValue`: it has no deliveries."""
        raise InvalidValue(f"source {self.source} watches keys: expected CANCEL to end it")

    def block(self) -> None:
        """Send nothing while the client takes nothing."""

    def unblock(self) -> None:
        """Send the states of the keys that have changed meanwhile."""
        self._schedule()

    def cancel(self) -> None:
        """End it."""
        self._ended = True
        self.bucket.leave(self)


def row_of(packed: bytes | None, now: float) -> tuple[int, bytes | None, int]:
    """Return the revision of an entry, its value, and the milliseconds until it expires or 0."""
    if packed is None:
        return NO_ROW
    revision, due_ns, _, value = unpack_entry(packed)
    return revision, value, max(1, ceil(to_ms(due_ns - to_ns(now)))) if due_ns else 0
