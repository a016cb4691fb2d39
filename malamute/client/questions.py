"""Questions to the broker, changes asked of it, and pings: those that have no answer yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from malamute.client.outbox import Outbox
from malamute.errors import MalamuteError
from malamute.protocol import messages as wire

Asking = wire.Query | wire.Change | wire.Withdraw | wire.Ping


class Query:
    """A question to the broker, or a change asked of it, until its answer."""

    __slots__ = ("asking", "done", "error", "value")

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.done = False
        self.value: Any = None
        self.error: MalamuteError | None = None

    def settle(self, value: Any = None, error: MalamuteError | None = None) -> None:
        """It has its answer."""
        self.done, self.value, self.error = True, value, error


class Questions:
    """Those of one session, which it asks again on a new connection."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._asked: dict[int, Query] = {}
        self._next = 1
        self._pings: deque[Query] = deque()

    def query(self, topic: str, arguments: Mapping[str, Any], *, change: bool = False) -> Query:
        """Ask the broker about itself, or to change something. A change may be asked twice after a cut."""
        kind = wire.Change if change else wire.Query
        return self._ask(lambda ref: kind(ref, topic, arguments))

    def withdraw(self, kind: str, name: str, correlation: int | str) -> Query:
        """Take back what was sent under a correlation and is not settled; the answer is how many."""
        return self._ask(lambda ref: wire.Withdraw(ref, kind, name, correlation))

    def _ask(self, make: Callable[[int], Asking]) -> Query:
        self._outbox.check()
        query = self._asked[self._next] = Query(make(self._next))
        self._next += 1
        self._outbox.say(query.asking)
        return query

    def ping(self) -> Query:
        """Ask whether everything before this has reached the broker. Pings are answered in order."""
        self._outbox.check()
        query = Query(wire.Ping())
        self._pings.append(query)
        self._outbox.say(query.asking)
        return query

    def asked(self) -> Iterator[Asking]:
        """The questions that are open."""
        return (query.asking for query in self._asked.values())

    def pings(self) -> Iterator[Asking]:
        """The pings that are open."""
        return (query.asking for query in self._pings)

    def answered(self, ref: int, value: Any) -> None:
        """The answer to a question, if somebody waits for it."""
        query = self._asked.pop(ref, None)
        if query is not None:
            query.settle(value)

    def refused(self, ref: int, error: MalamuteError) -> bool:
        """A question was refused. Returns whether somebody waits for its answer."""
        query = self._asked.pop(ref, None)
        if query is not None:
            query.settle(error=error)
        return query is not None

    def pong(self) -> None:
        """The answer to the first ping."""
        if self._pings:
            self._pings.popleft().settle()

    def abandon(self, query: Query) -> None:
        """Nobody waits for this answer any more."""
        self._asked.pop(getattr(query.asking, "ref", 0), None)

    def fail(self, error: MalamuteError) -> None:
        """None of them will be answered."""
        for query in (*self._asked.values(), *self._pings):
            query.settle(error=error)
