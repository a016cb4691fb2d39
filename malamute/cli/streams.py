"""`malamute stream`: queries about streams, and changes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from malamute.cli import completion
from malamute.cli.admin import changes, dry_run_option, show_found, show_list
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.payload import headers_option
from malamute.cli.tables import criteria_words, show_map, show_whole
from malamute.cli.units import duration, size
from malamute.cli.view import view

if TYPE_CHECKING:
    from malamute.client.sync.client import Client
    from malamute.protocol import admin

KEPT = {"bytes": "retain_bytes", "count": "retain_count", "age": "retain_age"}
"""The limits of a retention, and their names in a row of the store."""

Function = TypeVar("Function", bound=Callable[..., Any])

name_argument = click.argument("name", shell_complete=completion.names("streams"))


def limits_options(function: Function) -> Function:
    """Add --bytes, --count and --age; the command gets `limits`, a map of those given."""

    @click.option(
        "--bytes",
        "bytes_",
        type=size,
        metavar="SIZE",
        help="The most bytes to keep, as 64MiB; 0 is no limit.",
    )
    @click.option("--count", type=click.IntRange(min=0), help="The most messages to keep; 0 is no limit.")
    @click.option(
        "--age", type=duration, metavar="DURATION", help="The highest age to keep, as 7d; 0 is no limit."
    )
    @functools.wraps(function)
    def command(*args: Any, bytes_: int | None, count: int | None, age: float | None, **more: Any) -> Any:
        given = {"bytes": bytes_, "count": count, "age": age}
        limits = {name: value for name, value in given.items() if value is not None}
        return function(*args, limits=limits, **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


def _parse_expected(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """Return the expected limits, as arguments of the change."""
    expected = {}
    for text in texts:
        limit, equals, value = text.partition("=")
        if not equals or limit not in KEPT:
            raise click.BadParameter(
                f"invalid limit {text!r}: expected LIMIT=VALUE, where LIMIT is one of {', '.join(KEPT)}"
            )
        expected[f"expect_{limit}"] = duration(value) if limit == "age" else size(value)
    return expected


@click.group("stream")
def stream() -> None:
    """The streams of a broker."""


stream.add_command(view)


@stream.command("list")
@asks
def listing(*, connection: ConnectionOptions, as_json: bool) -> None:
    """List the streams: the sequences of each, and the number of its selectors."""
    show_list(connection, "streams", as_json=as_json)


@stream.command("show")
@name_argument
@asks
def show(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
    """Show a stream's retention, its readers, and their lag.

    The source of the retention is `run time` if it was set for the stream, otherwise a rule of the
    configuration, an option, or the default.

    Lag is in messages, and in seconds between the newest message and the last one of a reader. Switches count
    how often a reader has reached the head of the stream, or fallen behind it; failures are errors of plug-in
    families.
    """
    from malamute.protocol import admin

    connection, name = connection.to(name, "stream")
    with connection.open() as client:
        found = client.query(admin.StreamQuery(name=name)).as_map()
        stored = _stored(client, name)
    found |= {
        what: getattr(stored, what, None) for what in ("bytes", "chunks", *KEPT.values(), "retain_source")
    }
    show_whole(found, as_json=as_json)


def _stored(client: Client, name: str) -> admin.StoredStream | None:
    """Return the store's row of a stream."""
    from malamute.protocol import admin

    return next(iter(client.query(admin.StoredQuery(stream=name, limit=1))), None)


@stream.command(epilog=examples("malamute stream create orders --age 7d --bytes 10GiB"))
@click.argument("name")
@limits_options
@click.option(
    "--no-journal",
    "journal",
    flag_value=False,
    default=True,
    help="Store no messages: they are for present readers alone.",
)
@changes("stream")
def create(name: str, *, limits: dict[str, Any], journal: bool, dry_run: bool) -> admin.StreamCreate:
    """Create a stream with its own retention; by default the broker's configuration applies.

    Publishing or subscribing creates a stream as well. A stream in use is refused.
    """
    from malamute.protocol import admin

    return admin.StreamCreate(stream=name, journal=journal, dry_run=dry_run, **limits)


