"""Looking into a queue: which messages there are, and choosing some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from sys import maxsize
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.queue.entry import Entry
from malamute.core.queue.paging import RUN_MESSAGES, records_of, runs
from malamute.errors import Malformed, NotFound
from malamute.matching import message_test, parse
from malamute.matching.compiled import MessageTest
from malamute.matching.expression import MessageFields
from malamute.protocol.admin import MESSAGE_ROWS, MessageRow
from malamute.protocol.batch import unpack_record
from malamute.store.operations import Frame, StoredMessage

if TYPE_CHECKING:
    from malamute.core.queue.queue import Queue

BODY_BYTES_MAX = 4_096
"""Bytes of a body that an answer about several messages shows."""

SEARCHABLE = ("correlation", "id", "tracker", "key")
"""Properties that an expression may name beside the headers."""


class Found(NamedTuple):
    """A message, and how it stands with it. Its record is None if it cannot be read."""

    message: StoredMessage
    record: Frame | None
    size: int
    attempts: int
    state: str

    def row(self, body_bytes: int | None = BODY_BYTES_MAX) -> MessageRow:
        """The row about it that an answer has, with so much of its body at the most; None is all of it."""
        message = self.message
        headers, body = self.opened()
        return MessageRow(
            sequence=message.sequence,
            time=message.time_ns,
            sender=message.sender,
            subject=message.subject,
            headers=dict(headers),
            body=body[:body_bytes],
            size=self.size,
            properties=dict(message.properties or {}),
            attempts=self.attempts,
            state=self.state,
            damaged=self.record is None,
        )

    def opened(self) -> tuple[Mapping[str, Any], bytes]:
        """Return headers and body. The record was never decoded before, and may be any bytes."""
        if self.record is None:
            return {}, b""
        try:
            headers, body = unpack_record(self.record)
        except Malformed:
            return {}, bytes(self.record)
        return headers or {}, b"".join(body)


def browse(
    queue: Queue,
    then: Callable[[list[MessageRow]], None],
    *,
    dead: bool = False,
    after: int = 0,
    limit: int = MESSAGE_ROWS,
    where: str = "",
    state: str = "",
) -> None:
    """Call back with the rows of some messages. Raises `InvalidSelector`."""
    entries = _all(queue, dead, after)
    found: list[MessageRow] = []
    look = _Look(queue, dead, _test(where), state, limit, lambda item: found.append(item.row()))
    run_workflow(queue.effects, look.steps(entries, lambda: then(found), records=True))


def fetch(queue: Queue, then: Callable[[MessageRow], None], sequence: int, *, dead: bool = False) -> None:
    """Call back with the row of one message, which has its whole body. Raises `NotFound`."""
    entries = _named(_known(queue, dead), [sequence])
    found: list[MessageRow] = []
    look = _Look(queue, dead, None, "", 1, lambda item: found.append(item.row(None)))

    def done() -> None:
        if not found:
            raise _missing(sequence)
        then(found[0])

    run_workflow(queue.effects, look.steps(entries, done, records=True))


def size_of_one(queue: Queue, sequence: int, *, dead: bool = False) -> int:
    """The bytes of one message; 0 if it is not there."""
    entry = (queue.dead_letters.entries if dead else queue.entries).get(sequence)
    return 0 if entry is None else entry.bytes


def choose(
    queue: Queue,
    then: Callable[[list[int]], None],
    *,
    dead: bool = False,
    sequences: Sequence[int] | None = None,
    where: str = "",
    state: str = "",
    limit: int | None = None,
) -> None:
    """Call back with the sequences of some messages: of those named, or of all, that meet the conditions.

    Raises `InvalidSelector`, or `NotFound` for a sequence that is not there.
    """
    test = _test(where)
    entries = _all(queue, dead) if sequences is None else iter(_named(_known(queue, dead), sequences))
    found: list[int] = []
    look = _Look(queue, dead, test, state, limit or maxsize, lambda item: found.append(item.message.sequence))
    run_workflow(queue.effects, look.steps(entries, lambda: then(found), records=test is not None))


def _known(queue: Queue, dead: bool) -> Mapping[int, Entry]:
    return {entry.sequence: entry for entry in queue.dead_letters.here()} if dead else queue.entries


def _named(entries: Mapping[int, Entry], sequences: Sequence[int]) -> list[Entry]:
    for sequence in sequences:
        if sequence not in entries:
            raise _missing(sequence)
    return [entries[sequence] for sequence in sorted(set(sequences))]


def _missing(sequence: int) -> NotFound:
    return NotFound(f"there is no message {sequence}")


def _all(queue: Queue, dead: bool, after: int = 0) -> Iterator[Entry]:
    if dead:
        return (entry for entry in queue.dead_letters.here() if entry.sequence > after)
    return _from(queue, after + 1)


def _from(queue: Queue, sequence: int) -> Iterator[Entry]:
    """The entries from a sequence on. Between two runs others may come and go."""
    while run := queue.entries.run_from(sequence, RUN_MESSAGES):
        yield from run
        sequence = run[-1].sequence + 1


class _Look:
    """A look at the messages of a queue, a run at a time, until enough of them were taken."""

    def __init__(
        self,
        queue: Queue,
        dead: bool,
        test: MessageTest | None,
        state: str,
        limit: int,
        take: Callable[[Found], None],
    ) -> None:
        self._queue = queue
        self._dead = dead
        self._test = test
        self._state = state
        self._limit = limit
        self._take = take

    def steps(self, entries: Iterable[Entry], done: Callable[[], None], *, records: bool) -> Workflow:
        """Look at these messages, with their `records` or without."""
        queue, dead = self._queue, self._dead
        kind = queue.dead_letters.kind if dead else queue.kind
        for run in runs(entries):
            if queue.effects.work <= 0:
                yield GO_ON
            queue.effects.work -= 2 * len(run)
            if self._state:
                run = [entry for entry in run if self._state_of(entry) == self._state]
            run = run[: self._limit] if self._test is None else run
            brought = (yield from records_of(kind, queue.name, run)) if records else {}
            here = queue.dead_letters.entries if dead else queue.entries
            for entry in run:
                sequence = entry.sequence
                if self._limit and sequence in here:
                    self._see(entry, brought.get(sequence))
            if not self._limit:
                break
        done()

    def _see(self, entry: Entry, record: Frame | None) -> None:
        message = entry.message
        size = entry.bytes - len(message.subject)
        item = Found(message, record, size, self._attempts(entry), self._state_of(entry))
        if self._test is None or self._test(_matched(item)):
            self._take(item)
            self._limit -= 1

    def _state_of(self, entry: Entry) -> str:
        return "dead-lettered" if self._dead else entry.state

    def _attempts(self, entry: Entry) -> int:
        if not self._dead:
            return entry.attempts
        attempts: int = (entry.properties or {})["dead"]["attempts"]
        return attempts


def _test(where: str) -> MessageTest | None:
    return message_test(parse(where)) if where.strip() else None


def _matched(item: Found) -> MessageFields:
    message = item.message
    properties = message.properties or {}
    known = {name: properties[name] for name in SEARCHABLE if name in properties}
    if "dead" in properties:
        known["reason"] = properties["dead"]["reason"]
    return MessageFields(message.subject, {**known, **item.opened()[0]}, message.sender)
