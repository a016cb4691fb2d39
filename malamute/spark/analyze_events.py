"""Analysis of the broker's own events: queues, consumers that fell behind, and counts of events.

The events are the stream `$sys`. `service.settled.NAME` and `mailbox.settled.NAME` have columns in the body,
a msgpack map: for each message when it was queued, first delivered and settled, in nanoseconds, its
deliveries, and its outcome. The subjects of all other events begin with their resource and the event, and
their headers have details. An event with the header `count` stands for that many. The rows are those of
`partial_aggregates`, with more kinds:

    queue            KIND NAME      value: outcome  messages; bytes: redeliveries; slot: window of the
                                                    settlement; first, last: milliseconds up to the first
                                                    delivery and to the settlement
    queue_time       KIND NAME      slot: bucket    messages: from the enqueueing to the first delivery
    processing_time  KIND NAME      slot: bucket    messages: from the first delivery to the settlement
    total_time       KIND NAME      slot: bucket    messages: from the enqueueing to the settlement
    event            event          value: resource messages: count
    consumer         stream         value: address  first: how often it fell behind; last: gaps;
                                                    messages: missed; slot: window

A service that is fed from a stream is a consumer of it, which falls behind when its queue is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from malamute.errors import Malformed
from malamute.protocol.batch import unpack
from malamute.protocol.messages import HARMLESS
from malamute.spark.partial_aggregates import buckets, rows
from malamute.spark.scan import ExportDamage, HistoryPart

STREAM = "$sys"
COLUMNS = ("sequence", "time_ns", "subject", "headers", "body")
SETTLED = ("service.settled", "mailbox.settled")
BEHIND = ("subscription.replay", "feed.full")
GAPS = ("subscription.gap", "feed.gap")
NS_PER_MS = 1_000_000
FIELDS = frozenset({"queued", "delivered", "attempts", "settled", "outcome", "sequences"})

Numbers = np.ndarray[Any, Any]


def partial_tables(parts: Iterator[HistoryPart | ExportDamage], window_ns: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each row group of events. The reader of all streams reports damage."""
    for part in parts:
        if isinstance(part, HistoryPart):
            yield from _events(part.batch, window_ns)


def _events(batch: pa.RecordBatch, window_ns: int) -> Iterator[pa.RecordBatch]:
    happened: Counter[tuple[str, str]] = Counter()
    behind: dict[tuple[str, str, int], list[int]] = {}
    columns = (batch.column(name).to_pylist() for name in ("subject", "headers", "body", "time_ns"))
    for subject, headers, body, time_ns in zip(*columns, strict=True):
        window = time_ns // window_ns * window_ns
        what = ".".join(subject.split(".", 2)[:2])
        values = dict(headers or ())
        name = _text(values, "name")
        happened[what, name] += _number(values, "count") or 1
        if what in SETTLED:
            yield from _settled(f"{what.partition('.')[0]} {name}", body, window_ns)
        elif what in BEHIND:
            behind.setdefault((*_consumer(values), window), [0, 0, 0])[0] += 1
        elif what in GAPS and _text(values, "reason") not in HARMLESS:
            counts = behind.setdefault((*_consumer(values), window), [0, 0, 0])
            counts[1] += 1
            counts[2] += _number(values, "last") - _number(values, "first") + 1
    names, whom = zip(*happened, strict=True)
    yield rows("event", STREAM, len(happened), name=names, value=whom, messages=list(happened.values()))
    if behind:
        keys = dict(zip(("name", "value", "slot"), zip(*behind, strict=True), strict=True))
        sums = zip(*behind.values(), strict=True)
        found = keys | dict(zip(("first", "last", "messages"), sums, strict=True))
        yield rows("consumer", STREAM, len(behind), **found)


def _consumer(values: dict[str, Any]) -> tuple[str, str]:
    """Return the stream, and its reader."""
    name, stream = _text(values, "name"), _text(values, "stream")
    if stream:
        return stream, f"service {name}"
    return name, _text(values, "address") or _text(values, "client")


def _text(values: dict[str, Any], name: str) -> str:
    return (values.get(name) or {}).get("text") or ""


def _number(values: dict[str, Any], name: str) -> int:
    return (values.get(name) or {}).get("integer") or 0


def _settled(queue: str, body: bytes, window_ns: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one queue that were settled together. Any other body is skipped."""
    try:
        fields = unpack(body, items_max=len(body))
    except Malformed:
        return
    if not isinstance(fields, dict) or not fields.keys() >= FIELDS:
        return
    count = len(fields["sequences"])
    queued, delivered, settled, attempts = (
        np.broadcast_to(np.asarray(fields[name], np.int64), count)
        for name in ("queued", "delivered", "settled", "attempts")
    )
    again = np.maximum(attempts - 1, 0)
    outcomes = np.broadcast_to(np.asarray(fields["outcome"], object), count)
    had = delivered > 0
    windows = settled // window_ns * window_ns
    names = sorted({*zip(outcomes.tolist(), windows.tolist(), strict=True)})
    of = [(outcomes == name) & (windows == window) for name, window in names]
    waited, lasted = np.where(had, delivered - queued, settled - queued) // NS_PER_MS, settled - queued
    yield rows(
        "queue",
        STREAM,
        len(names),
        name=[queue] * len(names),
        value=[name for name, _ in names],
        slot=[window for _, window in names],
        messages=[int(mask.sum()) for mask in of],
        bytes=[int(again[mask].sum()) for mask in of],
        first=[int(waited[mask].sum()) for mask in of],
        last=[int(lasted[mask].sum()) // NS_PER_MS for mask in of],
    )
    yield from _durations("queue_time", queue, (delivered - queued)[had])
    yield from _durations("processing_time", queue, (settled - delivered)[had])
    yield from _durations("total_time", queue, settled - queued)


def _durations(kind: str, queue: str, durations: Numbers) -> Iterator[pa.RecordBatch]:
    if len(durations):
        found, counts = np.unique(buckets(durations), return_counts=True)
        yield rows(kind, STREAM, len(found), name=[queue] * len(found), slot=found, messages=counts)
