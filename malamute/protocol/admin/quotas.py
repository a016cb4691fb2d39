"""Quotas: what users and groups may have, and what they use of it."""

from __future__ import annotations

from malamute.protocol.admin.topic import PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address


class QuotaFigure(Row):
    """One limit of a quota: how much of it is used, and how often it refused something since the start.

    Of a rate, it is what of one second's worth is used.
    """

    name: str
    used: int
    limit: int
    refused: int


class QuotaRow(Row):
    """What a user or a group has of its quota. The owner is `user NAME` or `group NAME`."""

    owner: str
    quotas: list[QuotaFigure]


class QuotasQuery(PagedQuery[list[QuotaRow]]):
    """The quotas of owners that were here or have one by name; or of one user and the user's groups."""

    topic = "quotas"
    page_key = "owner"

    user: Address = ""
