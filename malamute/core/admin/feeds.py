"""Feeds: which there are, where each stands, and what operators do to them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from malamute.core.admin.answered import Answered, Failed
from malamute.core.admin.pages import PAGE_ROWS, ROW_WORK, page
from malamute.core.feed.rule import FeedName, FeedRule
from malamute.core.mailbox import EVERYTHING
from malamute.core.start import locate, one_position, removed
from malamute.core.subscription import Position
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
    from malamute.core.engines import Engines
    from malamute.core.feed.target import FeedTarget
    from malamute.core.session import Session
    from malamute.core.stream import Stream


def feeds(core: Engines, query: FeedsQuery) -> list[FeedRow]:
    """Feeds by source: where each puts what it takes, and where it stands; a page has all of a source."""
    by_source: dict[str, list[FeedRow]] = {}
    for name in sorted(core.feeds.by_name):
        by_source.setdefault(str(name.source), []).append(core.feeds.by_name[name].row())
    rows: list[FeedRow] = []
    for source in page(core.effects, by_source, str, query.after_name, query.limit):
        if len(rows) >= (query.limit or PAGE_ROWS):
            break
        rows += by_source[source]
    core.effects.work -= ROW_WORK * len(core.feeds.by_name)
    return rows


def feed(core: Engines, query: FeedQuery) -> FeedRow:
    """One feed, by its source and its name there. Raises `NotFound`."""
    name = FeedName(Place.parse(query.source), query.feed)
    found = _row(core, name)
    if found is None:
        raise name.missing
    return found


def set_feed(core: Engines, session: Session, wanted: FeedSet, answered: Answered, failed: Failed) -> None:
    """Pass messages on from a stream, or change how; without a `start` it goes on, or begins at the head.

    From now on it acts with the rights of whoever has this session.
    """
    name = FeedName(Place.parse(wanted.source), wanted.feed)
    rule = _rule(wanted, session)
    _check(core, name, rule)
    begin = one_position(wanted.start, "a feed") if wanted.start else None
    value = partial(FeedChanged, source=wanted.source, feed=wanted.feed, target=wanted.target)
    if wanted.dry_run:
        answered(value(created=name not in core.feeds.values))
        return
    before = _row(core, name)
    made = name.source.name not in core.streams.by_name
    target, stream = _ends(core, name.source, rule.target)

    def report(sequence: int | None, *, created: bool) -> None:
        answered(value(created=created, sequence=sequence), before=before)
        core.effects.when_stored(undone)

    def undone(error: MalamuteError | None) -> None:
        # This change is still under way.
        if error is not None and made and core.feeds.changes(name.source) <= 1:
            core.streams.drop_untouched(stream)

    def located(position: Position | None) -> None:
        try:
            core.feeds.check(name, rule.target)
            if core.streams.by_name.get(stream.name) is not stream:
                raise removed(stream.name)
            core.feeds.set(name, rule, stream, core.feeds.target(rule.target), position, report)
        except MalamuteError as error:
            failed(error)
            core.feeds.drop_unused(target)
            if made and not (stream.lasting or core.feeds.changes(name.source)):
                core.streams.drop_untouched(stream)

    if begin:
        locate(stream, begin, Group(0, EVERYTHING), located)
    else:
        located(None)


def _rule(wanted: FeedSet, session: Session) -> FeedRule:
    return FeedRule(
        wanted.criteria,
        wanted.where,
        session.may.principal,
        target=Place.parse(wanted.target),
        operation=wanted.operation,
        when=wanted.when,
    )


def _ends(core: Engines, source: Place, place: Place) -> tuple[FeedTarget, Stream]:
    """The target and the source of a feed, made if needed. Raises `TryLater` or `TooMany`."""
    target = core.feeds.target(place)
    try:
        stream = core.streams.get(source.name)
    except MalamuteError:
        core.feeds.drop_unused(target)
        raise
    stream.flush()
    return target, stream


def _row(core: Engines, name: FeedName) -> FeedRow | None:
    """What a feed does, if there is one."""
    found = core.feeds.by_name.get(name)
    return None if found is None else found.row()


def _check(core: Engines, name: FeedName, rule: FeedRule) -> None:
    core.feeds.check(name, rule.target)
    core.selectors.check(rule.selector)
    for place in (name.source, rule.target):
        if place.name.startswith(RESERVED_PREFIX):
            raise InvalidValue(f"a feed from or to {place}: expected a place that is not the broker's own")
    if name.source.kind != "stream":
        raise InvalidValue(f"a feed from {name.source}: expected a stream")
    if rule.operation != "copy":
        raise InvalidValue("a stream keeps its messages: expected the operation 'copy'")
    if not core.streams.policy(name.source.name).journal:
        raise InvalidValue(f"stream {name.source.name!r} has no journal: a feed needs one")


def enable_feed(
    core: Engines, session: Session, wanted: FeedEnable, answered: Answered, failed: Failed
) -> None:
    """Let a feed go on where it is."""
    _switch(core, wanted, answered, failed, enabled=True)


def disable_feed(
    core: Engines, session: Session, wanted: FeedDisable, answered: Answered, failed: Failed
) -> None:
    """Let a feed rest where it is, until it is enabled or set again."""
    _switch(core, wanted, answered, failed, enabled=False)


def _switch(
    core: Engines,
    wanted: FeedEnable | FeedDisable,
    answered: Answered,
    failed: Failed,
    *,
    enabled: bool,
) -> None:
    name = FeedName(Place.parse(wanted.source), wanted.feed)
    before = _row(core, name)
    if before is None:
        raise name.missing

    def report(sequence: int | None, *, created: bool = False) -> None:
        value = FeedSwitched(source=wanted.source, feed=wanted.feed, enabled=enabled, sequence=sequence)
        answered(value, before=before)

    if wanted.dry_run:
        report(core.feeds.position(name))
    else:
        core.feeds.switch(name, report, failed, enabled=enabled)


def delete_feed(
    core: Engines, session: Session, wanted: FeedDelete, answered: Answered, failed: Failed
) -> None:
    """End a feed; what it has passed on stays."""
    name = FeedName(Place.parse(wanted.source), wanted.feed)
    before = _row(core, name)

    def report(sequence: int | None, *, created: bool = False) -> None:
        answered(FeedDeleted(source=wanted.source, feed=wanted.feed, sequence=sequence), before=before)

    if not wanted.dry_run:
        core.feeds.delete(name, report, failed)
    elif name not in core.feeds.values:
        raise name.missing
    else:
        report(core.feeds.position(name))
