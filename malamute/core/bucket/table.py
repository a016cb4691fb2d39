"""The buckets by name, and the commands about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from malamute.core.bucket.bucket import StoredBucket, moved
from malamute.core.bucket.entry import (
    KeyEntry,
    checked_number,
    cost_of,
    due_of,
    number_of,
    pack_entry,
    revision_of,
    unpack_entry,
    user_of,
)
from malamute.core.bucket.keys import KeyUsage
from malamute.core.bucket.watch import WATCH_BYTES, WATCHED_KEY_BYTES, Watching, row_of
from malamute.core.iteration.named_table import NamedTable
from malamute.errors import NotAsExpected, TooLarge, TooMany, TryLater
from malamute.protocol.fields import ANY_REVISION
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.messages import Add, Delete, Get, Put, Watch
from malamute.protocol.time_units import to_ns
from malamute.store.operations import DeleteValue, Recovered, Stranded
from malamute.store.policies import DURABLE, BucketPersistenceOf, Persistence
from malamute.store.tables import BUCKETS, SEQUENCES

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.grace_period import GracePeriod
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.iteration.timers import Timers
    from malamute.core.session.session import Session
    from malamute.protocol.limits import Limits

UNKNOWN_REVISIONS = 1 << 20
"""Revisions that are skipped when the store has lost the number of them that may be in use."""


class Reservation(Protocol):
    """The numbers that the store has reserved ahead, for revisions and for sequences of queues."""

    floor: int

    def covers(self, last: int) -> bool:
        """Return whether a number is reserved, so that none uses it again after a crash."""

    def rely_on_reservation(self) -> None:
        """Store this iteration only if the reservation under way is stored."""

    def note_unstored(self, sequences: Sequence[int]) -> None:
        """Note numbers that are in use and perhaps in no value of the store."""


class KeyOutcome(NamedTuple):
    """The outcome of a change, which is there at once or when this iteration is stored."""

    value: Any
    at_once: bool


class Buckets:
    """The buckets by name."""

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        limits: Limits,
        persistence: BucketPersistenceOf,
        reservation: Reservation,
        grace_period: GracePeriod,
        usage: KeyUsage,
    ) -> None:
        self.limits = limits
        self.by_name: NamedTable[StoredBucket] = NamedTable()
        self.usage = usage
        self.revision = 0
        """The last revision that was given."""
        self.counts = {"get": 0, "put": 0, "delete": 0, "add": 0}
        self._effects = effects
        self._timers = timers
        self._persistence = persistence
        self._reservation = reservation
        self._grace_period = grace_period
        self._restored: dict[tuple[str, str], bytes] = {}
        """The entries of before the start that expire, until the clock of the start is known to be right."""

    def operations(self) -> dict[str, int]:
        """Return how many keys were read, changed and expired since the start, by what was done."""
        return {**self.counts, "expired": self.usage.expired}

    # Commands

    def get(self, message: Get, bytes_max: int) -> list[Any]:
        """Return a row for each key, None for one that is not there.

        Raises:
            TooLarge: the values have more bytes together than one answer.
        """
        bucket, now = self.by_name.get(message.bucket), self._effects.now
        found = [None if bucket is None else bucket.durable(key) for key in message.keys]
        size_bytes = sum(map(len, filter(None, found)))
        if size_bytes > bytes_max:
            raise TooLarge(
                f"values of {len(found)} keys have {size_bytes} bytes: expected at most {bytes_max}; "
                "ask for fewer keys at a time"
            )
        self.counts["get"] += len(found)
        return [None if packed is None else row_of(packed, now) for packed in found]

    def put(self, session: Session, message: Put, *, bound: bool = False) -> KeyOutcome:
        """Set a key, with all else of this iteration if it is `bound` to that.

        Raises:
            NotAsExpected: the key has another revision. TooMany: there are as many buckets as may be.
            TryLater: there is no memory for it. QuotaExceeded: nor has the user as much.
        """
        bucket = self.by_name.get(message.bucket)
        before = None if bucket is None else bucket.newest(message.key)
        _check_expected(message.key, message.expect, before)
        due_ns = self._due_ns(message.ttl)
        revision, at_once = self._set(
            session, message.bucket, message.key, message.value, due_ns, bound=bound
        )
        self.counts["put"] += 1
        return KeyOutcome(revision, at_once)

    def add(self, session: Session, message: Add) -> KeyOutcome:
        """Add to the number of a key. Raises as `put`, and `InvalidValue` for a value that is no number."""
        bucket, key = self.by_name.get(message.bucket), message.key
        packed = None if bucket is None else bucket.newest(key)
        number, due_ns = 0, 0
        if packed is not None:
            _, due_ns, _, value = unpack_entry(packed)
            number = number_of(key, value)
        number = checked_number(key, number + message.amount, "sum")
        if message.ttl:
            due_ns = self._due_ns(message.ttl)
        revision, at_once = self._set(session, message.bucket, key, b"%d" % number, due_ns)
        self.counts["add"] += 1
        return KeyOutcome((number, revision), at_once)

    def delete(self, message: Delete) -> KeyOutcome:
        """Delete a key. Raises `NotAsExpected`."""
        bucket, key = self.by_name.get(message.bucket), message.key
        before = None if bucket is None else bucket.newest(key)
        _check_expected(key, message.expect, before)
        self.counts["delete"] += 1
        if bucket is None:
            return KeyOutcome(False, True)
        changing = bucket.keys.is_changing(key)
        if before is None and changing:
            bucket.keys.rely_on(key)
        at_once = (bucket.in_memory or before is None) and not changing
        if before is not None:
            bucket.set(key, None, at_once=at_once)
        return KeyOutcome(before is not None, at_once)

    def watch_cost(self, keys: Sequence[str]) -> int:
        """Return the memory of a source that watches these keys, in bytes."""
        return WATCH_BYTES + sum(WATCHED_KEY_BYTES + len(key.encode()) for key in keys)

    def watch(self, session: Session, message: Watch) -> Watching:
        """Return a source that watches keys. Raises `TooMany`."""
        bucket = self._get(message.bucket)
        return Watching(session, message.source, bucket, message.keys, self._effects)

    def _due_ns(self, ttl: int) -> int:
        return to_ns(self._effects.now + ttl / 1000) if ttl else 0

    def _set(
        self, session: Session, name: str, key: str, value: bytes, due_ns: int, *, bound: bool = False
    ) -> tuple[int, bool]:
        """Set a key. Return its revision, and whether that is in force at once."""
        user = session.may.principal.user
        packed = pack_entry(KeyEntry(self.revision + 1, due_ns, user, value))
        size_bytes = cost_of(key, packed)
        self._check_room(name, key, user, size_bytes)
        bucket = self._get(name)
        self.revision += 1
        covered = self._reservation.covers(self.revision)
        if not covered:
            self._reservation.rely_on_reservation()
        at_once = bucket.in_memory and covered and not bound and not bucket.keys.is_changing(key)
        bucket.set(key, packed, at_once=at_once, size_bytes=size_bytes)
        return self.revision, at_once

    def _check_room(self, name: str, key: str, user: str, size_bytes: int) -> None:
        """Check that a key may take so many bytes, in place of those that it has."""
        bucket, usage = self.by_name.get(name), self.usage
        before = None if bucket is None else bucket.keys.get(key)
        freed = 0 if before is None else cost_of(key, before)
        left = self.limits.buckets_bytes - usage.bytes
        if size_bytes > left + freed:
            raise TryLater(
                f"buckets are full: their keys take {usage.bytes} bytes of memory; delete some, then retry"
            )
        is_own = before is not None and user_of(before) == user
        more = size_bytes - freed if is_own else size_bytes
        if not is_own:
            usage.keys_held.check(user, 0, NUMBER_MAX)
        if more > 0:
            usage.bytes_held.check(user, more, left, count=more)

    def _get(self, name: str) -> StoredBucket:
        """Return the bucket of this name, made if needed. Raises `TooMany`."""
        bucket = self.by_name.get(name)
        if bucket is None:
            if len(self.by_name) >= self.limits.buckets:
                raise TooMany(f"too many buckets: expected at most {self.limits.buckets} (limits.memory)")
            bucket = self._make(name, self._persistence(name))
        return bucket

    def _make(self, name: str, persistence: Persistence) -> StoredBucket:
        bucket = self.by_name[name] = StoredBucket(
            name, persistence, self._effects, self._timers, self.usage, self._unused
        )
        return bucket

    def _unused(self, bucket: StoredBucket) -> None:
        if self.by_name.get(bucket.name) is bucket:
            del self.by_name[bucket.name]

    # Starts, damages and changes of the configuration

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Restore the stored keys."""
        self.revision = self._reservation.floor
        for place, packed in recovered.table(BUCKETS).items():
            recovery.take_up("key", "/".join(map(str, place)), self._restore, *place, packed)
        entry = SEQUENCES, ("",)
        if entry in recovered.lost or entry in recovered.doubtful:
            self.revision += UNKNOWN_REVISIONS
        if self._restored:
            # Behind the end of the grace period, which is at the same time.
            self._timers.at(self._grace_period.until, self._restored.clear)

    def _restore(self, name: str, key: str, packed: bytes) -> None:
        due_ns = unpack_entry(packed).due_ns
        until = self._grace_period.until
        if due_ns and until:
            self._restored[name, key] = packed
            packed = moved(packed, max(due_ns, to_ns(until)))
        bucket = self.by_name.get(name) or self._make(name, DURABLE)
        bucket.keys[key] = packed
        self.revision = max(self.revision, revision_of(packed))

    def give_time_back(self, seconds: float) -> None:
        """The clock was so much ahead at the start: keys of before it expire as much later."""
        for (name, key), packed in self._restored.items():
            bucket = self.by_name.get(name)
            newest = None if bucket is None else bucket.keys.get(key)
            if bucket is not None and newest is not None and revision_of(newest) == revision_of(packed):
                bucket.keys[key] = moved(packed, due_of(packed) + to_ns(seconds))

    def store_again(self, stranded: Stranded) -> None:
        """Store keys once more that the store has lost."""
        for name, key in stranded.keys(BUCKETS):
            bucket = self.by_name.get(name)
            if bucket is None:
                self._effects.stage.store(DeleteValue(BUCKETS, (name, key)))
            else:
                bucket.store_again(key)

    def configure(self, persistence: BucketPersistenceOf, limits: Limits) -> None:
        """Go by other rules and limits from now on. A bucket that is there keeps its persistence."""
        self._persistence, self.limits = persistence, limits

    def close(self) -> None:
        """Note the revisions in use, before their reservation is returned."""
        self._reservation.note_unstored([self.revision])


def _check_expected(key: str, expect: int, before: bytes | None) -> None:
    """Raise `NotAsExpected` unless a key has the expected revision."""
    revision = 0 if before is None else revision_of(before)
    if expect not in (ANY_REVISION, revision):
        found = f"has revision {revision}" if revision else "is not there"
        wanted = f"revision {expect}" if expect else "no such key"
        raise NotAsExpected(f"key {key!r} {found}: expected {wanted}; read it again, and retry")
