"""Feeds: the rules by which the broker passes messages on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Criteria, FeedName, FeedOperation, FeedWhen, Place, Text, Words


class FeedRow(Row):
    """A feed: what it takes from where and puts to where, and where it stands.

    `state` is `live` or `replay`; `full`, while it waits for room at its target; `disabled`; or `stopped` for
    a `reason`, as the rights of the `user` who has set it have ended. The target has `credit` for so many
    more messages, -1 without limit. The feed has `taken` so many messages since the broker started, and
    `skipped` others that its target could never have. `sequence` is the last of its source that it is done
    with. One that is `limited` takes a part of what it is to take, as its user may not have the rest.
    """

    source: str
    feed: str
    target: str
    operation: str
    when: str
    criteria: list[list[Any]]
    where: str
    state: str
    sequence: int | None
    lag: int
    taken: int
    skipped: int
    credit: int
    user: str
    reason: str
    limited: bool = False


class FeedsQuery(PagedQuery[list[FeedRow]]):
    """All feeds."""

    topic = "feeds"
    page_key = "source"


class FeedQuery(AdminQuery[FeedRow]):
    """One feed, by its source and its name there."""

    topic = "feed"

    source: Place
    feed: FeedName


class FeedChanged(Row):
    """Whether a feed is new, and the last sequence of its source that it is done with.

    It is `limited` if it takes a part of what was asked for: the rules allow no more.
    """

    source: str
    feed: str
    target: str
    created: bool
    sequence: int | None = None
    limited: bool = False


class FeedSet(AdminChange[FeedChanged]):
    """Pass messages on from one place to another, or change how.

    Without a `start` it goes on where it is, or begins at the head. What is in a stream stays there, so the
    `operation` is `copy`; what is in a queue is for one, and it is `move`: without one it is what the source
    asks for. It takes what meets its criteria; by `overflow` of that what waits in its queue since no
    consumer has credit for it, and by `default` what no other feed of its source takes.
    """

    topic = "feed.set"

    source: Place
    feed: FeedName
    target: Place
    criteria: Criteria = (("all", ""),)
    where: Text = ""
    start: Words = ""
    operation: FeedOperation = ""
    when: FeedWhen = "match"


class FeedSwitched(Row):
    """A feed that goes on or rests, and the last sequence of its source that it is done with."""

    source: str
    feed: str
    enabled: bool
    sequence: int | None


class FeedEnable(AdminChange[FeedSwitched]):
    """Let a feed go on where it is."""

    topic = "feed.enable"

    source: Place
    feed: FeedName


class FeedDisable(AdminChange[FeedSwitched]):
    """Let a feed rest where it is, over restarts, until it is enabled or set again."""

    topic = "feed.disable"

    source: Place
    feed: FeedName


class FeedDeleted(Row):
    """The last sequence of its source that a feed was done with."""

    source: str
    feed: str
    sequence: int | None


class FeedDelete(AdminChange[FeedDeleted]):
    """End a feed; what it has passed on stays."""

    topic = "feed.delete"

    source: Place
    feed: FeedName


FEED_CHANGES: Mapping[str, type[FeedEnable | FeedDisable | FeedDelete]] = {
    change.topic: change for change in (FeedEnable, FeedDisable, FeedDelete)
}
"""The changes of one feed that need no more than which."""
