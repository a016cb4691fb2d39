"""Lists in pages: an answer has a bounded number of rows, in order of their keys.

A list of all there is would hold up everybody, and fill the memory while it waits to be sent. So an asker
gets the first rows after a key, and asks again after the last one that it got; an empty page is the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from malamute.core.iteration.effects import Effects
    from malamute.core.iteration.named_table import NamedTable

PAGE_ROWS = 200
"""Rows of a page, at the most."""

DETAILS_MAX = 1_000
"""Subscriptions, offers and workers in one answer; one session may have as many, and a service more."""

ROW_WORK = 10
"""The work of making and encoding a row."""

LOOKED_AT = 20
"""So many things that are only looked at cost as much as one unit of work."""

Item = TypeVar("Item")


def page(
    effects: Effects, items: Iterable[Item], key: Callable[[Item], str], after: str, limit: int | None = None
) -> list[Item]:
    """Return the items whose keys come next after one, in order, as work of the iteration.

    `limit` is of rows; a page has `PAGE_ROWS` at the most.
    """
    looked_at = 0

    def behind() -> Iterable[tuple[str, Item]]:
        nonlocal looked_at
        for item in items:
            looked_at += 1
            if (own := key(item)) > after:
                yield own, item

    rows = nsmallest(min(limit or PAGE_ROWS, PAGE_ROWS), behind(), key=_key)
    effects.work -= looked_at // LOOKED_AT + ROW_WORK * len(rows)
    return [item for _, item in rows]


def page_of(effects: Effects, table: NamedTable[Item], after: str, limit: int | None = None) -> list[Item]:
    """The items of a table whose names come next after one, as `page`: without a look at all the others."""
    looked_at = table.sort()
    rows = list(islice(table.after(after), min(limit or PAGE_ROWS, PAGE_ROWS)))
    effects.work -= looked_at // LOOKED_AT + ROW_WORK * len(rows)
    return rows


def first(effects: Effects, items: Iterable[Item], limit: int | None = None) -> list[Item]:
    """Return the first of ordered items, as many as a page has, as work of the iteration."""
    rows = list(islice(items, min(limit or PAGE_ROWS, PAGE_ROWS)))
    effects.work -= ROW_WORK * len(rows)
    return rows


def few(effects: Effects, items: Sequence[Item], details: Callable[[Item], int]) -> list[Item]:
    """The first items with so many details as one answer may have, and one in any case."""
    chosen: list[Item] = []
    total = 0
    for item in items:
        total += min(details(item), DETAILS_MAX)
        if chosen and total > DETAILS_MAX:
            break
        chosen.append(item)
    effects.work -= ROW_WORK * min(total, DETAILS_MAX)
    return chosen


def _key(pair: tuple[str, Any]) -> str:
    return pair[0]
