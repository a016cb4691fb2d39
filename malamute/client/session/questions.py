"""Open queries, changes, withdrawals and pings of a session.

A question is retried on a new connection, but not a withdrawal that the broker may have: it would withdraw
messages sent since, and answer that there are none although the first attempt has found some.

A change is a command with a number, kept in the outbox: the broker makes it once, in spite of retries, and
answers with its result. A late change must surprise no caller, so an abandoned one is sent as a dry run from
then on, under its number: the dry run replaces the change, unless that was made before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from malamute.client.session.outbox import Command, Outbox
from malamute.client.session.plain import plain
from malamute.errors import Closed, ConnectionLost, MalamuteError
from malamute.protocol import messages as wire
from malamute.protocol.codec import encode
from malamute.protocol.limits import CHANGES_MAX, NUMBER_MAX

Asking = wire.Query | wire.Withdraw | wire.Ping | wire.Get

KeyChange = wire.Put | wire.Delete | wire.Add
"""A change of a key in a bucket."""

_WITHDRAWAL_LOST = (
    "connection was lost before the answer: it is unknown whether messages were withdrawn; withdraw them once"
    " more, unless others have been sent since with the same correlation or id"
)


class Cancelled(NamedTuple):
    """The result of `cancel`: messages that were taken back, and messages that consumers have and keep.

    Without either, no message under the id is in the queue.
    """

    cancelled: int
    in_flight: int


class PendingQuery:
    """A query to the broker, until its answer."""

    __slots__ = ("asking", "done", "error", "said", "value")

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.said = False
        """Whether the broker may have the query."""
        self.done = False
        self.value: Any = None
        self.error: MalamuteError | None = None

    def settle(self, value: Any = None, error: MalamuteError | None = None) -> None:
        """Note the answer."""
        self.done, self.value, self.error = True, value, error


class PendingChange(Command):
    """A change requested of the broker. `value` is its result."""

    __slots__ = ("asking", "said", "value")

    def __init__(self, asking: wire.Change | KeyChange) -> None:
        super().__init__()
        self.asking = asking
        self.said = False
        """Whether the broker may have the change."""
        self.value: Any = None

    def settle(self, sequence: int = 0, error: MalamuteError | None = None) -> None:
        """Note the answer, or the end of the wait for one: the first counts."""
        if self.done:
            self.frames = ()
        else:
            super().settle(sequence, error)

    def void(self, error: MalamuteError) -> None:
        """Note that the caller has given up: from now on only a dry run is sent."""
        self.settle(error=error)
        self.frames = encode(_without_effect(self.asking))


class Questions:
    """The open queries of one session, which are repeated on a new connection."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._changes: dict[int, PendingChange] = {}
        self._asked: dict[int, PendingQuery] = {}
        self._next = 1
        self._pings: deque[PendingQuery] = deque()

    def query(self, topic: str, arguments: Mapping[str, Any]) -> PendingQuery:
        """Query the broker about itself."""
        return self._ask(lambda ref: wire.Query(ref, topic, arguments))

    @property
    def may_change(self) -> bool:
        """Return whether one more change may be requested."""
        return len(self._changes) < CHANGES_MAX and self._outbox.room(numbered=True)

    def change(self, topic: str, arguments: Mapping[str, Any]) -> PendingChange:
        """Request a change of the broker, which is made once."""
        self._outbox.check()
        return self._change(plain(wire.Change(self._outbox.next_number, topic, arguments)))

    def change_key(self, asking: KeyChange) -> PendingChange:
        """Request a change of a key, which is made once; its number is given here."""
        self._outbox.check()
        return self._change(plain(asking._replace(number=self._outbox.next_number)))

    def _change(self, asking: wire.Change | KeyChange) -> PendingChange:
        change = PendingChange(asking)
        frames = encode(asking)
        change.said = self._outbox.ready
        self._outbox.submit(change, frames, sum(map(len, frames)), numbered=True)
        self._changes[change.number] = change
        return change

    def withdraw(self, kind: str, name: str, correlation: int | str) -> PendingQuery:
        """Withdraw unsettled messages with a correlation; the answer is their number."""
        return self._ask(lambda ref: wire.Withdraw(ref, kind, name, correlation))

    def get(self, bucket: str, keys: Sequence[str]) -> PendingQuery:
        """Ask for keys of a bucket; the answer is a row of each."""
        return self._ask(lambda ref: wire.Get(ref, bucket, keys))

    def cancel(self, kind: str, name: str, identity: str) -> PendingQuery:
        """Withdraw messages under an id; the answer is their number, and that of those in flight."""
        return self._ask(lambda ref: wire.Withdraw(ref, kind, name, 0, identity))

    def _ask(self, make: Callable[[int], Asking]) -> PendingQuery:
        self._outbox.check()
        query = PendingQuery(plain(make(self._next)))
        self._asked[self._next] = query
        query.said = self._outbox.ready
        self._next += 1
        self._outbox.say(query.asking)
        return query

    def ping(self) -> PendingQuery:
        """Send a ping, answered after everything sent before it. Pings are answered in order."""
        self._outbox.check()
        query = PendingQuery(wire.Ping())
        self._pings.append(query)
        self._outbox.say(query.asking)
        return query

    def asked(self) -> Iterator[Asking]:
        """Yield the open queries."""
        return (query.asking for query in self._asked.values())

    def pings(self) -> Iterator[Asking]:
        """Yield the open pings."""
        return (query.asking for query in self._pings)

    def answered(self, ref: int, value: Any) -> None:
        """Note the answer to a query, if it is still open."""
        query = self._asked.pop(ref, None)
        if query is not None:
            query.settle(value)

    def refused(self, ref: int, error: MalamuteError) -> bool:
        """Note the refusal of a query. Return whether it is awaited."""
        query = self._asked.pop(ref, None)
        if query is not None:
            query.settle(error=error)
        return query is not None

    def changed(self, number: int, value: Any) -> bool:
        """Note the answer to a change. Return whether it was open."""
        change = self._changes.pop(number, None)
        if change is not None and not change.done:
            change.value = value
        return self._outbox.answered(number)

    def change_refused(self, number: int, error: MalamuteError) -> bool:
        """Note the refusal of a change. Return whether it is awaited."""
        change = self._changes.pop(number, None)
        awaited = change is not None and not change.done
        self._outbox.refused(number, error)
        return awaited

    def resume(self, *, doubtful: bool) -> None:
        """Resume in an open session, before all unanswered changes are sent again.

        `doubtful` means that the broker has forgotten the session, and the results of its changes.
        """
        for change in self._changes.values():
            if doubtful and change.said and not change.done:
                change.void(
                    ConnectionLost(
                        "broker has forgotten this session: it is unknown whether "
                        f"{_name(change.asking)} was done; look before you retry"
                    )
                )
            change.said = True
        for query in [*self._asked.values()]:
            if query.said and isinstance(query.asking, wire.Withdraw):
                del self._asked[query.asking.ref]
                query.settle(error=ConnectionLost(_WITHDRAWAL_LOST))
            query.said = True

    def pong(self) -> None:
        """Note the answer to the first ping."""
        if self._pings:
            self._pings.popleft().settle()

    def abandon(self, query: PendingQuery | PendingChange) -> None:
        """Note that an answer is no longer awaited."""
        if isinstance(query, PendingChange):
            if not query.done:
                query.void(Closed("change was given up: nothing waits for its result any more"))
        else:
            self._asked.pop(getattr(query.asking, "ref", 0), None)

    def fail(self, error: MalamuteError) -> None:
        """End all open queries with an error."""
        for query in (*self._asked.values(), *self._pings):
            query.settle(error=error)


def _name(asking: wire.Change | KeyChange) -> str:
    """Return the name of a change in a text."""
    return asking.topic if isinstance(asking, wire.Change) else f"the change of key {asking.key!r}"


def _without_effect(asking: wire.Change | KeyChange) -> wire.Change | wire.Delete:
    """Return a change that changes nothing, and has the number of this one."""
    if isinstance(asking, wire.Change):
        return asking._replace(arguments={**asking.arguments, "dry_run": True})
    # No key has this revision.
    return wire.Delete(asking.number, asking.bucket, asking.key, NUMBER_MAX)
