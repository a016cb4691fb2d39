"""From a command into a queue: all of its messages are enqueued, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from malamute.core.queue.entry import Entry
from malamute.core.queue.options import Options
from malamute.core.queue.sent_by import check_entries
from malamute.errors import InvalidValue, MalamuteError, NoWorkers
from malamute.protocol.messages import Request, Send

if TYPE_CHECKING:
    from malamute.core.identity.quotas import QuotaUsages
    from malamute.core.queue.queue import Queue

_NONE: Sequence[None] = ()


def enqueue(
    queue: Queue, address: str, sender: str, command: Send | Request, quotas: QuotaUsages = ()
) -> None:
    """Put the messages of a command into a queue. Outcomes go to the `address`; none are sent without one.

    The messages count for these quotas until they leave.

    Raises `InvalidValue`, `NoWorkers`, `TrackerInUse`, `TryLater` or `QuotaExceeded`; then nothing was
    changed.
    """
    records = command.records
    time_ns, ahead_ns = queue.effects.time_ns, queue.effects.ahead_ns
    columns: Sequence[Mapping[str, Any] | None] = command.properties or [None] * len(records)
    options = [
        # Common options need no closer look.
        None
        if not properties or (len(properties) == 1 and type(properties.get("correlation")) is int)
        else Options.parse(properties, time_ns, ahead_ns)
        for properties in command.properties or _NONE
    ]
    if not any(options):
        numbers = range(queue.next_sequence, queue.next_sequence + len(records))
        rows = zip(numbers, repeat(time_ns), repeat(sender), command.subjects, records, columns)
        _put(queue, [*map(Entry, rows)], command, quotas)
        return
    places = _wanted(queue, command, options, sender)
    entries = [
        Entry((number, time_ns, sender, command.subjects[place], records[place], columns[place]))
        for number, place in enumerate(places, queue.next_sequence)
    ]
    chosen = {
        entry.sequence: asked
        for entry, place in zip(entries, places, strict=True)
        if (asked := options[place]) is not None
    }
    tracked = [entry for entry in entries if entry.sequence in chosen and chosen[entry.sequence].tracker]
    if tracked and queue.usage.in_memory:
        raise InvalidValue(
            f"invalid option 'tracker': the {queue.kind} {queue.name!r} is in memory only, and has no "
            "outcome if the broker ends: expected a durable one"
        )
    if tracked:
        queue.limits.trackers.check(address, queue.usage, tracked, entries)
    if entries:
        _put(queue, entries, command, quotas, chosen)


def _put(
    queue: Queue,
    entries: Sequence[Entry],
    command: Send | Request,
    quotas: QuotaUsages,
    chosen: Mapping[int, Options] | None = None,
) -> None:
    confirmed = command.number > 0 and not queue.usage.in_memory
    plain = not (command.number or chosen)
    if not quotas:
        queue.put(entries, confirmed=confirmed, options=chosen, plain=plain)
        return
    check_entries(quotas, queue.kind, entries)
    # A feed may move some of them at once, or they are over already.
    queue.sent_by.add(entries, quotas)
    try:
        queue.put(entries, confirmed=confirmed, options=chosen, plain=plain)
    except MalamuteError:
        queue.sent_by.remove(entries)
        raise


def _wanted(
    queue: Queue, command: Send | Request, options: Sequence[Options | None], sender: str
) -> list[int]:
    """The places of the messages that are new to the queue. Raises `NoWorkers` or `TryLater`."""
    subjects, has_consumer = command.subjects, queue.dispatcher.has_consumer
    places = []
    seen: set[str] = set()
    for place, asked in enumerate(options):
        if asked is not None and asked.immediate and not has_consumer(subjects[place], sender):
            raise NoWorkers(f"no consumer takes {subjects[place]!r} from the {queue.kind} {queue.name!r} now")
        identity = asked.identity if asked is not None else ""
        if identity and queue.usage.policy.dedup_window_seconds:
            if identity in seen:
                continue
            if queue.dedup.seen(identity):
                if command.number:
                    queue.dedup.confirm(identity, queue.not_durable)
                continue
            seen.add(identity)
        places.append(place)
    return places
