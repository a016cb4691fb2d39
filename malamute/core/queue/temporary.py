"""The users of a temporary mailbox, which is removed with the last of them and all messages in it.

A session *uses* the mailbox from its first offer until it cancels its last one or ends. A session that was
lost uses the mailbox for as long as it may be resumed. The store has the users, so after a restart of the
broker each of them has the same time to come back.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from malamute.store.operations import DeleteValue, PutValue
from malamute.store.tables import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from malamute.core.queue.limits import QueueLimits
    from malamute.errors import MalamuteError

RETRY_SECONDS = 1.0


class MailboxUsers:
    """The sessions that use one temporary mailbox, by their peers."""

    __slots__ = ("_is_retrying", "_limits", "_name", "_until")

    def __init__(self, limits: QueueLimits, name: str) -> None:
        self._limits = limits
        self._name = name
        self._until: dict[bytes, float] = {}
        """Until when each session may be resumed, in seconds since the epoch; `inf` if it is here."""
        self._is_retrying = False

    def restore(self, peers: Iterable[bytes], until: float) -> None:
        """Take up the sessions that the store has."""
        self._until = dict.fromkeys(map(bytes, peers), until)

    def join(self, peer: bytes) -> None:
        """A session consumes."""
        is_new = peer not in self._until
        self._until[peer] = inf
        if is_new:
            self.store()

    def lose(self, peer: bytes, until: float) -> None:
        """A session was lost, and may be resumed `until` then."""
        self._until[peer] = until

    def leave(self, peer: bytes) -> None:
        """A session consumes no more."""
        if self._until.pop(peer, None) is not None and self._until:
            self.store()

    def next_deadline(self, now: float) -> float:
        """Give up sessions whose time is over. Return when the next one is; `now` if none is left."""
        for peer in [peer for peer, until in self._until.items() if until <= now]:
            self.leave(peer)
        return min(self._until.values(), default=now)

    def store(self) -> None:
        """Store the sessions, and again later if the disk refuses that."""
        stage = self._limits.effects.stage
        stage.store(PutValue(TEMPORARY, (self._name,), [*self._until]))
        stage.when_stored(self._stored, awaited=False)

    def _stored(self, error: MalamuteError | None) -> None:
        if error is not None and self._until and not self._is_retrying:
            self._is_retrying = True
            self._limits.timers.at(self._limits.effects.now + RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        if self._until:
            self.store()

    def forget(self) -> None:
        """Delete the sessions in the store, as the mailbox is removed."""
        self._until.clear()
        self._limits.effects.stage.store(DeleteValue(TEMPORARY, (self._name,)))
