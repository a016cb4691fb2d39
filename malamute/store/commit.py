"""The commit of appends in groups, and the rules for failures. Pure.

Theory. The core hands out an `Append` for each of its iterations. The writer commits all waiting appends in
one transaction, which the store carries out as a whole or not at all. So a failure concerns a group, or one
append and the appends that depend on it:

1. *A group that fails is tried one by one.* Each append is then stored or refused as a whole.
2. *Operations that give room back are carried out anyway*, unless they are bound to the others: a full disk
   must not prevent deletions.
3. *An append that depends on a refused append is refused with it.* An append names the appends that it
   confirms a part of. And the stored numbers of a session are one record, up to a number. Later appends of
   the session, made before the core was informed of the refusal, would report the refused numbers as stored,
   and after a crash the broker would confirm missing messages.
4. *A refused chunk is noted with the next stored chunk of its stream*: subscribers may have got its messages.
   No later chunk is stored without the note, so one range for each stream is enough.
5. *An append with a fault is refused*: its operations are incomplete.

The room that an operation may take is a rule, too. Chunks are never refused while older ones can make room
for them. Messages of queues leave the ring its promised room, and a reserve; other values leave the promised
room. Operations that give room back may use the whole store.
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
"""Operations that give room back, or only count; also deletions of values of some tables (`gives_room`)."""


class Append(NamedTuple):
    """Operations to commit together, and their token in the report of the outcome.

    If the commit fails, operations that give room back are carried out still, but not the `bound` ones: the
    completion of a request without its stored reply would lose the request.

    `known` is the token of the last append with a known outcome when this one was made. This append may
    report the numbers of the appends in between as stored, so it must not be stored if one of them failed.

    An append that is not `awaited` may be stored a little later, together with others.

    `needs` are the tokens of the appends that this one confirms a part of: it is not stored without them.

    With a `fault` it must not be stored: the iteration was not completed, and its operations are incomplete.
    """

    token: int
    operations: Sequence[Operation]
    bound: Sequence[Operation] = ()
    known: int = 0
    awaited: bool = True
    needs: frozenset[int] = frozenset()
    fault: MalamuteError | None = None


class Written(NamedTuple):
    """The outcome of appends: stored, or refused with an error."""

    tokens: Sequence[int]
    error: MalamuteError | None = None


def gives_room(operation: Operation) -> bool:
    """Return whether an operation gives room back, or only counts."""
    if type(operation) is DeleteValue:
        return TABLES.get(operation.table, PLAIN).gives_room
    return type(operation) in GIVING


def done_anyway(append: Append) -> list[Operation]:
    """Return the operations of a refused append to carry out anyway."""
    # There may be thousands: `bound` has the same objects.
    bound = {*map(id, append.bound)}
    return [o for o in append.operations if gives_room(o) and id(o) not in bound]


Write = Callable[[Sequence[Operation]], MalamuteError | None]
"""Carries out operations in one transaction, or returns the error."""


class Committer:
    """Commits groups of appends, each in one transaction if possible."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._refused: dict[str, NoteRefused] = {}
        """The refused range of each stream, until it is stored with the next chunk of the stream."""
        self._failures: dict[Hashable, Written] = {}
        """Failed appends by token, and the last one of each session, until the core knows of the failure."""

    def commit(self, appends: Sequence[Append]) -> Iterator[Written]:
        """Commit all appends, or each that can be stored; yield the outcomes as soon as they are known."""
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
        """Commit one append, unless it has a fault or depends on a failed one."""
        reason = append.fault or self._failure_of_others(append) or error or self._try(append.operations)
        written = Written([append.token], reason)
        if reason is not None:
            self._note_refused(append.operations)
            self._try(done_anyway(append))
            self._failures.update(dict.fromkeys([append.token, *_sessions(append)], written))
        yield written
        # Later appends are made with at least the knowledge of this one.
        self._failures = {
            k: failed for k, failed in self._failures.items() if failed.tokens[0] > append.known
        }

    def _failure_of_others(self, append: Append) -> MalamuteError | None:
        """Return the error of a failed append that this one needs, or would report as stored."""
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
    """Return the sessions with numbers in an append."""
    return [o.key[0] for o in append.operations if type(o) is PutValue and o.table == SESSIONS]
