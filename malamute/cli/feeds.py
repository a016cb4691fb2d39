"""`malamute feed`: rules by which the broker passes messages from a source to a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from malamute.cli import completion
from malamute.cli.admin import dry_run_option, make_change, removes, show_found
from malamute.cli.options import ConnectionOptions, connects, examples, json_option, selects
from malamute.cli.tables import criteria_words, show_whole

Function = TypeVar("Function", bound=Callable[..., Any])

COLUMNS = (
    "feed",
    "source",
    "target",
    "operation",
    "when",
    "state",
    "sequence",
    "lag",
    "taken",
    "credit",
    "criteria",
)
"""Columns of a list for people; `show` and JSON have all."""


def _named(function: Function) -> Function:
    """Add the arguments of one feed: its NAME and its SOURCE."""
    source = click.argument("source", metavar="SOURCE", shell_complete=completion.names("feeds", "source"))
    name = click.argument("name", metavar="NAME", shell_complete=completion.names("feeds", "feed"))
    return name(source(function))


@click.group("feed")
def feed() -> None:
    """Feeds pass messages inside the broker, from a SOURCE to a TARGET.

    Source and target are stream/NAME, mailbox/NAME or service/NAME. A feed has a NAME, unique at its source.
    """


@feed.command(
    "set",
    epilog=examples(
        "malamute feed set billing stream/orders service/billing 'paid.*' --where 'amount > 100'",
        "malamute feed set cold stream/sensors stream/alarms 'temp.#' --where 'value < -20' --start since:1h",
        "malamute feed set work stream/orders service/billing --key header:customer",
        "malamute feed set rest stream/orders stream/others --when default",
        "malamute feed set spill service/resize service/resize-cloud --when overflow",
    ),
)
@click.argument("name", metavar="NAME", shell_complete=completion.names("feeds", "feed"))
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@selects
@click.option(
    "--start",
    default="",
    metavar="START",
    help="new, first, last, seq:N, time:T or since:1h, of a stream. A new feed begins with new "
    "messages, and a changed one continues where it was.",
)
@click.option(
    "--when",
    type=click.Choice(["match", "overflow", "default"]),
    default="match",
    show_default=True,
    help="match: all matching messages; overflow: ready messages of a queue for which no consumer has "
    "credit; default: messages that no other feed of the source passes.",
)
@click.option(
    "--key",
    default="",
    metavar="KEY",
    help="The key of each message, so that consumers of TARGET compete in order by key: subject, a part of "
    "it as in subject:2, or a header as in header:customer.",
)
@dry_run_option
@connects
@json_option
def set_feed(
    name: str,
    source: str,
    target: str,
    *,
    criteria: list[tuple[str, Any]],
    where: str,
    start: str,
    when: str,
    key: str,
    dry_run: bool,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Pass each message of SOURCE whose subject matches any PATTERN on to TARGET, or change the feed.

    Without a pattern all messages match. Subscriptions of a stream get their copies as ever; messages taken
    from a mailbox or a service leave it. While the target is full, messages wait at SOURCE.
    """
    from malamute.protocol import admin

    connection, target = connection.to_place(target)
    connection, source = connection.to_place(source)
    change = admin.FeedSet(
        source=source,
        feed=name,
        target=target,
        criteria=criteria,
        where=where,
        start=start,
        when=when,
        key=key,
        dry_run=dry_run,
    )
    make_change(connection, change, as_json=as_json)


@feed.command("list", epilog=examples("malamute feed list", "malamute feed list --json"))
@connects
@json_option
def list_feeds(connection: ConnectionOptions, *, as_json: bool) -> None:
    """List the feeds: source, target, and position of each."""
    from malamute.protocol import admin

    with connection.open() as client:
        rows = [row.as_map() for row in client.query(admin.FeedsQuery())]
    words = [criteria_words(row) for row in rows]
    shown = [{column: row[column] for column in COLUMNS} for row in words]
    show_found(rows if as_json else shown, "feeds", as_json=as_json)


@feed.command("show", epilog=examples("malamute feed show billing stream/orders"))
@_named
@connects
@json_option
def show_feed(name: str, source: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show one feed: its criteria, its position, and its permissions."""
    from malamute.protocol import admin

    connection, source = connection.to_place(source)
    with connection.open() as client:
        row = client.query(admin.FeedQuery(source=source, feed=name)).as_map()
    show_whole(row if as_json else criteria_words(row), as_json=as_json)


def _add_change(verb: str, topic: str, words: str, asks: Callable[[Any], Any] = dry_run_option) -> None:
    """Add a command that changes one feed; with `asks`, after a confirmation."""

    @feed.command(verb, help=words, epilog=examples(f"malamute feed {verb} billing stream/orders"))
    @_named
    @asks
    @connects
    @json_option
    def change(
        name: str, source: str, *, dry_run: bool, connection: ConnectionOptions, as_json: bool
    ) -> None:
        from malamute.protocol import admin

        connection, source = connection.to_place(source)
        wanted = admin.CHANGES[topic].parse({"source": source, "feed": name, "dry_run": dry_run})
        make_change(connection, wanted, as_json=as_json)


_add_change("enable", "feed.enable", "Resume a feed at its position.")
_add_change("disable", "feed.disable", "Pause a feed, over restarts, until it is enabled or set again.")
_add_change(
    "delete",
    "feed.delete",
    "Delete a feed; messages already passed on stay.",
    removes("End the feed {name} of {source}?"),
)
