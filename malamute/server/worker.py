"""Threads for the disk, so that the loop never waits for it.

A worker takes jobs from a queue, does all that are waiting in one go, and puts the results where the loop
finds them. The writer commits everything that waits as one transaction: the slower the disk, the larger the
group. A byte on a socket wakes the loop, once for any number of results.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import nsmallest
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from malamute.core.iteration.effects import LoadConfiguration, Question
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.errors import (
    AccessRefused,
    ConfigError,
    InternalError,
    InvalidValue,
    MalamuteError,
    StorageFull,
    StoreError,
    StoreLost,
)
from malamute.journal.disk import DiskStore
from malamute.journal.format import StreamMeta
from malamute.journal.store import Progress, Store, no_progress
from malamute.protocol.admin import BackupMade, StoreDamage, StoredStream, StoreUsage
from malamute.protocol.names import RESERVED_PREFIX
from malamute.server.release import ReleaseGate
from malamute.store.commit import Append, Committer, Written
from malamute.store.operations import (
    Backup,
    Defect,
    FetchRecords,
    FindGap,
    FindTime,
    LastPerSubject,
    NextTooOld,
    Operation,
    ReadChunks,
    StoreStats,
    StreamStats,
)
from malamute.store.policies import StreamRetention

Job = TypeVar("Job")


class ReadDone(NamedTuple):
    """The store has answered."""

    question: Question
    result: Any


class DamageFound(NamedTuple):
    """Parts were found damaged."""

    defects: Sequence[Defect]


class Faulty(NamedTuple):
    """A worker met a fault of ours. The job that met it has failed; the worker goes on."""

    what: str
    error: Exception


class Crashed(NamedTuple):
    """A worker is no more: the store is lost for good, or its thread cannot go on."""

    error: BaseException


class Trimmed(NamedTuple):
    """The ring has dropped the oldest messages of these streams: the first sequences that are kept."""

    firsts: Mapping[str, int]


Result = Written | Trimmed | ReadDone | DamageFound | Faulty | Crashed


class Results:
    """Results of the workers, and the socket that wakes the loop."""

    def __init__(self) -> None:
        self.done: deque[Result] = deque()
        """Results that were not taken yet."""
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._woken = False

    def fileno(self) -> int:
        """The file descriptor to poll for input."""
        return self._receiver.fileno()

    def put(self, result: Result) -> None:
        """Add a result. Called by the workers."""
        self.done.append(result)
        self.wake()

    def wake(self) -> None:
        """Wake the loop. For any thread, and for a signal handler."""
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # the loop has ended, and wants no waking
                self._sender.send(b"!")

    def clear(self) -> None:
        """Note that the loop goes round. Called by it when the file descriptor has input, before `take`."""
        with suppress(BlockingIOError):
            self._receiver.recv(16)
        self._woken = False

    def pop(self) -> list[Result]:
        """Return all results since the last call. Called by the loop."""
        return [self.done.popleft() for _ in range(len(self.done))]

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
        """Add a job."""
        self._jobs.put(job)

    def finish(self) -> None:
        """End the thread after its last job."""
        self._jobs.put(None)

    def run(self) -> None:
        """Do jobs until `finish` is called."""
        try:
            while (job := self.next_job()) is not None:
                jobs = [job]
                while not self._jobs.empty():
                    following = self._jobs.get()
                    if following is None:
                        self.finish()
                        break
                    jobs.append(following)
                self.work(jobs)
                if defects := self._store.pop_defects():
                    self._results.put(DamageFound(defects))
        except BaseException as error:  # the loop raises it again: without this thread there is no broker
            self._results.put(Crashed(error))

    def next_job(self) -> Job | None:
        """Wait for the next job; None is the end."""
        return self._jobs.get()

    def failed(self, what: str, error: Exception) -> InternalError:
        """Report a fault of ours that has ended one job. Returns the error for those that wait for that."""
        self._results.put(Faulty(what, error))
        return InternalError(f"a fault of the broker's own while it was {what}: {type(error).__name__}")

    def work(self, jobs: Sequence[Job]) -> None:
        """Do jobs."""
        raise NotImplementedError


class WriterThread(Worker[Append]):
    """Commits appends, by the rules of `store.commit`."""

    def __init__(self, name: str, store: Store, results: Results, release: ReleaseGate | None = None) -> None:
        super().__init__(name, store, results)
        self._committer = Committer(self._write if release is None else partial(self._write_noted, release))
        self._report: Callable[[Written], None] = results.put
        if release is not None:
            release.on_outcome, self._report = results.put, release.put

    def work(self, jobs: Sequence[Append]) -> None:
        """Commit all of them, or find out which of them cannot be."""
        for written in self._committer.commit(jobs):
            self._report(written)

    def next_job(self) -> Append | None:
        """Wait for the next append; meanwhile the store takes over what is in its log only."""
        while (at := self._store.take_over_at) is not None:
            with suppress(Empty):
                if (left := at - monotonic()) > 0:
                    return self._jobs.get(timeout=left)
            if error := self._carry_out(self._store.take_over):
                self._report(Written((), error))
        return self._jobs.get()

    def _write(self, operations: Sequence[Operation]) -> MalamuteError | None:
        return self._carry_out(partial(self._store.write, operations))

    def _write_noted(self, release: ReleaseGate, operations: Sequence[Operation]) -> MalamuteError | None:
        release.before_write()
        noted = release.begin(operations)
        error = self._write(operations)
        release.end(noted, is_stored=error is None)
        return error

    def _carry_out(self, call: Callable[[], None]) -> MalamuteError | None:
        try:
            call()
            if firsts := self._store.pop_firsts():
                self._results.put(Trimmed(firsts))
        except StoreLost:
            raise
        except (StoreError, StorageFull) as error:
            return error
        except Exception as error:
            return self.failed("writing", error)
        return None


Load = Callable[[], ConfigurationLoaded | MalamuteError]


def no_configuration() -> MalamuteError:
    """Refuse a reload in a broker whose configuration comes from a program."""
    return ConfigError("there is no configuration to read again: this broker runs inside a program")


class ReaderThread(Worker[Question]):
    """Answers the reads that the core requests of the store. `load` reads and checks the configuration."""

    def __init__(
        self,
        name: str,
        store: Store,
        results: Results,
        load: Load = no_configuration,
        release: ReleaseGate | None = None,
    ) -> None:
        super().__init__(name, store, results)
        self._load = load
        self._release = release
        self._ending = False

    def give_up(self) -> None:
        """Give up a backup: the broker ends, and a backup may take hours. Called by the loop."""
        self._ending = True

    def work(self, jobs: Sequence[Question]) -> None:
        """Answer each question."""
        for question in jobs:
            self._results.put(ReadDone(question, self._answer(question)))

    def _answer(self, question: Question) -> Any:
        try:
            if type(question) is LoadConfiguration:
                return self._load()
            if type(question) is Backup:
                return _back_up(self._store, question, self._check_ending)
            answer = ANSWERS[type(question)](self._store, question)
            if self._release is not None and type(question) is ReadChunks:
                return self._release.bounded(question.stream, answer)
            return answer
        except StoreLost:
            raise
        except (StoreError, StorageFull) as error:
            return error
        except Exception as error:
            return self.failed(f"reading ({type(question).__name__})", error)

    def _check_ending(self, done: int, total: int) -> None:
        if self._ending:
            raise StoreError(
                "the broker is stopping, and removes what was copied: back up when it runs again"
            )


def _back_up(store: Store, backup: Backup, progress: Progress = no_progress) -> BackupMade | MalamuteError:
    if not isinstance(store, DiskStore):
        return InvalidValue("no store to back up: this broker keeps everything in memory")
    try:
        return _back_up_below(store, backup, progress)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to themselves
        return StoreError(f"cannot back up into {backup.directory}: {error}")


def _back_up_below(store: DiskStore, backup: Backup, progress: Progress) -> BackupMade | MalamuteError:
    below, directory = Path(backup.below).resolve(), Path(backup.directory).resolve()
    if not directory.is_relative_to(below) or directory == below:
        return AccessRefused(
            f"backup directory {backup.directory} leads to {directory}: expected one below {below}"
        )
    copied = store.backup(directory, progress)
    return BackupMade(
        directory=backup.directory,
        streams=copied.streams,
        chunks=copied.chunks,
        bytes=copied.bytes,
        blocks=copied.blocks,
        damages=[*copied.damages],
    )


def _usage(store: Store) -> StoreUsage:
    status = store.status()
    streams = (one for name, one in status.streams.items() if not name.startswith(RESERVED_PREFIX))
    first_time = min((one.first_time for one in streams if one.chunks), default=0)
    sizes = {name: value for name, value in status._asdict().items() if isinstance(value, int)}
    damages = [
        StoreDamage(kind=one.kind, name=one.name, first=one.first, last=one.last, outcome=one.outcome)
        for one in status.defects
    ]
    return StoreUsage(**sizes, damages=damages, first_time=first_time)


def _stored_streams(store: Store, asked: StreamStats) -> list[StoredStream]:
    streams = store.status().streams
    names = [asked.stream] if asked.stream else streams
    page = nsmallest(asked.limit, (name for name in names if name in streams and name > asked.after))
    return [_stored(streams[name], store.retention(name)) for name in page]


def _stored(stream: StreamMeta, retention: StreamRetention) -> StoredStream:
    fields = stream._asdict()
    # The eras order the ring, and only the store knows them.
    del fields["first_era"], fields["last_era"]
    return StoredStream(
        **fields,
        retain_bytes=retention.bytes_max,
        retain_count=retention.messages_max,
        retain_age=retention.age_seconds,
    )


ANSWERS: dict[type[Any], Callable[[Store, Any], Any]] = {
    ReadChunks: lambda store, q: store.read(q.stream, q.start, bytes_max=q.size_bytes_max),
    FindGap: lambda store, q: store.find_gap(q.stream, q.sequence),
    FindTime: lambda store, q: store.find_time(q.stream, q.time_ns),
    LastPerSubject: lambda store, q: store.last_per_subject(q.stream, limit=q.limit, takes=q.takes),
    NextTooOld: lambda store, q: store.next_too_old(q.time_ns),
    FetchRecords: lambda store, q: store.fetch(q.kind, q.queue, q.sequences),
    StoreStats: lambda store, q: _usage(store),
    StreamStats: _stored_streams,
    Backup: _back_up,
    LoadConfiguration: lambda store, q: no_configuration(),
}
