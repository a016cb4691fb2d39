"""The policies of streams and queues: their configuration, as values."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Literal, NamedTuple

BaseKind = Literal["mailbox", "service"]

Persistence = Literal["durable", "memory"]
"""The persistence of a queue: its messages are stored, or are lost at the end of the broker."""

DURABLE: Persistence = "durable"
MEMORY: Persistence = "memory"


class StreamRetention(NamedTuple):
    """The retention of a stream; 0 is no limit. Bytes are counted as stored.

    The age is measured against the clock, so that an idle stream ages, too. Whole chunks are dropped until
    every limit holds; the newest chunk stays even if it alone has more bytes or messages.
    """

    bytes_max: int = 0
    messages_max: int = 0
    age_seconds: float = 0.0

    @classmethod
    def of(cls, value: Any) -> StreamRetention:
        """Return the retention of a stored value; `KEEP_ALL` if the value is invalid."""
        try:
            size, count, age = value
            return cls(int(size), int(count), float(age))
        except (TypeError, ValueError, OverflowError):
            return KEEP_ALL


KEEP_ALL = StreamRetention()


class StreamPolicy(NamedTuple):
    """The policy of one stream, unless an operator or a subscriber sets another."""

    journal: bool = True
    """Whether messages are stored."""
    committed: bool = False
    """Whether subscribers get durable messages only."""
    retention: StreamRetention = KEEP_ALL
    ttl_seconds: float = 0.0
    """The time to live of messages without one, or with a longer one; 0 is no expiry."""
    retention_source: str = "default"
    """The origin of the retention in the configuration: `rule` and a pattern, or the name of an option."""

    @property
    def ttl_ms(self) -> int:
        """The time to live in milliseconds: at least 1, or 0 for no expiry."""
        return ceil(self.ttl_seconds * 1000)


StreamPolicyOf = Callable[[str], StreamPolicy]


class QueuePolicy(NamedTuple):
    """The policy of one mailbox or service; 0 is no limit of its own."""

    persistence: Persistence = DURABLE
    ack_timeout_seconds: float = 1800.0
    """The time in which a delivery has to be settled or its progress reported; 0 is no limit."""
    attempts_max: int = 20
    """Attempts before a message becomes a dead letter; 0 is no limit."""
    backoff_seconds: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0)
    """The delays before the second attempt, the third and so on; the last delay repeats, and an empty tuple
    means retries without delay."""
    messages_max: int = 0
    bytes_max: int = 0
    priority_step_messages: int = 100_000
    """The number of earlier messages that one step of priority overtakes."""
    dedup_window_seconds: float = 120.0
    """The time for which the identity of a message is remembered; 0 disables deduplication."""
    dedup_ids_max: int = 100_000
    dead_letters_max: int = 10_000
    """Dead letters that are stored; 0 stores none."""
    idle_seconds: float = 86_400.0
    """The time without use after which an empty queue is removed; 0 is never."""
    source: str = "default"
    """The origin in the configuration: `rule` and a pattern, or `default`."""

    def delay(self, attempts: int) -> float:
        """Return the backoff in seconds after so many attempts."""
        steps = self.backoff_seconds
        return steps[min(max(attempts, 1), len(steps)) - 1] if steps else 0.0


PolicyOf = Callable[[BaseKind, str], QueuePolicy]

BucketPersistenceOf = Callable[[str], Persistence]


class QueueSettings(NamedTuple):
    """The part of the policy of one queue that was set at run time; None is as configured."""

    attempts_max: int | None = None
    backoff_seconds: tuple[float, ...] | None = None
    ack_timeout_seconds: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Return the fields of a `QueuePolicy` that were set."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @classmethod
    def of(cls, value: Any) -> QueueSettings:
        """Return the settings of a stored value; none for an invalid one."""
        try:
            attempts, backoff, ack_timeout = value
            return cls(
                None if attempts is None else int(attempts),
                None if backoff is None else tuple(map(float, backoff)),
                None if ack_timeout is None else float(ack_timeout),
            )
        except (TypeError, ValueError, OverflowError):
            return cls()
