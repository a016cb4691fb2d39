"""What an operator may change while the broker runs: the commands of CHANGE.

Each takes named arguments and answers a map of what it did, when that is stored. With `dry_run` it answers
what it would do, and does nothing.

What a change stores goes into the turn in which it calls `answered`, so that its outcome is stored with it.
One that takes several commits tells at each of them what it has come to, with `final=False`, and what it has
come to `otherwise`, should this one fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from posixpath import join, normpath
from typing import TYPE_CHECKING, Any, Protocol

from malamute.core.admin.clients import session_of
from malamute.core.admin.queues import queue_of
from malamute.core.feed import no_feed
from malamute.core.mailbox import EVERYTHING
from malamute.core.queue.browse import choose
from malamute.core.start import locate
from malamute.core.subscription import Position
from malamute.errors import (
    AccessRefused,
    Disconnected,
    InvalidValue,
    MalamuteError,
    NotFound,
    TryLater,
)
from malamute.matching import Group, Selector
from malamute.protocol.arguments import PATH, SECONDS, STATE, Arguments
from malamute.protocol.messages import (
    BOOLEAN,
    CRITERIA,
    KIND,
    NAME,
    NUMBER,
    SEQUENCE,
    SEQUENCES,
    TEXT,
    WORDS,
    Change,
    Rule,
)
from malamute.protocol.start import LAST_PER_SUBJECT, Start
from malamute.store.operations import Backup, Reserve
from malamute.store.policies import StreamRetention

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.session import Session
    from malamute.core.stream import Stream

Failed = Callable[[MalamuteError], None]


class Answered(Protocol):
    """What a change calls with what it did."""

    def __call__(
        self, value: dict[str, Any], *, final: bool = True, otherwise: dict[str, Any] | None = None
    ) -> None:
        """It has done this, with all that this turn stores."""


def change(core: Core, session: Session, message: Change) -> None:
    """Make a change, unless it was made before. A refused one changes nothing.

    `TOPICS` says what each of them takes.
    """
    sessions, number = core.sessions, message.number
    if number and not sessions.admit_change(session, number):
        return
    if message.topic not in TOPICS:
        raise InvalidValue(f"there is no change {message.topic!r}, but {', '.join(TOPICS)}")
    topic, arguments = TOPICS[message.topic]
    arguments.check(message.topic, message.arguments)

    if number:
        sessions.begin_change(session, number)

    def answered(
        value: dict[str, Any], *, final: bool = True, otherwise: dict[str, Any] | None = None
    ) -> None:
        sessions.decide_change(session, number, value, final=final, otherwise=otherwise)

    def failed(error: MalamuteError) -> None:
        sessions.fail_change(session, number, error)

    with core.turn.failing(failed):
        topic(core, answered, failed, **{"dry_run": False, **message.arguments})


def set_cursor(
    core: Core, answered: Answered, failed: Failed, stream: str, cursor: str, start: str, dry_run: bool
) -> None:
    """Set a cursor so that its reader goes on at `start`."""
    found = _stream(core, stream)
    found.check_cursor(cursor)
    where = _one_position(start, "a cursor is")
    found.flush()

    def located(position: Position) -> None:
        if core.streams.by_name.get(stream) is not found:
            failed(_removed(stream))
            return
        before = found.cursors.get(cursor)
        if not dry_run:
            found.commit(cursor, position.first - 1)
        answered({"stream": stream, "cursor": cursor, "before": before, "sequence": position.first - 1})

    locate(found, where, Group(0, EVERYTHING), located)


def delete_cursor(
    core: Core, answered: Answered, failed: Failed, stream: str, cursor: str, dry_run: bool
) -> None:
    """Forget a cursor."""
    found = _stream(core, stream)
    if cursor not in found.cursors and cursor not in found.lost_cursors:
        raise NotFound(f"the stream {stream!r} has no cursor {cursor!r}")
    before = found.cursors.get(cursor)
    if not dry_run:
        found.delete_cursor(cursor)
    answered({"stream": stream, "cursor": cursor, "before": before})


def create_stream(
    core: Core, answered: Answered, failed: Failed, stream: str, dry_run: bool, **limits: float
) -> None:
    """Make a stream, and set how much of it is kept if any limit is given; 0 is no limit."""
    kept = _retention(limits)
    found = core.streams.by_name.get(stream)
    if found is not None:
        found.flush()
        if not found.unused:
            raise InvalidValue(f"the stream {stream!r} is in use: it has messages, readers or cursors")
    if not dry_run:
        made = _made(core, stream)
        core.turn.store(Reserve(stream, made.reserved))
        if limits:
            made.retain(kept)
    answered({"stream": stream, **(_limits(kept) if limits else {})})


def set_retention(
    core: Core, answered: Answered, failed: Failed, stream: str, dry_run: bool, **limits: float
) -> None:
    """Set how much of a stream is kept, making the stream if needed; 0 is no limit."""
    kept = _retention(limits)
    if not dry_run:
        _made(core, stream).retain(kept)
    answered({"stream": stream, **_limits(kept)})


def _retention(limits: Mapping[str, float]) -> StreamRetention:
    kept = {"bytes": 0, "count": 0, "age": 0.0, **limits}
    return StreamRetention(int(kept["bytes"]), int(kept["count"]), float(kept["age"]))


def _limits(kept: StreamRetention) -> dict[str, float]:
    return {"bytes": kept.bytes_max, "count": kept.messages_max, "age": kept.age_seconds}


def _made(core: Core, stream: str) -> Stream:
    """A stream, made if needed; it is there if this turn is stored, and goes again if not."""
    made = stream not in core.streams.by_name
    found = core.streams.get(stream)
    found.lasting = True

    def stored(error: MalamuteError | None) -> None:
        if error is None:
            core.streams.by_name.setdefault(stream, found)
        elif made and not core.feeds.changes(stream):
            core.streams.drop_untouched(found)

    core.turn.when_stored(stored)
    return found


def purge_stream(core: Core, answered: Answered, failed: Failed, stream: str, dry_run: bool) -> None:
    """Drop the history of a stream. Its readers, its cursors, its retention and its sequences go on."""
    found = _stream(core, stream)
    core.feeds.check_stream(stream)
    found.flush()
    value = {"stream": stream, "first": found.first_kept, "last": found.last}
    if not dry_run:
        what = f"stream.purged.{stream}"
        found.purge(lambda: core.turn.event(what, first=value["first"], last=value["last"]))
        core.feeds.put_again(stream)
    answered(value)


def delete_stream(core: Core, answered: Answered, failed: Failed, stream: str, dry_run: bool) -> None:
    """Remove a stream that nobody reads, with its history and its cursors."""
    found = _stream(core, stream)
    core.feeds.check_stream(stream)
    found.flush()
    if len(found.audience):
        raise InvalidValue(f"the stream {stream!r} has readers: {len(found.audience)} selectors")
    value = {"stream": stream, "first": found.first_kept, "last": found.last, "cursors": len(found.cursors)}
    if not dry_run:
        what = f"stream.deleted.{stream}"
        core.streams.delete(found, lambda: core.turn.event(what, first=value["first"], last=value["last"]))
        core.feeds.forget(stream)
    answered(value)


def set_feed(
    core: Core,
    answered: Answered,
    failed: Failed,
    service: str,
    stream: str,
    dry_run: bool,
    criteria: Sequence[Any] = (("all", ""),),
    where: str = "",
    start: str = "",
) -> None:
    """Feed a service from a stream, or change how; without a `start` it goes on, or begins at the head."""
    _check_feed(core, service, stream, criteria, where)
    begin = _one_position(start, "a feed begins at") if start else None
    value = {"service": service, "stream": stream}
    if dry_run:
        answered({**value, "created": (service, stream) not in core.feeds.values})
        return
    queue = core.services.get(service)
    made = stream not in core.streams.by_name
    try:
        found = core.streams.get(stream)
    except MalamuteError:
        queue.drop_unused(core.services.by_name)
        raise
    found.flush()

    def told(sequence: int, *, created: bool) -> None:
        answered({**value, "created": created, "sequence": sequence})
        core.turn.when_stored(undone)

    def undone(error: MalamuteError | None) -> None:
        # This change is still under way.
        if error is not None and made and core.feeds.changes(stream) <= 1:
            core.streams.drop_untouched(found)

    def located(position: Position | None) -> None:
        try:
            core.feeds.check(service, stream)
            if core.streams.by_name.get(stream) is not found:
                raise _removed(stream)
            core.feeds.set(service, found, criteria, where, position, told)
        except MalamuteError as error:
            failed(error)

    if begin:
        locate(found, begin, Group(0, EVERYTHING), located)
    else:
        located(None)


def _check_feed(core: Core, service: str, stream: str, criteria: Sequence[Any], where: str) -> None:
    core.feeds.check(service, stream)
    core.selectors.check(Selector.parse(criteria, where))
    if not core.settings.streams(stream).journal:
        raise InvalidValue(f"the stream {stream!r} has no journal to feed a service from")


def delete_feed(
    core: Core, answered: Answered, failed: Failed, service: str, stream: str, dry_run: bool
) -> None:
    """Feed a service from a stream no longer; the requests that came of it stay."""

    def told(sequence: int, *, created: bool = False) -> None:
        answered({"service": service, "stream": stream, "sequence": sequence})

    if not dry_run:
        core.feeds.delete(service, stream, told, failed)
    elif (service, stream) not in core.feeds.values:
        raise no_feed(service, stream)
    else:
        told(core.feeds.position(service, stream))


def redrive(
    core: Core, answered: Answered, failed: Failed, kind: str, name: str, dry_run: bool, **chosen: Any
) -> None:
    """Send dead letters again, as new messages: those that are named or found, or all."""
    queue = queue_of(core, kind, name)

    def value(count: int, total: int) -> dict[str, Any]:
        partial = {} if count == total else {"partial": True}
        return {"kind": kind, "name": name, "messages": count, **partial}

    def found(sequences: list[int]) -> None:
        total = len(sequences)

        def told(count: int, before: int = 0, *, final: bool = True) -> None:
            answered(value(count, total), final=final, otherwise=value(before, total) if before else None)

        if dry_run:
            told(total)
            return
        try:
            queue.dead_letters.redrive(sequences, told, failed)
        except MalamuteError as error:
            failed(error)

    choose(queue, found, dead=True, **chosen)


def purge(
    core: Core,
    answered: Answered,
    failed: Failed,
    kind: str,
    name: str,
    dry_run: bool,
    dead: bool = False,
    **chosen: Any,
) -> None:
    """Drop messages of a queue, or dead letters: those that are named or found, or all."""
    queue = queue_of(core, kind, name)

    def value(count: int, *, partial: bool = False) -> dict[str, Any]:
        return {"kind": kind, "name": name, "messages": count, **({"partial": True} if partial else {})}

    def told(count: int, before: int = 0, *, final: bool = True, partial: bool = False) -> None:
        otherwise = value(before, partial=True) if before else None
        answered(value(count, partial=partial or not final), final=final, otherwise=otherwise)

    def found(sequences: list[int]) -> None:
        if dry_run:
            told(len(sequences))
        elif dead:
            told(queue.dead_letters.purge(sequences))
        else:
            queue.purge(sequences, told, failed)

    choose(queue, found, dead=dead, **chosen)


def disconnect(
    core: Core,
    answered: Answered,
    failed: Failed,
    id: str,  # noqa: A002  # its name on the wire
    dry_run: bool,
) -> None:
    """End a session; what it holds goes back to the queues, and its client does not come back by itself."""
    session = session_of(core, id)
    value = {
        "id": session.ident,
        "address": session.address,
        "connected": session.open,
        "holding": session.holding,
    }
    if not dry_run:
        core.sessions.dismiss(session, Disconnected("an operator has ended this session"), "operator")
    # It has ended, whether the disk takes that or not.
    answered(value, otherwise=value)


def back_up(core: Core, answered: Answered, failed: Failed, directory: str, dry_run: bool) -> None:
    """Copy the store into a new directory below that of the backups, while the broker runs."""
    below = core.settings.backups
    if not below:
        raise InvalidValue("this broker keeps nothing on a disk that could be copied")
    place = normpath(join(below, directory))
    if not place.startswith(below.rstrip("/") + "/"):
        raise AccessRefused(f"a backup goes below {below} (the option storage.backups), not to {place}")

    def copied(result: dict[str, Any]) -> None:
        value = {"directory": place, **result}
        # It is there, whether the disk takes the answer or not.
        answered(value, otherwise=value)

    if dry_run:
        answered({"directory": place})
    else:
        core.turn.ask(Backup(place, below), copied)


def _one_position(start: str, what: str) -> Start:
    found = Start.parse(start)
    if found.kind == LAST_PER_SUBJECT:
        raise InvalidValue(f"{what} one position: last-per-subject is many")
    return found


def _removed(stream: str) -> TryLater:
    return TryLater(f"the stream {stream!r} was removed meanwhile")


def _stream(core: Core, name: str) -> Stream:
    stream = core.streams.by_name.get(name)
    if stream is None:
        raise NotFound(f"there is no stream {name!r}")
    return stream


def _takes(required: Mapping[str, Rule], optional: Mapping[str, Rule] = {}) -> Arguments:
    return Arguments(required, {**optional, "dry_run": BOOLEAN})


_RETENTION = {"bytes": NUMBER, "count": NUMBER, "age": SECONDS}

TOPICS: dict[str, tuple[Callable[..., None], Arguments]] = {
    "cursor.set": (set_cursor, _takes({"stream": NAME, "cursor": NAME, "start": WORDS})),
    "cursor.delete": (delete_cursor, _takes({"stream": NAME, "cursor": NAME})),
    "stream.create": (create_stream, _takes({"stream": NAME}, _RETENTION)),
    "stream.retain": (set_retention, _takes({"stream": NAME}, _RETENTION)),
    "stream.purge": (purge_stream, _takes({"stream": NAME})),
    "stream.delete": (delete_stream, _takes({"stream": NAME})),
    "feed.set": (
        set_feed,
        _takes({"service": NAME, "stream": NAME}, {"criteria": CRITERIA, "where": TEXT, "start": WORDS}),
    ),
    "feed.delete": (delete_feed, _takes({"service": NAME, "stream": NAME})),
    "queue.redrive": (
        redrive,
        _takes({"kind": KIND, "name": NAME}, {"sequences": SEQUENCES, "where": TEXT, "limit": SEQUENCE}),
    ),
    "queue.purge": (
        purge,
        _takes(
            {"kind": KIND, "name": NAME},
            {"dead": BOOLEAN, "sequences": SEQUENCES, "where": TEXT, "state": STATE, "limit": SEQUENCE},
        ),
    ),
    "client.disconnect": (disconnect, _takes({"id": NAME})),
    "journal.backup": (back_up, _takes({"directory": PATH})),
}
"""Each change, with the arguments that it takes."""
