"""The name of a queue, its policy, and its part in the limits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from malamute.core.iteration.metrics import QueueMetrics
from malamute.store.policies import MEMORY, BaseKind, QueuePolicy

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.store.operations import Operation


class RecordOwner(Protocol):
    """A queue or its dead letters. `paged_out_bytes` is the part of their bytes that takes no memory."""

    paged_out_bytes: int


class QueueUsage:
    """One queue, as far as it is limited, measured and stored; sizes in bytes.

    `malamute.core.queue.limits` alone changes its sizes. `counts` are of the events of its messages.
    """

    __slots__ = (
        "bytes",
        "counts",
        "in_memory",
        "kind",
        "messages",
        "metrics",
        "name",
        "paged_out_bytes",
        "policy",
        "reserved",
        "store",
        "store_bound",
    )

    def __init__(self, kind: BaseKind, name: str, policy: QueuePolicy, effects: Effects) -> None:
        self.kind = kind
        self.name = name
        self.policy = policy
        self.in_memory = policy.persistence == MEMORY
        """Whether its messages are in memory only. A queue keeps that for its life."""
        self.store = _store_nothing if self.in_memory else effects.stage.store
        """`Effects.store` for its messages; `store_bound` is the other one."""
        self.store_bound = _store_nothing if self.in_memory else effects.stage.store_bound
        self.messages = 0
        """All of its messages, with those that are reserved."""
        self.bytes = 0
        self.paged_out_bytes = 0
        """The part of them that takes no memory: records on the disk only, and room that is reserved."""
        self.reserved = 0
        """Messages that may still come, and have their room."""
        self.counts: Counter[str] = Counter()
        self.metrics: QueueMetrics | None = None
        """None until a message has come."""


def _store_nothing(*_: Operation, size_bytes: int = 0) -> None:
    """Store nothing, for a queue in memory."""
