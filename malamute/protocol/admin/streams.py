"""Streams: their readers, their selectors, and their retention."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.cursors import CursorRow
from malamute.protocol.admin.topic import AdminChange, AdminQuery, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, AgeSeconds, Boolean, Headers, Name, Number, Position, Subject


class StreamRow(Row):
    """A stream: its sequences, the count of published messages, and its number of selectors."""

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
    """The failures of a family of patterns that is a plug-in."""

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
    """A stream with its readers, and the counts of their switches to live and to replay."""

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
    """A selector of a stream, its number of subscriptions, and the reason if it does not match."""

    id: str
    criteria: list[list[Any]]
    where: str
    subscriptions: int
    matched: bool
    reason: str


class ExplainQuery(PagedQuery[list[ExplainedSelector]]):
    """The selectors of a stream that match a message."""

    topic = "explain"
    page_key = "id"

    stream: Name
    subject: Subject = ""
    headers: Headers | None = None
    sender: Address = ""


class StreamDemand(Row):
    """The demand for messages of a stream: all of them, or those that any of the criteria matches."""

    stream: str
    everything: bool
    criteria: list[list[Any]]


class DemandQuery(AdminQuery[StreamDemand]):
    """The demand for messages of a stream, so that a publisher need not send others."""

    topic = "demand"

    stream: Name


class StreamKept(Row):
    """The retention of a stream, as set for it: bytes, messages and seconds; 0 is no limit."""

    stream: str
    bytes: int | None = None
    count: int | None = None
    age: float | None = None


class StreamCreate(AdminChange[StreamKept]):
    """Create a stream, with its retention if any limit is given; 0 is no limit.

    Without `journal` its messages are for present readers alone; with it, the configuration decides.
    """

    topic = "stream.create"

    stream: Name
    journal: Boolean = True
    bytes: Number | None = None
    count: Number | None = None
    age: AgeSeconds | None = None


class StreamRetain(AdminChange[StreamKept]):
    """Set the retention of a stream, creating the stream if needed; 0 is no limit.

    A limit that is None stays. If one differs from the expected one, nothing is changed.
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
    """The messages of a purged stream."""

    stream: str
    first: int
    last: int


class StreamPurge(AdminChange[StreamPurged]):
    """Drop the history of a stream. Its readers, cursors, retention and sequences stay."""

    topic = "stream.purge"

    stream: Name


class StreamMessagesDeleted(Row):
    """The number of deleted messages of a stream, and the first and the last of them; 0 without any."""

    stream: str
    messages: int
    first: int
    last: int


class StreamDeleteMessages(AdminChange[StreamMessagesDeleted]):
    """Delete messages of a stream: the one of a sequence, or all with a subject, up to a sequence or both.

    `subject` is a topic pattern. Readers get a gap with the reason `deleted` in place of the messages.
    """

    topic = "stream.delete-messages"

    stream: Name
    sequence: Position | None = None
    subject: Subject | None = None
    up_to: Position | None = None


class StreamDeleted(Row):
    """The messages of a deleted stream, and its cursors, readers, and feeds from it or to it.

    A `partial` deletion has ended feeds alone so far: repeat it.
    """

    stream: str
    first: int
    last: int
    cursors: int
    readers: int
    feeds: list[str]
    partial: bool = False


class StreamDelete(AdminChange[StreamDeleted]):
    """Delete a stream with its history.

    The change is refused while readers, cursors or feeds use the stream. With `cascade`, its subscriptions,
    its cursors, and the feeds from it and to it end as well.
    """

    topic = "stream.delete"

    stream: Name
    cascade: Boolean = False
