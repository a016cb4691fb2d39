"""A queued message, and its part in the limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from pyroaring import BitMap64

from malamute.core.queue.state import PENDING, Holder, State
from malamute.store.operations import Frame, PutMessages, QueueKind, StoredMessage

ENTRY_BYTES = 64
"""Bytes that a queued message counts beyond its subject and its record."""

PROPERTY_BYTES = 64
"""Bytes that each property counts."""

FEW = 16
"""Messages that are put into columns by row."""

ASKED = "asked"
"""The property of a request that was moved: the service that it was made to, as its replies say."""

Row = tuple[int, int, str, str, Frame, Mapping[str, Any] | None]
"""The fields of a message: a tuple made by `zip` takes a third of the time of a `StoredMessage`."""


class Entry:
    """A queued message, its state, and how often it was delivered.

    A new entry is PENDING; from then on `malamute.core.queue.state` alone changes its state. `consumer` is
    the one that has it, or had it when its settlement began.

    Its `record` is None while that is on the disk only. An entry is `marked` when the disk never holds it
    without the mark that it may have been delivered. `deadline_from` is when its consumer got it, or last
    reported on it; `first_delivered_at` and `last_delivered_at` are for the settlement log. `bytes` are those
    of its subject and its record, which it takes of its consumer's credit.

    There is one for each message that is queued anywhere, so it has nothing that follows from the rest,
    and no message beside it.
    """

    __slots__ = (
        "attempts",
        "bytes",
        "consumer",
        "deadline_from",
        "first_delivered_at",
        "last_delivered_at",
        "marked",
        "properties",
        "record",
        "sender",
        "sequence",
        "state",
        "subject",
        "time_ns",
    )

    def __init__(
        self,
        message: StoredMessage | Row,
        attempts: int = 0,
        *,
        marked: bool = False,
        paged_out_bytes: int = 0,
    ) -> None:
        """`paged_out_bytes` are those of a record that was left on the disk."""
        self.sequence, self.time_ns, self.sender, subject, record, self.properties = message
        self.subject = subject
        self.record: Frame | None = None if paged_out_bytes else record
        self.bytes = len(subject) + (paged_out_bytes or len(record))
        self.attempts = attempts
        self.marked = marked
        self.state: State = PENDING
        self.consumer: Holder | None = None
        self.deadline_from = self.first_delivered_at = self.last_delivered_at = 0.0

    @property
    def size_bytes(self) -> int:
        """The bytes that the message counts in the limits."""
        properties = self.properties
        return self.bytes + ENTRY_BYTES + (PROPERTY_BYTES * len(properties) if properties else 0)

    @property
    def paged_out(self) -> bool:
        """Whether its record is on the disk only."""
        return self.record is None

    @property
    def message(self) -> StoredMessage:
        """The message, as far as it is in memory."""
        return StoredMessage(
            self.sequence, self.time_ns, self.sender, self.subject, self.record or b"", self.properties
        )


class Entries(dict[int, Entry]):
    """The messages of one queue by their sequences, in order."""

    __slots__ = ("_sequences",)

    def __init__(self) -> None:
        super().__init__()
        self._sequences = BitMap64()
        """Where a look at them can go on that was broken off."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Add messages with consecutive sequences."""
        for entry in entries:
            self[entry.sequence] = entry
        if entries:
            self._sequences.add_range(entries[0].sequence, entries[-1].sequence + 1)

    def restore(self, entries: Sequence[Entry]) -> None:
        """Add messages with any sequences."""
        self.update({entry.sequence: entry for entry in entries})
        self._sequences.update([entry.sequence for entry in entries])

    def remove(self, sequences: Sequence[int]) -> list[Entry]:
        """Take messages out."""
        entries = [*map(self.pop, sequences)]
        if len(sequences) == 1:
            self._sequences.discard(sequences[0])
        else:
            self._sequences -= BitMap64(sequences)
        return entries

    def run_from(self, sequence: int, count: int) -> list[Entry]:
        """So many from a sequence on, in order."""
        sequences = islice(self._sequences.iter_equal_or_larger(sequence), count)
        return [*map(self.__getitem__, sequences)]

    def all_sequences(self) -> BitMap64:
        """The sequences of all that are here now."""
        return BitMap64(self._sequences)

    @property
    def end(self) -> int:
        """The sequence behind the last; 0 if there is none."""
        return self._sequences.max() + 1 if self else 0

    @property
    def oldest_ns(self) -> int | None:
        """The broker's time of the first, in nanoseconds UTC."""
        return next(iter(self.values())).time_ns if self else None


_bytes, _properties, _origin = attrgetter("bytes"), attrgetter("properties"), attrgetter("time_ns", "sender")
_subject, _record = attrgetter("subject"), attrgetter("record")
_FIELDS = "sequence", "time_ns", "sender", "subject", "record", "attempts", "properties"
_row, _columns = attrgetter(*_FIELDS), [*map(attrgetter, _FIELDS)]


def bytes_of(entries: Sequence[Entry]) -> int:
    """The bytes of the subjects and the records of messages."""
    return sum(map(_bytes, entries))


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes that messages count in the limits."""
    size_bytes: int = sum(map(_bytes, entries)) + ENTRY_BYTES * len(entries)
    return size_bytes + PROPERTY_BYTES * sum(map(len, filter(None, map(_properties, entries))))


def columns_of(entries: Sequence[Entry]) -> list[list[Any]]:
    """Messages by columns, in the order of those of a payload. A record that is on the disk only is empty."""
    columns: list[list[Any]]
    if len(entries) < FEW:
        # Most are one message, for which a comprehension for each column would be seven calls.
        columns = [*map(list, zip(*map(_row, entries), strict=True))]
    else:
        # A tuple for each of very many would set off the garbage collector.
        columns = [[*map(get, entries)] for get in _columns]
    if None in columns[_RECORDS]:
        columns[_RECORDS] = [record or b"" for record in columns[_RECORDS]]
    return columns


_RECORDS = 4


def puts(kind: QueueKind, queue: str, entries: Iterable[Entry]) -> list[PutMessages]:
    """Return the operations that add messages with consecutive sequences to a queue of the store."""
    operations = []
    for (time_ns, sender), group in groupby(entries, _origin):
        run = [*group]
        subjects, records = [*map(_subject, run)], [*map(_record, run)]
        properties = [*map(_properties, run)]
        wanted = properties if any(properties) else None
        first = run[0].sequence
        operations.append(PutMessages(kind, queue, first, time_ns, sender, subjects, records, wanted))
    return operations


def ranges_of(sequences: list[int]) -> list[list[int]]:
    """Different sequences as ranges `[first, last]`, in order."""
    ordered = sorted(sequences)
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
        return [[ordered[0], ordered[-1]]]
    ranges: list[list[int]] = []
    for sequence in ordered:
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])
    return ranges
