"""`malamute link`: streams of other brokers, copied into streams of this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from malamute.cli import completion
from malamute.cli.admin import dry_run_option, make_change, removes, show_found
from malamute.cli.options import ConnectionOptions, connects, examples, json_option, selects
from malamute.cli.tables import criteria_words, show_whole

COLUMNS = (
    "name",
    "urls",
    "remote",
    "stream",
    "state",
    "position",
    "lag",
    "lag_seconds",
    "rate",
    "taken",
    "gaps",
)
"""Columns of a list for people; `show` and JSON have all."""

_name = click.argument("name", metavar="NAME", shell_complete=completion.names("links"))


@click.group("link")
def link() -> None:
    """Links copy a stream of another broker into a stream of this one, each message once.

    A link is defined here, at its target. `malamute pack run` carries its messages.
    """


@link.command(
    "add",
    epilog=examples(
        "malamute link add oslo --from tcp://oslo.example.org:9999 sensors --into sensors --start first",
        "malamute link add alarms --from tcp://a:9999,tcp://b:9999 sensors 'temp.#' --where 'value > 80' "
        "--into alarms --source-context oslo",
    ),
)
@_name
@click.option("--from", "urls", required=True, metavar="URL[,URL]", help="The other broker.")
@click.argument("stream", metavar="STREAM")
@selects
@click.option("--into", required=True, metavar="STREAM", help="The stream of this broker.")
@click.option(
    "--start",
    default="",
    metavar="START",
    help="new, first, last, seq:N, time:T or since:1h. A new link begins with new messages, and a "
    "changed one continues where it was.",
)
@click.option(
    "--source-context",
    default="",
    metavar="NAME",
    help="The context with the credentials for the other broker, where `malamute pack run` runs, or the path "
    "of a file of contexts.",
)
@dry_run_option
@connects
@json_option
def add_link(
    name: str,
    urls: str,
    stream: str,
    *,
    criteria: list[tuple[str, Any]],
    where: str,
    into: str,
    start: str,
    source_context: str,
    dry_run: bool,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Copy each message of STREAM there whose subject matches any PATTERN into a stream here.

    Without a pattern all messages match. The messages keep their senders. A link of this NAME is changed.
    """
    from malamute.client.session.route import urls_of
    from malamute.protocol import admin

    change = admin.LinkSet(
        link=name,
        urls=urls_of(urls),
        remote=stream,
        stream=into,
        criteria=criteria,
        where=where,
        start=start,
        context=source_context,
        dry_run=dry_run,
    )
    make_change(connection, change, as_json=as_json)


@link.command("list", epilog=examples("malamute link list", "malamute link list --json"))
@connects
@json_option
def list_links(connection: ConnectionOptions, *, as_json: bool) -> None:
    """List the links: the source, the target, and the position of each."""
    from malamute.protocol import admin

    with connection.open() as client:
        rows = [row.as_map() for row in client.query(admin.LinksQuery())]
    shown = [{column: _plain(row[column]) for column in COLUMNS} for row in rows]
    show_found(rows if as_json else shown, "links", as_json=as_json)


def _plain(value: Any) -> Any:
    """Return a value for a table."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items())
    return ", ".join(value) if isinstance(value, list) else value


@link.command("show", epilog=examples("malamute link show oslo"))
@_name
@connects
@json_option
def show_link(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show one link: its criteria, its position, its state and the reason of that."""
    from malamute.protocol import admin

    with connection.open() as client:
        row = client.query(admin.LinkQuery(link=name)).as_map()
    shown = {**criteria_words(row), "urls": _plain(row["urls"]), "gaps": _plain(row["gaps"])}
    show_whole(row if as_json else shown, as_json=as_json)


def _add_change(verb: str, words: str, asks: Callable[[Any], Any] = dry_run_option) -> None:
    """Add a command that changes one link; with `asks`, after a confirmation."""

    @link.command(verb, help=words, epilog=examples(f"malamute link {verb} oslo"))
    @_name
    @asks
    @connects
    @json_option
    def change(name: str, *, dry_run: bool, connection: ConnectionOptions, as_json: bool) -> None:
        from malamute.protocol import admin

        with connection.open() as client:
            stream = client.query(admin.LinkQuery(link=name)).stream
        wanted = admin.CHANGES[f"link.{verb}"].parse({"link": name, "stream": stream, "dry_run": dry_run})
        make_change(connection, wanted, as_json=as_json)


_add_change("pause", "Pause a link at its position, over restarts, until it is resumed or added again.")
_add_change("resume", "Resume a paused link at its position.")
_add_change("remove", "Remove a link; messages that it has brought stay.", removes("Remove the link {name}?"))
