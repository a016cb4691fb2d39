"""Sources of history: a data directory, or a broker, with the same four calls.

A *run* is some consecutive messages, as columns; a *gap* is a range of unavailable sequences, with the
reason. `read` yields both in order, so that every sequence is accounted for.

The directory may be in use by a broker: it is opened for reading only. A broker replays its streams; it may
be remote, and serves them as to any slow subscriber.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from malamute.client import events
from malamute.errors import ConfigError, Malformed, NotFound, StoreError, TimedOut
from malamute.protocol.admin import StatusQuery, StreamsQuery
from malamute.protocol.batch import Columns, unpack_payload
from malamute.protocol.start import SEQ, SINCE, TIME, Start
from malamute.spark.login import ANYBODY, Login
from malamute.store.operations import Damage

if TYPE_CHECKING:
    from malamute.client.sync.client import Client
    from malamute.client.sync.consumers import Subscription

READ_BYTES = 8 * 1024 * 1024
"""Bytes read of a store in one transaction, or buffered of a broker's deliveries."""

CREDIT = 100_000
"""Messages of a broker that may wait here."""

TIMEOUT_SECONDS = 30.0
"""Seconds to wait for any answer of a broker."""


class ExportGap(NamedTuple):
    """A range of unavailable sequences, both ends included, with the reason."""

    first: int
    last: int
    reason: str


class SequenceRange(NamedTuple):
    """The stored sequences of a stream, both ends included; an empty range ends before it begins."""

    first: int
    last: int


class ReadFilter(NamedTuple):
    """A filter for readers. A source may yield more messages than it matches."""

    criteria: Sequence[tuple[str, str]] = ()
    where: str = ""


ALL = ReadFilter()


class HistorySource(Protocol):
    """A source of history. `limited` are the read streams of which rules withhold a part."""

    limited: set[str]

    def store(self) -> str:
        """Return the name of the store of the sequences."""

    def streams(self) -> Mapping[str, SequenceRange]:
        """Return each stream, with its stored sequences."""

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence at or after a time; one past the last if there is none."""

    def read(
        self, stream: str, first: int, last: int, wanted: ReadFilter = ALL
    ) -> Iterator[Columns | ExportGap]:
        """Yield the messages of a range, in order, and the gaps between them."""

    def mark(self, stream: str, cursor: str, sequence: int) -> None:
        """Set a cursor behind a message, and create it if need be; a directory has none."""

    def close(self) -> None:
        """Release the source."""


def open_history(
    *, data: str = "", url: str = "", login: Login = ANYBODY
) -> AbstractContextManager[HistorySource]:
    """Return the history in a data directory, or at a broker's URL with this `login`.

    Raises `ConfigError` for both or none.
    """
    if bool(data) == bool(url):
        raise ConfigError("invalid source of history: expected either a data directory or a broker's URL")
    return closing(StoreHistory(data) if data else BrokerHistory(url, login))


def counts_in(position: str, store: str) -> bool:
    """Return whether positions in one store are valid in another: the same one, or its restored copy.

    A restored store continues beyond all sequences of the original one, so lost positions are unused there. A
    position without a store is not checked.
    """
    (before, _, older), (broker, _, newer) = position.partition("."), store.partition(".")
    return not before or (before == broker and int(older or 0) <= int(newer or 0))


def check_store(position: str, history: HistorySource, whose: str, remedy: str) -> None:
    """Raise `StoreError` unless a position is valid in the store of a history, on behalf of `whose`."""
    if not counts_in(position, found := history.store()):
        raise StoreError(f"{whose} is of the store {position}, and this is {found}: {remedy}")


def range_of(history: HistorySource, stream: str) -> SequenceRange:
    """Return the stored sequences of a stream. Raises `NotFound`."""
    found = history.streams().get(stream)
    if found is None:
        raise NotFound(f"there is no stream {stream!r}")
    return found


def parse_point(words: str) -> Start:
    """Read `seq:N`, `time:T` (or T alone) or `since:1h`. Raises `InvalidValue`."""
    kind = words.partition(":")[0]
    return Start.parse(words if kind in (SEQ, TIME, SINCE) else f"{TIME}:{words}")


def sequence_at(history: HistorySource, stream: str, words: str, now_ns: int) -> int:
    """Return the first sequence at a point, as `parse_point` reads it."""
    start = parse_point(words)
    if start.kind == SEQ:
        return start.value
    return history.find_time(stream, now_ns - start.value if start.kind == SINCE else start.value)


class StoreHistory:
    """The history in a data directory. Raises `StoreError` when there is none."""

    def __init__(self, directory: str) -> None:
        from malamute.journal.reader import StoreReader

        self._reader = StoreReader.open(directory)
        self.limited: set[str] = set()

    def store(self) -> str:
        """Return the name of the store."""
        return self._reader.store()

    def streams(self) -> Mapping[str, SequenceRange]:
        """Return each stream, with its stored sequences."""
        return {
            name: SequenceRange(state.first, state.last) for name, state in self._reader.streams().items()
        }

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence at or after a time; one past the last if there is none."""
        return self._reader.find_time(stream, time_ns)

    def read(
        self, stream: str, first: int, last: int, wanted: ReadFilter = ALL
    ) -> Iterator[Columns | ExportGap]:
        """Yield the messages of a range, in order, and the gaps between them."""
        while first <= last:
            found, kept = self._reader.read(stream, first, bytes_max=READ_BYTES)
            if not found:
                yield ExportGap(first, last, "overwritten")
                return
            for item in found:
                if item.first > last:
                    break
                if item.first > first:
                    yield ExportGap(first, item.first - 1, "overwritten" if first < kept else "restart")
                if isinstance(item, Damage):
                    yield ExportGap(max(first, item.first), min(last, item.last), item.reason)
                else:
                    yield from self._run(item, first, last)
                first = item.last + 1
            if found[-1].first > last:
                return

    def _run(self, chunk: Any, first: int, last: int) -> Iterator[Columns | ExportGap]:
        try:
            columns = unpack_payload(chunk.payload, chunk.large)
        except Malformed:
            yield ExportGap(max(first, chunk.first), min(last, chunk.last), "malformed")
        else:
            yield _cut(columns, first, last)

    def mark(self, stream: str, cursor: str, sequence: int) -> None:
        """Raise `ConfigError`: a directory is only read."""
        raise ConfigError(f"no cursor {cursor!r} in a data directory: expected a broker")

    def close(self) -> None:
        """Release the directory."""
        self._reader.close()


