"""Feeds: the rules by which the broker passes messages on."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Criteria, FeedName, FeedOperation, FeedWhen, Place, Text, Words


class FeedRow(Row):
    """A feed: its source, its target, its criteria and its progress.

    `state` is `live` or `replay`; `full`, while it waits for room at its target; `disabled`; or `stopped` for
    a `reason`, as the rights of the `user` who has set it have ended. `credit` is that of the target in
    messages, -1 without limit. `taken` counts messages passed on since the broker started, `skipped` those
    that the target can never accept. `sequence` is the last one of the source that is done with. A `limited`
    feed takes a part of its criteria, as its user has no right to the rest. `key` is the origin of the keys
    of its messages; empty for none.
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
    key: str = ""


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
    """Whether a feed is new, and the last sequence of its source that is done with.

    A `limited` feed takes a part of its criteria: the rules allow no more.
    """

    source: str
    feed: str
    target: str
    created: bool
    sequence: int | None = None
    limited: bool = False


class FeedSet(AdminChange[FeedChanged]):
    """Create a feed, by which messages pass from a source to a target, or change it.

    Without a `start` a feed continues at its position, or begins at the head. From a stream the `operation`
    is `copy`, from a queue `move`; without one the source decides. A feed takes messages that match its
    criteria; with `overflow` those of them that wait in the queue without credit of a consumer, and with
    `default` those that no other feed of the source takes. With a `key`, consumers of the target compete for
    messages of a stream in order by key: `subject`, a part of it such as `subject:2`, or `header:NAME`.
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
    key: Words = ""


class FeedSwitched(Row):
    """A resumed or paused feed, and the last sequence of its source that is done with."""

    source: str
    feed: str
    enabled: bool
    sequence: int | None


class FeedEnable(AdminChange[FeedSwitched]):
    """Resume a feed at its position."""

    topic = "feed.enable"

    source: Place
    feed: FeedName


class FeedDisable(AdminChange[FeedSwitched]):
    """Pause a feed at its position, over restarts, until it is enabled or set again."""

    topic = "feed.disable"

    source: Place
    feed: FeedName


class FeedDeleted(Row):
    """The last sequence of its source that a deleted feed was done with."""

    source: str
    feed: str
    sequence: int | None


class FeedDelete(AdminChange[FeedDeleted]):
    """Delete a feed; messages that it has passed on stay."""

    topic = "feed.delete"

    source: Place
    feed: FeedName
