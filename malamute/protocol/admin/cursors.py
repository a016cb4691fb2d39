"""Cursors: the positions that the broker keeps for readers of streams."""

from __future__ import annotations

from malamute.protocol.admin.topic import AdminChange, PagedQuery
from malamute.protocol.admin.value import Row, argument
from malamute.protocol.messages import ADDRESS, NAME, WORDS


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

    stream: str = argument(ADDRESS, default="")


class CursorChanged(Row):
    """Where a cursor was before, and where it is."""

    stream: str
    cursor: str
    before: int | None
    sequence: int


class CursorSet(AdminChange[CursorChanged]):
    """Set a cursor so that its reader, who may be named as its `owner`, goes on at `start`."""

    topic = "cursor.set"

    stream: str = argument(NAME)
    cursor: str = argument(NAME)
    start: str = argument(WORDS)
    owner: str | None = argument(NAME, default=None)


class CursorDeleted(Row):
    """Where a cursor was."""

    stream: str
    cursor: str
    before: int | None


class CursorDelete(AdminChange[CursorDeleted]):
    """Forget a cursor."""

    topic = "cursor.delete"

    stream: str = argument(NAME)
    cursor: str = argument(NAME)