def _cut(columns: Columns, first: int, last: int) -> Columns:
    sequences = columns.each_sequence()
    if sequences[0] >= first and sequences[-1] <= last:
        return columns
    return columns.take([place for place, sequence in enumerate(sequences) if first <= sequence <= last])


class BrokerHistory:
    """The history at a broker. Raises `ConnectTimeout` when none answers."""

    def __init__(self, url: str, login: Login = ANYBODY) -> None:
        self._client: Client = login.connect(url, timeout=TIMEOUT_SECONDS, software="malamute-history")
        self._events: list[events.Event] = []
        self._client.on_event = self._events.append
        self.limited: set[str] = set()

    def store(self) -> str:
        """Return the name of the broker's present store."""
        return self._client.store

    def streams(self) -> Mapping[str, SequenceRange]:
        """Return each stream, with its sequences, of which the last may not be durable yet."""
        rows = self._client.query(StreamsQuery())
        return {row.name: SequenceRange(row.first, row.last) for row in rows if row.journaled}

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence at or after a time; one past the last if there is none."""
        with self._client.subscribe(stream, start=f"time:{time_ns}", credit=1) as subscription:
            return subscription.first

    def read(
        self, stream: str, first: int, last: int, wanted: ReadFilter = ALL
    ) -> Iterator[Columns | ExportGap]:
        """Yield the messages of a range, in order, and the gaps between them."""
        if first > last:
            return
        self._events.clear()
        begun = self.store()
        reading = _RangeReader(first, last, self._events)
        with self._client.subscribe(
            stream,
            criteria=wanted.criteria,
            where=wanted.where,
            start=first,
            credit=CREDIT,
            credit_bytes=READ_BYTES,
        ) as subscription:
            if subscription.limited:
                self.limited.add(stream)
            while not reading.is_done:
                columns = self._next(subscription, reading)
                check_store(begun, self, f"the range {first} to {last} of {stream!r}", "read it again")
                yield from reading.take(columns)

    def mark(self, stream: str, cursor: str, sequence: int) -> None:
        """Set a cursor of the user behind a message, and create it if need be."""
        with self._client.subscribe(stream, cursor=cursor, start=sequence + 1, credit=1) as subscription:
            subscription.commit(sequence, timeout=TIMEOUT_SECONDS)

    def _next(self, subscription: Subscription, reading: _RangeReader) -> Columns | None:
        try:
            return subscription.columns(TIMEOUT_SECONDS, enough=reading.has_news)
        except TimedOut:
            # A broker that looks for rare messages may be silent for long; one that has ended does not
            # answer.
            self._client.query(StatusQuery(), timeout=TIMEOUT_SECONDS)
            return None

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class _RangeReader:
    """The state of one replay of a range.

    The replay is done when a message or a gap reaches the end, or when the subscription is live from behind
    the end on: it has had all that was wanted then. Events are reported when they arrive, which may be before
    messages that came earlier were taken.
    """

    def __init__(self, first: int, last: int, found: list[events.Event]) -> None:
        self._first = first
        self._last = last
        self._events = found
        self._gaps: list[ExportGap] = []
        self._is_complete = False
        self.is_done = False

    def has_news(self) -> bool:
        """Return whether a gap or the end is known before further messages."""
        return self._is_complete or bool(self._events)

    def take(self, columns: Columns | None) -> Iterator[Columns | ExportGap]:
        """Yield received messages, or None for none, as far as they belong to the range."""
        for event in self._events:
            self._note(event)
        self._events.clear()
        if columns is None:
            self.is_done = self._is_complete
        else:
            sequences = columns.each_sequence()
            self.is_done = sequences[-1] >= self._last
            yield from self._due(sequences[0])
            if sequences[0] <= self._last:
                yield _cut(columns, self._first, self._last)
        if self.is_done:
            yield from self._due(self._last + 1)

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.Gap):
            self._is_complete |= event.last >= self._last
            if event.first <= self._last:
                self._gaps.append(
                    ExportGap(max(event.first, self._first), min(event.last, self._last), event.reason)
                )
        elif isinstance(event, events.Switched):
            self._is_complete |= event.state == "live" and event.sequence > self._last

    def _due(self, before: int) -> Iterator[ExportGap]:
        while self._gaps and self._gaps[0].first < before:
            yield self._gaps.pop(0)
