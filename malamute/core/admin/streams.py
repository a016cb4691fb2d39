"""Streams: which there are, the readers of each and how far each is behind, and their cursors."""

from __future__ import annotations

from heapq import nlargest
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from malamute.core.admin import pages
from malamute.core.admin.pages import PAGE_ROWS, ROW_WORK, page, page_of
from malamute.core.stream.subscription import Reader
from malamute.matching import reason_of
from malamute.protocol.admin import (
    CursorRow,
    CursorsQuery,
    DemandQuery,
    ExplainedSelector,
    ExplainQuery,
    FamilyFailures,
    ReaderRow,
    StreamCursor,
    StreamDemand,
    StreamDetails,
    StreamQuery,
    StreamRow,
    StreamsQuery,
)
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.stream.stream import Stream
    from malamute.core.stream.table import Streams

DEMAND_SELECTORS = 1_000
"""The most selectors and criteria in an answer about demand."""

EXPLAINED_MAX = 100
"""Selectors in one answer: each of them is evaluated by itself."""


def streams(effects: Effects, streams: Streams, query: StreamsQuery) -> list[StreamRow]:
    """Streams by name: the range of sequences of each, and how many read it."""
    found = page_of(effects, streams.by_name, query.after_name, query.limit)
    return [_stream(stream) for stream in found]


def stream(effects: Effects, streams: Streams, query: StreamQuery) -> StreamDetails:
    """One stream with its readers and cursors. Lag is in messages, and in seconds between message times.

    Raises:
        NotFound: there is no such stream.
    """
    found = stream_of(streams, query.name)
    everybody = chain.from_iterable(group.members.values() for group in found.audience.groups())
    # Of very many, the ones furthest behind.
    readers = nlargest(
        pages.DETAILS_MAX,
        everybody,
        key=found.lag,
    )
    effects.work -= ROW_WORK * len(readers)
    return StreamDetails(
        **asdict(_stream(found)),
        switches_to_live=found.switches["live"],
        switches_to_replay=found.switches["replay"],
        failures=[
            FamilyFailures(family=family, count=count) for family, count in found.audience.failures.items()
        ],
        readers=[_reader(found, reader) for reader in readers],
        cursors=_cursors(found),
    )


def stream_of(streams: Streams, name: str) -> Stream:
    """The stream of a name. Raises `NotFound`."""
    return streams.found(name)


def explain(effects: Effects, streams: Streams, query: ExplainQuery) -> list[ExplainedSelector]:
    """Return whether each selector of a stream takes a message, and if not, the test that failed first.

    Raises:
        NotFound: there is no such stream.
    """
    groups = stream_of(streams, query.stream).audience.named_groups()
    limit = min(query.limit or PAGE_ROWS, EXPLAINED_MAX)
    return [
        ExplainedSelector(
            id=ident,
            criteria=[[*criterion] for criterion in group.selector.criteria],
            where=group.selector.where,
            subscriptions=len(group.members),
            matched=not reason,
            reason=reason,
        )
        for ident, group in page(effects, groups, itemgetter(0), query.after_name, limit)
        for reason in [reason_of(group.selector, query.subject, query.headers or {}, query.sender)]
    ]


def demand(effects: Effects, streams: Streams, query: DemandQuery) -> StreamDemand:
    """Return the demand of a stream's subscriptions by subject, beside their tests of headers.

    With a journal the demand is everything, since a reader may come later; so it is with very many selectors,
    for a compact answer.
    """
    found = streams.by_name.get(query.stream)
    journaled = streams.policy(query.stream).journal if found is None else found.journaled
    everything = StreamDemand(stream=query.stream, everything=True, criteria=[])
    if journaled or (found is not None and len(found.audience) > DEMAND_SELECTORS):
        return everything
    groups = () if found is None else found.audience.groups()
    criteria = {criterion: None for group in groups for criterion in group.selector.criteria}
    effects.work -= len(criteria)
    if len(criteria) > DEMAND_SELECTORS:
        return everything
    return StreamDemand(stream=query.stream, everything=False, criteria=[[*c] for c in criteria])


def cursors(effects: Effects, streams: Streams, query: CursorsQuery) -> list[StreamCursor]:
    """The cursors of streams by name, or of one; a page has all of a stream."""
    only = streams.by_name.get(query.stream)
    wanted = [only] if only else [] if query.stream else streams.by_name.values()
    having = (s for s in wanted if s.cursors or s.cursors.lost)
    rows: list[StreamCursor] = []
    for found in page(effects, having, attrgetter("name"), query.after_name, query.limit):
        if len(rows) >= (query.limit or PAGE_ROWS):
            break
        rows += [StreamCursor(stream=found.name, **asdict(row)) for row in _cursors(found)]
    effects.work -= len(rows)
    return rows


def _stream(stream: Stream) -> StreamRow:
    return StreamRow(
        name=stream.name,
        first=stream.progress.first_kept,
        last=stream.progress.last,
        stored=stream.numbering.messages_stored,
        published=stream.messages,
        published_rate=stream.rate.each_second(stream.effects.now),
        journaled=stream.journaled,
        selectors=len(stream.audience),
    )


def _reader(stream: Stream, reader: Reader) -> ReaderRow:
    client, address = reader.read_by
    behind = stream.lag(reader)
    return ReaderRow(
        client=client,
        address=address,
        state="replay" if reader.state == "replay" else "live",
        delivered=reader.delivered,
        skipped=reader.skipped,
        lag=behind,
        lag_seconds=to_seconds(max(stream.time_ns - reader.time_ns, 0)) if behind and reader.time_ns else 0.0,
    )


def _cursors(stream: Stream) -> list[CursorRow]:
    owner = stream.cursors.owners.get
    known = [
        CursorRow(
            name=name, sequence=sequence, lag=stream.numbering.messages(sequence), owner=owner(name, "")
        )
        for name, sequence in stream.cursors.items()
    ]
    lost = sorted(stream.cursors.lost)
    return known + [CursorRow(name=name, sequence=None, lag=None, owner=owner(name, "")) for name in lost]
