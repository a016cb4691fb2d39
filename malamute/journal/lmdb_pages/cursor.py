"""A cursor over the values of a data file that reads each page by a system call, without LMDB's map.

An unreadable page of the map kills the process without a message. A system call fails instead, so the error
of a reader names the file. A read transaction of LMDB has to be open meanwhile: the writer does not reuse the
pages below the root of that transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import lmdb

from malamute.errors import StoreCorrupt
from malamute.journal.lmdb_pages.pages import NONE, Node, PageRoot, Pages

_BEHIND = b"\xff" * 16
"""A key greater than all keys."""

_key = itemgetter(0)

Branch = Sequence[tuple[bytes, int]]
"""The pages below a branch page, each with its first key."""


class PageCursor(Pages):
    """A cursor with the methods of LMDB's cursor. Each call raises StoreCorrupt for a bad page."""

    def __init__(self, descriptor: int, data: Path) -> None:
        super().__init__(descriptor)
        self._data = data
        self._root: PageRoot | None = None
        self._branches: dict[int, Branch] = {}
        self._page = b""
        self._nodes: list[Node] = []
        self._first = b""
        self._end: bytes | None = None
        self._place = 0

    def find_root(self, transaction: int) -> bool:
        """Select the root of a transaction; return False if a later commit replaces it."""
        roots, again = self._roots(), self._roots()
        if roots != again:
            return False
        if self.faults:
            raise self._corrupt(self.faults[0].number, self.faults[0].reason)
        for root in roots:
            if root.transaction == transaction:
                self._root, self.page_bytes, self._last = root, root.free.page_bytes, root.last
                return True
        return False

    def set_range(self, key: bytes) -> bool:
        """Move to the first value with a key at or after this one."""
        self._descend(key)
        self._place = bisect_left(self._nodes, key, key=_key)
        return self._forward()

    def next(self) -> bool:
        """Move to the next value."""
        self._place += 1
        return self._forward()

    def prev(self) -> bool:
        """Move to the previous value, or to the last one from behind the end."""
        self._place -= 1
        if self._place < 0 and self._first:
            self._descend(self._first, is_before=True)
            self._place = len(self._nodes) - 1
        return self._place >= 0

    def last(self) -> bool:
        """Move to the last value."""
        self._descend(_BEHIND)
        self._place = len(self._nodes) - 1
        return self._place >= 0

    def key(self) -> bytes:
        """Return the key of the value here; empty without a value."""
        return self._nodes[self._place].key if 0 <= self._place < len(self._nodes) else b""

    def value(self) -> bytes:
        """Return the value here."""
        node = self._nodes[self._place]
        return self._value(node)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None without one."""
        return self.value() if self.set_range(key) and self.key() == key else None

    def size_and_head(self) -> tuple[int, bytes]:
        """Return the size of the value here, and the part of it in its first page."""
        node = self._nodes[self._place]
        return node.size, self._value(node._replace(size=min(node.size, self.page_bytes // 2)))

    def _value(self, node: Node) -> bytes:
        with self._believed(node.own):
            if node.own and not 2 <= node.own <= self._last + 1 - self._pages_of(node.size):
                raise ValueError(f"it is none: the last is {self._last}")
            return self.read(self._page, node)

    def _forward(self) -> bool:
        if self._place >= len(self._nodes) and self._end is not None:
            self._descend(self._end)
            self._place = 0
        return self._place < len(self._nodes)

    def _descend(self, key: bytes, *, is_before: bool = False) -> None:
        """Read the leaf for a key, or with `is_before` the leaf before that key."""
        assert self._root is not None
        tree, first = self._root.values, b""
        end: bytes | None = None
        number, find = tree.root, bisect_left if is_before else bisect_right
        for _ in range(tree.depth - 1):
            branch = self._branch_at(number, first, end)
            place = max(find(branch, key, key=_key) - 1, 0)
            if place + 1 < len(branch):
                end = branch[place + 1][0]
            first, number = branch[place]
        self._first, self._end, self._nodes = first, end, []
        if number != NONE:
            with self._believed(number):
                self._page = self._read_page(number)
                self._nodes = self._leaf(self._page, number, first, end)

    def _branch_at(self, number: int, first: bytes, end: bytes | None) -> Branch:
        branch = self._branches.get(number)
        if branch is None:
            with self._believed(number):
                branch = self._branch(self._read_page(number), number, first, end)
            self._branches[number] = branch
        return branch

    def _read_page(self, number: int) -> bytes:
        return self._read(number * self.page_bytes, self.page_bytes)

    @contextmanager
    def _believed(self, number: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            raise self._corrupt(number, str(error)) from error

    def _corrupt(self, number: int, reason: str) -> StoreCorrupt:
        return StoreCorrupt(f"{self._data} is damaged, or cannot be read; page {number}: {reason}")


Cursor = lmdb.Cursor | PageCursor


def size_and_head(cursor: Cursor) -> tuple[int, bytes | memoryview]:
    """Return the size of the value under a cursor, and its beginning."""
    if isinstance(cursor, PageCursor):
        return cursor.size_and_head()
    value = cursor.value()
    return len(value), value
