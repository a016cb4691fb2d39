"""What a queue has taken in already, by the identities that senders give to their messages.

An identity is remembered for the window that is configured, on the disk too, and up to a number of them: the
oldest is forgotten first. All of a queue have the same window, so they are in the order in which they end.

A double shares the fate of the first: it is confirmed when that is on the disk, and fails with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from malamute.core.storage import ForgetIdentities, PutIdentity
from malamute.errors import TryLater

if TYPE_CHECKING:
    from malamute.core.delivery.entry import Entry
    from malamute.core.delivery.queue import Queue
    from malamute.core.timers import Timer

SWEEPS = 8
"""How often within a window the identities that have ended are dropped."""


class Identities:
    """The identities of one queue.

    `known` tells the sequence of each message, until when it is remembered in ns, and the token of the append
    that had it, or 0.
    """

    def __init__(self, queue: Queue) -> None:
        # Its first entry is at hand, however many were taken out before it.
        self.known: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        self._queue = queue
        self._timer: Timer | None = None

    def restore(self, identities: Mapping[str, tuple[int, int]]) -> None:
        """Take up what the store kept."""
        ending = sorted(identities.items(), key=lambda item: item[1][1])
        self.known.update((identity, (sequence, until, 0)) for identity, (sequence, until) in ending)
        self._sweep()

    def has(self, identity: str, time: int) -> bool:
        """Whether a message with this identity was taken in within the window that ends now."""
        found = self.known.get(identity)
        return found is not None and found[1] > time

    def add(self, identity: str, message: Entry) -> None:
        """A message with this identity is taken in."""
        queue, policy = self._queue, self._queue.policy
        if not policy.dedup_window:
            return
        until = message.time + int(policy.dedup_window * 1e9)
        self.known.pop(identity, None)
        self.known[identity] = (message.sequence, until, queue.turn.token)
        queue.turn.store(PutIdentity(queue.kind, queue.name, identity, message.sequence, until))
        if len(self.known) > max(policy.dedup_count, 1):
            self._forget_first()
        self._watch()

    def confirm(self, identity: str) -> None:
        """A double is to be confirmed like the first. Raises `TryLater` if the disk has refused that."""
        sequence, _, token = self.known[identity]
        if not self._queue.turn.rely_on(token) and sequence in self._queue.unsaved:
            raise TryLater(f"the message with the identity {identity!r} is not on the disk")

    def take_back(self, message: Entry) -> None:
        """A message was not stored after all: it may be sent again."""
        identity = (message.properties or {}).get("id")
        if identity is not None and self.known.get(identity, (0, 0, 0))[0] == message.sequence:
            del self.known[identity]

    def _forget_first(self) -> None:
        # The store forgets by time: what came with the first that stays is still there after a restart.
        _, (_, gone, _) = self.known.popitem(last=False)
        _, kept, _ = next(iter(self.known.values()))
        if kept > gone:
            queue = self._queue
            queue.turn.store(ForgetIdentities(queue.kind, queue.name, kept - 1))

    def _watch(self) -> None:
        if self.known and self._timer is None:
            turn, policy = self._queue.turn, self._queue.policy
            due = max(next(iter(self.known.values()))[1] / 1e9, turn.now + policy.dedup_window / SWEEPS)
            self._timer = self._queue.budget.timers.at(due, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        queue, now = self._queue, int(self._queue.turn.now * 1e9)
        before = len(self.known)
        while self.known and next(iter(self.known.values()))[1] <= now:
            self.known.popitem(last=False)
        if len(self.known) < before:
            queue.turn.store(ForgetIdentities(queue.kind, queue.name, now))
        self._watch()

    def close(self) -> None:
        """The queue is gone."""
        self._queue.budget.timers.cancel(self._timer)
