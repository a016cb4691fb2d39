"""`malamute user quotas` and `user show`: the use of quotas by users and groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from malamute.cli.admin import show_found
from malamute.cli.options import ConnectionOptions, asks, examples

if TYPE_CHECKING:
    from malamute.protocol import admin


@click.command(epilog=examples("malamute user quotas", "malamute user quotas --json"))
@asks
def quotas(*, connection: ConnectionOptions, as_json: bool) -> None:
    """Show the use of every quota in the configuration, and of users since the start.

    A rate is the used part of one second's worth. `refused` counts since the broker started.
    """
    _show(connection, "", as_json=as_json)


@click.command(epilog=examples("malamute user show ann"))
@click.argument("name")
@asks
def show(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show the use of quota by a user, and by each of the user's groups."""
    _show(connection, name, as_json=as_json)


def _show(connection: ConnectionOptions, user: str, *, as_json: bool) -> None:
    from malamute.protocol import admin

    with connection.open() as client:
        found = client.query(admin.QuotasQuery(user=user))
    show_found([*_rows(found)], "quotas", as_json=as_json)


def _rows(found: Iterable[admin.QuotaRow]) -> Iterable[dict[str, object]]:
    """Yield one row for each limit."""
    for row in found:
        for figure in row.quotas:
            yield {
                "owner": row.owner,
                "quota": figure.name,
                "used": figure.used,
                "limit": figure.limit,
                "refused": figure.refused,
            }
