"""Cursors: the positions that the broker keeps for readers of streams."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, Name, Words


class CursorRow(Row):
    """A cursor: the last sequence done with, and its lag in messages; None if the position is lost.

    The `owner` is the only user who may use it; empty for all users.
    """

    name: str
    sequence: int | None
    lag: int | None
    owner: str = ""


class StreamCursor(Row):
    """A cursor of any stream."""

    stream: str
    name: str
    sequence: int | None
    lag: int | None
    owner: str = ""


class CursorsQuery(PagedQuery[list[StreamCursor]]):
    """The cursors of all streams, or of one."""

    topic = "cursors"
    page_key = "stream"

    stream: Address = ""


class CursorChanged(Row):
    """The position of a cursor before a change, and after."""

    stream: str
    cursor: str
    before: int | None
    sequence: int


class CursorSet(AdminChange[CursorChanged]):
    """Set a cursor so that its reader continues at `start`; the reader may become its `owner`."""

    topic = "cursor.set"

    stream: Name
    cursor: Name
    start: Words
    owner: Name | None = None


class CursorDeleted(Row):
    """The position of a deleted cursor."""

    stream: str
    cursor: str
    before: int | None


class CursorDelete(AdminChange[CursorDeleted]):
    """Delete a cursor."""

    topic = "cursor.delete"

    stream: Name
    cursor: Name
