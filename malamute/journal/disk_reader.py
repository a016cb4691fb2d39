"""Readings of a store on LMDB while it is written: history, records, states, verification, a copy.

LMDB allows a read transaction for each thread. Each call begins and ends its own, so no call pins old pages
for longer than one bounded step. Every LMDB call gives up the interpreter's lock, which is dear beside a busy
thread; so few calls matter more than few bytes (`log` has the figures).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from malamute.journal import format as codec
from malamute.journal.backup import Copy
from malamute.journal.blocks import decode_block
from malamute.journal.chunk_cursor import ChunkCursor, values_of
from malamute.journal.directory import (
    translated,
    used_bytes,
)
from malamute.journal.format import (
    BLOCK,
    QUARANTINE,
    STREAM,
    Damaged,
    StreamMeta,
    key,
)
from malamute.journal.log import Log
from malamute.journal.opened import OpenedStore
from malamute.journal.readers import oldest_reader
from malamute.journal.store import (
    VERIFY_STEP_BYTES,
    Checked,
    Copied,
    Progress,
    QueueStatus,
    Status,
    no_progress,
    verify_stream,
)
from malamute.journal.subjects import SubjectSearch
from malamute.store.operations import (
    Damage,
    Defect,
    Frame,
    GapRange,
    QueueKind,
    ReadResult,
    SubjectTest,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import SESSIONS

SEARCH_STEP_CHUNKS = 256
"""Chunks that a search for subjects looks at in one transaction."""

STATE_WORDS = "its state is written anew with the next message"


class DiskReader:
    """The readings of an opened store; any thread calls them."""

    def __init__(self, store: OpenedStore) -> None:
        self._store = store

    def read(self, stream: str, start: int, *, bytes_max: int) -> ReadResult:
        """Return the chunk that holds `start`, and the chunks after it, until `bytes_max` is reached."""
        behind = self._store.behind()
        with self._chunk_cursor(stream) as (state, chunks):
            whole = behind.state(state)
            if not state.identifier and not whole.reserved:
                return ReadResult((), 1)
            chunks.seek_holder(start)
            found = chunks.collect(start, bytes_max)
            is_end = chunks.first is None
        self._store.defects.add_ranges(stream, found)
        if is_end:
            found = behind.chunks(state, start, bytes_max=bytes_max, found=found)
        return ReadResult(found, whole.first)

    def pop_firsts(self) -> Mapping[str, int]:
        """Return the first sequences of streams whose oldest messages were dropped since the last call."""
        if not self._store.ring.firsts:
            return {}
        with self._store.settled:
            firsts, self._store.ring.firsts = self._store.ring.firsts, {}
        return firsts

    def find_time(self, stream: str, time_ns: int) -> int:
        """Return the first sequence stored at or after a broker time; last + 1 if there is none."""
        behind = self._store.behind()
        with self._chunk_cursor(stream) as (state, chunks):
            found = chunks.find_time(time_ns)
        return found if found <= state.last else behind.find_time(state, time_ns)

    def find_gap(self, stream: str, sequence: int) -> GapRange | None:
        """Return the gap around a sequence; None if it is stored, or outside of the stored range."""
        behind = self._store.behind()
        with self._chunk_cursor(stream) as (state, chunks):
            found = chunks.find_gap(sequence)
        return found or behind.find_gap(state, sequence)

    def last_per_subject(
        self, stream: str, *, limit: int, takes: SubjectTest | None = None
    ) -> Mapping[str, int]:
        """Return the sequence of the last message of each subject, newest first, for `limit` subjects.

        Subjects that `takes` refuses are skipped, and so are unreadable chunks. The search reads little more
        than a range of 4 MiB, and one for each rare subject; the whole stream if it has no index.
        """
        behind = self._store.behind()
        search = SubjectSearch(limit, takes)
        start: int | None = None
        while not search.is_done:
            with self._chunk_cursor(stream) as (state, chunks):
                if start is None:
                    behind.search(state, search)
                    start = state.last
                if not search.is_done:
                    start = chunks.search(search, start, SEARCH_STEP_CHUNKS)
            if start is None:
                break
        return search.found

    def fetch(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> Mapping[int, Frame]:
        """Return the records of messages by their sequences, without missing and damaged ones.

        A damaged block is reported, and put aside once its messages are stored again.
        """
        behind = self._store.behind()
        found, missing = self._fetch(kind, queue, sequences)
        if missing:  # damaged, or moved by a commit in between: fetch again while no commit runs
            with self._store.settled:
                again, damaged = self._fetch(kind, queue, missing)
                for number in self._store.fetcher.blocks(kind, queue, damaged):
                    self._store.mark_suspect(number)
            found |= again
        return {**behind.records(kind, queue, sequences), **found}

    def _fetch(
        self, kind: QueueKind, queue: str, sequences: Sequence[int]
    ) -> tuple[dict[int, bytes], list[int]]:
        with self._store.reading() as transaction:
            return self._store.fetcher.fetch(
                lambda number: transaction.get(key(BLOCK, 0, number)), kind, queue, sequences
            )

    @contextmanager
    def _chunk_cursor(self, name: str) -> Iterator[tuple[StreamMeta, ChunkCursor]]:
        """Begin a read transaction; yield the state of a stream and a cursor over its chunks.

        The state in memory is read first, so that it is never ahead of the transaction. The state may be
        behind: a stream that was deleted meanwhile has no state under its identifier, or one without a name.
        """
        known = self._store.ring.streams.get(name, StreamMeta(0, name))
        with self._store.reading() as transaction, transaction.cursor() as cursor:
            place = key(STREAM, known.identifier)
            value = transaction.get(place)
            try:
                state = codec.decode_stream(value) if value else None
                if value is None and any(repair.place == place for repair in self._store.repairs):
                    state = known  # stored again by the next write
            except Damaged:
                # The next write of the stream replaces the damaged state.
                state = known
                self._store.defects.add(Defect("stream", name, known.first, known.last, STATE_WORDS))
            if state is None or state.name != name:
                state = StreamMeta(known.identifier, name, known.last + 1, known.last)
            yield state, ChunkCursor(cursor, state)

    def retention(self, stream: str) -> StreamRetention:
        """Return the retention of a stream: set at run time, or else given with its chunks."""
        return self._store.behind().retention(self._store.ring, stream)

    def next_too_old(self, time_ns: int) -> float | None:
        """Return the seconds until some stream is over its limit by age; None if none has such a limit."""
        self._store.behind()
        with self._store.settled:
            return self._store.ring.next_too_old(time_ns)

    def headers(self, stream: str, start: int, *, count_max: int) -> Sequence[codec.ChunkHeader | Damage]:
        """Return the headers of the chunk that holds `start` and of the chunks after it, without payloads."""
        behind = self._store.behind()
        with self._chunk_cursor(stream) as (state, chunks):
            chunks.seek_holder(start)
            found = chunks.headers(start, count_max)
        return [*found, *islice(behind.headers(state, start), count_max - len(found))]

    def status(self) -> Status:
        """Return the usage of the store. Queues and sessions are counted once `recover` was called."""
        behind = self._store.behind()
        with self._store.calls, translated():
            log = self._store.log or Log(0)
            oldest = oldest_reader(self._store.environment)
            return Status(
                lsn=self._store.lsn,
                size=self._store.size,
                used=self._store.used(),
                high_water=used_bytes(self._store.environment),
                streams_budget=self._store.ring.budget,
                streams_bytes=self._store.ring.bytes,
                leaving_bytes=sum(stream.bytes for stream in self._store.ring.leaving.values()),
                log_bytes=log.bytes,
                log_blocks=len(log.blocks),
                log_unreadable=len(log.unreadable),
                sessions=len(log.values.get(SESSIONS, {})),
                reader_pid=oldest.pid,
                reader_lag=oldest.lag,
                defects=self._store.defects.known.copy().values(),
                streams=behind.states(self._store.ring.streams),
                queues={n: QueueStatus(len(q.messages), q.bytes) for n, q in list(log.queues.items())},
            )

    def pop_defects(self) -> Sequence[Defect]:
        """Return the defects found since the last call, each once."""
        return self._store.defects.pop()

    def verify(self, stream: str | None = None) -> Iterator[Checked]:
        """Read the whole store, or one stream, in steps of a bounded size, and yield the result of each."""
        for name in [stream] if stream is not None else sorted(self.status().streams):
            yield from verify_stream(self.read, name)
        if stream is None:
            yield from self._verify_blocks()

    def _verify_blocks(self) -> Iterator[Checked]:
        for kind, reason in ((BLOCK, "corrupt"), (QUARANTINE, "quarantined")):
            number = 0
            while step := self._verify_step(kind, number, reason):
                yield step
                number = step.last + 1

    def _verify_step(self, kind: int, number: int, reason: str) -> Checked | None:
        chunks = size = last = 0
        damages = []
        with self._store.reading() as transaction, transaction.cursor() as cursor:
            for last, value in values_of(cursor, kind, number):
                chunks, size = chunks + 1, size + len(value)
                if kind == QUARANTINE or codec.fault_of(decode_block, value):
                    damages.append(Damage(last, last, reason))
                if size >= VERIFY_STEP_BYTES:
                    break
        return Checked(None, last, chunks, size, damages) if chunks else None

    def backup(self, directory: str | os.PathLike[str], progress: Progress = no_progress) -> Copied:
        """Copy the store, as it is at one moment, into a new directory, while it is in use.

        Raises StoreError if there is a store in `directory` already, StorageFull if there is no room.
        """
        size = self._store.ring.bytes + (self._store.log.bytes if self._store.log else 0)
        with Copy(
            self._store.reading, Path(directory), self._store.size, lambda done: progress(done, size)
        ) as copy:
            return copy.run()
