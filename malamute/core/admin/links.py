"""Links: their state, the reports of runners, and changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from malamute.core.admin.outcome import ChangeOutcome
from malamute.core.admin.pages import page
from malamute.core.link.rule import LinkRule
from malamute.errors import InvalidValue, NotAsExpected
from malamute.matching import Selector
from malamute.protocol.admin import (
    LinkAdvance,
    LinkChanged,
    LinkOrigin,
    LinkOriginQuery,
    LinkPause,
    LinkQuery,
    LinkRemove,
    LinkResume,
    LinkRow,
    LinkSet,
    LinksQuery,
    LinkStop,
)
from malamute.protocol.names import RESERVED_PREFIX
from malamute.protocol.start import LAST_PER_SUBJECT, Start

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.link.table import Links
    from malamute.core.session.selectors import SelectorBudget
    from malamute.core.stream.table import Streams


def links(effects: Effects, links: Links, query: LinksQuery) -> list[LinkRow]:
    """Return links by name."""
    names = page(effects, links.names(), str, query.after_name, query.limit)
    return [links.row(name) for name in names]


def link(links: Links, query: LinkQuery) -> LinkRow:
    """One link. Raises `NotFound`."""
    links.found(query.link)
    return links.row(query.link)


def link_origin(streams: Streams, links: Links, query: LinkOriginQuery) -> LinkOrigin:
    """Return the end of a stream, and the ways by which messages come there."""
    stream, last = streams.by_name.get(query.stream), 0
    if stream is not None:
        # A link takes only messages that are durable.
        last = stream.progress.durable if stream.journaled else stream.progress.last
    ways = [[[*hop] for hop in way] for way in links.ways(query.stream)]
    return LinkOrigin(broker=streams.broker, last=last, ways=ways)


def set_link(selectors: SelectorBudget, links: Links, wanted: LinkSet, outcome: ChangeOutcome) -> None:
    """Set a link with the rights of the user of this session.

    Raises:
        InvalidValue, InvalidSelector, TooMany: the link is not possible.
    """
    principal = outcome.session.may.principal.lasting
    rule = LinkRule(
        wanted.urls,
        wanted.remote,
        wanted.stream,
        wanted.criteria,
        wanted.where,
        wanted.start,
        wanted.context,
        principal,
        0,
    )
    if wanted.stream.startswith(RESERVED_PREFIX):
        raise InvalidValue(f"a link into {wanted.stream!r}: expected a stream that is not the broker's own")
    selectors.check(Selector.parse(rule.criteria, rule.where))
    _check_start(wanted.start)
    links.check(wanted.link, rule)
    created = wanted.link not in links.rules
    before = None if created else links.row(wanted.link)
    if not wanted.dry_run:
        rule = links.set(wanted.link, rule)
    outcome.answered(_changed(links, wanted.link, rule, created=created), before=before)


def _check_start(text: str) -> None:
    """Raise `InvalidValue` for a start that a link cannot have: it begins once, at one position."""
    start = Start.parse(text) if text else None
    if start is not None and start.kind == LAST_PER_SUBJECT:
        raise InvalidValue(f"invalid start {text!r} of a link: expected one position, such as 'first'")


def _changed(links: Links, name: str, rule: LinkRule, *, created: bool = False) -> LinkChanged:
    position = links.positions.get(name)
    return LinkChanged(
        name=name,
        stream=rule.into,
        state=rule.rests or "waiting",
        generation=rule.generation,
        position=position.at if position is not None else "",
        created=created,
    )


def _change(
    links: Links,
    wanted: LinkPause | LinkResume | LinkRemove | LinkStop | LinkAdvance,
    outcome: ChangeOutcome,
    make: Callable[[], object],
    generation: int = 0,
) -> None:
    """Make a change of a link unless it is a dry run, and answer with the link as it is then."""
    rule, before = links.found(wanted.link, wanted.stream, generation), links.row(wanted.link)
    if not wanted.dry_run:
        make()
    outcome.answered(_changed(links, wanted.link, links.rules.get(wanted.link, rule)), before=before)


def pause_link(links: Links, wanted: LinkPause, outcome: ChangeOutcome) -> None:
    """Pause a link at its position."""
    _change(links, wanted, outcome, partial(links.pause, wanted.link))


def resume_link(links: Links, wanted: LinkResume, outcome: ChangeOutcome) -> None:
    """Resume a paused link. Raises `NotFound`, and `InvalidValue` for one that is stopped."""
    rule = links.found(wanted.link, wanted.stream)
    if rule.stopped:
        raise InvalidValue(f"link {wanted.link!r} is stopped, as {rule.stopped}: set it again")
    _change(links, wanted, outcome, partial(links.resume, wanted.link))


def remove_link(links: Links, wanted: LinkRemove, outcome: ChangeOutcome) -> None:
    """Remove a link; its messages stay."""
    _change(links, wanted, outcome, partial(links.remove, wanted.link))


def stop_link(links: Links, wanted: LinkStop, outcome: ChangeOutcome) -> None:
    """Stop a link for the reason of its runner."""
    _change(links, wanted, outcome, partial(links.stop, wanted.link, wanted.reason), wanted.generation)


def advance_link(links: Links, wanted: LinkAdvance, outcome: ChangeOutcome) -> None:
    """Move a link forward without a message.

    Raises:
        NotFound, NotAsExpected, InvalidValue: it is not there, stands elsewhere, or the position is none.
    """
    rule = links.found(wanted.link, wanted.stream, wanted.generation)
    if rule.rests:
        raise NotAsExpected(f"link {wanted.link!r} is {rule.rests}: expected one that is running")
    move = partial(links.advance, wanted.link, wanted.after, wanted.upto, wanted.gap)
    _change(links, wanted, outcome, move, wanted.generation)
