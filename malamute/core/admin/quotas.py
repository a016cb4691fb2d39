"""Queries about quotas: the usage of their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from malamute.core.admin.pages import page
from malamute.protocol.admin import QuotaFigure, QuotaRow, QuotasQuery

if TYPE_CHECKING:
    from malamute.access.quota import Owner
    from malamute.core.identity.quotas import QuotaTable
    from malamute.core.iteration.effects import Effects


def quotas(effects: Effects, quotas: QuotaTable, query: QuotasQuery) -> list[QuotaRow]:
    """Return the usage of quotas, by their owners; of all, or of one user and the user's groups."""
    owners = quotas.owners(query.user)
    found = page(effects, owners, " ".join, query.after_name, query.limit)
    return [QuotaRow(owner=" ".join(owner), quotas=quota_figures(effects, quotas, owner)) for owner in found]


def quota_figures(effects: Effects, quotas: QuotaTable, owner: Owner) -> list[QuotaFigure]:
    """Return the usage of each limit of a quota."""
    now = effects.now
    usage = quotas.usage_of(owner, now)
    return [
        QuotaFigure(name=name, used=usage.used_of(name, now), limit=most, refused=usage.refused[name])
        for name, most in usage.quota._asdict().items()
        if most is not None
    ]
