"""The disk: the store in memory behind a layer of faults, and the real writer at work on it.

What was written survives a crash of the broker and what waits to be written does not, so the store itself
never has to forget anything. A write fails as a whole. The power may go between two writes of one group, when
the writer has to find out which part of a failed group can be stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from malamute.errors import StorageFull, StoreError
from malamute.journal.format import CHUNK_HEADER_SIZE, decode_chunk_header
from malamute.journal.memory import MemoryStore
from malamute.server.worker import ANSWERS, DamageFound, Faulty, ReadDone, Trimmed, WriterThread
from malamute.store.commit import Append, Written
from malamute.store.operations import Operation, StoreRead


class PowerLost(BaseException):
    """Raised where the broker dies while it writes."""


class Disk:
    """A store that fails when told to. `on_commit` gets what was written."""

    def __init__(self, store: MemoryStore, on_commit: Callable[[Sequence[Operation]], None]) -> None:
        self.store = store
        self.on_commit = on_commit
        self.failures: deque[bool] = deque()
        """For each of the next writes whether it fails; when there is no more, none does."""
        self.writes_left: int | None = None
        """Writes until the power goes, or None."""
        self.is_full = self.has_failed = False

    def write(self, operations: Sequence[Operation]) -> None:
        """Write, or fail, or die."""
        if self.writes_left is not None:
            if not self.writes_left:
                raise PowerLost
            self.writes_left -= 1
        if self.failures and self.failures.popleft():
            self.has_failed = True
            raise StorageFull("the disk is full") if self.is_full else StoreError("the disk failed")
        self.store.write(operations)
        self.on_commit(operations)

    def pop_firsts(self) -> Mapping[str, int]:
        """The streams whose oldest messages were dropped, as the store has it."""
        return self.store.pop_firsts()

    def damage(self, stream: str, choice: int) -> range:
        """Wipe the body of a chunk of a stream. Returns the sequences that cannot be read any more."""
        state = self.store.status().streams.get(stream)
        if state is None or not state.chunks:
            return range(0)
        shelf = self.store._chunks
        chunks = list(shelf.walk(state, state.first))
        first, value, _ = chunks[choice % len(chunks)]
        shelf._values[state.identifier, first] = value[:CHUNK_HEADER_SIZE].ljust(len(value), b"\0")
        return range(first, first + decode_chunk_header(value).count)

    def heal(self) -> None:
        """Fail no more."""
        self.failures.clear()
        self.writes_left = None


class Workers:
    """The writer and the reader of one broker, one step at a time. Results wait until they are taken."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.appends: deque[Append] = deque()
        self.questions: deque[StoreRead] = deque()
        self._results: deque[deque[Any]] = deque((deque(),))
        """What each of the next iterations finds, in order."""
        self._faults: list[Exception] = []
        """What the writer has met and would have reported: here each is a fault to be found."""
        self._writer = WriterThread("simulated", disk, self)  # type: ignore[arg-type]  # a part of a store

    def put(self, result: Written | Trimmed | ReadDone | DamageFound | Faulty) -> None:
        """Take a result of the writer."""
        if isinstance(result, Faulty):
            self._faults.append(result.error)
        else:
            self._results[-1].append(result)

    @property
    def has_results(self) -> bool:
        """Whether there are any that were not taken."""
        return any(self._results)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits to be written or to be reported, and the disk will not fail."""
        return not (self.appends or self.has_results or any(self.disk.failures))

    def take_results(self) -> deque[Any]:
        """The results that an iteration finds. What was overtaken is found by a later one."""
        results = self._results.popleft()
        if not self._results:
            self._results.append(deque())
        return results

    def write(self, most: int) -> int:
        """Write what waits, up to `most` appends as one group. Returns how many that were."""
        jobs = [self.appends.popleft() for _ in range(min(most, len(self.appends)))]
        if jobs:
            self._writer.work(jobs)
        for fault in self._faults:
            raise fault
        return len(jobs)

    def read(self, choice: int) -> bool:
        """Answer one of the questions that wait. Returns whether there was one.

        The reader and the writer are two threads: the answer may overtake what the writer reports last. It
        overtakes nothing else, for the writer reports each write before it begins the next one: whoever finds
        a chunk in the store comes behind the report of what was refused before it.
        """
        if not self.questions:
            return False
        overtakes, place = divmod(choice, len(self.questions))
        question = self.questions[place % len(self.questions)]
        self.questions.remove(question)
        found = ReadDone(question, ANSWERS[type(question)](self.disk.store, question))
        newest = self._results[-1]
        if overtakes % 2 and newest and isinstance(newest[-1], Written):
            self._results.append(deque((newest.pop(),)))
        newest.append(found)
        return True
