"""`malamute client`: connected clients, and disconnecting one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from malamute.cli import completion
from malamute.cli.admin import changes, show_list
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.printing import to_json
from malamute.cli.screen import VIEWS, Look, arranged
from malamute.cli.tables import show_rows, show_whole
from malamute.cli.top import take

if TYPE_CHECKING:
    from malamute.protocol import admin

RATES_SECONDS = 1.0
"""Seconds between two samples from which rates are measured."""

client_argument = click.argument(
    "name", metavar="CLIENT", shell_complete=completion.names("clients", "id", "address")
)


@click.group("client")
def client() -> None:
    """The clients of a broker."""


@client.command("list")
@click.option("--rates", is_flag=True, help="Measure for a second: messages a second by client, and by user.")
@asks
def listing(*, rates: bool, connection: ConnectionOptions, as_json: bool) -> None:
    """List the clients: connected ones, and those that may resume their session; times in UTC.

    Each row has the numbers of messages sent and received. `malamute top` shows rates all the time.
    """
    if rates:
        _show_rates(connection, as_json=as_json)
    else:
        show_list(connection, "clients", as_json=as_json, column="address")


def _show_rates(connection: ConnectionOptions, *, as_json: bool) -> None:
    with connection.open() as asking:
        before = take(asking)
        time.sleep(RATES_SECONDS)
        now = take(asking)
    shown = {name: arranged(Look(column=1), VIEWS[name](now, before)) for name in ("users", "clients")}
    if as_json:
        click.echo(to_json(shown))
        return
    for name, rows in shown.items():
        show_rows(rows, as_json=False, title=f"\n{name}")


@client.command()
@client_argument
@asks
def show(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show one client, by its id or its address: its connection, subscriptions and offers."""
    from malamute.protocol import admin

    with connection.open() as asking:
        found = asking.query(admin.ClientQuery(id=name)).as_map()
    mailbox = found.pop("mailbox")
    show_whole({**found, "mailbox": [mailbox] if mailbox else []}, as_json=as_json)


@client.command(epilog=examples("malamute client disconnect alice"))
@client_argument
@changes(question="End the session of {name}?")
def disconnect(name: str, *, dry_run: bool) -> admin.ClientDisconnect:
    """End the session of a client, named by its id or its address.

    Its messages in flight return to their queues. The client gets error 410, and does not reconnect by
    itself.
    """
    from malamute.protocol import admin

    return admin.ClientDisconnect(id=name, dry_run=dry_run)
