"""The limits: nothing that the broker keeps is larger than it may be."""

from __future__ import annotations

from sim_client import SERVICES
from sim_machine import KEPT_FOR_PEER, Machine
from sim_options import identity_bytes
from sim_origin import Violation

from malamute.core.broker import Core
from malamute.core.feed.target import QueueTarget
from malamute.core.queue.queue import Queue
from malamute.core.queue.source import QueueSource
from malamute.core.reports.refusal_log import REFUSALS_MAX
from malamute.core.session.answers import ASKED_BYTES
from malamute.core.session.refusals import RUNS_MAX
from malamute.core.stream.cursors import cursor_bytes
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.limits import Limits

COMMAND_BYTES_MAX = 4_000
RECORD_BYTES_MAX = 1_500


def _check_selectors(core: Core) -> None:
    """What selectors take is given back with whoever had them."""
    for session in core.sessions.by_peer.values():
        held = sum(source.cost_bytes for source in session.sources.values())
        if session.selector_bytes != held:
            raise Violation(f"a session counts {session.selector_bytes} bytes of selectors, and has {held}")
    sessions = sum(session.selector_bytes for session in core.sessions.by_peer.values())
    held = sessions + sum(feed.cost_bytes for feed in core.feeds.by_name.values())
    if core.selectors.used_bytes != held:
        raise Violation(f"the broker counts {core.selectors.used_bytes} bytes of selectors, and has {held}")


def _cursors_bytes(core: Core) -> int:
    """What cursors take. Those of feeds are as many as feeds may be, and need no room beside others."""
    names = (name for stream in core.streams.by_name.values() for name in stream.cursors)
    return sum(cursor_bytes(name) for name in names if not name.startswith(FEED_PREFIX))


def _identities_bytes(core: Core) -> int:
    """What the identities of all queues take."""
    queues = [*core.mailboxes.by_name.values(), *core.services.by_name.values()]
    known = sum(identity_bytes(queue.name, i) for queue in queues for i in queue.dedup.known)
    if core.queue_limits.dedup_quota.bytes != known:
        raise Violation("the identities of all queues take other than is counted", bytes=known)
    return known


def _records_bytes(core: Core) -> int:
    """What the records of the audit may take that wait for the disk: of changes, and of some refusals."""
    under_way = sum(len(session.numbers.outcomes.running) for session in core.sessions.by_peer.values())
    return RECORD_BYTES_MAX * (under_way + REFUSALS_MAX) if core.configuration.settings.audit else 0


def check_limits(machine: Machine, limits: Limits) -> None:
    """Nothing that the broker keeps is larger than it may be."""
    core = machine.core
    budget = core.queue_limits
    queues = [*core.mailboxes.by_name.values(), *core.services.by_name.values()]
    # What a failing disk did not remove comes back with a restart, beyond the limits.
    times = 2 if machine.disk.has_failed else 1
    # Feeds are let in when they are asked for, and have theirs when that is stored.
    selectors = [session.selector_bytes for session in core.sessions.by_peer.values()]
    letters_max = machine.settings.queues("mailbox", "").dead_letters_max * times
    messages_max = limits.queue_messages * times
    # When a mailbox is full, what was asked before is still answered.
    answers_max = len(SERVICES) * (messages_max + letters_max)
    # What dies is not refused for want of room: then nothing is taken in until there is some.
    dead = sum(letter.size_bytes for queue in queues for letter in queue.dead_letters.entries.values())
    answers = [_answers(queue) for queue in queues]
    answers_bytes = [sum(sizes) for sizes in answers]
    sizes = {
        "messages in a queue": (
            max((len(q.entries) - len(sizes) for q, sizes in zip(queues, answers, strict=True)), default=0),
            messages_max,
        ),
        "answers in a mailbox": (
            max((len(q.entries) for q in queues), default=0),
            messages_max + answers_max,
        ),
        "dead letters": (
            max((len(q.dead_letters.entries.keys() - q.dead_letters.going) for q in queues), default=0),
            letters_max,
        ),
        "room for outcomes and for what is sent again": (
            sum(q.usage.reserved for q in queues),
            len(core.queue_limits.trackers._open) + sum(len(q.dead_letters.leaving) for q in queues),
        ),
        "bytes in queues": (budget.bytes - dead - sum(answers_bytes), limits.queues_bytes),
        "bytes that wait for the disk": (
            core.effects.stage.backlog_bytes,
            # A feed puts what one read has brought, and then waits for the disk. All that dies may do so at
            # once, as at a start.
            # What changes come to is recorded whatever else waits.
            limits.backlog_bytes
            + COMMAND_BYTES_MAX * (1 + len(core.feeds.by_name))
            + dead
            + _records_bytes(core),
        ),
        "bytes in a queue": (
            max((q.usage.bytes - size for q, size in zip(queues, answers_bytes, strict=True)), default=0),
            limits.queue_bytes * times,
        ),
        "selectors of a session": (max(selectors, default=0), limits.session_selector_bytes),
        "selectors": (sum(selectors), limits.selectors_bytes),
        "cursors": (_cursors_bytes(core), limits.cursors_bytes),
        "identities": (_identities_bytes(core), limits.identities_bytes),
        "caches of subjects": (core.streams.shared.caches.used_bytes, limits.caches_bytes),
        "answers that the store is asked for": (
            max(core.answers._asked.values(), default=0),
            # An answer is let in as long as there is any room.
            limits.answers_bytes - 1 + ASKED_BYTES,
        ),
        "sessions": (len(core.sessions.by_peer), limits.sessions),
        "kept for a peer": (max(map(len, machine.router.blocked.values()), default=0), KEPT_FOR_PEER + 1),
        "outcomes of numbers": (
            max((len(s.numbers.refused) for s in core.sessions.by_peer.values()), default=0),
            RUNS_MAX,
        ),
    }
    _check_selectors(core)
    for what, (size, most) in sizes.items():
        if size > most:
            raise Violation("a limit does not hold", what=what, size=size, most=most)
    users = [
        *(
            source.queue
            for s in core.sessions.by_peer.values()
            for source in s.sources.values()
            if isinstance(source, QueueSource)
        ),
        *(feed.target.queue for feed in core.feeds.by_name.values() if isinstance(feed.target, QueueTarget)),
    ]
    for queue in users:
        if core.queues[queue.kind].by_name.get(queue.name) is not queue:
            raise Violation("somebody uses a queue that is gone", queue=(queue.kind, queue.name))
    for queue in queues:
        if queue.usage.messages != len(queue.entries) + queue.usage.reserved:
            raise Violation("a queue counts other messages than it has", queue=(queue.kind, queue.name))
    if budget.queues != len(queues):
        raise Violation("a limit does not hold", what="the number of queues", size=budget.queues)
    if budget.bytes != sum(queue.usage.bytes for queue in queues) + dead:
        raise Violation("a limit does not hold", what="the sum of all queues", size=budget.bytes)


def _answers(queue: Queue) -> list[int]:
    """The sizes of the final replies, which have room where nothing else has."""
    entries = queue.entries.values()
    return [entry.size_bytes for entry in entries if entry.properties and entry.properties.get("final")]
