"""Streams: which there are, who reads each of them and how far behind, their cursors and feeds."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from malamute.core.admin import pages
from malamute.core.admin.pages import PAGE_ROWS, ROW_WORK, page
from malamute.core.subscription import Reader
from malamute.errors import NotFound
from malamute.matching import reason_of

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.stream import Stream

Rows = list[dict[str, Any]]

EXPLAINED_MAX = 100
"""Selectors in one answer: each of them is evaluated by itself."""


def streams(core: Core, after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """Streams by name: the range of sequences of each, and how many read it."""
    found = page(core.turn, core.streams.by_name.values(), attrgetter("name"), after_name, limit)
    return [_stream(stream) for stream in found]


def stream(core: Core, name: str) -> dict[str, Any]:
    """One stream with its readers and cursors. Lag is in messages, and in seconds between message times."""
    found = core.streams.by_name.get(name)
    if found is None:
        raise NotFound(f"there is no stream {name!r}")
    everybody = chain.from_iterable(group.members.values() for group in found.audience.groups())
    # Of very many, those furthest behind: they are what is looked for.
    readers = nlargest(
        pages.DETAILS_MAX, everybody, key=lambda reader: reader.cursor and found.next - reader.cursor
    )
    core.turn.work -= ROW_WORK * len(readers)
    rows = [_reader(found, reader) for reader in readers]
    return {
        **_stream(found),
        "switches_to_live": found.switches["live"],
        "switches_to_replay": found.switches["replay"],
        "failures": [{"family": family, "count": count} for family, count in found.audience.failures.items()],
        "readers": rows,
        "cursors": _cursors(found),
    }


def explain(
    core: Core,
    stream: str,
    subject: str = "",
    headers: Mapping[str, Any] = {},
    sender: str = "",
    after_name: str = "",
    limit: int = PAGE_ROWS,
) -> Rows:
    """For selectors of a stream whether each takes a message, and if not, what failed first."""
    found = core.streams.by_name.get(stream)
    if found is None:
        raise NotFound(f"there is no stream {stream!r}")
    some = page(
        core.turn, found.audience.named_groups(), itemgetter(0), after_name, min(limit, EXPLAINED_MAX)
    )
    return [
        {
            "id": ident,
            "criteria": [[*criterion] for criterion in group.selector.criteria],
            "where": group.selector.where,
            "subscriptions": len(group.members),
            "matched": not reason,
            "reason": reason,
        }
        for ident, group in some
        for reason in [reason_of(group.selector, subject, headers, sender)]
    ]


def cursors(core: Core, stream: str = "", after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """The cursors of streams by name, or of one; a page has all of a stream."""
    only = core.streams.by_name.get(stream)
    wanted = [only] if only else [] if stream else core.streams.by_name.values()
    having = (s for s in wanted if s.cursors or s.lost_cursors)
    some = page(core.turn, having, attrgetter("name"), after_name, limit)
    rows: Rows = []
    for found in some:
        if len(rows) >= limit:
            break
        rows += [{"stream": found.name, **row} for row in _cursors(found)]
    core.turn.work -= len(rows)
    return rows


def feeds(core: Core, after_name: str = "", limit: int = PAGE_ROWS) -> Rows:
    """Feeds by service: where each comes from, and where it stands; a page has all of a service."""
    by_service: dict[str, Rows] = {}
    for feed in core.feeds.by_name.values():
        by_service.setdefault(feed.queue.name, []).append(feed.row())
    rows: Rows = []
    for name in page(core.turn, by_service, str, after_name, limit):
        if len(rows) >= limit:
            break
        rows += by_service[name]
    core.turn.work -= ROW_WORK * len(core.feeds.by_name)
    return rows


def _stream(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "first": stream.first_kept,
        "last": stream.last,
        "stored": stream.last_stored,
        "published": stream.messages,
        "published_rate": stream.rate.each_second(stream.turn.now),
        "journaled": stream.journaled,
        "selectors": len(stream.audience),
    }


def _reader(stream: Stream, subscription: Reader) -> dict[str, Any]:
    behind = stream.next - subscription.cursor if subscription.cursor else 0
    return {
        **subscription.owner_row,
        "state": "replay" if subscription.cursor else "live",
        "delivered": subscription.delivered,
        "skipped": subscription.skipped,
        "lag": behind,
        "lag_seconds": max(stream.time - subscription.time, 0) / 1e9 if behind and subscription.time else 0.0,
    }


def _cursors(stream: Stream) -> Rows:
    return [
        {"name": name, "sequence": sequence, "lag": stream.next - 1 - sequence}
        for name, sequence in stream.cursors.items()
    ] + [{"name": name, "sequence": None, "lag": None} for name in sorted(stream.lost_cursors)]
