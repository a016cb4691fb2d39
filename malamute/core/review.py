"""The review of what sessions and feeds have, when the rules or the accounts have changed.

A command is checked when it comes. A subscription, an offer or a feed that it has made stays, and so it is
looked at again, and ended or stopped if it would be refused now. There may be very many of them. So each
session has a mark, and is looked at before anything else is done for it (`Session.review`); the others are
looked at by and by, some of them in each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.queue.source import QueueSource
from malamute.core.sources import dismiss_source
from malamute.core.stream.subscription import Subscription
from malamute.errors import AccessRefused
from malamute.protocol.admin import FeedSet
from malamute.protocol.messages import MAILBOX, Change

if TYPE_CHECKING:
    from malamute.core.engines import Engines
    from malamute.core.feed.feed import Feed
    from malamute.core.feed.rule import FeedRule
    from malamute.core.feed.table import Feeds
    from malamute.core.identity.access import Permissions
    from malamute.core.iteration.effects import Effects
    from malamute.core.session.session import Session
    from malamute.matching import Selector
    from malamute.protocol.names import Place
    from malamute.store.policies import BaseKind

REVIEW_WORK = 100
"""What it takes to look at a session, at a source of it, or at a feed."""

Look = Callable[[], None]

# What is to be looked at


def account_changed(core: Engines, user: str) -> None:
    """A stored account is other than before: look at what its user has."""
    core.access.forget_user(user)
    # The change is to be answered before its own session ends.
    core.effects.later(partial(_review_user, core, user))


def groups_changed(core: Engines) -> None:
    """A stored group is other than before: look at everybody, as any token may name it."""
    core.effects.later(partial(_review_everybody, core))


def _review_everybody(core: Engines) -> None:
    review_all(core)
    run_workflow(core.effects, _look_at(core.effects, each_look(core)))


def _review_user(core: Engines, user: str) -> None:
    """Look at what a user has. Others are concerned if rules go in or out of force by that."""
    if core.access.in_force != core.access.was_in_force:
        review_all(core)
        looks: Iterable[Look] = each_look(core)
    else:
        feeds = [
            feed
            for feed in core.feeds.by_name.values()
            if user in (feed.rule.setter.user, feed.rule.setter.by_user)
        ]
        looks = chain(
            (partial(_review_feed, core.effects, core.feeds, feed) for feed in feeds),
            (partial(review_session, core, session) for session in core.sessions.of_user(user)),
        )
    run_workflow(core.effects, _look_at(core.effects, looks))


def review_all(core: Engines) -> None:
    """Have each session reviewed before anything else is done for it. `each_look` is for all others."""
    core.access.outdate()
    core.effects.reviewing = True
    review = partial(review_session, core)
    for session in core.sessions.by_peer.values():
        session.review = review


def each_look(core: Engines) -> Iterator[Look]:
    """A look at each feed, and at each session that has not been reviewed."""
    for feed in [*core.feeds.by_name.values()]:
        yield partial(_review_feed, core.effects, core.feeds, feed)
    generation = core.access.generation
    for session in [*core.sessions.by_peer.values()]:
        if session.review is not None:
            yield partial(session.review, session)
    # Otherwise decisions were outdated again meanwhile, and the review that began since then is not done.
    if generation == core.access.generation:
        core.effects.reviewing = False


def _look_at(effects: Effects, looks: Iterable[Look]) -> Workflow:
    """Look at one after the other, some of them in each iteration."""
    for look in looks:
        look()
        if effects.work <= 0:
            yield GO_ON


# A look


def _review_feed(effects: Effects, feeds: Feeds, feed: Feed) -> None:
    """Narrow a feed to what its setter may have, or stop it if that is nothing any more."""
    effects.work -= REVIEW_WORK
    effects.guard("a look at what a feed may do", feeds.review, feed)


def review_session(core: Engines, session: Session) -> None:
    """Take back what a session may not have any more, before anything else is done for it."""
    session.review = None
    core.effects.work -= REVIEW_WORK * (1 + len(session.sources))
    core.effects.guard("a look at what a session may do", _confirm_session, core, session)


def _confirm_session(core: Engines, session: Session) -> None:
    core.sessions.count_for_quotas(session)
    if not session.open:
        return
    session.may.renew()
    try:
        core.access.confirm(session.may.principal)
        if session.address:
            session.may.require("receive", "mailbox", session.address)
    except AccessRefused as error:
        core.sessions.dismiss(session, error, "access")
        return
    for number, source in [*session.sources.items()]:
        try:
            if isinstance(source, Subscription):
                _check_subscription(session.may, source)
            elif number != MAILBOX and isinstance(source, QueueSource):
                check_offer(session.may, source.queue.kind, source.queue.name, source.selector)
        except AccessRefused as error:
            dismiss_source(core, session, number, error)


# What is allowed


def check_offer(may: Permissions, kind: BaseKind, name: str, selector: Selector) -> None:
    """Raise `AccessRefused` for an offer of more than is allowed: requests go to any worker that offers.

    Rules say nothing of the senders of mail: a user who may receive from a mailbox may have all of it.
    """
    if kind == "mailbox":
        may.require("receive", kind, name)
    elif may.narrow("offer", kind, name, selector) != selector:
        raise AccessRefused(f"offer to {name!r} is wider than the rules allow: expected fewer subjects")


def _check_subscription(may: Permissions, subscription: Subscription) -> None:
    """Raise `AccessRefused` if a subscription has what is not allowed any more."""
    stream, selector = subscription.stream.name, subscription.group.selector
    narrowed = may.narrow("subscribe", "stream", stream, subscription.asked)
    if selector not in (narrowed, may.narrow("subscribe", "stream", stream, selector)):
        raise AccessRefused("the rules have changed, and allow less than this subscription has")


def feed_selector(core: Engines, source: Place, rule: FeedRule) -> Selector:
    """What a feed may take of what it is to take, by the rights of the principal that has set it.

    Raises:
        AccessRefused: the principal may not have this feed, or nothing is left.
    """
    ends = {"source": str(source), "target": str(rule.target)}
    core.access.confirm_change(rule.setter, Change(0, FeedSet.topic, ends))
    if source.kind != "stream":
        return rule.selector
    return core.access.of(rule.setter).narrow("subscribe", "stream", source.name, rule.selector)
