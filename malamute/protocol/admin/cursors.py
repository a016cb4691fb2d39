"""Cursors: the positions that the broker keeps for readers of streams."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address, Name, Words


class CursorRow(Row):
    """A cursor: the last sequence done with, and how many messages it is behind; None if that is lost.

    The `owner` is the user who has it, empty for anybody.
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
    """Where a cursor was before, and where it is."""

    stream: str
    cursor: str
    before: int | None
    sequence: int


class CursorSet(AdminChange[CursorChanged]):
    """Set a cursor so that its reader, who may be named as its `owner`, goes on at `start`."""

    topic = "cursor.set"

    stream: Name
    cursor: Name
    start: Words
    owner: Name | None = None


class CursorDeleted(Row):
    """Where a cursor was."""

    stream: str
    cursor: str
    before: int | None


class CursorDelete(AdminChange[CursorDeleted]):
    """Forget a cursor."""

    topic = "cursor.delete"

    stream: Name
    cursor: Name
