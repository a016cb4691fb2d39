"""The states of a queued message: a table, and the only code that changes a state or its counters.

`TRANSITIONS` has the allowed events in each state, and the next states. Other events raise in
`MessageStates`, and the fault ends one operation. The diagram in docs/architecture.md is made from the table.

The values of the states are the words that operators see (`malamute queue browse --state`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

State = Literal["pending", "ready", "delayed", "in-flight", "settling", "settled"]

PENDING: Final = "pending"
"""Not deliverable yet: the message waits for its commit, or for its turn in a long piece of work."""
READY: Final = "ready"
"""In ready queues, waiting for a consumer."""
DELAYED: Final = "delayed"
"""Waiting for a time."""
DELIVERED: Final = "in-flight"
"""A consumer has it, or will be sent it as soon as its record and the watermark are there."""
SETTLING: Final = "settling"
"""Its settlement is on its way to the disk: it is back where it was if the disk refuses that."""
SETTLED: Final = "settled"
"""Removed from the queue."""

Event = Literal["wait", "assign", "delay", "due", "take back", "settle", "refuse", "remove"]

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    PENDING: {
        "wait": READY,  # it may be delivered, and no consumer has credit
        "assign": DELIVERED,  # a consumer has credit
        "delay": DELAYED,  # it is not due yet, or has to wait after an attempt
        "settle": SETTLING,
        "remove": SETTLED,  # it was refused by the disk, or its settlement need not wait for anything
    },
    READY: {
        "assign": DELIVERED,
        "take back": PENDING,  # its key belonged to a consumer that leaves, or its time is in doubt
        "settle": SETTLING,
        "remove": SETTLED,
    },
    DELAYED: {
        "due": PENDING,
        "settle": SETTLING,
        "remove": SETTLED,
    },
    DELIVERED: {
        "take back": PENDING,  # given back, released, late, or its consumer is lost
        "settle": SETTLING,
        "remove": SETTLED,  # acknowledged, and nothing else hangs on it
    },
    SETTLING: {
        "refuse": PENDING,  # the disk did not take its settlement
        "remove": SETTLED,
    },
    SETTLED: {},
}

AT_REST: Final = frozenset[str]((READY, DELAYED))
"""The states of messages that nobody has, and that nothing is under way with."""

_NEXT: dict[Event, dict[State, State]] = {
    event: {state: following[event] for state, following in TRANSITIONS.items() if event in following}
    for event in Event.__args__  # type: ignore[attr-defined]
}


class Holding(Protocol):
    """A session with the count of its held messages."""

    holding: int


class Holder(Protocol):
    """A consumer, as a holder of messages."""

    @property
    def session(self) -> Holding:
        """The session that it belongs to."""

    outstanding: dict[int, Any]
    """Its deliveries by sequence, in the order of their deadlines."""


class Stateful(Protocol):
    """A queued message, as far as its state and its deliveries go."""

    sequence: int
    state: State
    consumer: Holder | None
    attempts: int
    deadline_from: float
    first_delivered_at: float
    last_delivered_at: float


class MessageStates:
    """The states of the messages of one queue. `counts` has how many are in each."""

    __slots__ = ("counts", "uncommitted")

    def __init__(self) -> None:
        self.counts: dict[State, int] = dict.fromkeys(TRANSITIONS, 0)
        self.uncommitted = 0
        """Messages that wait for the commit of their command; some may have been dropped since."""

    def enqueue(self, count: int, *, uncommitted: bool = False) -> None:
        """So many messages came into the queue, where they are born PENDING."""
        self.counts[PENDING] += count
        if uncommitted:
            self.uncommitted += count

    def commit(self, count: int) -> None:
        """So many of them need not wait for their commit any more."""
        self.uncommitted -= count
        assert self.uncommitted >= 0, "fewer than no messages wait for their commit"

    def wait(self, messages: Sequence[Stateful]) -> None:
        """Make messages READY."""
        self._move("wait", messages)

    def assign(self, holder: Holder, messages: Sequence[Stateful], now: float) -> None:
        """A consumer gets them, at a time in seconds since the epoch: an attempt of each."""
        self._move("assign", messages)
        outstanding = holder.outstanding
        count = len(outstanding) + len(messages)
        for message in messages:
            outstanding[message.sequence] = message
            message.consumer = holder
            message.deadline_from = message.last_delivered_at = now
            message.attempts += 1
            if message.attempts == 1:
                message.first_delivered_at = now
        assert len(outstanding) == count, "a consumer gets a message that it has"
        holder.session.holding += len(messages)

    def pass_to(self, holder: Holder, message: Stateful, now: float) -> None:
        """A new message goes to a consumer at once: `enqueue` and `assign` of one, in one step."""
        message.state = state = _NEXT["assign"][message.state]
        self.counts[state] += 1
        assert message.sequence not in holder.outstanding, "a consumer gets a message that it has"
        holder.outstanding[message.sequence] = message
        message.consumer = holder
        message.attempts = 1
        message.deadline_from = message.first_delivered_at = message.last_delivered_at = now
        holder.session.holding += 1

    def uncount(self, messages: Sequence[Stateful]) -> None:
        """Their last delivery was no attempt: they were not sent, or nobody has looked at them."""
        for message in messages:
            assert message.attempts > 0, "an attempt is taken from a message that had none"
            message.attempts -= 1

    def detach(self, holder: Holder, sequences: Sequence[int]) -> None:
        """Take messages from a consumer: they are PENDING until the next event."""
        outstanding = holder.outstanding
        count = len(outstanding) - len(sequences)
        if count:
            for sequence in sequences:
                del outstanding[sequence]
            assert len(outstanding) == count, "a consumer loses a message twice"
        else:
            holder.outstanding = {}
        holder.session.holding -= len(sequences)

    def finish(self, holder: Holder, message: Stateful) -> None:
        """A consumer is done with a message, and it leaves at once: `detach` and `remove` of one."""
        after = _NEXT["remove"][message.state]
        self.counts[message.state] -= 1
        self.counts[after] += 1
        message.state = after
        del holder.outstanding[message.sequence]
        holder.session.holding -= 1

    def delay(self, message: Stateful) -> None:
        """Delay a message."""
        self._move("delay", (message,))

    def due(self, messages: Sequence[Stateful]) -> None:
        """The time that they waited for has come."""
        self._move("due", messages)

    def take_back(self, messages: Sequence[Stateful]) -> None:
        """Return messages to PENDING, to be dispatched again."""
        self._move("take back", messages)
        for message in messages:
            message.consumer = None

    def settle(self, messages: Iterable[Stateful]) -> None:
        """Begin the settlement of messages; those already SETTLING stay so."""
        self._move("settle", [message for message in messages if message.state is not SETTLING])

    def refuse(self, messages: Sequence[Stateful]) -> None:
        """The disk did not take their settlement."""
        self._move("refuse", messages)
        for message in messages:
            message.consumer = None

    def remove(self, messages: Sequence[Stateful]) -> None:
        """Remove messages from the queue."""
        self._move("remove", messages)

    def _move(self, event: Event, messages: Sequence[Stateful]) -> None:
        """Apply an event. Most messages of a batch are in one state, so a run of them is counted at once."""
        step, counts = _NEXT[event], self.counts
        if len(messages) == 1:
            (message,) = messages
            after = step[message.state]
            counts[message.state] -= 1
            counts[after] += 1
            assert counts[message.state] >= 0, f"fewer than no messages are {message.state}"
            message.state = after
            return
        before: State = PENDING
        after = PENDING
        count = 0
        for message in messages:
            if message.state is not before or not count:
                counts[before] -= count
                counts[after] += count
                count = 0
                before = message.state
                after = step[before]
            message.state = after
            count += 1
        counts[before] -= count
        counts[after] += count
        assert counts[before] >= 0, f"fewer than no messages are {before}"

    def assert_these(self, messages: Collection[Stateful]) -> None:
        """Assert that these are all messages that the queue has, and that they are counted right."""
        counts = dict.fromkeys(TRANSITIONS, 0)
        for message in messages:
            counts[message.state] += 1
        assert counts == {**self.counts, SETTLED: 0}, f"{self.counts} are counted, and there are {counts}"
