"""The changes of operators while the broker runs: the topics of CHANGE.

A change is a value of `protocol.admin`, and so is its answer: the outcome, once it is stored. With `dry_run`
the answer is the expected outcome, and nothing is done.

A change stores its operations in the iteration in which it calls `ChangeOutcome.answered`, with its outcome
and its record in the audit. A change of several commits reports at each of them its outcome so far, with
`final=False`, and the outcome `otherwise`, should this one fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from posixpath import join, normpath
from typing import TYPE_CHECKING, Any

from malamute.core.admin.clients import session_of
from malamute.core.admin.deletion import delete_stream
from malamute.core.admin.feeds import delete_feed, disable_feed, enable_feed, set_feed
from malamute.core.admin.groups import add_group, remove_group, set_group
from malamute.core.admin.links import (
    advance_link,
    pause_link,
    remove_link,
    resume_link,
    set_link,
    stop_link,
)
from malamute.core.admin.outcome import ChangeOutcome
from malamute.core.admin.queue_deletion import delete_queue
from malamute.core.admin.queue_settings import set_queue
from malamute.core.admin.queues import queue_of
from malamute.core.admin.streams import stream_of
from malamute.core.admin.users import add_user, remove_user, set_user
from malamute.core.iteration.effects import LoadConfiguration
from malamute.core.queue import purge as purging
from malamute.core.queue import redrive as redriving
from malamute.core.queue.browse import choose
from malamute.core.queue.mailbox import EVERYTHING
from malamute.core.reports.audit import who
from malamute.core.stream.deletion import purge as purge_history
from malamute.core.stream.message_deletion import DeletedRange, Doomed
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
    StreamCreate,
    StreamDeleteMessages,
    StreamKept,
    StreamMessagesDeleted,
    StreamPurge,
    StreamPurged,
    StreamRetain,
)
from malamute.protocol.messages import Change
from malamute.protocol.names import Place
from malamute.store.operations import Backup, Reserve
from malamute.store.policies import StreamRetention

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.feed.table import Feeds
    from malamute.core.identity.access import AccessControl
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.settings import ConfigurationInForce, ConfigurationLoaded
    from malamute.core.queue.table import QueueTables
    from malamute.core.session.session import Session
    from malamute.core.session.sessions import Sessions
    from malamute.core.stream.message_deletion import MessageDeletions
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams


CHANGE_WORK = 500
"""The work of a change, with its record, its outcome and its operations, in about microseconds."""


class Changes:
    """The changes of all clients: each topic, and its function."""

    def __init__(self, core: Engines) -> None:
        self._effects = core.effects
        self._confirmations = core.sessions.confirmations
        self._audit = core.audit
        self.makers = makers(core)

    def make(self, session: Session, message: Change) -> None:
        """Make a change, unless it was made before. A refused one changes nothing.

        Raises:
            InvalidValue: the topic or an argument is invalid, or `InvalidName`.
            MalamuteError: the reason against the change.
        """
        number = message.number
        if number and not self._confirmations.admit_change(session, number):
            return
        if message.topic not in CHANGES:
            raise InvalidValue(f"unknown change {message.topic!r}: expected one of {', '.join(CHANGES)}")
        wanted = CHANGES[message.topic].parse(message.arguments)

        if number:
            self._confirmations.begin_change(session, number)

        record = partial(self._audit.record, who(session), message.topic, message.arguments)
        outcome = ChangeOutcome(self._effects.stage, self._confirmations, session, number, record)
        with self._effects.failing(outcome.failed):
            self.makers[message.topic](wanted, outcome)
        self._effects.work -= CHANGE_WORK


def set_cursor(streams: Streams, wanted: CursorSet, outcome: ChangeOutcome) -> None:
    """Set a cursor so that its reader, who may be named as its `owner`, goes on at `start`."""
    name, cursor, user = wanted.stream, wanted.cursor, outcome.session.may.principal.user
    stream = stream_of(streams, name)
    for owner in (stream.cursors.owners.get(cursor, ""), wanted.owner or ""):
        outcome.session.may.require_cursor("admin", name, cursor, owner)
    stream.cursors.check(cursor, wanted.owner or user)
    where = one_position(wanted.start, "a cursor", streams.broker)
    stream.flush()

    def located(position: Position) -> None:
        if streams.by_name.get(name) is not stream:
            outcome.failed(removed(name))
            return
        try:
            # Others may have come meanwhile.
            stream.cursors.check(cursor, wanted.owner or user)
        except (TooMany, QuotaExceeded) as error:
            outcome.failed(error)
            return
        before, sequence = stream.cursors.get(cursor), position.first - 1
        if not wanted.dry_run:
            if wanted.owner:
                stream.cursors.give(cursor, wanted.owner)
            stream.cursors.commit(cursor, sequence, user)
        value = CursorChanged(stream=name, cursor=cursor, before=before, sequence=sequence)
        outcome.answered(value, before={"sequence": before})

    locate(stream, where, Group(0, EVERYTHING), located)


def delete_cursor(streams: Streams, wanted: CursorDelete, outcome: ChangeOutcome) -> None:
    """Forget a cursor.

    Raises:
        NotFound: there is no such stream or cursor.
    """
    stream, cursor = stream_of(streams, wanted.stream), wanted.cursor
    if cursor not in stream.cursors and cursor not in stream.cursors.lost:
        raise NotFound(f"there is no cursor {cursor!r} in the stream {wanted.stream!r}")
    outcome.session.may.require_cursor("admin", stream.name, cursor, stream.cursors.owners.get(cursor, ""))
    before = stream.cursors.get(cursor)
    if not wanted.dry_run:
        stream.cursors.delete(cursor)
    value = CursorDeleted(stream=wanted.stream, cursor=cursor, before=before)
    outcome.answered(value, before=value)


def create_stream(
    effects: Effects, streams: Streams, feeds: Feeds, wanted: StreamCreate, outcome: ChangeOutcome
) -> None:
    """Make a stream, and set how much of it is kept if any limit is given; 0 is no limit.

    Raises:
        AccessRefused: the right to create it is none to set its retention, or to take one that exists.
        InUse: the stream is in use, or exists with a journal and is to be without one.
    """
    name = wanted.stream
    kept = _retention(wanted)
    limited = (wanted.bytes, wanted.count, wanted.age) != (None, None, None)
    found = streams.by_name.get(name)
    if limited or found is not None:
        outcome.session.may.require("admin", "stream", name)
    if found is not None:
        found.flush()
        if not found.unused:
            raise InUse(
                f"stream {name!r} is in use: expected one without messages, readers, cursors and feeds"
            )
        if found.journaled and not wanted.journal:
            raise InUse(f"stream {name!r} exists with a journal: delete it, and create it without one")
    if not wanted.dry_run:
        made = _made(effects, streams, feeds, name, outcome.session, journal=wanted.journal)
        made.store_maker()
        if not wanted.journal:
            made.store_without_journal()
        effects.stage.store(Reserve(name, made.progress.reserved))
        if limited:
            made.retain(kept)
    outcome.answered(_kept(name, kept) if limited else StreamKept(stream=name))


def set_retention(
    effects: Effects, streams: Streams, feeds: Feeds, wanted: StreamRetain, outcome: ChangeOutcome
) -> None:
    """Set how much of a stream is kept, making the stream if needed; 0 is no limit.

    Raises:
        NotAsExpected: another one has changed it meanwhile.
    """
    before = streams.retention(wanted.stream)
    expected = (wanted.expect_bytes, wanted.expect_count, wanted.expect_age)
    if any(one is not None and one != own for one, own in zip(expected, before, strict=True)):
        raise NotAsExpected(f"retention of {wanted.stream!r} was changed: it is {_in_words(before)} now")
    given = (wanted.bytes, wanted.count, wanted.age)
    kept = StreamRetention.of([own if one is None else one for one, own in zip(given, before, strict=True)])
    if not wanted.dry_run:
        _made(effects, streams, feeds, wanted.stream, outcome.session).retain(kept)
    outcome.answered(_kept(wanted.stream, kept), before=_kept(wanted.stream, before))


def _in_words(kept: StreamRetention) -> str:
    return f"bytes {kept.bytes_max}, count {kept.messages_max}, age {kept.age_seconds:g} s"


def _retention(wanted: StreamCreate) -> StreamRetention:
    return StreamRetention(wanted.bytes or 0, wanted.count or 0, float(wanted.age or 0))


def _kept(stream: str, kept: StreamRetention) -> StreamKept:
    return StreamKept(stream=stream, bytes=kept.bytes_max, count=kept.messages_max, age=kept.age_seconds)


def _made(
    effects: Effects, streams: Streams, feeds: Feeds, stream: str, session: Session, *, journal: bool = True
) -> Stream:
    """A stream, made if needed; it is there if this iteration is stored, and goes again if not."""
    made = stream not in streams.by_name
    found = streams.get(stream, session.may.principal.user, journal=journal)

    def stored(error: MalamuteError | None) -> None:
        if error is None:
            if stream not in streams.by_name:
                streams.add(found)
            streams.by_name[stream].lasting = True
        elif made and not feeds.changes(Place("stream", stream)):
            streams.drop_untouched(found)

    effects.stage.when_stored(stored)
    return found


def purge_stream(
    effects: Effects, streams: Streams, feeds: Feeds, wanted: StreamPurge, outcome: ChangeOutcome
) -> None:
    """Drop the history of a stream. Its readers, its cursors, its retention and its sequences go on."""
    name = wanted.stream
    stream = stream_of(streams, name)
    feeds.check_stream(name)
    stream.flush()
    purged = StreamPurged(stream=name, first=stream.progress.first_kept, last=stream.progress.last)
    if not wanted.dry_run:
        what = f"stream.purged.{name}"
        purge_history(streams, stream, lambda: effects.event(what, first=purged.first, last=purged.last))
        feeds.put_again(name)
    outcome.answered(purged, before=purged)


def delete_messages(
    streams: Streams, deletions: MessageDeletions, wanted: StreamDeleteMessages, outcome: ChangeOutcome
) -> None:
    """Delete messages of a stream: one, or those with a subject, up to a sequence or both.

    Raises:
        InvalidValue: no messages are named, or they are beyond the head, or the stream has no journal.
        TryLater: too many deletions are under way.
    """
    stream = stream_of(streams, wanted.stream)
    stream.flush()
    doomed = _doomed(stream, wanted)

    def report(deleted: DeletedRange) -> None:
        value = StreamMessagesDeleted(stream=stream.name, **deleted._asdict())
        # The messages are deleted, even if the disk refuses the outcome.
        outcome.answered(value, otherwise=value, before=value)

    begin = deletions.count if wanted.dry_run else deletions.begin
    begin(stream, doomed, report, outcome.failed)


def _doomed(stream: Stream, wanted: StreamDeleteMessages) -> Doomed:
    """Return the messages that a change names."""
    sequence, subject, up_to = wanted.sequence, wanted.subject, wanted.up_to
    if (sequence is None) == (subject is None and up_to is None):
        raise InvalidValue("no messages to delete: expected a sequence, or a subject, up_to or both")
    if subject == "":
        raise InvalidValue("no subject to delete: expected a topic pattern, such as 'sensor.*'")
    if not stream.journaled:
        raise InvalidValue(f"stream {stream.name!r} has no journal: it keeps no messages")
    head = stream.progress.next - 1
    last = sequence or up_to or head
    if last > head:
        raise InvalidValue(f"sequence {last} is beyond the head: expected at most {head}")
    return Doomed(sequence or 1, last, subject or "")


def redrive(
    configuration: ConfigurationInForce, queues: QueueTables, wanted: QueueRedrive, outcome: ChangeOutcome
) -> None:
    """Send dead letters again, as new messages: those that are named or found, or all.

    Raises:
        InvalidValue: there is a body, and not one sequence.
        TooLarge: that body is larger than a message may be.
    """
    queue = queue_of(queues, wanted.kind, wanted.name)
    body = wanted.body
    if body is not None and len(wanted.sequences or ()) != 1:
        raise InvalidValue("a body is that of one dead letter: expected one sequence")
    most = configuration.settings.limits.message_bytes
    if body is not None and len(body) > most:
        raise TooLarge(f"body of {len(body)} bytes is too large: expected at most {most}")
    there = {"messages": queue.dead_letters.count}

    def found(sequences: list[int]) -> None:
        total = len(sequences)

        def value(count: int) -> QueueChanged:
            return _queue_changed(wanted, count, partial=count != total)

        def report(count: int, before: int = 0, *, final: bool = True) -> None:
            otherwise = value(before) if before else None
            outcome.answered(value(count), final=final, otherwise=otherwise, before=there)

        if wanted.dry_run:
            report(total)
            return
        try:
            redriving.redrive(queue, sequences, report, outcome.failed, body)
        except MalamuteError as error:
            outcome.failed(error)

    choose(queue, found, dead=True, sequences=wanted.sequences, where=wanted.where, limit=wanted.limit)


def purge(queues: QueueTables, wanted: QueuePurge, outcome: ChangeOutcome) -> None:
    """Drop messages of a queue, or dead letters: those that are named or found, or all."""
    queue = queue_of(queues, wanted.kind, wanted.name)
    there = {"messages": queue.dead_letters.count if wanted.dead else len(queue.entries)}

    def report(count: int, before: int = 0, *, final: bool = True, partial: bool = False) -> None:
        otherwise = _queue_changed(wanted, before, partial=True) if before else None
        value = _queue_changed(wanted, count, partial=partial or not final)
        outcome.answered(value, final=final, otherwise=otherwise, before=there)

    def found(sequences: list[int]) -> None:
        if wanted.dry_run:
            report(len(sequences))
        elif wanted.dead:
            report(queue.dead_letters.purge(sequences))
        else:
            purging.purge(queue, sequences, report, outcome.failed)

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


def disconnect(sessions: Sessions, wanted: ClientDisconnect, outcome: ChangeOutcome) -> None:
    """End a session; its messages return to the queues, and its client does not reconnect by itself."""
    session = session_of(sessions, wanted.id)
    value = ClientDisconnected(
        id=session.ident,
        address=session.address,
        connected=session.open,
        holding=session.holding,
    )
    if not wanted.dry_run:
        sessions.dismiss(session, Disconnected("session ended by an operator"), "operator")
    # The session has ended, even if the disk refuses the outcome.
    outcome.answered(value, otherwise=value, before=value)


def back_up(
    effects: Effects, configuration: ConfigurationInForce, wanted: JournalBackup, outcome: ChangeOutcome
) -> None:
    """Copy the store into a new directory below that of the backups, while the broker runs.

    Raises:
        AccessRefused: the directory is not below that of the backups.
        InvalidValue: this broker has no store.
    """
    below = configuration.settings.backups
    if not below:
        raise InvalidValue("no store to back up: this broker keeps everything in memory")
    place = normpath(join(below, wanted.directory))
    if not place.startswith(below.rstrip("/") + "/"):
        raise AccessRefused(
            f"backup directory {place} is not allowed: expected one below {below} (storage.backups)"
        )
    if wanted.dry_run:
        outcome.answered(BackupMade(directory=place))
    else:
        # The backup is there, even if the disk refuses the outcome.
        effects.ask(Backup(place, below), lambda made: outcome.answered(made, otherwise=made), outcome.failed)


def reload(effects: Effects, access: AccessControl, wanted: BrokerReload, outcome: ChangeOutcome) -> None:
    """Read the configuration again, and go by it if it is good as a whole."""
    principal = outcome.session.may.principal

    def loaded(result: ConfigurationLoaded) -> None:
        settings = result.settings
        loses = not access.would_allow(principal, Change(0, wanted.topic, {}), settings)
        value = reloaded(result, loses_right=loses)
        # The configuration is in force, even if the disk refuses the outcome.
        outcome.answered(value, otherwise=value)

    effects.ask(LoadConfiguration(wanted.dry_run), loaded)


def reloaded(result: ConfigurationLoaded, *, loses_right: bool = False) -> BrokerReloaded:
    """Return the answer of a reload."""
    return BrokerReloaded(
        changed=[*result.changed], waiting_for_restart=[*result.waiting], loses_right=loses_right
    )


def makers(core: Engines) -> dict[str, Callable[[Any, ChangeOutcome], None]]:
    """Return the function of each change."""
    effects, configuration, access = core.effects, core.configuration, core.access
    streams, feeds = core.streams, core.feeds
    of_queues = effects, core.sessions, core.sources, core.queues, feeds
    of_groups = effects, access, core.groups, core.recovery
    return {
        "cursor.set": partial(set_cursor, streams),
        "cursor.delete": partial(delete_cursor, streams),
        "stream.create": partial(create_stream, effects, streams, feeds),
        "stream.retain": partial(set_retention, effects, streams, feeds),
        "stream.purge": partial(purge_stream, effects, streams, feeds),
        "stream.delete": partial(delete_stream, effects, streams, feeds, core.links),
        "stream.delete-messages": partial(delete_messages, streams, core.deletions),
        "feed.set": partial(set_feed, effects, core.selectors, streams, feeds),
        "feed.enable": partial(enable_feed, feeds),
        "feed.disable": partial(disable_feed, feeds),
        "feed.delete": partial(delete_feed, feeds),
        "link.set": partial(set_link, core.selectors, core.links),
        "link.pause": partial(pause_link, core.links),
        "link.resume": partial(resume_link, core.links),
        "link.advance": partial(advance_link, core.links),
        "link.stop": partial(stop_link, core.links),
        "link.remove": partial(remove_link, core.links),
        "queue.redrive": partial(redrive, configuration, core.queues),
        "queue.purge": partial(purge, core.queues),
        "queue.set": partial(set_queue, core.queues),
        "queue.delete": partial(delete_queue, *of_queues),
        "broker.reload": partial(reload, effects, access),
        "client.disconnect": partial(disconnect, core.sessions),
        "journal.backup": partial(back_up, effects, configuration),
        "group.add": partial(add_group, *of_groups),
        "group.set": partial(set_group, *of_groups),
        "group.remove": partial(remove_group, *of_groups),
        "user.add": partial(add_user, configuration, access, core.accounts),
        "user.set": partial(set_user, configuration, access, core.accounts),
        "user.remove": partial(remove_user, effects, access, core.accounts, core.recovery),
    }
