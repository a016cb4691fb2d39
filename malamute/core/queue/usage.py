"""The name of a queue, its policy, and what it takes of the limits."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from malamute.core.metrics import QueueMetrics
from malamute.store.policies import BaseKind, QueuePolicy


class RecordOwner(Protocol):
    """A queue or its dead letters. `paged_out_bytes` is the part of their bytes that takes no memory."""

    paged_out_bytes: int


class QueueUsage:
    """One queue, as far as it is limited and measured; sizes in bytes.

    `malamute.core.queue.limits` alone changes what it takes. `counts` are of what happened to its messages.
    """

    __slots__ = (
        "bytes",
        "counts",
        "kind",
        "messages",
        "metrics",
        "name",
        "paged_out_bytes",
        "policy",
        "reserved",
    )

    def __init__(self, kind: BaseKind, name: str, policy: QueuePolicy) -> None:
        self.kind = kind
        self.name = name
        self.policy = policy
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
