"""`malamute cursor`: named positions in streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from malamute.cli import completion
from malamute.cli.admin import changes, show_found
from malamute.cli.options import ConnectionOptions, asks, examples

if TYPE_CHECKING:
    from malamute.protocol import admin

stream_argument = click.argument("name", metavar="STREAM", shell_complete=completion.names("streams"))
cursor_argument = click.argument("cursor_name", metavar="CURSOR", shell_complete=completion.cursors)


@click.group("cursor")
def cursor() -> None:
    """Named positions in streams, which the broker keeps for their readers."""


@cursor.command("list")
@click.argument("name", default="", metavar="[STREAM]", shell_complete=completion.names("streams"))
@asks
def listing(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """List the cursors of STREAM, or of all streams: the last processed sequence, and the lag in messages."""
    from malamute.protocol import admin

    connection, name = connection.to(name, "stream") if name else (connection, "")
    with connection.open() as client:
        rows = [row.as_map() for row in client.query(admin.CursorsQuery(stream=name))]
    show_found(rows, "cursors", as_json=as_json)


@cursor.command("reset", epilog=examples("malamute cursor reset orders billing --to since:1h --dry-run"))
@stream_argument
@cursor_argument
@click.option(
    "--to", "start", required=True, metavar="START", help="new, first, last, seq:N, time:T or since:1h."
)
@click.option("--owner", metavar="USER", help="The new owner of the cursor.")
@changes("stream")
def reset(name: str, cursor_name: str, **given: Any) -> admin.CursorSet:
    """Set a cursor so that its reader continues at START; a missing one is created."""
    from malamute.protocol import admin

    return admin.CursorSet(stream=name, cursor=cursor_name, **given)


@cursor.command("delete")
@stream_argument
@cursor_argument
@changes("stream", "Forget the cursor {cursor_name} of {name}? Its reader begins anew.")
def forget(name: str, cursor_name: str, *, dry_run: bool) -> admin.CursorDelete:
    """Delete a cursor."""
    from malamute.protocol import admin

    return admin.CursorDelete(stream=name, cursor=cursor_name, dry_run=dry_run)
