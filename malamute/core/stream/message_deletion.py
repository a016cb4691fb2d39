"""The deletion of messages inside streams: one of a stream at a time, in steps that a crash may interrupt.

A deletion is stored before its first step, and forgotten after its last one. A step reads some chunks, and
deletes the messages found in one commit, with their count. A broker that dies between two steps begins again
at its start: messages that are deleted are not found once more. So a deletion that was begun is completed.

Readers are notified by a gap in place of the messages, which the store has from the commit of a step on.
Reads under way then are done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from malamute.core.stream.chunk import Loaded
from malamute.core.stream.start import removed
from malamute.errors import MalamuteError, Malformed, TryLater
from malamute.matching import CompiledSelector, Selector
from malamute.store.operations import (
    Chunk,
    DeleteStreamMessages,
    DeleteValue,
    PutValue,
    ReadChunks,
    ReadResult,
    Recovered,
)
from malamute.store.tables import DELETIONS

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.recovery import Recovery
    from malamute.core.iteration.timers import Timers
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams

STEP_BYTES = 1 << 18
"""Bytes of chunks that one step reads. Reads of other sizes, for readers, are never shared with it."""

RETRY_SECONDS = 10.0
"""Seconds until a step is repeated that the disk has refused."""

DELETIONS_MAX = 16
"""Deletions that are under way or wait for one of their stream; each has one read in memory."""

MESSAGE_WORK = 0.2
"""The work for a message that is looked at, in about microseconds."""


class Doomed(NamedTuple):
    """The messages to delete: of a range of sequences, all or those with a subject."""

    first: int
    last: int
    subject: str = ""


class DeletedRange(NamedTuple):
    """The number of deleted messages, and the first and the last of them; 0 without any."""

    messages: int = 0
    first: int = 0
    last: int = 0


Done = Callable[[DeletedRange], None]
Failed = Callable[[MalamuteError], None]


class MessageDeletions:
    """The deletions of messages that are under way."""

    def __init__(self, effects: Effects, timers: Timers, streams: Streams) -> None:
        self.effects = effects
        self.timers = timers
        self.streams = streams
        self._by_stream: dict[str, deque[_Deletion]] = {}
        """The deletions of each stream, of which the first is under way."""

    def restore(self, recovered: Recovered, recovery: Recovery) -> None:
        """Continue the deletions that the last process has begun."""
        for (name,), doomed in recovered.table(DELETIONS).items():
            recovery.take_up("deletion", name, self._resume, name, doomed)

    def _resume(self, name: str, doomed: Sequence[int | str]) -> None:
        first, last, subject = doomed
        stream = self.streams.by_name.get(name)
        if stream is not None:
            messages = Doomed(int(first), int(last), str(subject))
            deletion = _Deletion(self, stream, messages, lambda deleted: None)
            self._by_stream[name] = deque([deletion])
            deletion.read()

    def count(self, stream: Stream, doomed: Doomed, done: Done, failed: Failed) -> None:
        """Count the messages that a deletion would delete."""
        _Deletion(self, stream, doomed, done, failed, dry_run=True).read()

    def begin(self, stream: Stream, doomed: Doomed, done: Done, failed: Failed) -> None:
        """Delete messages, after other deletions of the stream; `done` is called when all are deleted.

        Raises:
            TryLater: too many deletions are under way.
        """
        if sum(map(len, self._by_stream.values())) >= DELETIONS_MAX:
            raise TryLater(f"{DELETIONS_MAX} deletions of messages are under way: retry later")
        deletions = self._by_stream.setdefault(stream.name, deque())
        deletions.append(_Deletion(self, stream, doomed, done, failed))
        if len(deletions) == 1:
            deletions[0].begin()

    def end(self, name: str) -> None:
        """Begin the next deletion of a stream, if any waits."""
        deletions = self._by_stream[name]
        deletions.popleft()
        if deletions:
            deletions[0].begin()
        else:
            del self._by_stream[name]


class _Deletion:
    """One deletion, or the count of one."""

    def __init__(
        self,
        deletions: MessageDeletions,
        stream: Stream,
        doomed: Doomed,
        done: Done,
        failed: Failed = lambda error: None,
        *,
        dry_run: bool = False,
    ) -> None:
        self._deletions = deletions
        self._effects = deletions.effects
        self._stream = stream
        self._doomed = doomed
        self._done = done
        self._failed = failed
        self._dry_run = dry_run
        self._start = doomed.first
        self._deleted = DeletedRange()
        self._selector: CompiledSelector | None = None
        if doomed.subject:
            selector = Selector.parse([["topic", doomed.subject]])
            self._selector = CompiledSelector(selector, stream.audience.failed)

    def begin(self) -> None:
        """Store the deletion, and begin it then."""
        self._effects.stage.store(PutValue(DELETIONS, (self._stream.name,), self._doomed))
        self._effects.stage.when_stored(self._begun)

    def _begun(self, error: MalamuteError | None) -> None:
        if error is None:
            self.read()
        else:
            self._failed(error)
            self._deletions.end(self._stream.name)

    def read(self) -> None:
        """Read the next chunks, or end."""
        stream = self._stream
        if self._deletions.streams.by_name.get(stream.name) is not stream:
            self._failed(removed(stream.name))
            if not self._dry_run:
                self._deletions.end(stream.name)
        elif self._start > self._doomed.last:
            self._end()
        else:
            question = ReadChunks(stream.name, self._start, STEP_BYTES)
            self._effects.ask(question, self._found, self._failed if self._dry_run else self._retry)

    def _retry(self, error: MalamuteError) -> None:
        self._deletions.timers.at(self._effects.now + RETRY_SECONDS, self.read)

    def _found(self, result: ReadResult) -> None:
        """Delete the messages of some chunks."""
        if not result.found:
            self._end()
            return
        self._start = result.found[-1].last + 1
        ranges: list[tuple[int, int]] = []
        for item in result.found:
            if isinstance(item, Chunk):
                ranges += self._ranges(item)
                self._effects.work -= int(item.count * MESSAGE_WORK)
        if ranges:
            messages, first, _ = self._deleted
            messages += sum(last - first + 1 for first, last in ranges)
            self._deleted = DeletedRange(messages, first or ranges[0][0], ranges[-1][1])
        if not ranges or self._dry_run:
            self.read()
            return
        self._stream.numbering.delete(ranges)
        self._store(ranges)

    def _store(self, ranges: Sequence[tuple[int, int]]) -> None:
        name = self._stream.name
        if self._deletions.streams.by_name.get(name) is self._stream:
            self._stream.numbering.store()
            self._effects.stage.store(DeleteStreamMessages(name, ranges))
        self._effects.stage.when_stored(partial(self._stored, ranges))

    def _stored(self, ranges: Sequence[tuple[int, int]], error: MalamuteError | None) -> None:
        if error is None:
            self._stream.replay.read_again()
            self.read()
        else:
            self._deletions.timers.at(self._effects.now + RETRY_SECONDS, partial(self._store, ranges))

    def _end(self) -> None:
        name = self._stream.name
        if self._dry_run:
            self._done(self._deleted)
            return
        self._effects.stage.store(DeleteValue(DELETIONS, (name,)))
        if self._deleted.messages:
            self._effects.event(f"stream.messages-deleted.{name}", **self._deleted._asdict())
        self._done(self._deleted)
        self._deletions.end(name)

    def _ranges(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        """Yield the ranges of sequences of a chunk that are to be deleted."""
        first, last = max(chunk.first, self._doomed.first), min(chunk.last, self._doomed.last)
        if first > last:
            return
        if self._selector is None:
            yield first, last
            return
        try:
            places = Loaded.read(chunk).places(self._selector, 0, chunk.count)
        except Malformed:
            # Its readers get the fault.
            return
        yield from _runs([chunk.first + place for place in places if first <= chunk.first + place <= last])


def _runs(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield sequences in order as ranges."""
    start = before = 0
    for sequence in sequences:
        if start and sequence == before + 1:
            before = sequence
            continue
        if start:
            yield start, before
        start = before = sequence
    if start:
        yield start, before
