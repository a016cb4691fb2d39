"""The numbering of a stream: its sequences with messages, over restarts too.

The sequences left out before a chunk are stored with it, and with each one behind it until one of them is on
the disk: the chunk that had it first may be refused, and one behind it be the last before a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from malamute.core.stream.skipped import SkippedSequences
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.start import SEQ, Start
from malamute.store.operations import Chunk, NoteRefused, PutValue
from malamute.store.tables import BEGINNINGS, SKIPPED

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.stream.progress import StreamProgress


class Numbering:
    """The sequences of one stream that have messages. Without a journal none is counted."""

    def __init__(
        self,
        name: str,
        effects: Effects,
        progress: StreamProgress,
        never_used: tuple[int, int],
        *,
        journaled: bool,
    ) -> None:
        self._name = name
        self._effects = effects
        self._progress = progress
        self._journaled = journaled
        self._never_used = never_used
        """The first and the last sequence in front of it that no stream of this name is known to have had."""
        self._skipped = SkippedSequences()
        self._last_chunked = progress.last
        self.unstored_from = 0
        """The first chunk that its newest ranges are stored with, or 0 if they are stored."""

    def restore(
        self, never_used: Sequence[int], skipped: Sequence[Sequence[int]], refused: Sequence[NoteRefused]
    ) -> None:
        """Take up which sequences have no messages, as the core and the writer have stored it."""
        self._never_used = never_used[0], never_used[1]
        self._skipped.restore(skipped)
        before = list(self._skipped.ranges)
        for note in refused:
            self._skipped.add(note.first, note.last)
        if self._skipped.ranges != before:
            self.unstored_from = self._progress.next

    def note(self, chunk: Chunk) -> None:
        """Store with a chunk the sequences left out before it."""
        first_kept = self._progress.first_kept
        before = max(self._last_chunked, first_kept - 1)
        if before < chunk.first - 1:
            self._skipped.add(before + 1, chunk.first - 1)
            self.unstored_from = chunk.first
        self._last_chunked = chunk.last
        if self.unstored_from:
            self._skipped.forget_before(first_kept)
            self.store()
        if chunk.first == first_kept and self._never_used[0] <= self._never_used[1]:
            # Its readers are not to be notified of these after a restart either.
            self._effects.stage.store(PutValue(BEGINNINGS, (self._name,), self._never_used))

    def stored(self, last: int) -> None:
        """Learn that the chunk with this last message is on the disk."""
        if self.unstored_from <= last:
            self.unstored_from = 0

    def delete(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that the messages of these sequences are deleted, to be stored with the deletion."""
        self._skipped.delete(ranges)

    def store(self) -> None:
        """Store the ranges without messages with this iteration."""
        self._effects.stage.store(PutValue(SKIPPED, (self._name,), self._skipped.ranges))

    def refused(self, chunk: Chunk) -> None:
        """Learn that the disk has refused a chunk."""
        self._skipped.add(chunk.first, chunk.last)
        self.unstored_from = self._progress.next

    def messages(self, sequence: int, last: int = NUMBER_MAX) -> int:
        """Return how many messages are there behind a sequence, up to another one."""
        if not self._journaled:
            return 0
        progress = self._progress
        return self._skipped.messages(max(sequence, progress.first_kept - 1), min(last, progress.last))

    @property
    def messages_stored(self) -> int:
        """How many messages are on the disk."""
        return self._skipped.messages(self._progress.first_kept - 1, self._progress.last_stored)

    def first_used(self, start: Start) -> Start:
        """Return a start that is not in front of the first sequence that the stream can have."""
        first, last = self._never_used
        return Start(SEQ, last + 1) if start.kind == SEQ and first <= start.value <= last else start
