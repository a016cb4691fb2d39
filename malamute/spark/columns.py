"""Columns of messages into Arrow batches with the columns of `schema`.

Chunks of a journal and deliveries of a broker may be small, and a batch of any size has a price. So messages
are gathered as plain columns until there are enough for one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from malamute.protocol.batch import Columns, Frame
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark.records import RecordColumns, read_records
from malamute.spark.schema import PREFIX, Kind, Promoted, arrow_schema

BATCH_ROWS = 65_536
BATCH_BYTES = 16 * 1024 * 1024
"""A batch is made of so many messages, or of records of so many bytes, and at most one delivery more."""

RECORD = RecordColumns._fields
"""The columns for which records have to be opened, beside the promoted headers."""

DAY_NS = 86_400 * NS_PER_SECOND


class Gatherer:
    """Gathers messages, and makes batches of them, with all columns or only those of the given names."""

    def __init__(self, promoted: Promoted | None = None, columns: Container[str] | None = None) -> None:
        self._promoted = promoted or {}
        schema = arrow_schema(self._promoted)
        self.schema = schema if columns is None else pa.schema([f for f in schema if f.name in columns])
        self._opens = any(name in RECORD or name.startswith(PREFIX) for name in self.schema.names)
        self._clear()

    def _clear(self) -> None:
        self._numbers: list[np.ndarray[Any, Any]] = []
        self._times: list[np.ndarray[Any, Any]] = []
        self._expires: list[np.ndarray[Any, Any]] = []
        self._senders: list[pa.Array] = []
        self._subjects: list[str] = []
        self._records: list[Frame] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_full(self) -> bool:
        """Whether it is time for `take`."""
        return len(self._records) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, columns: Columns) -> None:
        """Take a run of messages, behind all those before."""
        count = len(columns)
        self._numbers.append(np.asarray(columns.each_sequence(), np.int64))
        self._times.append(np.fromiter(islice(columns.each_time(), count), np.int64, count))
        ttls = np.fromiter(islice(columns.each_ttl(), count), np.int64, count)
        self._expires.append(np.where(ttls > 0, self._times[-1] // 1000 + ttls * 1000, 0))
        senders = columns.senders
        one_for_all = isinstance(senders, str)
        self._senders.append(pa.repeat(senders, count) if one_for_all else pa.array(senders, pa.string()))
        self._subjects += columns.subjects
        self._records += columns.records
        self._bytes += sum(map(len, columns.records))

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as one batch."""
        times = np.concatenate(self._times)
        subjects = pa.array(self._subjects, pa.string())
        make: dict[str, Callable[[], pa.Array]] = {
            "sequence": lambda: pa.array(np.concatenate(self._numbers)),
            "time": lambda: pa.array(times // 1000).cast(pa.timestamp("us", "UTC")),
            "time_ns": lambda: pa.array(times),
            "sender": lambda: pa.concat_arrays(self._senders),
            "subject": lambda: subjects,
            "expires": lambda: _moments(np.concatenate(self._expires)),
            "parts": lambda: _parts(subjects),
        }
        if self._opens:
            records = read_records(self._records)
            make |= {name: partial(getattr, records, name) for name in RECORD}
            for name, kind in self._promoted.items():
                make[PREFIX + name] = partial(promoted_column, records.headers, name, kind)
        arrays = [make[field.name]().cast(field.type) for field in self.schema]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _moments(microseconds: np.ndarray[Any, Any]) -> pa.Array:
    """Moments since 1970, null for 0."""
    return pa.array(microseconds, mask=microseconds == 0).cast(pa.timestamp("us", "UTC"))


def _parts(subjects: pa.StringArray) -> pa.ListArray:
    # There are far fewer subjects than messages.
    encoded = subjects.dictionary_encode()
    return pc.split_pattern(encoded.dictionary, ".").take(encoded.indices)


def promoted_column(headers: pa.MapArray, name: str, kind: Kind) -> pa.Array:
    """The values of one header, null where it is missing or of another type."""
    places = np.flatnonzero(pc.equal(headers.keys, name).to_numpy(zero_copy_only=False))
    offsets = headers.offsets.to_numpy()
    rows = np.searchsorted(offsets, places, "right") - 1
    where = np.zeros(len(headers), np.int64)
    where[rows] = places
    found = np.zeros(len(headers), bool)
    found[rows] = True
    return headers.items.field(kind).take(pa.array(where, mask=~found))


def batches_of(runs: Iterator[Columns], promoted: Promoted | None = None) -> Iterator[pa.RecordBatch]:
    """Runs of messages as batches, the last of which may be small."""
    gatherer = Gatherer(promoted)
    for run in runs:
        gatherer.add(run)
        if gatherer.is_full:
            yield gatherer.take()
    if len(gatherer):
        yield gatherer.take()


def between(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """The rows with sequences from `first` to `last`, without a copy."""
    sequences = batch.column("sequence").to_numpy()
    start, stop = np.searchsorted(sequences, (first, last + 1))
    return batch.slice(int(start), int(stop - start))


def by_day(batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    """The batch cut where a new UTC day begins, without a copy."""
    days = batch.column("time_ns").to_numpy() // DAY_NS
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    return [batch.slice(start, stop - start) for start, stop in pairwise(cuts)]
