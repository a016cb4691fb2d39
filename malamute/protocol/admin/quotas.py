"""Quotas of users and groups, and the use of each."""

from __future__ import annotations

from malamute.protocol.admin.topic import PagedQuery
from malamute.protocol.admin.value import Row
from malamute.protocol.fields import Address


class QuotaFigure(Row):
    """One limit of a quota: its use, and the count of its refusals since the start.

    The use of a rate is the part of one second's worth.
    """

    name: str
    used: int
    limit: int
    refused: int


class QuotaRow(Row):
    """The quota of a user or a group. The owner is `user NAME` or `group NAME`."""

    owner: str
    quotas: list[QuotaFigure]


class QuotasQuery(PagedQuery[list[QuotaRow]]):
    """The quotas of owners with a session or with a quota by name; or of one user and the user's groups."""

    topic = "quotas"
    page_key = "owner"

    user: Address = ""
