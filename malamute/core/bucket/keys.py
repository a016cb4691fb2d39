"""The entries of one bucket by key, with the memory that they take and the timers of their expiry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from malamute.core.bucket.entry import cost_of, due_of, revision_of, user_of
from malamute.core.iteration.stored_values import StoredValues
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.identity.holdings import Holdings
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timer, Timers
    from malamute.errors import MalamuteError

RETRY_SECONDS = 1.0
"""Seconds until the removal of an expired key is tried again that the disk has refused."""


class KeyUsage:
    """The keys of all buckets together, and those of each user."""

    def __init__(self, keys: Holdings, sizes: Holdings) -> None:
        self.keys = 0
        self.bytes = 0
        self.expired = 0
        """Keys that have expired since the start."""
        self.keys_held = keys
        self.bytes_held = sizes

    def configure(self) -> None:
        """Count for the quotas of now."""
        self.keys_held.configure()
        self.bytes_held.configure()

    def count(self, user: str, keys: int, size_bytes: int) -> None:
        """Count keys of a user with their bytes, or give them back if negative."""
        self.keys += keys
        self.bytes += size_bytes
        self.keys_held.add(user, keys, keys)
        # A user with keys has bytes: both end together.
        self.bytes_held.add(user, size_bytes, size_bytes)


class Keys(StoredValues[str, bytes]):
    """The newest entries by key. An entry counts for its user while it is here."""

    __slots__ = ("_changed", "_effects", "_expire", "_expiring", "_timers", "_usage", "bytes")

    def __init__(
        self,
        effects: Effects,
        timers: Timers,
        usage: KeyUsage,
        expire: Callable[[str], None],
        changed: Callable[[str], None],
    ) -> None:
        """`expire` is called with a key whose time is over, `changed` when its durable state is another."""
        super().__init__(effects.stage)
        self._effects = effects
        self._timers = timers
        self._usage = usage
        self._expire = expire
        self._changed = changed
        self._expiring: dict[int, tuple[str, Timer]] = {}
        """The keys that expire, by their revisions, each with its timer."""
        self.bytes = 0

    def __setitem__(self, key: str, packed: bytes) -> None:
        before, size_bytes, user = self.get(key), cost_of(key, packed), user_of(packed)
        super().__setitem__(key, packed)
        if before is not None and user_of(before) == user:
            grown = size_bytes - self._forget(key, before)
            self._usage.count(user, 0, grown)
        else:
            if before is not None:
                self._usage.count(user_of(before), -1, -self._forget(key, before))
            self._usage.count(user, 1, size_bytes)
        self.bytes += size_bytes
        if due_of(packed):
            self._await(key, packed)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key that may be there."""
        if (before := self.get(key)) is not None:
            self._usage.count(user_of(before), -1, -self._forget(key, before))
        return super().pop(key, *default)

    def _forget(self, key: str, before: bytes) -> int:
        """End the timer of an entry that leaves, and return the bytes that it took."""
        size_bytes = cost_of(key, before)
        self.bytes -= size_bytes
        if (expiring := self._expiring.pop(revision_of(before), None)) is not None:
            self._timers.cancel(expiring[1])
        return size_bytes

    def _await(self, key: str, packed: bytes) -> None:
        due, now, revision = to_seconds(due_of(packed)), self._effects.now, revision_of(packed)
        timer = self._timers.at(due if due > now else now + RETRY_SECONDS, self._over, revision)
        self._expiring[revision] = key, timer

    def _over(self, revision: int) -> None:
        if (expiring := self._expiring.pop(revision, None)) is not None:
            self._usage.expired += 1
            self._expire(expiring[0])

    def _become(self, name: str, value: bytes | None) -> None:
        if self.get(name) is not value:
            super()._become(name, value)

    def _settled(self, name: str, value: bytes | None, pending: Any, error: MalamuteError | None) -> None:
        super()._settled(name, value, pending, error)
        self._changed(name)
