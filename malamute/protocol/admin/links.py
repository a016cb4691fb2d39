"""Links: streams of other brokers that a runner copies into streams of this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Criteria, Name, Number, OtherName, Position, Text, Urls, Ways, Words


class LinkRow(Row):
    """A link: its source, its stream here, and its progress.

    `state` is `running`; `away`, while the runner cannot read the source, for a `reason`; `waiting`, while no
    runner reports; `paused`; or `stopped` for a `reason`, until the link is set again. `position` is how far
    it has come in the source, `N@STORE`, empty before its beginning. `lag` and `lag_seconds` are those of the
    last report. `taken` counts messages since the broker started, and `gaps` the gaps by their reasons. The
    runner finds the credentials for the source by `context`. `generation` changes with each setting.
    """

    name: str
    urls: list[str]
    remote: str
    stream: str
    criteria: list[list[Any]]
    where: str
    start: str
    context: str
    user: str
    generation: int
    state: str
    reason: str
    position: str
    lag: int | None
    lag_seconds: float | None
    rate: float
    taken: int
    gaps: dict[str, int]


class LinksQuery(PagedQuery[list[LinkRow]]):
    """All links into streams of this broker."""

    topic = "links"
    page_key = "name"


class LinkQuery(AdminQuery[LinkRow]):
    """One link."""

    topic = "link"

    link: OtherName


class LinkOrigin(Row):
    """The last durable message of a stream, the id of its broker, and the ways by which messages come there.

    A way is a list of hops `[broker, stream, link, generation]` from the farthest place to the nearest: by
    this link or feed messages of that stream go on.
    """

    broker: str
    last: int
    ways: list[list[list[Any]]]


class LinkOriginQuery(AdminQuery[LinkOrigin]):
    """The places that a stream comes from, over all links and feeds: the question of a runner to a source."""

    topic = "link.origin"

    stream: Name


class LinkVerdict(Row):
    """A link as the broker has it, for its runner: it may carry on if the state is `running`."""

    generation: int
    state: str
    reason: str
    position: str


class LinkReport(AdminQuery[LinkVerdict]):
    """The report of a runner about a link, when it begins and again and again, with the ways of its source.

    The report counts until the next one, or until the session ends. `trouble` is why the source cannot be
    read. A link whose ways come from its own stream is in a circle, and the newest link of the circle is
    stopped.
    """

    topic = "link.report"

    link: OtherName
    generation: Position
    stream: Name
    broker: Words = ""
    ways: Ways = ()
    lag: Number = 0
    lag_ms: Number = 0
    trouble: Text = ""


class LinkChanged(Row):
    """A link that was set, resumed, paused or moved."""

    name: str
    stream: str
    state: str
    generation: int
    position: str
    created: bool = False


class LinkSet(AdminChange[LinkChanged]):
    """Create a link, or change it. Without a `start` an existing one goes on at its position.

    A runner copies messages of the stream `remote` at `urls` that match the criteria into `stream`. The link
    has the rights of the user who sets it. `context` names the credentials for the source, at the runner.
    """

    topic = "link.set"

    link: OtherName
    urls: Urls
    remote: OtherName
    stream: Name
    criteria: Criteria = (("all", ""),)
    where: Text = ""
    start: Words = ""
    context: Text = ""


class LinkPause(AdminChange[LinkChanged]):
    """Pause a link at its position, over restarts, until it is resumed or set again."""

    topic = "link.pause"

    link: OtherName
    stream: Name


class LinkResume(AdminChange[LinkChanged]):
    """Resume a paused link at its position."""

    topic = "link.resume"

    link: OtherName
    stream: Name


class LinkAdvance(AdminChange[LinkChanged]):
    """Move a link forward without a message: to its beginning, or over a gap that the source has reported.

    The position has to be `after`, as in FORWARD. The change is the runner's.
    """

    topic = "link.advance"

    link: OtherName
    generation: Position
    stream: Name
    after: Words
    upto: Words
    gap: Words = ""


class LinkStop(AdminChange[LinkChanged]):
    """Stop a link for a reason, until it is set again. The change is the runner's."""

    topic = "link.stop"

    link: OtherName
    generation: Position
    stream: Name
    reason: Text


class LinkRemove(AdminChange[LinkChanged]):
    """Remove a link; messages that it has brought stay."""

    topic = "link.remove"

    link: OtherName
    stream: Name


Way = Sequence[Sequence[Any]]
"""Hops `[broker, stream, link, generation]`, from the farthest place to the nearest."""
