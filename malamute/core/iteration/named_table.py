"""A dictionary of items by name, with lists in the order of the names.

There may be a hundred thousand mailboxes: a page of their list looks at its own rows only. Names are sorted
when somebody asks for a list, as few items live to see one, and the sort merges the new names into the old.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


class NamedTable(dict[str, Item]):
    """Dictionary by name, changed by assignment and deletion of one item at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        """Names of the last sort, in order, with those that were deleted since."""
        self._new: dict[str, None] = {}

    def __setitem__(self, name: str, item: Item) -> None:
        if name not in self:
            self._new[name] = None
        super().__setitem__(name, item)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._new.pop(name, None)

    def sort(self) -> int:
        """Sort the names if any is new or most were deleted. Returns the number of names looked at."""
        if not self._new and 2 * len(self) >= len(self._names):
            return 0
        names = sorted([*self._names, *self._new])
        # A name that was deleted and set again is there twice.
        self._names = [*dict.fromkeys(filter(self.__contains__, names))]
        self._new.clear()
        return len(names)

    def after(self, name: str) -> Iterator[Item]:
        """Return the items behind a name, in the order of the last sort."""
        for place in range(bisect_right(self._names, name), len(self._names)):
            if (known := self._names[place]) in self:
                yield self[known]