@stream.command(
    epilog=examples(
        "malamute stream edit orders --age 30d", "malamute stream edit orders --bytes 0 --expect bytes=1GiB"
    )
)
@name_argument
@limits_options
@click.option(
    "--expect",
    multiple=True,
    metavar="LIMIT=VALUE",
    callback=_parse_expected,
    help="Change only if the limit is this now, as in age=7d; may be repeated.",
)
@dry_run_option
@asks
def edit(
    name: str,
    *,
    limits: dict[str, Any],
    expect: dict[str, Any],
    dry_run: bool,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Set the retention of a stream. Limits that are not named stay.

    This has precedence over the configuration. Messages beyond the limits are dropped at once. With --expect,
    error 412 refuses the change if the limits were changed meanwhile.
    """
    from malamute.protocol import admin

    if not limits:
        raise click.UsageError("nothing to edit: give --bytes, --count or --age")
    connection, name = connection.to(name, "stream")
    with connection.open() as client:
        client.query(admin.StreamQuery(name=name))
        done = client.change(admin.StreamRetain(stream=name, dry_run=dry_run, **limits, **expect))
    show_map(done.as_map(), as_json=as_json)


@stream.command("purge")
@name_argument
@changes("stream", "Drop all messages of the stream {name}?")
def purge(name: str, *, dry_run: bool) -> admin.StreamPurge:
    """Drop all messages of a stream. Its readers, cursors and retention stay, and its sequences continue."""
    from malamute.protocol import admin

    return admin.StreamPurge(stream=name, dry_run=dry_run)


def _doomed(given: dict[str, Any]) -> str:
    """Return the question before messages are deleted. Raises `click.UsageError` if none are named."""
    if (given["sequence"] is None) == (given["subject"] is None and given["up_to"] is None):
        raise click.UsageError("no messages to delete: give --sequence, or --subject, --up-to or both")
    which = f"message {given['sequence']}" if given["sequence"] else "messages"
    subject = f" with the subject {given['subject']}" if given["subject"] else ""
    up_to = f" up to {given['up_to']}" if given["up_to"] else ""
    return f"Delete the {which}{subject}{up_to} from the stream {given['name']} for good?"


@stream.command(
    "delete-messages",
    epilog=examples(
        "malamute stream delete-messages orders --subject 'customer.4711.#' --dry-run",
        "malamute stream delete-messages orders --sequence 17",
    ),
)
@name_argument
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="The one with this sequence.")
@click.option("--subject", metavar="PATTERN", help="Those with a subject, as a topic pattern.")
@click.option("--up-to", type=click.IntRange(min=1), metavar="N", help="Those up to this sequence.")
@changes("stream", _doomed)
def delete_messages(name: str, **given: Any) -> admin.StreamDeleteMessages:
    """Delete messages of a stream: one, all with a subject, or all up to a sequence.

    Readers get a gap with the reason "deleted" in their place. Exports and backups made before still have
    the messages. --subject and --up-to together delete the messages that both name.
    """
    from malamute.protocol import admin

    return admin.StreamDeleteMessages(stream=name, **given)


@stream.command("delete")
@name_argument
@click.option("--cascade", is_flag=True, help="End its subscriptions, its cursors and its feeds, too.")
@changes("stream", "Remove the stream {name} with all that is in it?")
def delete(name: str, *, cascade: bool, dry_run: bool) -> admin.StreamDelete:
    """Delete a stream, with its messages and its retention.

    A stream with dependents is refused: --cascade deletes them as well, and --dry-run shows them.
    """
    from malamute.protocol import admin

    return admin.StreamDelete(stream=name, cascade=cascade, dry_run=dry_run)


@stream.command(
    "explain", epilog=examples("malamute stream explain flights JFK.LAX.AA -H dep_delay=35 --failed")
)
@name_argument
@click.argument("subject")
@headers_option
@click.option("--sender", default="", metavar="ADDRESS", help="The sender of the message.")
@click.option("--failed", is_flag=True, help="Only the selectors that do not match.")
@asks
def explain(
    name: str,
    subject: str,
    *,
    headers: dict[str, Any],
    sender: str,
    failed: bool,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Show subscriptions of a stream that match a message, and the first failed criterion of the others."""
    from malamute.protocol import admin

    connection, name = connection.to(name, "stream")
    with connection.open() as client:
        query = admin.ExplainQuery(stream=name, subject=subject, headers=headers, sender=sender)
        rows = [row.as_map() for row in client.query(query) if not (failed and row.matched)]
    show_found(rows if as_json else list(map(criteria_words, rows)), "subscription", as_json=as_json)
