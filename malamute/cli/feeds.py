"""`malamute service feed` and `feeds`: streams that make requests."""

from __future__ import annotations

from typing import Any

import click

from malamute.cli import completion
from malamute.cli.admin import dry_run_option, make_change, show_found
from malamute.cli.options import ConnectionOptions, connects, criteria_of, examples, json_option, selects
from malamute.cli.queues import service
from malamute.cli.tables import criteria_words


@service.command(
    "feed", epilog=examples("malamute service feed billing orders 'paid.*' --where 'amount > 100'")
)
@click.argument("name", metavar="SERVICE", shell_complete=completion.names("services"))
@click.argument("stream", shell_complete=completion.names("streams"))
@selects
@click.option(
    "--start",
    default="",
    metavar="START",
    help="new, first, last, seq:N, time:T or since:1h. A new feed begins with what is new, and one that is "
    "changed continues where it was.",
)
@click.option("--delete", is_flag=True, help="End the feed; the requests that it made stay.")
@dry_run_option
@connects
@json_option
def feed(
    name: str,
    stream: str,
    *,
    criteria: list[tuple[str, Any]],
    where: str,
    start: str,
    delete: bool,
    dry_run: bool,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Make each message of STREAM whose subject meets any PATTERN one request to SERVICE.

    Without a pattern, all messages do. Subscriptions of the stream get their copies as ever. When the queue
    of the service is full, the messages wait in the journal of the stream.
    """
    from malamute.protocol import admin

    connection, name = connection.to(name, "service")
    connection, stream = connection.to(stream, "stream")
    if delete and (criteria != criteria_of("", ()) or where or start):
        raise click.UsageError("--delete with options of a feed: expected --delete alone")
    if delete:
        change: admin.AdminChange[Any] = admin.FeedDelete(service=name, stream=stream, dry_run=dry_run)
    else:
        change = admin.FeedSet(
            service=name, stream=stream, criteria=criteria, where=where, start=start, dry_run=dry_run
        )
    make_change(connection, change, as_json=as_json)


@service.command("feeds")
@connects
@json_option
def feeds(connection: ConnectionOptions, *, as_json: bool) -> None:
    """List the feeds: which streams make requests to which services, and where each stands."""
    from malamute.protocol import admin

    with connection.open() as client:
        rows = [row.as_map() for row in client.query(admin.FeedsQuery())]
    show_found(rows if as_json else list(map(criteria_words, rows)), "feeds", as_json=as_json)
