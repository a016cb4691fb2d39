"""The senders of queued messages: the quotas that messages count for until they have left the queue."""

from __future__ import annotations

from collections.abc import Sequence

from malamute.core.identity.quotas import QuotaUsages, add_all, check_all
from malamute.core.queue.entry import Entry, size_of
from malamute.store.policies import BaseKind


def check_entries(quotas: QuotaUsages, kind: BaseKind, entries: Sequence[Entry]) -> None:
    """Raise `QuotaExceeded` unless so many more messages may wait in a queue of this kind."""
    if kind == "service":
        check_all(quotas, "requests", len(entries))
    check_all(quotas, "queued_bytes", size_of(entries))


class SentBy:
    """Of the messages of one queue those that count for a quota, by their sequences."""

    __slots__ = ("_kind", "quotas")

    def __init__(self, kind: BaseKind) -> None:
        self._kind = kind
        self.quotas: dict[int, QuotaUsages] = {}

    def add(self, entries: Sequence[Entry], quotas: QuotaUsages) -> None:
        """Messages came that count for these quotas."""
        self.quotas.update({entry.sequence: quotas for entry in entries})
        self._count(quotas, len(entries), size_of(entries))

    def remove(self, entries: Sequence[Entry]) -> None:
        """Messages have left."""
        for entry in entries:
            if quotas := self.quotas.pop(entry.sequence, None):
                self._count(quotas, -1, -entry.size_bytes)

    def hand_over(self, entries: Sequence[Entry]) -> dict[int, QuotaUsages]:
        """Messages go to another queue, and count there. Returns for which quotas, by sequence."""
        if not self.quotas:
            return {}
        counted = {e.sequence: quotas for e in entries if (quotas := self.quotas.get(e.sequence))}
        self.remove(entries)
        return counted

    def _count(self, quotas: QuotaUsages, count: int, size_bytes: int) -> None:
        if self._kind == "service":
            add_all(quotas, "requests", count)
        add_all(quotas, "queued_bytes", size_bytes)
