"""Threads for the disk, so that the loop never waits for it.

A worker takes jobs from a queue, does all that are waiting in one go, and puts the results where the loop
finds them. The writer commits everything that waits as one transaction: the slower the disk, the larger the
group. A byte on a socket wakes the loop, once for any number of results.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from malamute.core.ready import Append
from malamute.errors import (
    AccessRefused,
    InternalError,
    InvalidValue,
    MalamuteError,
    StorageFull,
    StoreError,
    StoreLost,
)
from malamute.journal.disk import DiskStore
from malamute.journal.store import Retention, Store
from malamute.store.operations import (
    AppendChunk,
    Backup,
    Defect,
    DeleteMessages,
    DeleteQueue,
    DeleteValue,
    FetchRecords,
    FindHole,
    FindTime,
    ForgetIdentities,
    LastPerSubject,
    MarkDelivered,
    NoteRefused,
    Operation,
    PutValue,
    ReadChunks,
    SetAttempts,
    StoreRead,
    StoreStats,
)
from malamute.store.tables import PLAIN, SESSIONS, TABLES

Job = TypeVar("Job")

SHRINKING = (
    DeleteMessages,
    DeleteQueue,
    ForgetIdentities,
    MarkDelivered,
    SetAttempts,
)
"""Operations that give room back, or only count: done even if what came with them cannot be, unless bound."""


def salvage(append: Append) -> list[Operation]:
    """What is to be done of an append that cannot be stored as a whole."""
    return [o for o in append.operations if gives_room(o) and o not in append.bound]


def gives_room(operation: Operation) -> bool:
    """Whether an operation gives room back, or only counts."""
    if type(operation) is DeleteValue:
        return TABLES.get(operation.table, PLAIN).gives_room
    return isinstance(operation, SHRINKING)


class Written(NamedTuple):
    """Appends were stored, or not for the reason given."""

    tokens: Sequence[int]
    error: MalamuteError | None = None


class Found(NamedTuple):
    """The store has answered."""

    question: StoreRead
    result: Any


class Damaged(NamedTuple):
    """Parts of the store were found damaged."""

    defects: Sequence[Defect]


class Faulty(NamedTuple):
    """A worker met a fault of ours. The job that met it has failed; the worker goes on."""

    what: str
    error: Exception


class Crashed(NamedTuple):
    """A worker is no more: the store is lost for good, or its thread cannot go on."""

    error: BaseException


Result = Written | Found | Damaged | Faulty | Crashed


class Results:
    """What the workers have done, and the socket that tells the loop to look."""

    def __init__(self) -> None:
        self._done: deque[Result] = deque()
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._woken = False

    def fileno(self) -> int:
        """The file descriptor to poll for input."""
        return self._receiver.fileno()

    def put(self, result: Result) -> None:
        """Add a result. Called by the workers."""
        self._done.append(result)
        self.wake()

    def wake(self) -> None:
        """Make the loop go round. May be called by any thread, and by a signal handler."""
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # the loop has ended, and wants no waking
                self._sender.send(b"!")

    def clear(self) -> None:
        """Note that the loop goes round. Called by it when the file descriptor has input, before `take`."""
        with suppress(BlockingIOError):
            self._receiver.recv(16)
        self._woken = False

    def take(self) -> list[Result]:
        """All results since the last time. Called by the loop."""
        results = []
        while self._done:
            results.append(self._done.popleft())
        return results

    def close(self) -> None:
        """Free the sockets, when the workers have ended."""
        self._receiver.close()
        self._sender.close()


class Worker(threading.Thread, Generic[Job]):
    """A thread that does jobs for the loop."""

    def __init__(self, name: str, store: Store, results: Results) -> None:
        super().__init__(name=name, daemon=True)
        self._store = store
        self._results = results
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def put(self, job: Job) -> None:
        """Give it a job."""
        self._jobs.put(job)

    def finish(self) -> None:
        """Let it do what it has, and end."""
        self._jobs.put(None)

    def run(self) -> None:
        """Do jobs until told to finish."""
        try:
            while (job := self._jobs.get()) is not None:
                jobs = [job]
                while not self._jobs.empty():
                    following = self._jobs.get()
                    if following is None:
                        self.finish()
                        break
                    jobs.append(following)
                self.work(jobs)
                if defects := self._store.take_defects():
                    self._results.put(Damaged(defects))
        except BaseException as error:  # the loop raises it again: without this thread there is no broker
            self._results.put(Crashed(error))

    def failed(self, what: str, error: Exception) -> InternalError:
        """Report a fault of ours that has ended one job. Returns the error for whoever waits for that."""
        self._results.put(Faulty(what, error))
        return InternalError(f"a fault of the broker's own while it was {what}: {type(error).__name__}")

    def work(self, jobs: Sequence[Job]) -> None:
        """Do these jobs."""
        raise NotImplementedError


class Writer(Worker[Append]):
    """Commits appends, as many as wait in one transaction.

    What a session has stored is one record, up to a number. So when an append fails, those of the same
    sessions fail too that were made before the core knew of it: they would tell of its numbers as stored,
    and after a crash the broker would confirm what is not there. And so do those that need it.
    """

    def __init__(self, name: str, store: Store, results: Results) -> None:
        super().__init__(name, store, results)
        self._refused: dict[str, NoteRefused] = {}
        """What the disk has refused of each stream, until it is stored with what comes next of it."""
        self._failures: dict[Any, Written] = {}
        """The last append of a session that failed, as long as the core may not know of it, and each that
        failed by its token, as long as another may need it."""

    def work(self, jobs: Sequence[Append]) -> None:
        """Commit all of them, or find out which of them cannot be."""
        if self._failures or any(job.fault for job in jobs):
            self._one_by_one(jobs)
            return
        error = self._try([operation for job in jobs for operation in job.operations])
        if error is not None:
            self._one_by_one(jobs, error)
        else:
            self._results.put(Written([job.token for job in jobs]))

    def _one_by_one(self, jobs: Sequence[Append], error: MalamuteError | None = None) -> None:
        for job in jobs:
            reason = job.fault or self._doubt(job)
            if reason is None:
                reason = error if error and len(jobs) == 1 else self._try(job.operations)
            written = Written([job.token], reason)
            if reason is not None:
                self._note_refused(job.operations)
                self._try(salvage(job))
                self._failures.update(dict.fromkeys([job.token, *_sessions(job)], written))
            self._results.put(written)
            # What is made later was begun when the core knew all that it knew when it made this one.
            self._failures = {k: fault for k, fault in self._failures.items() if fault.tokens[0] > job.known}

    def _doubt(self, job: Append) -> MalamuteError | None:
        """The error of an earlier append that this one needs, or would tell of as stored."""
        found = [self._failures[token] for token in job.needs if token in self._failures]
        told = [self._failures[session] for session in _sessions(job) if session in self._failures]
        found += [failed for failed in told if failed.tokens[0] > job.known]
        return found[0].error if found else None

    def _note_refused(self, operations: Sequence[Operation]) -> None:
        """Have it noted with what comes next of a stream what was refused: subscribers may have had it.

        Nothing behind it is stored without that. So one range is enough for each stream.
        """
        for operation in operations:
            if type(operation) is AppendChunk:
                stream, chunk = operation.stream, operation.chunk
                known = self._refused.get(stream)
                self._refused[stream] = NoteRefused(stream, known.first if known else chunk.first, chunk.last)

    def _notes_for(self, operations: Sequence[Operation]) -> list[NoteRefused]:
        appended = {o.stream for o in operations if type(o) is AppendChunk}
        return [note for stream, note in self._refused.items() if stream in appended]

    def _try(self, operations: Sequence[Operation]) -> MalamuteError | None:
        try:
            notes = self._notes_for(operations) if self._refused else []
            self._store.write([*notes, *operations] if notes else operations)
            for note in notes:
                self._refused.pop(note.stream, None)
        except StoreLost:
            raise
        except (StoreError, StorageFull) as error:
            return error
        except Exception as error:
            return self.failed("writing", error)
        return None


def _sessions(append: Append) -> list[Any]:
    """The sessions whose numbers an append stores."""
    return [
        operation.key[0]
        for operation in append.operations
        if type(operation) is PutValue and operation.table == SESSIONS
    ]


class Reader(Worker[StoreRead]):
    """Answers what the core asks of the store."""

    def work(self, jobs: Sequence[StoreRead]) -> None:
        """Answer each question."""
        for question in jobs:
            self._results.put(Found(question, self._answer(question)))

    def _answer(self, question: StoreRead) -> Any:
        try:
            return ANSWERS[type(question)](self._store, question)
        except StoreLost:
            raise
        except (StoreError, StorageFull) as error:
            return error
        except Exception as error:
            return self.failed(f"reading ({type(question).__name__})", error)


def _back_up(store: Store, backup: Backup) -> dict[str, Any] | MalamuteError:
    if not isinstance(store, DiskStore):
        return InvalidValue("a store in memory has no backup")
    below, directory = Path(backup.below).resolve(), Path(backup.directory).resolve()
    if not directory.is_relative_to(below) or directory == below:
        return AccessRefused(f"a backup goes below {below}, where {backup.directory} leads to {directory}")
    return store.backup(directory)._asdict()


def _survey(store: Store) -> Any:
    status = store.status()
    rows = [
        {"name": name, **state._asdict(), **_retained(store.retention(name))}
        for name, state in status.streams.items()
    ]
    sizes = {name: value for name, value in status._asdict().items() if isinstance(value, int)}
    damages = [{k: v for k, v in defect._asdict().items() if k != "stranded"} for defect in status.defects]
    return {**sizes, "streams": rows, "damages": damages}


def _retained(retention: Retention) -> dict[str, float]:
    """A retention for people, who count in seconds."""
    age = retention.age / 1e9
    return {"retain_bytes": retention.bytes, "retain_count": retention.count, "retain_age": age}


ANSWERS: dict[type[Any], Callable[[Store, Any], Any]] = {
    ReadChunks: lambda store, q: store.read(q.stream, q.start, bytes_max=q.size_bytes_max),
    FindHole: lambda store, q: store.find_hole(q.stream, q.sequence),
    FindTime: lambda store, q: store.find_time(q.stream, q.time),
    LastPerSubject: lambda store, q: store.last_per_subject(q.stream, limit=q.limit),
    FetchRecords: lambda store, q: store.fetch(q.kind, q.queue, q.sequences),
    StoreStats: lambda store, q: _survey(store),
    Backup: _back_up,
}
