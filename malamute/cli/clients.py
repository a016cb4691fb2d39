"""`malamute client`: who is connected, and sending somebody away."""

from __future__ import annotations

import click

from malamute.cli import completion
from malamute.cli.admin import confirm, dry_run_option, make_change, show_list, yes_option
from malamute.cli.options import ConnectionOptions, connects, examples, json_option
from malamute.cli.tables import show_whole

client_argument = click.argument(
    "name", metavar="CLIENT", shell_complete=completion.names("clients", "id", "address")
)


@click.group("client")
def client() -> None:
    """The clients of a broker."""


@client.command("list")
@connects
@json_option
def listing(*, connection: ConnectionOptions, as_json: bool) -> None:
    """List the clients: who is connected, or may resume its session; times in UTC."""
    show_list(connection, "clients", as_json=as_json, column="address")


@client.command()
@client_argument
@connects
@json_option
def show(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show one client, by its id or its address: whether it is there, what it reads and what it offers."""
    from malamute.protocol import admin

    with connection.open() as asking:
        found = asking.query(admin.ClientQuery(id=name)).as_map()
    mailbox = found.pop("mailbox")
    show_whole({**found, "mailbox": [mailbox] if mailbox else []}, as_json=as_json)


@client.command(epilog=examples("malamute client disconnect alice"))
@client_argument
@dry_run_option
@yes_option
@connects
@json_option
def disconnect(name: str, *, dry_run: bool, yes: bool, connection: ConnectionOptions, as_json: bool) -> None:
    """End the session of a client, named by its id or its address.

    What it holds goes back to the queues. It gets error 410, and does not reconnect by itself.
    """
    from malamute.protocol import admin

    confirm(f"End the session of {name}?", yes=yes, dry_run=dry_run)
    make_change(connection, admin.ClientDisconnect(id=name, dry_run=dry_run), as_json=as_json)
