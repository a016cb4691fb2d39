"""Redrive: dead letters are sent again, as new messages at the end of their queue.

A run of them moves in one transaction, so each is a dead letter or in the queue, and never both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from malamute.core.iteration.workflow import STORED, Workflow, run_workflow
from malamute.core.queue.dead_letters import properties_without
from malamute.core.queue.entry import Entry, size_of
from malamute.core.queue.options import Options
from malamute.core.queue.paging import Records, records_of, runs
from malamute.errors import MalamuteError, Malformed
from malamute.protocol.batch import pack_record, unpack_record

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue
    from malamute.store.operations import Frame

LEFT_BEHIND = ("dead", "tracker", "delay", "at", "immediate")
"""Properties that a message does not have when it is sent again."""


class RedriveProgress(Protocol):
    """The report of a redrive's progress."""

    def __call__(self, count: int, before: int = 0, *, final: bool = True) -> None:
        """The messages sent again in this iteration, and `before` it; the last report is `final`."""


def redrive(
    queue: Queue,
    sequences: Sequence[int],
    report: RedriveProgress,
    failed: Callable[[MalamuteError], None],
    body: bytes | None = None,
) -> None:
    """Send some dead letters again: `report` gets how many, or `failed` why none.

    A `body` takes the place of that of a single one.

    A redrive of several commits reports each of them: a later one may fail, or never come. Raises `TryLater`
    when the queue has no room for them all, and then nothing happens.
    """
    entries = queue.dead_letters.find(sequences)
    # A mended one has room for its old record and for the new body: one of them is given back.
    size_bytes = size_of(entries) + (len(body) if body is not None and entries else 0)
    queue.limits.check(queue.usage, len(entries), size_bytes)
    queue.limits.reserve(queue.usage, len(entries), size_bytes)
    queue.dead_letters.leaving.update(entry.sequence for entry in entries)
    run_workflow(queue.effects, _steps(queue, entries, report, failed, body))


def _steps(
    queue: Queue,
    entries: Sequence[Entry],
    report: RedriveProgress,
    failed: Callable[[MalamuteError], None],
    body: bytes | None,
) -> Workflow:
    dead = queue.dead_letters
    count = 0
    left = len(entries)
    error: MalamuteError | None = None
    for run in runs(entries):
        records: Records = {}
        try:
            records = {} if error else (yield from records_of(dead.kind, queue.name, run))
        except MalamuteError as fault:
            error = fault
        queue.limits.reserve(queue.usage, -len(run), -size_of(run) - len(body or b""))
        left -= len(run)
        # Dropped ones stay away, and unreadable ones stay here.
        here = [e for e in run if e.sequence in dead.entries and _is_whole(e, records)]
        if here:
            _put_back(queue, here, records, body)
            report(count + len(here), count, final=not left)
            dead.going.update(entry.sequence for entry in here)
            error = yield STORED
            dead.going.difference_update(entry.sequence for entry in here)
        dead.leaving.difference_update(entry.sequence for entry in run)
        if here and error is None:
            dead.forget([entry.sequence for entry in here])
            count += len(here)
        if not left and here:
            break
    else:
        if error is not None and not count:
            failed(error)
        else:
            report(count, count)
    if error is not None:
        dead.drop_oldest()


def _is_whole(entry: Entry, records: Records) -> bool:
    """Whether a dead letter has its record: it can be read, and could be when it died."""
    return entry.sequence in records and not (entry.properties or {})["dead"].get("damaged")


def _mended(record: Frame, body: bytes) -> bytes:
    """The record with another body. Headers that nobody can read are left out."""
    try:
        headers, _ = unpack_record(record)
    except Malformed:
        headers = {}
    return pack_record(headers, body)


def _put_back(queue: Queue, entries: Sequence[Entry], records: Records, body: bytes | None) -> None:
    time_ns = queue.effects.time_ns
    again = []
    for sequence, entry in enumerate(entries, queue.next_sequence):
        properties = properties_without(entry, LEFT_BEHIND)
        record = records[entry.sequence]
        if body is not None:
            record = _mended(record, body)
        again.append(Entry((sequence, time_ns, entry.sender, entry.subject, record, properties or None)))
    asked = {
        message.sequence: found
        for message in again
        if (found := Options.of(message, time_ns, queue.effects.ahead_ns)) is not None
    }
    queue.put(again, confirmed=True, options=asked, reserved=True)
    queue.ids.add(again)
    queue.effects.stage.store_bound(queue.dead_letters.removal([entry.sequence for entry in entries]))
