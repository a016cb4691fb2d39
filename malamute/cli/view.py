"""`malamute stream view`: page through the stored messages of a stream, and end there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from malamute.cli import completion
from malamute.cli.error_output import report
from malamute.cli.keyboard import LEAVING, keys, pressed
from malamute.cli.options import ConnectionOptions, connects, examples, selects
from malamute.cli.printing import Render, content_of, excerpt, prints_messages, show
from malamute.cli.signals import until_stopped
from malamute.cli.subscribe import window
from malamute.cli.tables import show_rows

if TYPE_CHECKING:
    from malamute.client.options import Criteria
    from malamute.client.session.message import Message
    from malamute.client.sync.client import Client
    from malamute.client.sync.consumers import Subscription

CHUNK = 1000
"""Messages read at once without pages."""

HEADING_LINES = 6
"""Lines of a terminal besides messages: the title of the table, and the question."""


@click.command(
    "view",
    epilog=examples(
        "malamute stream view weather --since 1h",
        "malamute stream view weather 'temp.*' --where 'unit = \"C\"' --json | jq .body",
    ),
)
@click.argument("name", shell_complete=completion.names("streams"))
@selects
@click.option(
    "--since", metavar="AGE|TIME", help="Begin so long ago, as 1h; or at a time, as 2026-01-31T12:00."
)
@click.option(
    "--start", metavar="START", help="Begin at first (without --since), last, seq:N, time:T, since:1h."
)
@click.option("--count", "-n", "limit", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--page", type=click.IntRange(min=1), help="Messages on a page; by default as many as fit the terminal."
)
@connects
@prints_messages(None)
def view(
    name: str,
    *,
    criteria: Criteria,
    where: str,
    since: str | None,
    start: str | None,
    limit: int | None,
    page: int | None,
    connection: ConnectionOptions,
    render: Render | None,
) -> None:
    """Show the stored messages of a stream, from the oldest to the newest.

    A terminal pauses after each page: Enter or the space bar shows the next one, q ends. Other output
    continues to the end. Without --json, --raw, --body and --format a table shows the beginning of bodies.
    """
    if since and start:
        raise click.UsageError("--since and --start together: expected one of them")
    connection, name = connection.to(name, "stream")
    turning = sys.stdin.isatty() and sys.stdout.isatty()
    size = page or (max(shutil.get_terminal_size().lines - HEADING_LINES, 1) if turning else CHUNK)
    with until_stopped(), connection.open() as client:
        begin = _start(since) if since else start or "first"
        selection = {"criteria": criteria, "where": where, "start": begin}
        shown = 0
        for messages in pages(client, name, selection, size, limit):
            if shown and turning and not _wants_more():
                break
            if render is None:
                show_rows(list(map(_row, messages)), as_json=False)
            else:
                show(messages, render)
            shown += len(messages)
        if not shown:
            report("no messages")


def pages(
    client: Client,
    name: str,
    selection: dict[str, Any],
    size: int,
    limit: int | None,
) -> Iterator[list[Message]]:
    """Yield lists of `size` stored messages, the last one shorter; `limit` in all."""
    from malamute.client.events import Switched
    from malamute.protocol import admin

    head = client.query(admin.StreamQuery(name=name)).last
    left = limit or head
    source: Subscription | None = None
    live, on_event = False, client.on_event

    def listen(event: Any) -> None:
        # Live means that all stored messages have arrived: they wait here, or were popped already.
        nonlocal live
        if isinstance(event, Switched) and event.state == "live":
            live = True
            if source is not None:
                source.cancel()
        on_event(event)

    client.on_event = listen
    with client.subscribe(name, credit=window(size), **selection) as messages:
        source = messages
        if live:
            messages.cancel()
        wait_seconds: float | None = 0.0  # at first: an empty stream reports nothing
        part: list[Message] = []
        while left:
            taken = messages.take(min(size - len(part), left), timeout=wait_seconds)
            if not taken and (wait_seconds is None or (messages.last or 0) >= head):
                break
            wait_seconds = None
            part += [message for message in taken if message.sequence <= head]
            left -= len(taken)
            if taken and taken[-1].sequence >= head:
                break
            if len(part) == size:
                yield part
                part = []
        if part:
            yield part


def _start(since: str) -> str:
    """Return the start for --since: an age, or a time if it begins with a year."""
    return f"time:{since}" if since[4:5] == "-" else f"since:{since}"


def _wants_more() -> bool:
    """Ask for the next page, with one key."""
    click.echo("-- more: Enter, or q to end --", nl=False, err=True)
    with keys() as keyboard:
        key, *_ = pressed(keyboard, None)
    click.echo("\r\x1b[K", nl=False, err=True)
    return key not in LEAVING


def _row(message: Message) -> dict[str, Any]:
    fields = {name: getattr(message, name) for name in ("sequence", "time", "sender", "subject")}
    content = content_of(message)
    if content.damage:
        return {**fields, "headers": "", "body": f"({content.damage})"}
    return {**fields, **excerpt(content.headers, content.body)}
