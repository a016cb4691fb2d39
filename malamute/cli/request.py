"""`malamute request`: send a request to a service, and print its replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from malamute.cli import completion
from malamute.cli.error_output import report, report_json
from malamute.cli.exit_codes import FAILED
from malamute.cli.options import ConnectionOptions, connects, examples, waits
from malamute.cli.payload import body_given, headers_option
from malamute.cli.printing import Render, as_body, content_of, printable, prints_messages, show
from malamute.cli.sending import ACKNOWLEDGED, message_options, print_outcome
from malamute.errors import AccessRefused, NotFound

if TYPE_CHECKING:
    from malamute.client.sync.client import Client

if TYPE_CHECKING:
    from malamute.client.options import SendAssurance


@click.command(
    epilog=examples(
        "malamute request shout text.en 'good morning'",
        "malamute request render page.7 --key document-3 --ttl 1m --wait 60",
        "malamute request billing run.may --outcome --address alice --wait 600",
    )
)
@click.argument("service", shell_complete=completion.names("services"))
@click.argument("subject")
@click.argument("body", required=False)
@headers_option
@click.option("--outcome", is_flag=True, help="Wait until it is settled, and print its outcome.")
@message_options("ttl", "priority", "delay", "at", "id", "key", "immediate")
@waits("How long to wait for all the replies, or the outcome; when it is over the exit code is 3.")
@connects
@prints_messages(as_body)
def request(
    service: str,
    subject: str,
    body: str | None,
    *,
    headers: dict[str, Any],
    outcome: bool,
    options: dict[str, Any],
    wait_seconds: float | None,
    connection: ConnectionOptions,
    render: Render,
) -> None:
    """Send a request to SERVICE, and print the bodies of the replies. BODY is text, or - for standard input.

    Without BODY the body is standard input, if that is a pipe or a file, and is empty at a terminal and with
    `< /dev/null`. A pipe without data within --timeout is an error.

    When a worker reports that it failed, by the header malamute.error of its reply, the exit code is 4.

    With --outcome standard error says how the request was settled: acknowledged, expired, rejected,
    dead-lettered, withdrawn or purged. Anything but acknowledged is exit code 4. The outcome is sent to the
    mailbox of --address.

    A request that nobody has taken when the wait is over expires, unless --ttl, --delay or --at is given.
    """
    from malamute.protocol.names import ERROR_HEADER

    if outcome and not connection.address:
        raise click.UsageError("no address: an outcome comes to a mailbox; give --address")
    connection, service = connection.to(service, "service")
    patience_seconds = connection.timeout_seconds if wait_seconds is None else wait_seconds
    assurance: SendAssurance = "confirmed" if outcome else "stored"
    failed = False
    given = body_given(body, connection.timeout_seconds)
    if not options.keys() & {"ttl", "delay", "at"}:
        options["ttl"] = patience_seconds
    with connection.open() as client:
        replies = client.request(
            service, subject, given, headers, timeout=patience_seconds, assurance=assurance, **options
        )
        if _nobody_works_for(client, service):
            words = f"nobody works for {printable(service)} now: the request waits"
            if connection.as_json:
                report_json({"note": words})
            else:
                report(words)
        for reply in replies:
            show([reply], render)
            error = content_of(reply).headers.get(ERROR_HEADER)
            if error is not None:
                failed = True
                report(f"the worker failed: {printable(str(error))}")
        if outcome:
            failed |= replies.wait(patience_seconds) != ACKNOWLEDGED
            print_outcome(replies, as_json=connection.as_json)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _nobody_works_for(client: Client, service: str) -> bool:
    """Return whether a service has no workers, as far as this user may know."""
    from malamute.protocol.admin import ServiceQuery

    try:
        found = client.query(ServiceQuery(name=service))
    except (AccessRefused, NotFound):
        return False
    # A feed may have moved the request elsewhere.
    return bool(found.messages) and not found.consumers
