"""The review of sessions, feeds and links, when the rules or the accounts have changed.

A command is checked when it arrives. A subscription, an offer or a feed made by it stays, so it is reviewed,
and ended or stopped if it would be refused now. There may be very many. So each session has a mark, and is
reviewed before anything else is done for it (`Session.review`); each iteration reviews some of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from malamute.core.bucket.watch import Watching
from malamute.core.iteration.workflow import GO_ON, Workflow, run_workflow
from malamute.core.queue.source import QueueSource
from malamute.core.stream.subscription import Subscription
from malamute.errors import AccessRefused
from malamute.protocol.admin import FeedSet, LinkSet
from malamute.protocol.messages import MAILBOX, Change

if TYPE_CHECKING:
    from malamute.core.feed.feed import Feed
    from malamute.core.feed.rule import FeedRule
    from malamute.core.feed.table import Feeds
    from malamute.core.identity.access import AccessControl, Permissions
    from malamute.core.iteration.effects import Effects
    from malamute.core.link.rule import LinkRule
    from malamute.core.link.table import Links
    from malamute.core.session.session import Session
    from malamute.core.session.sessions import Sessions
    from malamute.core.sources import Sources
    from malamute.matching import Selector
    from malamute.protocol.names import Place
    from malamute.store.policies import BaseKind

REVIEW_WORK = 100
"""The work of reviewing a session, a source of it, or a feed."""

Look = Callable[[], None]


class Review:
    """The review of all that sessions and feeds have."""

    def __init__(
        self,
        effects: Effects,
        access: AccessControl,
        sessions: Sessions,
        sources: Sources,
        feeds: Feeds,
        links: Links,
    ) -> None:
        self._effects = effects
        self._access = access
        self._sessions = sessions
        self._sources = sources
        self._feeds = feeds
        self._links = links

    # Sessions and feeds to review

    def account_changed(self, user: str) -> None:
        """Review the sessions and feeds of a user with a changed account."""
        self._access.forget_user(user)
        # The change is to be answered before its own session ends.
        self._effects.later(partial(self._of_user, user))

    def groups_changed(self) -> None:
        """Look at everybody, as any token may name a stored group that is other than before."""
        self._effects.later(self._of_everybody)

    def _of_everybody(self) -> None:
        self.begin()
        run_workflow(self._effects, _look_at(self._effects, self.each_look()))

    def _of_user(self, user: str) -> None:
        """Review the sessions and feeds of a user, or of all if rules as such begin or end by the change."""
        if self._access.in_force != self._access.was_in_force:
            self.begin()
            looks: Iterable[Look] = self.each_look()
        else:
            looks = chain(
                self.of_rules(user),
                (partial(self.of_session, session) for session in self._sessions.of_user(user)),
            )
        run_workflow(self._effects, _look_at(self._effects, looks))

    def begin(self) -> None:
        """Have each session reviewed before anything else is done for it. `each_look` is for all others."""
        self._access.outdate()
        self._effects.reviewing = True
        for session in self._sessions.by_peer.values():
            session.review = self.of_session

    def each_look(self) -> Iterator[Look]:
        """A look at each feed and link, and at each session that has not been reviewed."""
        yield from self.of_rules()
        generation = self._access.generation
        for session in [*self._sessions.by_peer.values()]:
            if session.review is not None:
                yield partial(session.review, session)
        # Otherwise decisions were outdated again meanwhile, and the review that began since then is not done.
        if generation == self._access.generation:
            self._effects.reviewing = False

    def of_rules(self, user: str = "") -> Iterator[Look]:
        """A look at each feed and each link, or at those that a user has set."""
        for feed in [*self._feeds.by_name.values()]:
            if not user or user in (feed.rule.setter.user, feed.rule.setter.by_user):
                yield partial(self._of_feed, feed)
        for name, rule in [*self._links.rules.items()]:
            if not user or user in (rule.setter.user, rule.setter.by_user):
                yield partial(self._of_link, name)

    # A look

    def _of_link(self, name: str) -> None:
        """Stop a link whose setter has no right to it any more."""
        self._effects.work -= REVIEW_WORK
        self._effects.guard("a look at what a link may do", self._links.review, name)

    def confirm_link(self, rule: LinkRule) -> None:
        """Raise `AccessRefused` if the principal that has set a link may not have it any more."""
        self._access.confirm_change(rule.setter, Change(0, LinkSet.topic, {"stream": rule.into}))

    def _of_feed(self, feed: Feed) -> None:
        """Narrow a feed to the messages that its setter may have, or stop it if there are none."""
        self._effects.work -= REVIEW_WORK
        self._effects.guard("a look at what a feed may do", self._feeds.review, feed)

    def of_session(self, session: Session) -> None:
        """End the sources that a session may not have any more, before anything else is done for it."""
        session.review = None
        self._effects.work -= REVIEW_WORK * (1 + len(session.sources))
        self._effects.guard("a look at what a session may do", self._confirm, session)

    def _confirm(self, session: Session) -> None:
        self._sessions.count_for_quotas(session)
        if not session.open:
            return
        session.may.renew()
        try:
            self._access.confirm(session.may.principal)
            if session.address:
                session.may.require("receive", "mailbox", session.address)
        except AccessRefused as error:
            self._sessions.dismiss(session, error, "access")
            return
        for number, source in [*session.sources.items()]:
            try:
                if isinstance(source, Subscription):
                    _check_subscription(session.may, source)
                elif isinstance(source, Watching):
                    session.may.require("read", "bucket", source.bucket.name)
                elif number != MAILBOX and isinstance(source, QueueSource):
                    check_offer(session.may, source.queue.kind, source.queue.name, source.selector)
            except AccessRefused as error:
                self._sources.dismiss(session, number, error)

    def feed_selector(self, source: Place, rule: FeedRule) -> Selector:
        """Return the selector of a feed, narrowed by the rights of the principal that has set it.

        Raises:
            AccessRefused: the principal may not have this feed, or nothing is left.
        """
        ends = {"source": str(source), "target": str(rule.target)}
        self._access.confirm_change(rule.setter, Change(0, FeedSet.topic, ends))
        if source.kind != "stream":
            return rule.selector
        return self._access.of(rule.setter).narrow("subscribe", "stream", source.name, rule.selector)


def _look_at(effects: Effects, looks: Iterable[Look]) -> Workflow:
    """Look at one after the other, some of them in each iteration."""
    for look in looks:
        look()
        if effects.work <= 0:
            yield GO_ON


# Permissions


def check_offer(may: Permissions, kind: BaseKind, name: str, selector: Selector) -> None:
    """Raise `AccessRefused` for an offer of more than is allowed: requests go to any worker that offers.

    Rules say nothing of the senders of mail: a user who may receive from a mailbox may have all of it.
    """
    if kind == "mailbox":
        may.require("receive", kind, name)
    elif may.narrow("offer", kind, name, selector) != selector:
        raise AccessRefused(f"offer to {name!r} is wider than the rules allow: expected fewer subjects")


def _check_subscription(may: Permissions, subscription: Subscription) -> None:
    """Raise `AccessRefused` if a subscription has more than is allowed now."""
    stream, selector = subscription.stream.name, subscription.group.selector
    narrowed = may.narrow("subscribe", "stream", stream, subscription.asked)
    if selector not in (narrowed, may.narrow("subscribe", "stream", stream, selector)):
        raise AccessRefused("the rules have changed, and allow less than this subscription has")
