"""`malamute events`: the events of a broker, as they happen."""

from __future__ import annotations

import sys
import textwrap
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from malamute.cli.exit_codes import TIMED_OUT
from malamute.cli.options import ConnectionOptions, connects, examples, waits
from malamute.cli.printing import Render, content_of, printable, prints_messages
from malamute.cli.signals import until_stopped
from malamute.cli.subscribe import follow, window

if TYPE_CHECKING:
    from malamute.client.session.message import Message

STREAM = "$sys"
"""The stream to which the broker publishes its events."""


def as_event(message: Message) -> bytes:
    """Return an event as a line for people: time, event, and details.

    On a terminal, details for which the line has no room are below it.
    """
    details = " ".join(
        f"{name}={printable(str(value))}" for name, value in content_of(message).headers.items()
    )
    when = message.time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    line = f"{when}Z  {printable(message.subject)}  {details}".rstrip()
    if sys.stdout.isatty():
        width = get_terminal_size().columns
        lines = textwrap.TextWrapper(
            width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        line = lines.fill(line)
    return line.encode() + b"\n"


@click.command(
    epilog=examples(
        "malamute events", "malamute events 'client.#' --start since:1h", "malamute events '*.dead.#' --json"
    )
)
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--where", default="", metavar="EXPRESSION", help="A match expression on the details.")
@click.option(
    "--start", default="new", show_default=True, metavar="START", help="Where to begin, as for malamute sub."
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after this many events.")
@waits("End when none comes for so long; with --count, and fewer events, that is exit code 3.")
@connects
@prints_messages(as_event)
def events(
    patterns: tuple[str, ...],
    *,
    where: str,
    start: str,
    count: int | None,
    wait_seconds: float | None,
    connection: ConnectionOptions,
    render: Render,
) -> None:
    """Follow the events of a broker whose subject matches any PATTERN; all events by default.

    Events are messages of the stream $sys: the subject has the event and its client or other resource, as in
    client.connected.alice, and the headers have details.
    """
    with until_stopped(), connection.open() as client:
        with client.subscribe(STREAM, *patterns, where=where, start=start, credit=window(count)) as messages:
            left = follow(messages, render, count=count, wait_seconds=wait_seconds)
        if left:
            raise click.exceptions.Exit(TIMED_OUT)
