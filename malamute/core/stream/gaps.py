"""The missing messages of a stream, and the readers that had them.

Sequences are left out for three reasons. The disk has refused a chunk (`not-stored`). The broker was killed,
and continues behind its reservation (`restart`). Or the store was restored from a backup, and continues far
behind all sequences used after the backup (`restored`).

Live deliveries run ahead of the disk, so a subscriber may have had missing messages. One that reads on when
the disk refuses a chunk is notified at once. One that resumes names the last message that it has had: that
lies in the chunk that was refused, or between two chunks of the journal, if the connection broke before it
was notified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from malamute.protocol.messages import NOT_STORED, OVERWRITTEN, RESTART, RESTORED, TAKEN_BACK
from malamute.store.operations import FindGap, GapRange, NoteRefused

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.stream.progress import StreamProgress

REFUSED_MAX = 100
"""Ranges that a stream remembers as accepted but not stored."""


class Missing(NamedTuple):
    """Unavailable messages, and why."""

    first: int
    last: int
    reason: str


class RefusedRange(NamedTuple):
    """A range that the disk has refused, and the last sequence that was sent before that was announced."""

    first: int
    last: int
    sent: int


class Gaps:
    """The gaps in one stream."""

    def __init__(
        self,
        name: str,
        effects: Effects,
        progress: StreamProgress,
        last_found: int,
        incarnations: Sequence[int],
        *,
        journaled: bool,
    ) -> None:
        """`last_found` is the last sequence that the journal or a deleted stream had when it was found."""
        self._name = name
        self._effects = effects
        self._progress = progress
        self._incarnations = incarnations
        self._journaled = journaled
        self._left_out = GapRange(last_found + 1, progress.next - 1)
        """The gap between the journal of the start and newer messages."""
        self._refused: deque[RefusedRange] = deque(maxlen=REFUSED_MAX)

    def restore(self, notes: Sequence[NoteRefused]) -> None:
        """Restore the ranges that the disk had refused before the broker ended."""
        progress = self._progress
        for note in notes:
            if note.last < progress.first_kept:
                continue
            # A subscriber that has had something newer has resumed since, and was notified then.
            sent = note.sent or progress.last_stored
            self._refused.append(RefusedRange(note.first, note.last, sent))
            if not note.sent:
                self._effects.stage.store(note._replace(sent=sent))

    def refuse(self, first: int, last: int) -> None:
        """The disk has refused a chunk."""
        self._refused.append(RefusedRange(first, last, self._progress.next_dispatch - 1))

    def reason(self, first: int, last: int) -> str:
        """Why a range is missing."""
        # Some of it may have been dropped by retention as well, which says less.
        if self._is_restored(first, last):
            return RESTORED
        if first < self._progress.first_kept:
            return OVERWRITTEN
        return NOT_STORED if any(r.first <= first <= r.last for r in self._refused) else RESTART

    def _is_restored(self, first: int, last: int) -> bool:
        return any(first <= incarnation <= last for incarnation in self._incarnations)

    def taken_back(self, had: int, then: Callable[[Sequence[Missing]], None]) -> None:
        """Call back with the missing ones of the messages up to `had`, which a reader has had."""
        progress = self._progress
        if not self._journaled or had >= progress.next:
            then(())
        elif self._left_out.first <= had <= self._left_out.last:
            # None of it was ever here, so retention has not dropped it.
            then(self._before(had, self._left_out))
        elif had < progress.first_kept:
            then(())
        elif had > progress.last_stored:
            then(self._before(had, None))
        else:
            question = FindGap(self._name, had)
            self._effects.ask(question, lambda gap: then(self._before(had, gap)))

    def _before(self, had: int, gap: GapRange | None) -> list[Missing]:
        refused = [
            Missing(r.first, min(r.last, had), TAKEN_BACK) for r in self._refused if r.first <= had <= r.sent
        ]
        if gap is None:
            return refused
        reason = RESTORED if self._is_restored(*gap) else TAKEN_BACK
        return [*(r for r in refused if r.last < gap.first), Missing(gap.first, had, reason)]
