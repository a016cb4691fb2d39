"""`malamute mailbox` and `malamute service`: messages in queues, and dead letters.

Both kinds are queues, so both groups are made here, of the same commands. The dead letters of a queue are a
queue of their own beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from malamute.cli import completion
from malamute.cli.admin import changes, show_found, show_list
from malamute.cli.escaping import for_terminal
from malamute.cli.exit_codes import FAILED
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.cli.payload import body_of
from malamute.cli.printing import body_fields, excerpt, plain_headers, to_json
from malamute.cli.tables import show_whole
from malamute.cli.units import duration
from malamute.protocol.names import Kind
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.client.sync.client import Client
    from malamute.protocol import admin

PAGE = 100
"""Messages requested at a time."""

COLUMNS = (
    "name",
    "messages",
    "ready",
    "delayed",
    "in_flight",
    "dead_letters",
    "consumers",
    "bytes",
    "oldest_age",
    "arrival_rate",
    "settled_rate",
)
"""Columns of a list for people; `show` and JSON have all."""

STATES = ("pending", "ready", "delayed", "in-flight", "settling")
"""States of a message in a queue, other than dead-lettered."""

Function = TypeVar("Function", bound=Callable[..., Any])


class QueueKind(NamedTuple):
    """A kind of queue: its name, the topic that lists them, and words for people."""

    kind: Kind
    topic: str
    listed: str
    example: str


MAILBOXES = QueueKind("mailbox", "mailboxes", "messages and bytes of each; ages in seconds.", "bob")
SERVICES = QueueKind(
    "service",
    "services",
    "messages of each, and its workers; ages in seconds.",
    "printer",
)

where_option = click.option(
    "--where", default="", metavar="EXPRESSION", help="Only messages whose headers match this expression."
)
limit_option = click.option(
    "--count", "-n", "limit", type=click.IntRange(min=1), help="Messages at the most, the oldest first."
)


sequences_option = click.option(
    "--sequence",
    "sequences",
    type=click.IntRange(min=1),
    multiple=True,
    help="Only the message with this sequence; may be repeated.",
)
dead_option = click.option("--dead", is_flag=True, help="The dead letters instead.")


def _name(queues: QueueKind) -> Callable[[Function], Function]:
    return click.argument("name", shell_complete=completion.names(queues.topic))


def _list(queues: QueueKind) -> click.Command:
    @click.command("list", help=f"List the {queues.topic}: {queues.listed}")
    @asks
    def listing(*, connection: ConnectionOptions, as_json: bool) -> None:
        show_list(connection, queues.topic, as_json=as_json, columns=COLUMNS)

    return listing


def _show(queues: QueueKind) -> click.Command:
    @click.command(help=f"Show one {queues.kind}: its messages, its consumers and its settings.")
    @_name(queues)
    @asks
    def show(name: str, *, connection: ConnectionOptions, as_json: bool) -> None:
        from malamute.protocol import admin

        connection, name = connection.to(name, queues.kind)
        with connection.open() as client:
            ask = admin.ServiceQuery if queues.kind == "service" else admin.MailboxQuery
            found: admin.QueueRow = client.query(ask(name=name))
        show_whole(found.as_map(), as_json=as_json)

    return show


def _states(*, dead: bool) -> Callable[[Function], Function]:
    """Add --state, except for dead letters, which have but one."""
    if dead:
        return lambda function: function
    return click.option("--state", type=click.Choice(STATES), help="Only messages in this state.")


def _reading(queues: QueueKind, verb: str, words: str, *, dead: bool) -> click.Command:
    kind = queues.kind
    shown = f"malamute {kind} {verb} {queues.example}"

    @click.command(verb, help=words, epilog=examples(shown, f"{shown} --where 'urgent = true' --json"))
    @_name(queues)
    @click.option(
        "--count",
        "-n",
        "limit",
        type=click.IntRange(min=1),
        default=PAGE,
        show_default=True,
        help="Show at most this many messages.",
    )
    @click.option("--after", type=click.IntRange(min=0), default=0, help="Begin behind this sequence.")
    @where_option
    @_states(dead=dead)
    @asks
    def read(name: str, *, connection: ConnectionOptions, as_json: bool, **selection: Any) -> None:
        connection, name = connection.to(name, kind)
        selection = {option: value for option, value in selection.items() if value is not None}
        with connection.open() as client:
            rows = [*_messages(client, kind=kind, name=name, dead=dead, **selection)]
        found = [_fields(row) if as_json else _row(row) for row in rows]
        show_found(found, "dead letters" if dead else "messages", as_json=as_json)

    return read


def _message(queues: QueueKind) -> click.Command:
    kind, shown = queues.kind, f"malamute {queues.kind} message {queues.example} 17"

    @click.command(
        "message",
        help=f"Show one message of a {kind} with its whole body, without taking it, by its SEQUENCE.",
        epilog=examples(shown, f"{shown} --dead --json", f"{shown} --raw > body"),
    )
    @_name(queues)
    @click.argument("sequence", type=click.IntRange(min=1))
    @dead_option
    @click.option("--raw", is_flag=True, help="Print the body and nothing else.")
    @asks
    def message(
        name: str, sequence: int, *, dead: bool, raw: bool, connection: ConnectionOptions, as_json: bool
    ) -> None:
        from malamute.protocol import admin

        if raw and as_json:
            raise click.UsageError("two of --json, --raw: expected one of them")
        connection, name = connection.to(name, kind)
        with connection.open() as client:
            row = client.query(admin.MessageQuery(kind=kind, name=name, sequence=sequence, dead=dead))
        if raw:
            click.echo(for_terminal(row.body), nl=False)
        else:
            show_whole(_fields(row), as_json=as_json)

    return message


def _messages(client: Client, *, limit: int, after: int, **selection: Any) -> Iterator[admin.MessageRow]:
    from malamute.protocol import admin

    while limit > 0:
        rows = client.query(admin.MessagesQuery(after=after, limit=min(limit, PAGE), **selection))
        yield from rows
        if len(rows) < PAGE:
            return
        limit -= len(rows)
        after = rows[-1].sequence


def _time(row: admin.MessageRow) -> datetime:
    return datetime.fromtimestamp(to_seconds(row.time), UTC)


def _fields(row: admin.MessageRow) -> dict[str, Any]:
    """Return a message for JSON."""
    fields = {name: value for name, value in row.as_map().items() if name not in ("headers", "body")}
    headers = plain_headers(row.headers)
    return {**fields, "time": _time(row).isoformat(), "headers": headers, **body_fields(row.body)}


def _row(row: admin.MessageRow) -> dict[str, Any]:
    """Return a message for a table, with its state, or the reason of a dead letter."""
    died = row.properties.get("dead")
    fields = {
        "sequence": row.sequence,
        "time": _time(row),
        "sender": row.sender,
        "subject": row.subject,
        "attempts": died["attempts"] if died else row.attempts,
        "reason" if died else "state": died["reason"] if died else row.state,
    }
    return {**fields, **excerpt(row.headers, row.body)}


def _redrive(queues: QueueKind) -> click.Command:
    kind, shown = queues.kind, f"malamute {queues.kind} redrive {queues.example}"

    @click.command(
        help=f"Put dead letters back into their {kind}, as if they had never been delivered.",
        epilog=examples(
            f"{shown} --dry-run",
            f"{shown} --sequence 17 --sequence 18",
            f"malamute {kind} message {queues.example} 17 --dead --raw > body",
            f"{shown} --sequence 17 --body - < body",
        ),
    )
    @_name(queues)
    @sequences_option
    @where_option
    @limit_option
    @click.option(
        "--body", metavar="TEXT", help="Replace the body of the one --sequence; - is standard input."
    )
    @changes(kind)
    def redrive(*, body: str | None, sequences: Sequence[int], **given: Any) -> admin.QueueRedrive:
        from malamute.protocol import admin

        if body is not None and len(sequences) != 1:
            raise click.UsageError("--body is for one dead letter: give one --sequence")
        mended = None if body is None else body_of(body)
        return admin.QueueRedrive(kind=kind, body=mended, sequences=[*sequences] or None, **given)

    return redrive


def _cancel(queues: QueueKind) -> click.Command:
    kind = queues.kind

    @click.command(
        help=f"""Take back the messages of a {kind} under an ID that wait or are delayed, whoever sent them.

        A message that a consumer has stays with it, and the consumer is notified: that is exit code 4, and
        so is no message under the ID.
        """,
        epilog=examples(f"malamute {kind} cancel {queues.example} order-17"),
    )
    @_name(queues)
    @click.argument("identity", metavar="ID")
    @asks
    def cancel(name: str, identity: str, *, connection: ConnectionOptions, as_json: bool) -> None:
        connection, name = connection.to(name, kind)
        with connection.open() as client:
            found = client.cancel(kind, name, id=identity)
        if as_json:
            click.echo(to_json(found._asdict()))
        else:
            click.echo(f"{found.cancelled:,} cancelled, {found.in_flight:,} in flight")
        if not found.cancelled:
            raise click.exceptions.Exit(FAILED)

    return cancel


def _purge(queues: QueueKind) -> click.Command:
    kind, shown = queues.kind, f"malamute {queues.kind} purge {queues.example}"

    def question(given: dict[str, Any]) -> str:
        some = "some" if given["sequences"] or given["where"] or given["limit"] else "all"
        what = "dead letters" if given["dead"] else "messages"
        return f"Remove {some} {what} of the {kind} {given['name']}?"

    @click.command(
        help=f"Remove the messages of a {kind}, or with --dead its dead letters.",
        epilog=examples(f"{shown} --where 'test = true' --dry-run", f"{shown} --dead"),
    )
    @_name(queues)
    @dead_option
    @sequences_option
    @where_option
    @limit_option
    @changes(kind, question)
    def purge(*, sequences: Sequence[int], **given: Any) -> admin.QueuePurge:
        from malamute.protocol import admin

        return admin.QueuePurge(kind=kind, sequences=[*sequences] or None, **given)

    return purge


def _delays(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[float] | None:
    """Return the delays of a backoff in seconds."""
    return None if text is None else [duration(one) for one in text.split(",") if one.strip()]


def _edit(queues: QueueKind) -> click.Command:
    kind, shown = queues.kind, f"malamute {queues.kind} edit {queues.example}"

    @click.command(
        help=f"""Set the attempts, the backoff and the time-out of a {kind}. Settings that are not named stay.

        These have precedence over the configuration, and are kept over restarts. A new time-out is for
        consumers that come from now on. --reset returns to the configuration.
        """,
        epilog=examples(f"{shown} --attempts 5 --backoff 1s,10s,1m --dry-run", f"{shown} --reset"),
    )
    @_name(queues)
    @click.option("--attempts", type=click.IntRange(min=0), help="Attempts of a message; 0 is no limit.")
    @click.option(
        "--backoff",
        metavar="DURATIONS",
        callback=_delays,
        help="Delays before the next attempts, as 1s,5s,1m; '' is no delay.",
    )
    @click.option(
        "--ack-timeout",
        type=duration,
        metavar="DURATION",
        help="Time to settle a message, as 30m; 0 is no limit.",
    )
    @click.option("--reset", is_flag=True, help="Return to the configuration, but for settings named here.")
    @changes(kind)
    def edit(name: str, *, dry_run: bool, **settings: Any) -> admin.QueueSet:
        from malamute.protocol import admin

        given = {
            option: value for option, value in settings.items() if value is not None and value is not False
        }
        if not given:
            raise click.UsageError("nothing to edit: give --attempts, --backoff, --ack-timeout or --reset")
        return admin.QueueSet(kind=kind, name=name, dry_run=dry_run, **given)

    return edit


def _delete(queues: QueueKind) -> click.Command:
    kind, shown = queues.kind, f"malamute {queues.kind} delete {queues.example}"

    @click.command(
        help=f"""Remove a {kind}, with its messages and its dead letters.

        A queue with dependents is refused: --cascade deletes them as well, and --dry-run shows them.
        """,
        epilog=examples(f"{shown} --dry-run", f"{shown} --cascade"),
    )
    @_name(queues)
    @click.option("--cascade", is_flag=True, help="End the offers of its consumers and its feeds, too.")
    @changes(kind, f"Remove the {kind} {{name}} with all that is in it?")
    def delete(**given: Any) -> admin.QueueDelete:
        from malamute.protocol import admin

        return admin.QueueDelete(kind=kind, **given)

    return delete


def _group(queues: QueueKind) -> click.Group:
    kind = queues.kind
    waiting = f"Show the messages of a {kind} without consuming them: ready ones, and those in flight."
    died = f"Show the dead letters of a {kind}: rejected, or delivered too often, with the reason."
    commands = [
        _list(queues),
        _show(queues),
        _edit(queues),
        _reading(queues, "browse", waiting, dead=False),
        _reading(queues, "dead", died, dead=True),
        _message(queues),
        _redrive(queues),
        _cancel(queues),
        _purge(queues),
        _delete(queues),
    ]
    return click.Group(kind, commands, help=f"The {queues.topic} of a broker.")


mailbox = _group(MAILBOXES)
service = _group(SERVICES)
