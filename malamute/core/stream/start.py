"""Where subscriptions begin: a start in words made into a position in a stream.

Some starts are known at once. A time, or the last message of each subject, is only known to the store: then
the answer comes in a later iteration, and messages only in memory at the request are added to it. A sequence
beyond the head means that the broker has lost its store since: all its messages are new to the client, which
begins at the head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from malamute.core.stream.chunk import Loaded
from malamute.core.stream.subscription import Position, SourceStream
from malamute.errors import InvalidValue, TryLater
from malamute.matching import CompiledSelector, Group, Selector
from malamute.protocol.position import StorePosition
from malamute.protocol.start import (
    AFTER,
    FIRST,
    LAST,
    LAST_PER_SUBJECT,
    NEW,
    SEQ,
    TIME,
    Start,
)
from malamute.store.operations import FindTime, LastPerSubject, SubjectTest

if TYPE_CHECKING:
    from malamute.core.stream.replay import Replay

Then = Callable[[Position], None]

SUBJECTS_MAX = 10_000
"""Subjects that a subscription may begin at the last message of. With more it is refused."""


class StartingStream(SourceStream, Protocol):
    """The state of a stream that finding a start needs."""

    journaled: bool
    replay: Replay

    def moment(self) -> int:
        """The time now as it has it, in nanoseconds UTC."""


class Asked(NamedTuple):
    """A stream at the request to the store: its head, and the messages that the answer may lack.

    Messages stored before the answer may be in it or not, so they are not looked for later.
    """

    head: int
    stored: int
    unstored: Sequence[Loaded]


def one_position(start: str, what: str, broker: str) -> Start:
    """A start in words that is one position in the store of this broker. Raises `InvalidValue`."""
    found = Start.parse(start)
    if found.kind == AFTER:
        position = StorePosition(found.value, found.store)
        if position.broker != broker:
            raise InvalidValue(
                f"start {start!r} of {what} is a position in another store: expected one of {broker}"
            )
        return Start(SEQ, position.sequence + 1)
    if found.kind == LAST_PER_SUBJECT:
        raise InvalidValue(f"invalid start 'last-per-subject' of {what}: expected one position")
    return found


def removed(stream: str) -> TryLater:
    """The error for a stream that was removed while its position was looked for."""
    return TryLater(f"stream {stream!r} was removed meanwhile: retry later")


def locate(stream: StartingStream, start: Start, group: Group, then: Then) -> None:
    """Call `then` with the position of a start: now, or in a later iteration."""
    progress = stream.progress
    asked = Asked(progress.next, progress.last_stored, [*stream.replay.unstored])
    if start.kind in KNOWN:
        then(KNOWN[start.kind](stream, start))
    elif not stream.journaled:
        then(Position(progress.next))
    elif start.kind == LAST_PER_SUBJECT:
        _locate_last_of_each(stream, group, asked, then)
    else:
        time_ns = start.value if start.kind == TIME else stream.moment() - start.value
        stream.effects.ask(
            FindTime(stream.name, time_ns, asked.stored),
            lambda found: then(at_time(asked, time_ns, found)),
        )


def _locate_last_of_each(stream: StartingStream, group: Group, asked: Asked, then: Then) -> None:
    failed = stream.effects.on_failure

    def answered(found: object) -> None:
        try:
            position = last_of_each(stream, group, asked, found)
        except InvalidValue as error:
            if failed is not None:
                failed(error)
            return
        then(position)

    takes = subject_test(group.selector)
    question = LastPerSubject(stream.name, SUBJECTS_MAX + 1, asked.stored, takes)
    stream.effects.ask(question, answered)


def subject_test(selector: Selector) -> SubjectTest | None:
    """Return the test of subjects that a selector makes; None if subjects alone do not decide, or at a cost.

    A thread of the store runs it, beside all that others ask of that store.
    """
    by_subject = Selector(selector.criteria)
    if (
        by_subject.needs_headers
        or by_subject.work
        or any(family == "all" for family, _ in by_subject.criteria)
    ):
        return None
    return CompiledSelector(by_subject, lambda family, error: None).takes_subject


def _head(stream: StartingStream) -> Position:
    return Position(stream.progress.next)


KNOWN: Mapping[str, Callable[[StartingStream, Start], Position]] = {
    NEW: lambda stream, start: _head(stream),
    FIRST: lambda stream, start: Position(1, quiet=True) if stream.journaled else _head(stream),
    LAST: lambda stream, start: Position(stream.progress.last or stream.progress.next, quiet=True),
    SEQ: lambda stream, start: Position(min(start.value, stream.progress.next)),
}


def at_time(asked: Asked, time_ns: int, found: object) -> Position:
    """The position of a time, given the sequence that the store found, which is 1 past its end at most."""
    assert isinstance(found, int)
    if found <= asked.stored:
        return Position(found, quiet=True)
    for loaded in asked.unstored:
        if loaded.chunk.time_ns >= time_ns:
            return Position(loaded.chunk.first, quiet=True)
    return Position(asked.head)


def last_of_each(stream: StartingStream, group: Group, asked: Asked, found: object) -> Position:
    """Return the last message of each subject that a group takes, from the answer of the store.

    Raises `InvalidValue` if there are too many of them.
    """
    assert isinstance(found, Mapping)
    last = {subject: sequence for subject, sequence in found.items() if sequence < asked.head}
    for loaded in asked.unstored:
        last.update(zip(loaded.columns.subjects, loaded.columns.each_sequence(), strict=True))
    subjects = stream.audience.match_subjects(group, list(last))
    if len(subjects) > SUBJECTS_MAX or len(found) > SUBJECTS_MAX:
        raise InvalidValue(
            f"too many subjects of {stream.name!r} for start 'last-per-subject': expected at most "
            f"{SUBJECTS_MAX}; subscribe to fewer, such as 'orders.eu.*', or begin at 'first'"
        )
    return Position(asked.head, quiet=True, wanted=sorted(last[subject] for subject in subjects))
