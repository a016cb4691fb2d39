"""Feeds: their state, and the changes of operators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from malamute.core.admin.outcome import ChangeOutcome
from malamute.core.admin.pages import PAGE_ROWS, ROW_WORK, page
from malamute.core.feed.key import FeedKey
from malamute.core.feed.rule import FeedName, FeedRule
from malamute.core.feed.start import FeedStart, QueueStart, StreamStart
from malamute.core.feed.target import FeedPlace, QueueTarget, StreamTarget
from malamute.core.queue.mailbox import EVERYTHING
from malamute.core.stream.start import locate, one_position, removed
from malamute.core.stream.subscription import Position
from malamute.errors import InvalidValue, MalamuteError
from malamute.matching import Group
from malamute.protocol.admin import (
    FeedChanged,
    FeedDelete,
    FeedDeleted,
    FeedDisable,
    FeedEnable,
    FeedQuery,
    FeedRow,
    FeedSet,
    FeedsQuery,
    FeedSwitched,
)
from malamute.protocol.names import RESERVED_PREFIX, Place

if TYPE_CHECKING:
    from malamute.core.feed.table import Feeds
    from malamute.core.iteration.effects import Effects
    from malamute.core.session.selectors import SelectorBudget
    from malamute.core.session.session import Session
    from malamute.core.stream.table import Streams


def feeds(effects: Effects, feeds: Feeds, query: FeedsQuery) -> list[FeedRow]:
    """Return feeds by source, with target and position; a page has all of a source."""
    by_source: dict[str, list[FeedRow]] = {}
    for name in sorted(feeds.by_name):
        by_source.setdefault(str(name.source), []).append(feeds.by_name[name].row())
    rows: list[FeedRow] = []
    for source in page(effects, by_source, str, query.after_name, query.limit):
        if len(rows) >= (query.limit or PAGE_ROWS):
            break
        rows += by_source[source]
    effects.work -= ROW_WORK * len(feeds.by_name)
    return rows


def feed(feeds: Feeds, query: FeedQuery) -> FeedRow:
    """One feed, by its source and its name there. Raises `NotFound`."""
    name = FeedName(Place.parse(query.source), query.feed)
    found = _row(feeds, name)
    if found is None:
        raise name.missing
    return found


def set_feed(
    effects: Effects,
    selectors: SelectorBudget,
    streams: Streams,
    feeds: Feeds,
    wanted: FeedSet,
    outcome: ChangeOutcome,
) -> None:
    """Set a feed; without a `start` it continues, or begins at the head.

    The feed acts with the rights of the user of this session.

    Raises:
        AccessRefused: the user may have none of its messages. InvalidValue: the feed would close a circle, or
        has a start that its source has not. NotFound, TooMany, TryLater: the feed is not possible.
    """
    name = FeedName(Place.parse(wanted.source), wanted.feed)
    rule = _rule(wanted, outcome.session)
    _check(feeds, selectors, streams, name, rule)
    taken = feeds.allowed(name.source, rule)
    selectors.check(taken)
    begin = one_position(wanted.start, "a feed", streams.broker) if wanted.start else None
    if begin and rule.moves:
        raise InvalidValue(f"a feed from {name.source} takes all that waits there: expected no 'start'")
    value = partial(
        FeedChanged,
        source=wanted.source,
        feed=wanted.feed,
        target=wanted.target,
        limited=taken != rule.selector,
    )
    if wanted.dry_run:
        outcome.answered(value(created=name not in feeds.values))
        return
    before = _row(feeds, name)
    target, source = _ends(feeds, name.source, rule)

    def report(sequence: int | None, *, created: bool) -> None:
        outcome.answered(value(created=created, sequence=sequence), before=before)

    def refused(error: MalamuteError) -> None:
        outcome.failed(error)
        feeds.drop_unused(target, source)

    def located(position: Position | None) -> None:
        try:
            feeds.check(name, rule.target)
            start = _start(streams, feeds, name, source, position)
            feeds.set(name, rule, start, feeds.target(rule), report)
        except MalamuteError as error:
            refused(error)

    if begin and isinstance(source, StreamTarget):
        with effects.failing(refused):
            locate(source.stream, begin, Group(0, EVERYTHING), located)
    else:
        located(None)


def _start(
    streams: Streams, feeds: Feeds, name: FeedName, source: FeedPlace, position: Position | None
) -> FeedStart:
    """Where a feed is to begin. Raises `TryLater` or `CursorLost`."""
    if isinstance(source, QueueTarget):
        return QueueStart(name, source)
    stream = source.stream
    if streams.by_name.get(stream.name) is not stream:
        raise removed(stream.name)
    if position is None and name not in feeds.by_name:
        stream.cursors.check_known(name.cursor)
    return StreamStart(name, source, position)


def _rule(wanted: FeedSet, session: Session) -> FeedRule:
    return FeedRule(
        wanted.criteria,
        wanted.where,
        session.may.principal.lasting,
        target=Place.parse(wanted.target),
        operation=wanted.operation or _OPERATIONS[Place.parse(wanted.source).kind],
        when=wanted.when,
        key=wanted.key,
    )


_OPERATIONS = {"stream": "copy", "mailbox": "move", "service": "move"}
"""The operation of a feed, by the kind of its source."""


def _ends(feeds: Feeds, place: Place, rule: FeedRule) -> tuple[FeedPlace, FeedPlace]:
    """The target and the source of a feed, made if needed. Raises `TryLater` or `TooMany`."""
    target = feeds.target(rule)
    try:
        source = feeds.source(place)
    except MalamuteError:
        feeds.drop_unused(target)
        raise
    if isinstance(source, StreamTarget):
        source.stream.flush()
    return target, source


def _row(feeds: Feeds, name: FeedName) -> FeedRow | None:
    """Return the rule of a feed, if there is one."""
    found = feeds.by_name.get(name)
    return None if found is None else found.row()


def _check(feeds: Feeds, selectors: SelectorBudget, streams: Streams, name: FeedName, rule: FeedRule) -> None:
    feeds.check(name, rule.target)
    selectors.check(rule.selector)
    for place in (name.source, rule.target):
        if place.name.startswith(RESERVED_PREFIX):
            raise InvalidValue(f"a feed from or to {place}: expected a place that is not the broker's own")
    kind = name.source.kind
    if rule.operation != _OPERATIONS[kind]:
        keeps = "a stream keeps its messages" if kind == "stream" else f"a message of a {kind} is for one"
        raise InvalidValue(f"{keeps}: expected the operation {_OPERATIONS[kind]!r}")
    if rule.key:
        FeedKey.parse(rule.key)
        if kind != "stream" or rule.target.kind == "stream":
            raise InvalidValue(
                f"a key of a feed from {name.source} to {rule.target}: expected a stream as its source, and "
                "a mailbox or a service as its target"
            )
    if kind != "stream":
        return
    if rule.when == "overflow":
        raise InvalidValue("nothing waits in a stream for consumers: expected 'when' to be match or default")
    if not streams.policy(name.source.name).journal:
        raise InvalidValue(f"stream {name.source.name!r} has no journal: a feed needs one")


def enable_feed(feeds: Feeds, wanted: FeedEnable, outcome: ChangeOutcome) -> None:
    """Resume a feed at its position."""
    _switch(feeds, wanted, outcome, enabled=True)


def disable_feed(feeds: Feeds, wanted: FeedDisable, outcome: ChangeOutcome) -> None:
    """Let a feed rest where it is, until it is enabled or set again."""
    _switch(feeds, wanted, outcome, enabled=False)


def _switch(feeds: Feeds, wanted: FeedEnable | FeedDisable, outcome: ChangeOutcome, *, enabled: bool) -> None:
    name = FeedName(Place.parse(wanted.source), wanted.feed)
    before = _row(feeds, name)
    if before is None:
        raise name.missing

    def report(sequence: int | None, *, created: bool = False) -> None:
        value = FeedSwitched(source=wanted.source, feed=wanted.feed, enabled=enabled, sequence=sequence)
        outcome.answered(value, before=before)

    if wanted.dry_run:
        report(feeds.position(name))
    else:
        feeds.switch(name, report, outcome.failed, enabled=enabled)


def delete_feed(feeds: Feeds, wanted: FeedDelete, outcome: ChangeOutcome) -> None:
    """Delete a feed; passed messages stay."""
    name = FeedName(Place.parse(wanted.source), wanted.feed)
    before = _row(feeds, name)

    def report(sequence: int | None, *, created: bool = False) -> None:
        outcome.answered(
            FeedDeleted(source=wanted.source, feed=wanted.feed, sequence=sequence), before=before
        )

    if not wanted.dry_run:
        feeds.delete(name, report, outcome.failed)
    elif name not in feeds.values:
        raise name.missing
    else:
        report(feeds.position(name))
