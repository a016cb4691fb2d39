"""What is committed together, and what holds when part of it cannot be: all the rules, in one place. Pure.

Theory. The core hands out an `Append` for each of its iterations. The writer commits all that wait in one
transaction, which the store carries out as a whole or not at all. So what fails in part is a group, or what
comes of one append that failed:

1. *A group that fails is tried one by one.* Each append then is stored or refused as a whole.
2. *What gives room back is done anyway*, unless it is bound to the rest: a disk that is full must not keep
   anybody from making it less so.
3. *What relies on an append that was refused is refused with it.* It names the appends that it confirms
   something of. And what a session has stored is one record, up to a number. Later ones of the same session
   that were made before the core knew of the refusal would report its numbers as stored, and after a crash
   the broker would confirm what is not there.
4. *A chunk that is refused is noted with the next one of its stream that is stored*: subscribers may have had
   it. Nothing behind it is stored without that, so one range for each stream is enough.
5. *What was begun with a fault is refused*: nobody knows what lacks.

Which room an operation may take is a rule, too. Chunks are never refused while older ones can make room for
them; messages of queues leave the ring what it was promised, and a reserve; other values that are kept leave
it the former. What gives room back may use all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from malamute.errors import MalamuteError
from malamute.store.operations import (
    AppendChunk,
    DeleteMessages,
    DeleteQueue,
    DeleteValue,
    ForgetIdentities,
    MarkDelivered,
    NoteRefused,
    Operation,
    PutIdentity,
    PutMessages,
    PutValue,
    Retain,
    SetAttempts,
    TrimByAge,
)
from malamute.store.tables import PLAIN, SESSIONS, TABLES

APPENDING: frozenset[type[Any]] = frozenset((AppendChunk,))
"""Operations for which older chunks make room."""

QUEUED: frozenset[type[Any]] = frozenset((PutMessages,))
"""Operations that leave the ring its room, and a reserve."""

KEEPING: frozenset[type[Any]] = frozenset((PutIdentity, PutValue))
"""Operations that leave the ring its room."""

GIVING: frozenset[type[Any]] = frozenset(
    (DeleteMessages, DeleteQueue, ForgetIdentities, MarkDelivered, Retain, SetAttempts, TrimByAge)
)
"""Operations that give room back, or only count. Deleting values is one for some tables (`gives_room`)."""


class Append(NamedTuple):
    """Operations to commit together, and the token to name them by afterwards.

    If that fails, those that only give room back are still to be done, but not the `bound` ones: the
    completion of a request whose reply could not be stored would lose it.

    `known` is the token of the last append whose outcome was known when this one was made. It may report
    the numbers in those between as stored, so it must not be stored if one of them was not.

    If it is not `awaited`, nobody waits for it, and it may be stored a little later together with others.

    `needs` are the tokens of those without which it must not be stored either: it confirms what they have.

    With a `fault` it must not be stored: the iteration could not be completed, and nobody knows what lacks.

    """

    token: int
    operations: Sequence[Operation]
    bound: Sequence[Operation] = ()
    known: int = 0
    awaited: bool = True
    needs: frozenset[int] = frozenset()
    fault: MalamuteError | None = None


class Written(NamedTuple):
    """Appends were stored, or not for the reason given."""

    tokens: Sequence[int]
    error: MalamuteError | None = None


def gives_room(operation: Operation) -> bool:
    """Whether an operation gives room back, or only counts."""
    if type(operation) is DeleteValue:
        return TABLES.get(operation.table, PLAIN).gives_room
    return type(operation) in GIVING


def done_anyway(append: Append) -> list[Operation]:
    """What is to be done of an append that cannot be stored as a whole."""
    # There may be thousands: `bound` has the same objects.
    bound = {*map(id, append.bound)}
    return [o for o in append.operations if gives_room(o) and id(o) not in bound]


Write = Callable[[Sequence[Operation]], MalamuteError | None]
"""Carries out operations in one transaction, or returns why it cannot."""


class Committer:
    """Commits appends, as many as wait in one transaction."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._refused: dict[str, NoteRefused] = {}
        """What was refused of each stream, until that is stored with what comes next of it."""
        self._failures: dict[Hashable, Written] = {}
        """The last append of a session that failed, as long as the core may not know of it, and each that
        failed by its token, as long as another may need it."""

    def commit(self, appends: Sequence[Append]) -> Iterator[Written]:
        """Commit all of them, or find out which of them cannot be. Reports each as soon as it is known."""
        error = None
        if not self._failures and not any(append.fault for append in appends):
            error = self._try([operation for append in appends for operation in append.operations])
            if error is None:
                yield Written([append.token for append in appends])
                return
        alone = error if len(appends) == 1 else None
        for append in appends:
            yield from self._commit_one(append, alone)

    def _commit_one(self, append: Append, error: MalamuteError | None) -> Iterator[Written]:
        """Commit one append, unless it is known that it failed."""
        reason = append.fault or self._failure_of_others(append) or error or self._try(append.operations)
        written = Written([append.token], reason)
        if reason is not None:
            self._note_refused(append.operations)
            self._try(done_anyway(append))
            self._failures.update(dict.fromkeys([append.token, *_sessions(append)], written))
        yield written
        # What is made later was begun when the core knew all that it knew when it made this one.
        self._failures = {
            k: failed for k, failed in self._failures.items() if failed.tokens[0] > append.known
        }

    def _failure_of_others(self, append: Append) -> MalamuteError | None:
        """The error of an earlier append that this one needs, or would report as stored."""
        found = [self._failures[token] for token in append.needs if token in self._failures]
        failures = [self._failures[session] for session in _sessions(append) if session in self._failures]
        found += [failed for failed in failures if failed.tokens[0] > append.known]
        return found[0].error if found else None

    def _note_refused(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if type(operation) is AppendChunk:
                stream, chunk = operation.stream, operation.chunk
                known = self._refused.get(stream)
                self._refused[stream] = NoteRefused(stream, known.first if known else chunk.first, chunk.last)

    def _try(self, operations: Sequence[Operation]) -> MalamuteError | None:
        notes: list[NoteRefused] = []
        if self._refused:
            appended = {o.stream for o in operations if type(o) is AppendChunk}
            notes = [note for stream, note in self._refused.items() if stream in appended]
        error = self._write([*notes, *operations] if notes else operations)
        if error is None:
            for note in notes:
                del self._refused[note.stream]
        return error


def _sessions(append: Append) -> list[Any]:
    """The sessions whose numbers an append stores."""
    return [o.key[0] for o in append.operations if type(o) is PutValue and o.table == SESSIONS]
