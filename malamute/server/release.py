"""The release of what a pair has stored: nothing that only the primary has is confirmed or read.

The writer commits on while acknowledgements of the standby are under way. The outcomes of its commits wait
here, in order, until their log sequence number is *released*: each member that counts has synced it. A read
takes no notice of that, since the disk of the primary has the newest chunks already. So the writer notes the
first sequence of each stream before its commit, and the reader leaves off the chunks from there on *after* it
has read: whoever finds a chunk comes behind the report of its outcome.

The released number is kept in a small file beside the store, for readers of the directory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from malamute.journal.disk import DiskStore
from malamute.journal.released import ReleasedFile
from malamute.journal.write_set import WriteSet
from malamute.store.commit import Written
from malamute.store.operations import AppendChunk, Operation, ReadResult


class Primary(NamedTuple):
    """The part of a pair in a broker that serves as its primary."""

    timeline: int
    on_commit: Callable[[WriteSet], None]
    """Called with each write set of the store, and `on_append` with each record of its log and its number."""
    on_append: Callable[[bytes, int], None]
    on_open: Callable[[DiskStore, ReleaseGate], None] = lambda store, release: None
    """Called with the store and the release of its outcomes, before anything is written."""
    urls: Sequence[str] = ()
    """The URLs of both brokers, for clients."""


class ReleaseGate:
    """Outcomes of the writer of a primary, and bounds for its readers. Any thread may call it.

    `lsn` returns the number of the writer's last transaction, and `released` is the number up to which all
    was released before it began.
    """

    def __init__(self, directory: Path, lsn: Callable[[], int], released: int) -> None:
        self.on_outcome: Callable[[Written], None] = lambda written: None
        """Called with each outcome that is released, in order."""
        self.before_write: Callable[[], object] = lambda: None
        """Called before each write of the store, and `on_stored` behind it with its last number."""
        self.on_stored: Callable[[int], None] = lambda lsn: None
        self._file = ReleasedFile(directory)
        self._lsn = lsn
        self._lock = threading.Lock()
        self._released = released
        self._held: deque[tuple[int, Written]] = deque()
        """Outcomes that wait, with the newest transaction that each reports."""
        self._noted: deque[tuple[int, dict[str, int]]] = deque()
        """The first sequences of streams in transactions that are not released, in order."""
        self._firsts: dict[str, deque[int]] = {}
        """The same by stream, with those of the transaction under way."""
        self._file.write(released)

    def begin(self, operations: Sequence[Operation]) -> dict[str, int]:
        """Note the first sequences of a transaction that is about to be committed."""
        noted: dict[str, int] = {}
        for operation in operations:
            if type(operation) is AppendChunk:
                noted.setdefault(operation.stream, operation.chunk.first)
        with self._lock:
            for stream, first in noted.items():
                self._firsts.setdefault(stream, deque()).append(first)
        return noted

    def end(self, noted: dict[str, int], *, is_stored: bool) -> None:
        """Note that a transaction is committed, or has failed."""
        with self._lock:
            if is_stored and self._lsn() > self._released:
                self._noted.append((self._lsn(), noted))
            else:
                self._forget(noted, newest=True)
        self.on_stored(self._lsn())

    def put(self, written: Written) -> None:
        """Pass on an outcome, once all that the writer has committed before it is released."""
        with self._lock:
            lsn = self._lsn()
            if not self._held and lsn <= self._released:
                self.on_outcome(written)
            else:
                self._held.append((lsn, written))

    def advance(self, released: int) -> None:
        """Pass on the outcomes up to a number that is released now."""
        with self._lock:
            if released <= self._released:
                return
            self._released = released
            self._file.write(released)
            while self._held and self._held[0][0] <= released:
                self.on_outcome(self._held.popleft()[1])
            # Behind the outcomes: a reader that finds a chunk comes after them.
            while self._noted and self._noted[0][0] <= released:
                self._forget(self._noted.popleft()[1], newest=False)

    def bounded(self, stream: str, result: ReadResult) -> ReadResult:
        """Return the part of a result of a read that is released."""
        with self._lock:
            firsts = self._firsts.get(stream)
            if not firsts:
                return result
            bound = firsts[0]
        found = [one for one in result.found if one.last < bound]
        return ReadResult(found, min(result.first, bound))

    def _forget(self, noted: dict[str, int], *, newest: bool) -> None:
        for stream in noted:
            firsts = self._firsts[stream]
            firsts.pop() if newest else firsts.popleft()
            if not firsts:
                del self._firsts[stream]

    def close(self) -> None:
        """Close the file. Outcomes that wait are never passed on: nobody may learn of them from here."""
        with self._lock:
            self._file.close()
