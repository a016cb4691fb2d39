"""Keys of a bucket in the simulation: what programs change, and what may have become of it.

Each change has its pending command, which is done, refused, or unknown where its session has ended. From
these alone follows what has to hold, whatever else happened:

- no revision is given twice, in any life of the broker;
- of all changes that expected one revision, at most one was made;
- a counter has what was added and confirmed, and no more than that and what is unknown.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from sim_origin import Violation

from malamute.client.session.questions import PendingChange
from malamute.core.broker import Core
from malamute.errors import (
    AddressTaken,
    Disconnected,
    Failed,
    LinkError,
    NotAsExpected,
    NumberTooOld,
    UnexpectedCommand,
)
from malamute.protocol import messages as wire

if TYPE_CHECKING:
    from sim_client import Client

BUCKET = "keys"
KEYS = ("one", "two")
COUNTER = "count"

_UNKNOWN = (AddressTaken, Disconnected, LinkError, Failed, NumberTooOld, UnexpectedCommand)
"""Errors after which a change may have been made, or may be refused by a disk that is full."""


class KeyChange(NamedTuple):
    """A change, as its program knows it."""

    asking: Any
    pending: PendingChange


class KeyBook:
    """All changes of keys of a run."""

    def __init__(self) -> None:
        self.changes: list[KeyChange] = []

    def check(self, core: Core, *, exact: bool) -> None:
        """Check what is left when all is at rest; `exact` unless the store was set back or damaged."""
        given: Counter[int] = Counter()
        winners: Counter[tuple[str, int]] = Counter()
        added = unknown = 0
        for asking, pending in self.changes:
            if isinstance(pending.error, NotAsExpected):
                continue
            if pending.error is not None and not isinstance(pending.error, _UNKNOWN):
                raise Violation("a change of a key is refused", asking=asking, error=str(pending.error))
            done = pending.done and pending.error is None
            if isinstance(asking, wire.Add):
                added += asking.amount if done else 0
                unknown += 0 if done else asking.amount
                given.update([pending.value[1]] if done else ())
            elif isinstance(asking, wire.Put) and done:
                given[pending.value] += 1
                winners.update([(asking.key, asking.expect)] if asking.expect > 0 else ())
        if twice := [revision for revision, count in given.items() if count > 1]:
            raise Violation("a revision was given twice", revisions=twice)
        if twice := [expected for expected, count in winners.items() if count > 1]:
            raise Violation("two changes expected one revision, and both were made", expected=twice)
        bucket = core.buckets.by_name.get(BUCKET)
        packed = None if bucket is None else bucket.durable(COUNTER)
        found = 0 if packed is None else int(packed[17 + packed[16] :])
        if exact and not added <= found <= added + unknown:
            raise Violation("a counter is wrong", found=found, added=added, unknown=unknown)


def change_key(client: Client, a: int, b: int, c: int) -> str:
    """Change a key: set it over a revision that was seen, delete it, or add to the counter."""
    questions, book = client.session.questions, client.book.keys
    if not questions.may_change or client.session.outbox.refusal is not None:
        return ""
    key = KEYS[a % 2]
    seen = [
        known.pending.value
        for known in book.changes[-30:]
        if isinstance(known.asking, wire.Put) and known.asking.key == key and known.pending.value is not None
    ]
    asking: wire.Put | wire.Delete | wire.Add
    if b % 3 == 0:
        asking = wire.Add(1, BUCKET, COUNTER, 1 + a % 3)
    elif b % 3 == 1 or not seen:
        asking = wire.Put(
            1, BUCKET, key, b"v", (0, 0, 400)[c % 3], (-1, 0, *seen[-2:])[b % (2 + len(seen[-2:]))]
        )
    else:
        asking = wire.Delete(1, BUCKET, key, (-1, seen[-1])[c % 2])
    book.changes.append(KeyChange(asking, questions.change_key(asking)))
    questions.get(BUCKET, [*KEYS, COUNTER])
    return f"changes a key: {asking}"
