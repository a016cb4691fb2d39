"""Selectors: the feeds, the offers and the subscriptions of a place, each by its number there."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from malamute.core.admin.pages import LOOKED_AT, PAGE_ROWS, ROW_WORK
from malamute.core.admin.queues import credit_left
from malamute.core.queue.consumer import Consumer
from malamute.core.session.session import Session
from malamute.core.stream.subscription import Subscription
from malamute.errors import NotFound
from malamute.protocol.admin import SelectorQuery, SelectorRow, SelectorsQuery
from malamute.protocol.names import Place

if TYPE_CHECKING:
    from malamute.core.feed.table import Feeds
    from malamute.core.iteration.effects import Effects
    from malamute.core.queue.table import QueueTables
    from malamute.core.selector_numbers import SelectorNumbers
    from malamute.core.stream.table import Streams


def selectors(
    effects: Effects,
    selector_numbers: SelectorNumbers,
    streams: Streams,
    queues: QueueTables,
    feeds: Feeds,
    query: SelectorsQuery,
) -> list[SelectorRow]:
    """The selectors of a place. Raises `NotFound`."""
    found = _numbered(selector_numbers, streams, queues, feeds, query.source)
    limit = min(query.limit or PAGE_ROWS, PAGE_ROWS)
    numbers = [number for number in found if number > query.after][:limit]
    effects.work -= len(found) // LOOKED_AT + ROW_WORK * len(numbers)
    return [_row(query.source, number, found[number]) for number in numbers]


def selector(
    effects: Effects,
    selector_numbers: SelectorNumbers,
    streams: Streams,
    queues: QueueTables,
    feeds: Feeds,
    query: SelectorQuery,
) -> SelectorRow:
    """One selector of a place, by its number there. Raises `NotFound`."""
    found = _numbered(selector_numbers, streams, queues, feeds, query.source)
    effects.work -= len(found) // LOOKED_AT + ROW_WORK
    if query.number not in found:
        raise NotFound(f"there is no selector {query.number} at {query.source}: list those that there are")
    return _row(query.source, query.number, found[query.number])


def _numbered(
    selector_numbers: SelectorNumbers, streams: Streams, queues: QueueTables, feeds: Feeds, source: str
) -> dict[int, Any]:
    place = Place.parse(source)
    here = sorted((name.name, feed) for name, feed in feeds.by_name.items() if name.source == place)
    return selector_numbers.of(place, [*(feed for _, feed in here), *_of_clients(streams, queues, place)])


def _of_clients(streams: Streams, queues: QueueTables, place: Place) -> Iterator[Any]:
    """The subscriptions to a stream, or the consumers of a queue, that clients have, the oldest first."""
    if place.kind == "stream":
        groups = streams.found(place.name).audience.groups()
        readers = (reader for group in groups for reader in group.members.values())
        yield from sorted(
            (reader for reader in readers if isinstance(reader, Subscription)), key=attrgetter("since")
        )
        return
    queue = queues[place.kind].by_name.get(place.name)
    if queue is None:
        raise NotFound(f"there is no {place}")
    consumers = (one for one in queue.consumers.values() if isinstance(one.session, Session))
    yield from sorted(consumers, key=attrgetter("joined"))


def _row(source: str, number: int, found: Any) -> SelectorRow:
    if isinstance(found, Subscription):
        operation, destination, credit = "copy", f"client/{found.session.ident}", found.credit
        taken = found.group.selector
    elif isinstance(found, Consumer):
        operation, destination, credit = "move", f"client/{found.session.ident}", found.credit
        taken = found.group.matched.selector
    else:
        feed = found.row()
        return SelectorRow(
            number=number,
            source=source,
            destination=feed.target,
            criteria=feed.criteria,
            where=feed.where,
            operation=feed.operation,
            credit=feed.credit,
        )
    return SelectorRow(
        number=number,
        source=source,
        destination=destination,
        criteria=[[*criterion] for criterion in taken.criteria],
        where=taken.where,
        operation=operation,
        credit=credit_left(credit.messages),
    )
