"""One bucket: the state of each key for its readers, for changes, and for those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from malamute.core.bucket.entry import due_of
from malamute.core.bucket.keys import Keys, KeyUsage
from malamute.protocol.time_units import to_ns
from malamute.store.operations import DeleteValue, PutValue
from malamute.store.policies import MEMORY, Persistence
from malamute.store.tables import BUCKETS

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timers


class KeyWatcher(Protocol):
    """A source that is notified of keys with another durable state."""

    keys: dict[str, None]

    def note(self, key: str) -> None:
        """Note that a key has another state."""


class StoredBucket:
    """A bucket, which is there while it has a key or is watched, and keeps its persistence as long."""

    def __init__(
        self,
        name: str,
        persistence: Persistence,
        effects: Effects,
        timers: Timers,
        usage: KeyUsage,
        unused: Callable[[StoredBucket], None],
    ) -> None:
        """`unused` is called when it has nothing any more."""
        self.name = name
        self.in_memory = persistence == MEMORY
        self.keys = Keys(effects, timers, usage, self._expire, self._changed)
        self.watching: dict[str, dict[KeyWatcher, None]] = {}
        """The sources that watch a key."""
        self.watches = 0
        """How many sources watch any key."""
        self._effects = effects
        self._unused = unused

    @property
    def used(self) -> bool:
        """Return whether there is anything in it, under way, or watched."""
        return bool(self.keys or self.watching or self.keys.changing)

    def newest(self, key: str) -> bytes | None:
        """Return the newest entry of a key, which may be under way to the disk."""
        return self._unexpired(self.keys.get(key))

    def durable(self, key: str) -> bytes | None:
        """Return the entry of a key for readers."""
        return self._unexpired(self.keys.durable(key))

    def _unexpired(self, packed: bytes | None) -> bytes | None:
        # A timer may be late: a tick runs so many.
        if packed is None or not 0 < due_of(packed) <= to_ns(self._effects.now):
            return packed
        return None

    def set(self, key: str, packed: bytes | None, *, at_once: bool, size_bytes: int = 0) -> None:
        """Set the entry of a key, or delete the key with None: with this iteration, or `at_once` in memory.

        A change behind another one that is under way is stored only if that one is.
        """
        if at_once:
            if packed is None:
                self.keys.pop(key, None)
            else:
                self.keys[key] = packed
            self._changed(key)
            return
        self.keys.rely_on(key)
        self.keys.put(key, packed)
        if not self.in_memory:
            stored = None if packed is None else self._stored(packed)
            place = self.name, key
            self._effects.stage.store(
                DeleteValue(BUCKETS, place) if stored is None else PutValue(BUCKETS, place, stored),
                size_bytes=size_bytes,
            )

    def store_again(self, key: str) -> None:
        """Store a key once more that the store has lost."""
        self.keys.rely_on(key)
        packed, place = self.keys.get(key), (self.name, key)
        if packed is None or self.in_memory:
            self._effects.stage.store(DeleteValue(BUCKETS, place))
        else:
            self._effects.stage.store(PutValue(BUCKETS, place, self._stored(packed)))

    def _stored(self, packed: bytes) -> bytes:
        """Return the stored form of an entry: it expires by the wall clock."""
        ahead_ns = self._effects.ahead_ns
        return moved(packed, due_of(packed) + ahead_ns) if ahead_ns and due_of(packed) else packed

    def _expire(self, key: str) -> None:
        self.set(key, None, at_once=self.in_memory and not self.keys.is_changing(key))

    def _changed(self, key: str) -> None:
        """The durable state of a key is another one."""
        for source in self.watching.get(key, ()):
            source.note(key)
        if not self.used:
            self._unused(self)

    # Sources

    def watch(self, source: KeyWatcher) -> None:
        """Add a source, which is notified of its keys."""
        self.watches += 1
        for key in source.keys:
            self.watching.setdefault(key, {})[source] = None

    def leave(self, source: KeyWatcher) -> None:
        """Remove a source."""
        self.watches -= 1
        for key in source.keys:
            sources = self.watching.get(key, {})
            sources.pop(source, None)
            if not sources:
                self.watching.pop(key, None)
        if not self.used:
            self._unused(self)


def moved(packed: bytes, due_ns: int) -> bytes:
    """Return an entry that expires at another time."""
    return b"".join((packed[:8], max(1, due_ns).to_bytes(8, "big"), packed[16:]))
