"""Selectors of a source: feeds, offers and subscriptions."""

from __future__ import annotations

from typing import Any

from malamute.protocol.admin.topic import AdminQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Number, Place, RowCount


class SelectorRow(Row):
    """A selector: its number at its source, its criteria, and its destination.

    The destination is a target or, of a subscription, an offer or the owner of a mailbox, `client/ID`.
    `credit` is in messages, -1 without limit.
    """

    number: int
    source: str
    destination: str
    criteria: list[list[Any]]
    where: str
    operation: str
    credit: int


class SelectorsQuery(AdminQuery[list[SelectorRow]]):
    """The selectors of a source in the order of their numbers: `limit` of them behind one."""

    topic = "selectors"

    source: Place
    after: Number = 0
    limit: RowCount | None = None


class SelectorQuery(AdminQuery[SelectorRow]):
    """One selector, by its source and its number there."""

    topic = "selector"

    source: Place
    number: Number
