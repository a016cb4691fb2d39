"""`malamute send` and `malamute recv`: send a message to a mailbox, and receive messages."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import click

from malamute.cli import completion
from malamute.cli.exit_codes import FAILED
from malamute.cli.options import ConnectionOptions, asks, connects, examples, waits
from malamute.cli.payload import (
    OutgoingMessage,
    body_given,
    chunks_of_lines,
    confirm_option,
    headers_option,
    rows_of,
    rows_option,
)
from malamute.cli.printing import Render, as_line, printable, prints_messages, show, to_json
from malamute.cli.sending import ACKNOWLEDGED, message_options
from malamute.cli.signals import until_stopped
from malamute.errors import TimedOut

if TYPE_CHECKING:
    from malamute.client.options import SendAssurance


@click.command(
    epilog=examples(
        "malamute send bob hello 'see you at nine'",
        "malamute mailbox message bob 17 --dead --json | malamute send bob --file -",
        "malamute send bob alarm --priority 9 --outcome --address alice --wait 600",
    )
)
@click.argument("mailbox", shell_complete=completion.names("mailboxes"))
@click.argument("subject", required=False)
@click.argument("body", required=False)
@headers_option
@rows_option("Send")
@confirm_option("message is")
@click.option("--outcome", is_flag=True, help="Wait until it is settled, and print its outcome.")
@message_options("ttl", "priority", "delay", "at", "id", "immediate", "reply_to")
@waits("How long to wait for the outcome.")
@asks
def send(
    mailbox: str,
    subject: str | None,
    body: str | None,
    *,
    headers: dict[str, Any],
    rows: IO[bytes] | None,
    confirm: bool,
    outcome: bool,
    options: dict[str, Any],
    wait_seconds: float | None,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Send a message to MAILBOX, whether its owner is there or not. BODY is text, or - for standard input.

    Without BODY the body is standard input, if that is a pipe or a file, and is empty at a terminal and with
    `< /dev/null`. A pipe without data within --timeout is an error. --file reads the output of `malamute
    mailbox message --json`: a dead letter can be edited and sent again.

    With --outcome it ends when the message is settled: acknowledged, expired, rejected, bounced,
    dead-lettered, withdrawn, moved or purged. Anything but acknowledged is exit code 4, and none within
    --wait is 3. The outcome is sent to the mailbox of --address.
    """
    if outcome and not connection.address:
        raise click.UsageError("no address: an outcome comes to a mailbox; give --address")
    if rows is None and not subject:
        raise click.UsageError("no subject: give SUBJECT; only --file does without")
    if rows is not None and (body is not None or outcome or "id" in options):
        raise click.UsageError(
            "--file with BODY, --outcome or --id: expected none of them, as it has many messages"
        )
    connection, mailbox = connection.to(mailbox, "mailbox")
    assurance: SendAssurance = "confirmed" if outcome else "stored" if confirm else "none"
    ended, reason = "", ""
    if rows is None:
        messages = [OutgoingMessage(subject or "", headers, body_given(body, connection.timeout_seconds))]
    else:
        messages = _messages(rows, subject or "", headers)
    with connection.open() as client:
        for message in messages:
            own = {} if message.ttl is None else {"ttl": message.ttl}
            sent = client.send(
                mailbox,
                message.subject,
                message.body,
                message.headers,
                assurance=assurance,
                **{**options, **own},
            )
        if outcome:
            ended, reason = (
                sent.wait(connection.timeout_seconds if wait_seconds is None else wait_seconds),
                sent.reason,
            )
    if as_json:
        outcome_shown = {"outcome": ended, "reason": reason or None} if outcome else {}
        click.echo(
            to_json({"mailbox": mailbox, "messages": len(messages), "confirmed": confirm, **outcome_shown})
        )
    else:
        where = f"{'stored in the mailbox' if confirm else 'sent to'} {printable(mailbox)}"
        words = f", {ended}{f': {printable(reason)}' if reason else ''}" if outcome else ""
        click.echo(f"{len(messages):,} {'message' if len(messages) == 1 else 'messages'} {where}{words}")
    if outcome and ended != ACKNOWLEDGED:
        raise click.exceptions.Exit(FAILED)


def _messages(rows: IO[bytes], subject: str, headers: dict[str, Any]) -> list[OutgoingMessage]:
    """Return all messages of a file, so that none is sent if one of them is invalid. Raises `BadInput`."""
    lines = enumerate(chain.from_iterable(chunks_of_lines(rows)), 1)
    found = rows_of(lines, subject, getattr(rows, "name", "standard input"))
    return [row._replace(headers={**headers, **(row.headers or {})}) for row in found]


@click.command(
    epilog=examples(
        "malamute recv bob",
        "malamute recv bob --count 0 --json",
        "malamute recv orders --shared --from 'shop.*' --count 0",
    )
)
@click.argument("mailbox", default="", shell_complete=completion.names("mailboxes"))
@click.option(
    "--count",
    "-n",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="End after this many messages; 0 is without end.",
)
@waits("End when no message comes for so long; with fewer messages than --count that is exit code 3.")
@click.option("--ack/--no-ack", default=True, show_default=True, help="Take the messages out of the mailbox.")
@click.option(
    "--bounce",
    metavar="REASON",
    help="Give each back to its sender. One that cannot go back is exit code 1.",
)
@click.option(
    "--shared",
    is_flag=True,
    help="Consume as one of several, beside the owner: each message goes to one consumer.",
)
@click.option(
    "--from",
    "senders",
    metavar="PATTERN",
    multiple=True,
    help="Only of senders whose address matches; implies --shared, and may be repeated.",
)
@click.option(
    "--temporary",
    is_flag=True,
    help="Create MAILBOX, which is removed with its last consumer; implies --shared.",
)
@connects
@prints_messages(as_line)
def recv(
    mailbox: str,
    *,
    count: int,
    wait_seconds: float | None,
    ack: bool,
    bounce: str | None,
    shared: bool,
    senders: tuple[str, ...],
    temporary: bool,
    connection: ConnectionOptions,
    render: Render,
) -> None:
    """Receive the messages of MAILBOX, which --address may name as well.

    A message is acknowledged once it is printed, which removes it from the mailbox. Only one program can own
    a mailbox: the newest one. With --shared any number of programs consume from it, under any address.
    A line has the sequence, the subject, the body and the headers.
    """
    from malamute.client.options import MAIL_CREDIT_MESSAGES as CREDIT_MESSAGES

    if not mailbox and not connection.address:
        raise click.UsageError("no mailbox: give MAILBOX or --address")
    connection, mailbox = connection.to(mailbox or connection.address, "mailbox")
    shared = shared or temporary or bool(senders)
    with until_stopped(), (connection if shared else replace(connection, address=mailbox)).open() as client:
        # More credit than requested would count as an attempt for messages that are not acknowledged.
        credit = min(count or CREDIT_MESSAGES, CREDIT_MESSAGES)
        if shared:
            # Messages fetched ahead are not available to other consumers.
            mails = client.consume(
                mailbox, *senders, auto_ack=False, credit=1 if ack else credit, temporary=temporary
            )
        else:
            mails = client.mailbox(auto_ack=False, credit=credit)
        for _ in range(count or sys.maxsize):
            try:
                mail = mails.receive(timeout=wait_seconds)
            except TimedOut:
                if count:
                    raise
                break
            show([mail], render)
            if bounce is not None:
                mail.bounce(bounce)
            elif ack:
                mail.ack()
