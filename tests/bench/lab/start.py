"""How long a broker with a history takes until it answers, from the start of its process on.

The history is written by the store itself, in transactions as a busy broker would make them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from malamute.bench import workspace
from malamute.bench.figures import extent, middle
from malamute.bench.workloads import BATCH, HEADERS, SUBJECTS, TIMEOUT_SECONDS
from malamute.client.sync.client import connect
from malamute.protocol.admin import StatusQuery, StreamsQuery
from malamute.protocol.batch import Columns, pack_record, pack_stream_payload
from malamute.server.process import BrokerProcess
from malamute.store.operations import AppendChunk, Chunk

STREAM = "history"
CHUNKS = 100
"""Chunks in a transaction."""

GIGABYTE = 10**9


class StartOptions(NamedTuple):
    """What was asked for."""

    gigabytes: float
    size_bytes: int
    rounds: int
    directory: Path


class StartRow(NamedTuple):
    """One store.

    `seconds` are from the start of the process until it answers; `recovered` is the last sequence that it
    then knows.
    """

    what: str
    stored_bytes: int
    recovered: int
    seconds: float
    extent: list[float]


def measure(options: StartOptions) -> Iterator[StartRow]:
    """A start without history, with one, and with one that the system has to read from the disk."""
    wanted = int(options.gigabytes * GIGABYTE)
    size = workspace.store_bytes(wanted)
    workspace.check_free_space(options.directory, size)
    with workspace.temporary_directory(options.directory) as place:
        fill(place / "data", size, 0, options.size_bytes)
        yield _row("empty", place, size, 0, options.rounds)
    with workspace.temporary_directory(options.directory) as place:
        stored = fill(place / "data", size, wanted, options.size_bytes)
        yield _row("in the system's cache", place, size, stored, options.rounds)
        yield _row("not in its cache", place, size, stored, options.rounds, cold=True)


def fill(directory: Path, size: int, wanted: int, size_bytes: int) -> int:
    """Write a history of so many bytes, or a little more. Returns how many it takes."""
    from malamute.journal.disk import DiskStore

    store = DiskStore.open(directory, size=size)
    try:
        store.recover()
        chunks = _chunks(size_bytes)
        while (stored := store.status().streams_bytes) < wanted:
            store.write([next(chunks) for _ in range(CHUNKS)])
        return stored
    finally:
        store.close()


def _chunks(size_bytes: int) -> Iterator[AppendChunk]:
    """Chunks of a thousand messages without end."""
    subjects = [SUBJECTS[number % len(SUBJECTS)] for number in range(BATCH)]
    records = [pack_record(HEADERS, b"x" * size_bytes)] * BATCH
    for first in count(1, BATCH):
        moment = time.time_ns()
        payload, large = pack_stream_payload(Columns(first, moment, "", subjects, records))
        chunk = Chunk(first, BATCH, moment, payload, large)
        yield AppendChunk(STREAM, chunk, chunk.last, subjects)


def _row(what: str, place: Path, size: int, stored: int, rounds: int, *, cold: bool = False) -> StartRow:
    starts = [_start(place, size, cold=cold) for _ in range(rounds)]
    seconds = [took for took, _ in starts]
    return StartRow(what, stored, starts[-1][1], middle(seconds), extent(seconds))


def _start(place: Path, size: int, *, cold: bool) -> tuple[float, int]:
    """Seconds until a broker on this store answers, and the last sequence of its stream."""
    if cold:
        _drop_from_cache(place / "data" / "data.mdb")
    begin = time.monotonic()
    options = workspace.set_options(f"storage.size={size}")
    with BrokerProcess(place, *options) as broker, connect(broker.url, timeout=TIMEOUT_SECONDS) as client:
        client.query(StatusQuery())
        seconds = time.monotonic() - begin
        last = {stream.name: stream.last for stream in client.query(StreamsQuery())}
        return seconds, last.get(STREAM, 0)


def _drop_from_cache(file: Path) -> None:
    """Let the system forget what it has of a file in memory."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
