"""Selectors: what takes messages from a place, be it a feed, an offer or a subscription."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Number, Place, RowCount


class SelectorRow(Row):
    """A selector: its number at its source, what it takes there, and where it takes it.

    The destination is a place or, of a subscription, an offer or the owner of a mailbox, `client/ID`. It has
    `credit` for so many more messages, -1 without limit.
    """

    number: int
    source: str
    destination: str
    criteria: list[list[Any]]
    where: str
    operation: str
    credit: int


class SelectorsQuery(AdminQuery[list[SelectorRow]]):
    """The selectors of a place, in the order of their numbers: so many behind one of them."""

    topic = "selectors"

    source: Place
    after: Number = 0
    limit: RowCount | None = None


class SelectorQuery(AdminQuery[SelectorRow]):
    """One selector, by its source and its number there."""

    topic = "selector"

    source: Place
    number: Number
