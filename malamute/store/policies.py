"""What is configured for streams and queues, as values."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Literal, NamedTuple

BaseKind = Literal["mailbox", "service"]

Persistence = Literal["durable", "memory"]
"""Whether the messages of a queue are stored, or end with the broker."""

DURABLE: Persistence = "durable"
MEMORY: Persistence = "memory"


class StreamRetention(NamedTuple):
    """How much of a stream is kept; 0 is no limit. Its bytes are those that it takes in the store.

    The age counts against the clock, so that a stream at rest gets older, too. Whole chunks leave until every
    limit holds; the newest chunk stays even if it has more bytes or messages by itself.
    """

    bytes_max: int = 0
    messages_max: int = 0
    age_seconds: float = 0.0

    @classmethod
    def of(cls, value: Any) -> StreamRetention:
        """The retention that a value of the table of them stands for. What is none, is no limit."""
        try:
            size, count, age = value
            return cls(int(size), int(count), float(age))
        except (TypeError, ValueError, OverflowError):
            return KEEP_ALL


KEEP_ALL = StreamRetention()


class StreamPolicy(NamedTuple):
    """How one stream is treated, unless an operator or a subscriber says otherwise."""

    journal: bool = True
    """Whether it is stored at all."""
    committed: bool = False
    """Whether subscribers get only what is durable."""
    retention: StreamRetention = KEEP_ALL
    ttl_seconds: float = 0.0
    """After how long its messages expire, if they say nothing or a longer time; 0 is never."""
    retention_source: str = "default"
    """What in the configuration says how much is kept: `rule` and a pattern, or the name of an option."""
    store: str = ""
    """The name of the store that it is in, if it is not the broker's own."""

    @property
    def ttl_ms(self) -> int:
        """The same in milliseconds, at least one if it is not never."""
        return ceil(self.ttl_seconds * 1000)


StreamPolicyOf = Callable[[str], StreamPolicy]


class QueuePolicy(NamedTuple):
    """How one mailbox or service treats its messages; 0 is no limit of its own."""

    persistence: Persistence = DURABLE
    ack_timeout_seconds: float = 1800.0
    """How long a delivery may be neither settled nor reported on; 0 is for ever."""
    attempts_max: int = 20
    """Attempts, the last of which makes a dead letter of a message that comes back; 0 is any number."""
    backoff_seconds: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0)
    """How long a message waits that came back after its first attempt, its second and so on; the last one
    holds for all that follow, and none means at once."""
    messages_max: int = 0
    bytes_max: int = 0
    priority_step_messages: int = 100_000
    """How many messages that came before it one step of priority puts a message ahead of."""
    dedup_window_seconds: float = 120.0
    """How long the identity of a message is remembered; 0 is not at all."""
    dedup_ids_max: int = 100_000
    dead_letters_max: int = 10_000
    """Dead letters that are kept; 0 keeps none."""
    idle_seconds: float = 86_400.0
    """After how long without use an empty queue is removed; 0 is never."""

    def delay(self, attempts: int) -> float:
        """How many seconds a message waits that came back after so many attempts."""
        steps = self.backoff_seconds
        return steps[min(max(attempts, 1), len(steps)) - 1] if steps else 0.0


PolicyOf = Callable[[BaseKind, str], QueuePolicy]
