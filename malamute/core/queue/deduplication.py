"""Deduplication: the enqueued messages of a queue, by the identities that their senders chose.

An identity is remembered for the window that is configured, on the disk too, and up to a number of them: the
oldest is forgotten first. All of a queue have the same window, so they are in the order in which they end.

All queues together have a limit in bytes. Past it, the queue that has most forgets its oldest, so that nobody
makes another's queue forget.

A duplicate shares the fate of the first: it is confirmed when that is durable, and fails with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

from malamute.errors import TryLater
from malamute.protocol.time_units import to_ns, to_seconds
from malamute.store.operations import ForgetIdentities, PutIdentity

if TYPE_CHECKING:
    from malamute.core.iteration.dedup_quota import DedupQuota
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.timers import Timer, Timers
    from malamute.core.queue.entry import Entry
    from malamute.core.queue.usage import QueueUsage
    from malamute.store.policies import QueuePolicy

SWEEPS = 8
"""How often within a window the identities that have ended are dropped."""


DEDUP_BYTES = 128
"""Bytes of an identity in memory and on the disk, besides its own text and the name of its queue."""


class DedupWindow:
    """The deduplication window of one queue.

    `known` has for each identity the sequence of its message, until when it is remembered in ns, and the
    token of the append that had it, or 0.
    """

    def __init__(self, effects: Effects, timers: Timers, quota: DedupQuota, usage: QueueUsage) -> None:
        # Its first entry is at hand, however many were taken out before it.
        self.known: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self.bytes = 0
        self._effects = effects
        self._timers = timers
        self._quota = quota
        self._usage = usage
        self._name_bytes = DEDUP_BYTES + len(usage.name.encode())
        self._window_seconds = 0.0
        """The window of the last enqueued message."""
        self._timer: Timer | None = None
        self._ahead_ns = 0
        """The least that the wall clock was ahead when any of them was stored, which has its time."""
        self._longer: set[str] = set()
        """Identities that the store has for longer, as the clock was set back before the start. The store
        keeps them for their whole windows: this clock may be the wrong one, and be corrected at the next
        start."""

    def restore(
        self, identities: Mapping[str, tuple[int, int]], policy: QueuePolicy, grace_until: float
    ) -> None:
        """Restore the stored identities.

        In the grace period of a start the passed part of each window is unknown: none ends before
        `grace_until`, in seconds since the epoch.
        """
        self._window_seconds = policy.dedup_window_seconds
        most = self._effects.now + policy.dedup_window_seconds
        least = min(grace_until, most)
        ending = sorted(identities.items(), key=lambda item: item[1][1])
        for identity, (sequence, stored) in ending:
            until = min(max(stored, to_ns(least)), to_ns(most))
            self._put(identity, (sequence, until, 0))
            if until < stored:
                self._longer.add(identity)
        self._quota.evict()
        self._sweep()

    def seen(self, identity: str) -> bool:
        """Whether a message with this identity was enqueued within the window that ends now."""
        found = self.known.get(identity)
        return found is not None and found[1] > to_ns(self._effects.now)

    def record(self, identity: str, sequence: int, policy: QueuePolicy) -> None:
        """A message with this identity is enqueued."""
        if not policy.dedup_window_seconds:
            return
        effects, self._window_seconds = self._effects, policy.dedup_window_seconds
        until, ahead_ns = to_ns(effects.now + policy.dedup_window_seconds), effects.ahead_ns
        self._ahead_ns = min(self._ahead_ns, ahead_ns) if self.known else ahead_ns
        self._put(identity, (sequence, until, effects.stage.token))
        stored = until + ahead_ns
        self._usage.store(PutIdentity(self._usage.kind, self._usage.name, identity, sequence, stored))
        if len(self.known) > max(policy.dedup_ids_max, 1):
            self.evict(1)
        self._quota.evict()
        self._watch()

    def store_again(self, identities: Iterable[str]) -> None:
        """The store has lost identities that are known here: store them once more."""
        for identity in identities:
            sequence, until, _ = self.known[identity]
            stored = until + self._ahead_ns
            self._usage.store(PutIdentity(self._usage.kind, self._usage.name, identity, sequence, stored))

    def _put(self, identity: str, known: tuple[int, int, int]) -> None:
        self._drop(identity)
        self.known[identity] = known
        self._quota.count(self, self._bytes_of(identity))

    def _drop(self, identity: str) -> int:
        """Forget one. Returns until when it was to be remembered, or 0 if it was not known."""
        known = self.known.pop(identity, None)
        if known is None:
            return 0
        self._longer.discard(identity)
        self._quota.count(self, -self._bytes_of(identity))
        return known[1]

    def _end(self, identity: str) -> int:
        """The window of one is over. Returns until when it was to be remembered."""
        sequence, until, _ = self.known[identity]
        if identity in self._longer:
            stored = until + self._ahead_ns
            self._usage.store(PutIdentity(self._usage.kind, self._usage.name, identity, sequence, stored))
        return self._drop(identity)

    def _bytes_of(self, identity: str) -> int:
        return len(identity.encode()) + self._name_bytes

    def confirm(self, identity: str, not_durable: Container[int]) -> None:
        """A duplicate is to be confirmed like the first. Raises `TryLater` if that is `not_durable`."""
        sequence, _, token = self.known[identity]
        if not self._effects.stage.rely_on(token) and sequence in not_durable:
            raise TryLater(f"message with the identity {identity!r} is not durable: retry later")

    def forget(self, message: Entry) -> None:
        """A message was not stored after all: it may be sent again."""
        identity = (message.properties or {}).get("id")
        if identity is not None and self.known.get(identity, (0, 0, 0))[0] == message.sequence:
            self._drop(identity)

    def evict(self, size_bytes: int) -> None:
        """Forget the oldest, of so many bytes at least."""
        gone = 0
        while self.known and size_bytes > 0:
            identity = next(iter(self.known))
            size_bytes -= self._bytes_of(identity)
            gone = self._end(identity)
        # The store forgets by time: identities as old as the first that stays are still there after a
        # restart.
        kept = next(iter(self.known.values()))[1] if self.known else gone + 1
        if kept > gone:
            self._forget_up_to(kept - 1)

    def _forget_up_to(self, until: int) -> None:
        """Have the store forget the identities that end at or before that time."""
        self._usage.store(ForgetIdentities(self._usage.kind, self._usage.name, until + self._ahead_ns))

    def _watch(self) -> None:
        if self.known and self._timer is None:
            first = to_seconds(next(iter(self.known.values()))[1])
            due = max(first, self._effects.now + self._window_seconds / SWEEPS)
            self._timer = self._timers.at(due, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = to_ns(self._effects.now)
        before = len(self.known)
        while self.known and next(iter(self.known.values()))[1] <= now:
            self._end(next(iter(self.known)))
        if len(self.known) < before:
            self._forget_up_to(now)
        self._watch()

    def close(self) -> None:
        """The queue is gone."""
        self._quota.count(self, -self.bytes)
        self._timers.cancel(self._timer)
