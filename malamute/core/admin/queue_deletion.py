"""Deletion of a mailbox or a service, with its dependents.

A deletion takes steps with a commit each, as there may be very many messages: the feeds end, messages and
dead letters are purged, the consumers are notified, and when nothing is left the queue is forgotten. So if
the disk refuses a step, or messages have come meanwhile, the rest is a working queue, and the answer is
`partial`; a repeat continues from there.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from malamute.core.admin.deletion import END_WORK, end_feeds, hanging
from malamute.core.admin.outcome import ChangeOutcome
from malamute.core.admin.queues import queue_of
from malamute.core.iteration.workflow import GO_ON, STORED, Workflow, run_workflow
from malamute.core.queue.queue import Queue
from malamute.core.queue.steps import STEP_MESSAGES
from malamute.errors import InUse, InvalidValue, MalamuteError, NotFound, TryLater
from malamute.protocol.admin import QueueDelete, QueueDeleted
from malamute.protocol.messages import MAILBOX
from malamute.protocol.names import RESERVED_PREFIX, Place

if TYPE_CHECKING:
    from malamute.core.feed.table import Feeds
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.table import QueueTables
    from malamute.core.session.sessions import Sessions
    from malamute.core.sources import Sources


def delete_queue(
    effects: Effects,
    sessions: Sessions,
    sources: Sources,
    queues: QueueTables,
    feeds: Feeds,
    wanted: QueueDelete,
    outcome: ChangeOutcome,
) -> None:
    """Remove a mailbox or a service with all that is in it, and with all that hangs on it to `cascade`."""
    queue = queue_of(queues, wanted.kind, wanted.name)
    _check(feeds, queue)
    gone = _deleted(feeds, queue)
    if not wanted.cascade:
        _check_unused(queue, gone)
    if wanted.dry_run:
        outcome.answered(gone, before=gone)
    else:
        run_workflow(
            effects,
            _deletion(
                effects, sessions, sources, queues, feeds, queue, gone, outcome, cascade=wanted.cascade
            ),
        )


def _deletion(
    effects: Effects,
    sessions: Sessions,
    sources: Sources,
    queues: QueueTables,
    feeds: Feeds,
    queue: Queue,
    gone: QueueDeleted,
    outcome: ChangeOutcome,
    *,
    cascade: bool,
) -> Workflow:
    place = Place(queue.kind, queue.name)
    some = replace(gone, partial=True)
    answer = partial(outcome.answered, before=gone)
    otherwise = yield from end_feeds(feeds, place, some, answer)
    end = queue.next_sequence, queue.dead_letters.next_sequence
    while _purge(queue, *end):
        answer(some, final=False, otherwise=otherwise)
        error = yield STORED
        if error is not None and otherwise is None:
            raise error
        if error is not None:
            break
        otherwise = some
    is_gone = False
    """Whether a temporary mailbox has gone with its last consumer."""
    try:
        _check_empty(queues, feeds, queue)
        if cascade and queue.consumers:
            otherwise = some
            yield from _end_consumers(effects, sessions, sources, queue)
            is_gone = queue.users is not None and queues[queue.kind].by_name.get(queue.name) is not queue
            if not is_gone:
                _check_empty(queues, feeds, queue)
        elif queue.consumers:
            raise TryLater(f"{queue.kind} {queue.name!r} has consumers by now: retry later")
    except MalamuteError:
        if otherwise is None:
            raise
        answer(otherwise, otherwise=otherwise)
        return
    if not is_gone:
        queues[queue.kind].remove(queue)
    queue.limits.forget_settings(queue.kind, queue.name)
    feeds.forget(place)
    effects.event(f"{queue.kind}.deleted.{queue.name}", count=gone.messages)
    # Removals are done even if the disk refuses the rest.
    answer(gone, otherwise=gone)


def _purge(queue: Queue, end: int, dead_end: int) -> int:
    """Drop the first of the messages, and when there are none the dead letters. Returns how many.

    Messages with these sequences, or higher ones, have come since, and stay.
    """
    if queue.entries:
        first = islice(queue.entries, STEP_MESSAGES)
        return queue.settle_early([sequence for sequence in first if sequence < end], "purged")
    here = [entry.sequence for entry in queue.dead_letters.here()]
    return queue.dead_letters.purge([sequence for sequence in here if sequence < dead_end])


def _end_consumers(effects: Effects, sessions: Sessions, sources: Sources, queue: Queue) -> Workflow:
    """End the offers to a queue, so many of them in each iteration, and those that come meanwhile."""
    reason = NotFound(f"{queue.kind} {queue.name!r} was deleted")
    while True:
        if effects.work <= 0:
            yield GO_ON
        offer = next((c for c in queue.consumers.values() if c.source != MAILBOX), None)
        if offer is None:
            return
        effects.work -= END_WORK
        sources.dismiss(sessions.by_peer[offer.session.peer], offer.source, reason)


def _check(feeds: Feeds, queue: Queue) -> None:
    """Raise the reason against the deletion of a queue, with or without its dependents."""
    place = Place(queue.kind, queue.name)
    if queue.name.startswith(RESERVED_PREFIX):
        raise InvalidValue(f"{place} is a client's own: expected another one, as it ends with its session")
    feeds.check_no_target(place)
    if feeds.changes(place):
        raise TryLater(f"a feed from {place} is being changed: retry after its answer")
    owner = next((c.session for c in queue.consumers.values() if c.source == MAILBOX), None)
    if owner is not None:
        raise InUse(f"{place} is in use by its owner: disconnect {owner.ident} before")
    if queue.usage.reserved:
        raise TryLater(f"{place} has {queue.usage.reserved} messages that are still to come: retry later")


def _check_empty(queues: QueueTables, feeds: Feeds, queue: Queue) -> None:
    """The same, and `TryLater` if there is anything in it yet, or again."""
    _check(feeds, queue)
    if queues[queue.kind].by_name.get(queue.name) is not queue:
        raise NotFound(f"there is no {queue.kind} {queue.name!r}")
    if queue.entries or queue.dead_letters.entries or feeds.of(Place(queue.kind, queue.name)):
        raise TryLater(f"{queue.kind} {queue.name!r} has messages or feeds yet: retry later")


def _check_unused(queue: Queue, gone: QueueDeleted) -> None:
    """Raise `InUse` with the dependents of a queue, if any."""
    consumers = [f"{c.session.ident} ({c.source})" for c in queue.consumers.values()]
    if found := hanging({"consumer": consumers, "feed": gone.feeds}):
        raise InUse(f"{queue.kind} {queue.name!r} is in use: {found}; end them, or delete it with cascade")


def _deleted(feeds: Feeds, queue: Queue) -> QueueDeleted:
    return QueueDeleted(
        kind=queue.kind,
        name=queue.name,
        messages=len(queue.entries),
        dead_letters=queue.dead_letters.count,
        consumers=len(queue.consumers),
        feeds=[str(name) for name in feeds.of(Place(queue.kind, queue.name))],
    )
