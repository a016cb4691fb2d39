"""`malamute pub`: publish one message, copies of it, or many messages from lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any

import click

from malamute.cli import completion
from malamute.cli.error_output import BadInput
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.payload import (
    OutgoingMessage,
    body_given,
    chunks_of_lines,
    confirm_option,
    headers_option,
    rows_of,
    rows_option,
    standard_input,
)
from malamute.cli.printing import printable, to_json
from malamute.cli.progress import bar
from malamute.cli.units import duration

if TYPE_CHECKING:
    from malamute.client.options import Assurance
    from malamute.client.sync.publisher import Publisher

COPIES = 1000
"""Copies of a message passed to the client at once."""

PUBLISHERS = 64
"""Open publishers, each for another time to live."""


@click.command(
    epilog=examples(
        "malamute pub weather temp.oslo -H unit=C -- -3.5",
        "date | malamute pub clock tick",
        "tail -f access.log | malamute pub logs web.access --lines",
    )
)
@click.argument("stream", shell_complete=completion.names("streams"))
@click.argument("subject", default="")
@click.argument("body", required=False)
@headers_option
@click.option("--count", type=click.IntRange(min=1), default=1, help="Publish the message this many times.")
@click.option("--lines", is_flag=True, help="Publish each line of standard input as a message.")
@click.option("--crlf", is_flag=True, help="With --lines: CR before the end of a line is no part of it.")
@rows_option("Publish")
@confirm_option("messages are")
@click.option(
    "--ttl",
    type=duration,
    metavar="DURATION",
    help="Time to live, as 30s.",
)
@click.option(
    "--id",
    "identity",
    default="",
    metavar="ID",
    help="Store nothing if you have published a message with this id in the last 24 hours.",
)
@asks
def pub(
    stream: str,
    subject: str,
    body: str | None,
    *,
    headers: dict[str, Any],
    count: int,
    lines: bool,
    crlf: bool,
    rows: IO[bytes] | None,
    confirm: bool,
    ttl: float | None,
    identity: str,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Publish a message to STREAM under SUBJECT. BODY is text, or - for standard input.

    Without BODY the body is standard input, if that is a pipe or a file, and is empty at a terminal and with
    `< /dev/null`. A pipe without data within --timeout is an error.

    With --lines and --file many messages are published in batches as they arrive. --file reads the output of
    `malamute sub --json`; a body other than text is body_base64.
    """
    if crlf and not lines:
        raise click.UsageError("--crlf without --lines: expected both")
    if identity and (lines or rows is not None or count > 1):
        raise click.UsageError("--id with --lines, --file or --count: expected a single message")
    _check(subject, body, lines=lines, rows=rows is not None, count=count)
    connection, stream = connection.to(stream, "stream")
    assurance: Assurance = "stored" if confirm else "none"
    sequence = None
    given = b"" if lines or rows is not None else body_given(body, connection.timeout_seconds)
    with connection.open() as client:
        publisher = partial(client.publisher, stream, assurance=assurance)
        if rows is not None:
            published = _publish_rows(publisher, _rows(rows, subject, headers), ttl)
        elif lines:
            chunks = chunks_of_lines(standard_input())
            end = b"\r" if crlf else b""
            many = (
                [OutgoingMessage(subject, headers, line.removesuffix(end)) for line in chunk]
                for chunk in chunks
            )
            published = _publish_rows(publisher, many, ttl)
        elif count > 1:
            copies = _copies(OutgoingMessage(subject, headers, given), count)
            published = _publish_rows(publisher, copies, ttl, count)
        else:
            sequence = client.publish(
                stream, subject, given, headers, assurance=assurance, ttl=ttl, id=identity
            )
            published = 1
    _report(stream, published, sequence, confirm=confirm, as_json=as_json)


def _check(subject: str, body: str | None, *, lines: bool, rows: bool, count: int) -> None:
    if lines + rows + (count > 1) > 1:
        raise click.UsageError("two of --lines, --file and --count: expected one of them")
    if not subject and not rows:
        raise click.UsageError("no subject: give SUBJECT; only --file does without")
    if body is not None and (lines or rows):
        raise click.UsageError("BODY with --lines or --file: expected no BODY, as the bodies come from there")


def _rows(source: IO[bytes], subject: str, headers: dict[str, Any]) -> Iterator[list[OutgoingMessage]]:
    first = 1
    for lines in chunks_of_lines(source):
        rows = rows_of(enumerate(lines, first), subject, getattr(source, "name", "standard input"))
        yield [row._replace(headers={**headers, **(row.headers or {})}) for row in rows]
        first += len(lines)


def _copies(row: OutgoingMessage, count: int) -> Iterator[list[OutgoingMessage]]:
    while count > 0:
        yield [row] * min(count, COPIES)
        count -= COPIES


def _publish_rows(
    publisher: Callable[..., Publisher],
    chunks: Iterator[list[OutgoingMessage]],
    ttl: float | None,
    total: int | None = None,
) -> int:
    """Publish messages in order; messages without a time to live of their own get `ttl`."""
    published = 0
    with _PublishersByTtl(publisher) as out, bar("publish", "messages") as progress:
        try:
            for rows in chunks:
                for own, some in groupby(rows, key=attrgetter("ttl")):
                    subjects, headers, bodies, _ = zip(*some, strict=True)
                    out.of(own or ttl).publish_many(subjects, bodies, [h or {} for h in headers])
                published += len(rows)
                progress(published, total)
        except BadInput as error:
            out.flush()
            raise BadInput(f"{error.text} ({published} messages before it were published)") from None
    return published


class _PublishersByTtl(ExitStack):
    """A publisher for each time to live. All messages go out in order."""

    def __init__(self, publisher: Callable[..., Publisher]) -> None:
        super().__init__()
        self._publisher = publisher
        self._open: dict[float | None, Publisher] = {}

    def of(self, ttl: float | None) -> Publisher:
        """Return the publisher of messages with this time to live, in seconds."""
        if ttl not in self._open:
            if len(self._open) >= PUBLISHERS:
                self.close()
                self._open.clear()
            self._open[ttl] = self.enter_context(self._publisher(ttl=ttl))
        return self._open[ttl]

    def flush(self) -> None:
        """Wait until all published messages are durable."""
        for one in self._open.values():
            one.flush()


def _report(stream: str, published: int, sequence: int | None, *, confirm: bool, as_json: bool) -> None:
    if as_json:
        shown = {"stream": stream, "messages": published, "sequence": sequence or None, "confirmed": confirm}
        click.echo(to_json(shown))
        return
    place = f", sequence {sequence}" if sequence else ""
    messages = "message" if published == 1 else "messages"
    click.echo(f"{published:,} {messages} {'stored in' if confirm else 'sent to'} {printable(stream)}{place}")
