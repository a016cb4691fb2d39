"""Things by name, and in the order of their names for lists of them.

There may be a hundred thousand mailboxes, and a page of their list must not look at each. Nor must one that
comes pay for an order that hardly anybody asks for: so only lists sort, and what came since the last one is a
short run behind a long one that is in order, which the sort merges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

Item = TypeVar("Item")

DELETED_MAX = 1_000
"""Names that are remembered beyond as many as there are, before those that were deleted are forgotten."""


class NamedTable(dict[str, Item]):
    """A dictionary by name. It is changed by setting and deleting one item at a time alone."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        """In order. Some of these may have been deleted since."""
        self._new: list[str] = []
        """Those that came since."""
        self._deleted = 0

    def __setitem__(self, name: str, item: Item) -> None:
        if name not in self:
            self._new.append(name)
        super().__setitem__(name, item)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._deleted += 1
        if self._deleted > len(self) + DELETED_MAX:
            # If nobody lists them, there is no need for an order of those that come and go.
            self._names.clear()
            self._new = [*self]
            self._deleted = 0

    def sort(self) -> int:
        """Put the names in order. Returns how many were looked at for that."""
        if not self._new and self._deleted <= len(self._names) // 2:
            return 0
        names = self._names + self._new
        names.sort()
        # One that was deleted and then set once more is there twice.
        self._names = [name for name in map(itemgetter(0), groupby(names)) if name in self]
        self._new.clear()
        self._deleted = 0
        return len(names)

    def after(self, name: str) -> Iterator[Item]:
        """The items behind a name, in order, as far as they were put in order."""
        for place in range(bisect_right(self._names, name), len(self._names)):
            item = self.get(self._names[place])
            if item is not None:
                yield item
