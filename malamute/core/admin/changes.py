"""What an operator may change while the broker runs: the topics of CHANGE.

A change is a value of `protocol.admin`, and so is what it is answered: what it did, when that is stored. With
`dry_run` that is what it would do, and nothing is done.

What a change stores goes into the iteration in which it calls `answered`, so that its outcome is stored with
it, and its record in the audit. One that takes several commits reports at each of them what it has come to,
with `final=False`, and what it has come to `otherwise`, should this one fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from posixpath import join, normpath
from typing import TYPE_CHECKING, Any

from malamute.core.admin.answered import Answered, Failed
from malamute.core.admin.clients import session_of
from malamute.core.admin.deletion import delete_stream
from malamute.core.admin.feeds import delete_feed, disable_feed, enable_feed, set_feed
from malamute.core.admin.groups import add_group, remove_group, set_group
from malamute.core.admin.queue_deletion import delete_queue
from malamute.core.admin.queues import queue_of
from malamute.core.admin.streams import stream_of
from malamute.core.admin.users import add_user, remove_user, set_user
from malamute.core.iteration.effects import LoadConfiguration
from malamute.core.queue import purge as purging
from malamute.core.queue import redrive as redriving
from malamute.core.queue.browse import choose
from malamute.core.queue.mailbox import EVERYTHING
from malamute.core.reports.audit import DONE, FAILED, PARTIAL, REFUSED, who
from malamute.core.stream.deletion import purge as purge_history
from malamute.core.stream.start import locate, one_position, removed
from malamute.core.stream.subscription import Position
from malamute.errors import (
    AccessRefused,
    Disconnected,
    InUse,
    InvalidValue,
    MalamuteError,
    NotAsExpected,
    NotFound,
    QuotaExceeded,
    TooLarge,
    TooMany,
)
from malamute.matching import Group
from malamute.protocol.admin import (
    CHANGES,
    BackupMade,
    BrokerReload,
    BrokerReloaded,
    ClientDisconnect,
    ClientDisconnected,
    CursorChanged,
    CursorDelete,
    CursorDeleted,
    CursorSet,
    JournalBackup,
    QueueChanged,
    QueuePurge,
    QueueRedrive,
    Row,
    StreamCreate,
    StreamKept,
    StreamPurge,
    StreamPurged,
    StreamRetain,
    encode,
)
from malamute.protocol.messages import Change
from malamute.protocol.names import Place
from malamute.store.operations import Backup, Reserve
from malamute.store.policies import StreamRetention

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.iteration.settings import ConfigurationLoaded
    from malamute.core.session.session import Session
    from malamute.core.stream.stream import Stream


CHANGE_WORK = 500
"""Work that a change takes, with its record, its outcome and what it stores, about in microseconds."""


def change(core: Engines, session: Session, message: Change) -> None:
    """Make a change, unless it was made before. A refused one changes nothing.

    Raises:
        InvalidValue: the topic or an argument is not what it may be, or `InvalidName`.
        MalamuteError: what stands against the change.

    """
    confirmations, number = core.sessions.confirmations, message.number
    if number and not confirmations.admit_change(session, number):
        return
    if message.topic not in CHANGES:
        raise InvalidValue(f"unknown change {message.topic!r}: expected one of {', '.join(CHANGES)}")
    wanted = CHANGES[message.topic].parse(message.arguments)

    if number:
        confirmations.begin_change(session, number)

    _Making(core, session, message, wanted).make()
    core.effects.work -= CHANGE_WORK


class _Making:
    """A change that is being made, with its record in the audit."""

    def __init__(self, core: Engines, session: Session, message: Change, wanted: Any) -> None:
        self._core = core
        self._session = session
        self._message = message
        self._wanted = wanted
        self.record = partial(core.audit.record, who(session), message.topic, message.arguments)

    def make(self) -> None:
        """Make it. Raises what stands against it."""
        with self._core.effects.failing(self._failed):
            make = MAKING[self._message.topic]
            make(self._core, self._session, self._wanted, self._answered, self._failed)

    def _answered(
        self, value: Row, *, final: bool = True, otherwise: Row | None = None, before: Any = None
    ) -> None:
        outcome, after = DONE if final else PARTIAL, None if before is value else value
        self.record(outcome, before=before, after=after, bound=True)
        if final:
            self._core.effects.stage.when_stored(partial(self._stored, otherwise), awaited=False)
        self._core.sessions.confirmations.decide_change(
            self._session,
            self._message.number,
            encode(value),
            final=final,
            otherwise=encode(otherwise),
        )

    def _stored(self, otherwise: Row | None, error: MalamuteError | None) -> None:
        if error is not None and otherwise is None:
            self.record(FAILED, error=error)
        elif error is not None:
            self.record(DONE, after=otherwise)

    def _failed(self, error: MalamuteError) -> None:
        self.record(REFUSED, error=error)
        self._core.sessions.confirmations.fail_change(self._session, self._message.number, error)


def set_cursor(
    core: Engines, session: Session, wanted: CursorSet, answered: Answered, failed: Failed
) -> None:
    """Set a cursor so that its reader, who may be named as its `owner`, goes on at `start`."""
    name, cursor, user = wanted.stream, wanted.cursor, session.may.principal.user
    stream = stream_of(core, name)
    for owner in (stream.cursors.owners.get(cursor, ""), wanted.owner or ""):
        session.may.require_cursor("admin", name, cursor, owner)
    stream.cursors.check(cursor, wanted.owner or user)
    where = one_position(wanted.start, "a cursor", core.streams.broker)
    stream.flush()

    def located(position: Position) -> None:
        if core.streams.by_name.get(name) is not stream:
            failed(removed(name))
            return
        try:
            # Others may have come meanwhile.
            stream.cursors.check(cursor, wanted.owner or user)
        except (TooMany, QuotaExceeded) as error:
            failed(error)
            return
        before, sequence = stream.cursors.get(cursor), position.first - 1
        if not wanted.dry_run:
            if wanted.owner:
                stream.cursors.give(cursor, wanted.owner)
            stream.cursors.commit(cursor, sequence, user)
        value = CursorChanged(stream=name, cursor=cursor, before=before, sequence=sequence)
        answered(value, before={"sequence": before})

    locate(stream, where, Group(0, EVERYTHING), located)


def delete_cursor(
    core: Engines, session: Session, wanted: CursorDelete, answered: Answered, failed: Failed
) -> None:
    """Forget a cursor.

    Raises:
        NotFound: there is no such stream or cursor.
    """
    stream, cursor = stream_of(core, wanted.stream), wanted.cursor
    if cursor not in stream.cursors and cursor not in stream.cursors.lost:
        raise NotFound(f"there is no cursor {cursor!r} in the stream {wanted.stream!r}")
    session.may.require_cursor("admin", stream.name, cursor, stream.cursors.owners.get(cursor, ""))
    before = stream.cursors.get(cursor)
    if not wanted.dry_run:
        stream.cursors.delete(cursor)
    value = CursorDeleted(stream=wanted.stream, cursor=cursor, before=before)
    answered(value, before=value)


def create_stream(
    core: Engines, session: Session, wanted: StreamCreate, answered: Answered, failed: Failed
) -> None:
    """Make a stream, and set how much of it is kept if any limit is given; 0 is no limit.

    Raises:
        InUse: the stream is in use.
    """
    name = wanted.stream
    kept = _retention(wanted)
    limited = (wanted.bytes, wanted.count, wanted.age) != (None, None, None)
    found = core.streams.by_name.get(name)
    if found is not None:
        found.flush()
        if not found.unused:
            raise InUse(
                f"stream {name!r} is in use: expected one without messages, readers, cursors and feeds"
            )
    if not wanted.dry_run:
        made = _made(core, name, session)
        made.store_maker()
        core.effects.stage.store(Reserve(name, made.progress.reserved))
        if limited:
            made.retain(kept)
    answered(_kept(name, kept) if limited else StreamKept(stream=name))


def set_retention(
    core: Engines, session: Session, wanted: StreamRetain, answered: Answered, failed: Failed
) -> None:
    """Set how much of a stream is kept, making the stream if needed; 0 is no limit.

    Raises:
        NotAsExpected: another one has changed it meanwhile.
    """
    before = core.streams.retention(wanted.stream)
    expected = (wanted.expect_bytes, wanted.expect_count, wanted.expect_age)
    if any(one is not None and one != own for one, own in zip(expected, before, strict=True)):
        raise NotAsExpected(f"retention of {wanted.stream!r} was changed: it is {_in_words(before)} now")
    given = (wanted.bytes, wanted.count, wanted.age)
    kept = StreamRetention.of([own if one is None else one for one, own in zip(given, before, strict=True)])
    if not wanted.dry_run:
        _made(core, wanted.stream, session).retain(kept)
    answered(_kept(wanted.stream, kept), before=_kept(wanted.stream, before))


def _in_words(kept: StreamRetention) -> str:
    return f"bytes {kept.bytes_max}, count {kept.messages_max}, age {kept.age_seconds:g} s"


def _retention(wanted: StreamCreate) -> StreamRetention:
    return StreamRetention(wanted.bytes or 0, wanted.count or 0, float(wanted.age or 0))


def _kept(stream: str, kept: StreamRetention) -> StreamKept:
    return StreamKept(stream=stream, bytes=kept.bytes_max, count=kept.messages_max, age=kept.age_seconds)


def _made(core: Engines, stream: str, session: Session) -> Stream:
    """A stream, made if needed; it is there if this iteration is stored, and goes again if not."""
    made = stream not in core.streams.by_name
    found = core.streams.get(stream, session.may.principal.user)

    def stored(error: MalamuteError | None) -> None:
        if error is None:
            if stream not in core.streams.by_name:
                core.streams.add(found)
            core.streams.by_name[stream].lasting = True
        elif made and not core.feeds.changes(Place("stream", stream)):
            core.streams.drop_untouched(found)

    core.effects.stage.when_stored(stored)
    return found


def purge_stream(
    core: Engines, session: Session, wanted: StreamPurge, answered: Answered, failed: Failed
) -> None:
    """Drop the history of a stream. Its readers, its cursors, its retention and its sequences go on."""
    name = wanted.stream
    stream = stream_of(core, name)
    core.feeds.check_stream(name)
    stream.flush()
    purged = StreamPurged(stream=name, first=stream.progress.first_kept, last=stream.progress.last)
    if not wanted.dry_run:
        what = f"stream.purged.{name}"
        purge_history(
            core.streams, stream, lambda: core.effects.event(what, first=purged.first, last=purged.last)
        )
        core.feeds.put_again(name)
    answered(purged, before=purged)


def redrive(
    core: Engines, session: Session, wanted: QueueRedrive, answered: Answered, failed: Failed
) -> None:
    """Send dead letters again, as new messages: those that are named or found, or all.

    Raises:
        InvalidValue: there is a body, and not one sequence.
        TooLarge: that body is larger than a message may be.

    """
    queue = queue_of(core, wanted.kind, wanted.name)
    body = wanted.body
    if body is not None and len(wanted.sequences or ()) != 1:
        raise InvalidValue("a body is that of one dead letter: expected one sequence")
    if body is not None and len(body) > core.settings.limits.message_bytes:
        raise TooLarge(
            f"body of {len(body)} bytes is too large: expected at most {core.settings.limits.message_bytes}"
        )
    there = {"messages": queue.dead_letters.count}

    def found(sequences: list[int]) -> None:
        total = len(sequences)

        def value(count: int) -> QueueChanged:
            return _queue_changed(wanted, count, partial=count != total)

        def report(count: int, before: int = 0, *, final: bool = True) -> None:
            otherwise = value(before) if before else None
            answered(value(count), final=final, otherwise=otherwise, before=there)

        if wanted.dry_run:
            report(total)
            return
        try:
            redriving.redrive(queue, sequences, report, failed, body)
        except MalamuteError as error:
            failed(error)

    choose(queue, found, dead=True, sequences=wanted.sequences, where=wanted.where, limit=wanted.limit)


def purge(core: Engines, session: Session, wanted: QueuePurge, answered: Answered, failed: Failed) -> None:
    """Drop messages of a queue, or dead letters: those that are named or found, or all."""
    queue = queue_of(core, wanted.kind, wanted.name)
    there = {"messages": queue.dead_letters.count if wanted.dead else len(queue.entries)}

    def report(count: int, before: int = 0, *, final: bool = True, partial: bool = False) -> None:
        otherwise = _queue_changed(wanted, before, partial=True) if before else None
        value = _queue_changed(wanted, count, partial=partial or not final)
        answered(value, final=final, otherwise=otherwise, before=there)

    def found(sequences: list[int]) -> None:
        if wanted.dry_run:
            report(len(sequences))
        elif wanted.dead:
            report(queue.dead_letters.purge(sequences))
        else:
            purging.purge(queue, sequences, report, failed)

    choose(
        queue,
        found,
        dead=wanted.dead,
        sequences=wanted.sequences,
        where=wanted.where,
        state=wanted.state,
        limit=wanted.limit,
    )


def _queue_changed(wanted: QueueRedrive | QueuePurge, messages: int, *, partial: bool) -> QueueChanged:
    return QueueChanged(kind=wanted.kind, name=wanted.name, messages=messages, partial=partial)


def disconnect(
    core: Engines, session: Session, wanted: ClientDisconnect, answered: Answered, failed: Failed
) -> None:
    """End a session; what it holds goes back to the queues, and its client does not come back by itself."""
    session = session_of(core, wanted.id)
    value = ClientDisconnected(
        id=session.ident, address=session.address, connected=session.open, holding=session.holding
    )
    if not wanted.dry_run:
        core.sessions.dismiss(session, Disconnected("session ended by an operator"), "operator")
    # It has ended, whether the disk takes that or not.
    answered(value, otherwise=value, before=value)


def back_up(
    core: Engines, session: Session, wanted: JournalBackup, answered: Answered, failed: Failed
) -> None:
    """Copy the store into a new directory below that of the backups, while the broker runs.

    Raises:
        AccessRefused: the directory is not below that of the backups.
        InvalidValue: this broker has no store.
    """
    below = core.settings.backups
    if not below:
        raise InvalidValue("no store to back up: this broker keeps everything in memory")
    place = normpath(join(below, wanted.directory))
    if not place.startswith(below.rstrip("/") + "/"):
        raise AccessRefused(
            f"backup directory {place} is not allowed: expected one below {below} (storage.backups)"
        )
    if wanted.dry_run:
        answered(BackupMade(directory=place))
    else:
        # It is there, whether the disk takes the answer or not.
        core.effects.ask(Backup(place, below), lambda made: answered(made, otherwise=made), failed)


def reload(core: Engines, session: Session, wanted: BrokerReload, answered: Answered, failed: Failed) -> None:
    """Read the configuration again, and go by it if it is good as a whole."""
    principal = session.may.principal

    def loaded(result: ConfigurationLoaded) -> None:
        settings = result.settings
        loses = not core.access.would_allow(principal, Change(0, wanted.topic, {}), settings)
        value = reloaded(result, loses_right=loses)
        # It is in force, whether the disk takes the answer or not.
        answered(value, otherwise=value)

    core.effects.ask(LoadConfiguration(wanted.dry_run), loaded)


def reloaded(result: ConfigurationLoaded, *, loses_right: bool = False) -> BrokerReloaded:
    """What a reload did, as it is answered."""
    return BrokerReloaded(
        changed=[*result.changed], waiting_for_restart=[*result.waiting], loses_right=loses_right
    )


MAKING: dict[str, Callable[[Engines, Session, Any, Answered, Failed], None]] = {
    "cursor.set": set_cursor,
    "cursor.delete": delete_cursor,
    "stream.create": create_stream,
    "stream.retain": set_retention,
    "stream.purge": purge_stream,
    "stream.delete": delete_stream,
    "feed.set": set_feed,
    "feed.enable": enable_feed,
    "feed.disable": disable_feed,
    "feed.delete": delete_feed,
    "queue.redrive": redrive,
    "queue.purge": purge,
    "queue.delete": delete_queue,
    "broker.reload": reload,
    "client.disconnect": disconnect,
    "journal.backup": back_up,
    "group.add": add_group,
    "group.set": set_group,
    "group.remove": remove_group,
    "user.add": add_user,
    "user.set": set_user,
    "user.remove": remove_user,
}
"""What makes each change."""
