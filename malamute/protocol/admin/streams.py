"""Streams: their readers, their selectors, and how much of each is kept."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.cursors import CursorRow
from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, AgeSeconds, Boolean, Headers, Name, Number, Subject


class StreamRow(Row):
    """A stream: its sequences, what was published to it, and by how many selectors it is read."""

    name: str
    first: int
    last: int
    stored: int
    published: int
    published_rate: float
    journaled: bool
    selectors: int


class StreamsQuery(PagedQuery[list[StreamRow]]):
    """All streams."""

    topic = "streams"
    page_key = "name"


class FamilyFailures(Row):
    """How often a family of patterns that is a plug-in has failed."""

    family: str
    count: int


class ReaderRow(Row):
    """A reader of a stream: a subscription by its client, or a feed by its cursor. `lag` is in messages."""

    client: str
    address: str
    state: str
    delivered: int
    skipped: int
    lag: int
    lag_seconds: float


class StreamDetails(StreamRow):
    """A stream with its readers, and how often one came to its head or fell behind it."""

    switches_to_live: int
    switches_to_replay: int
    failures: list[FamilyFailures]
    readers: list[ReaderRow]
    cursors: list[CursorRow]


class StreamQuery(AdminQuery[StreamDetails]):
    """One stream."""

    topic = "stream"

    name: Name


class ExplainedSelector(Row):
    """A selector of a stream, how many subscriptions have it, and why it does not take a message."""

    id: str
    criteria: list[list[Any]]
    where: str
    subscriptions: int
    matched: bool
    reason: str


class ExplainQuery(PagedQuery[list[ExplainedSelector]]):
    """Which selectors of a stream take a message."""

    topic = "explain"
    page_key = "id"

    stream: Name
    subject: Subject = ""
    headers: Headers | None = None
    sender: Address = ""


class StreamDemand(Row):
    """Which messages of a stream anybody wants: all of them, or those that any of the criteria matches."""

    stream: str
    everything: bool
    criteria: list[list[Any]]


class DemandQuery(AdminQuery[StreamDemand]):
    """What a publisher of a stream need not send, as nobody wants it."""

    topic = "demand"

    stream: Name


class StreamKept(Row):
    """How much of a stream is kept, as it was set for it: bytes, messages and seconds; 0 is no limit."""

    stream: str
    bytes: int | None = None
    count: int | None = None
    age: float | None = None


class StreamCreate(AdminChange[StreamKept]):
    """Make a stream, and set how much of it is kept if any limit is given; 0 is no limit."""

    topic = "stream.create"

    stream: Name
    bytes: Number | None = None
    count: Number | None = None
    age: AgeSeconds | None = None


class StreamRetain(AdminChange[StreamKept]):
    """Set how much of a stream is kept, making the stream if needed; 0 is no limit.

    What is None stays as it is. If anything is not as expected, nothing is changed.
    """

    topic = "stream.retain"

    stream: Name
    bytes: Number | None = None
    count: Number | None = None
    age: AgeSeconds | None = None
    expect_bytes: Number | None = None
    expect_count: Number | None = None
    expect_age: AgeSeconds | None = None


class StreamPurged(Row):
    """The messages that a stream had."""

    stream: str
    first: int
    last: int


class StreamPurge(AdminChange[StreamPurged]):
    """Drop the history of a stream. Its readers, its cursors, its retention and its sequences go on."""

    topic = "stream.purge"

    stream: Name


class StreamDeleted(Row):
    """The messages that a stream had, and what hung on it: cursors, readers, and feeds from it or to it.

    It is `partial` if only feeds have ended so far: ask again.
    """

    stream: str
    first: int
    last: int
    cursors: int
    readers: int
    feeds: list[str]
    partial: bool = False


class StreamDelete(AdminChange[StreamDeleted]):
    """Remove a stream with its history.

    It is refused while anything hangs on it, unless to `cascade`: then its subscriptions, its cursors, and
    the feeds from it and to it end as well.
    """

    topic = "stream.delete"

    stream: Name
    cascade: Boolean = False
