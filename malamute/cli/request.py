"""`malamute request`: ask a service, and print what it replies."""

from __future__ import annotations

from typing import Any

import click

from malamute.cli import completion
from malamute.cli.exits import FAILED
from malamute.cli.options import Connection, connects, examples
from malamute.cli.payload import body_of, headers_option
from malamute.cli.printing import Render, as_body, printable, prints_messages, show
from malamute.cli.sending import message_options


@click.command(
    epilog=examples(
        "malamute request shout text.en 'good morning'",
        "malamute request render page.7 --key document-3 --ttl 1m --timeout 60",
    )
)
@click.argument("service", shell_complete=completion.names("services"))
@click.argument("subject")
@click.argument("body", default="")
@headers_option
@message_options("ttl", "priority", "delay", "at", "id", "key", "immediate")
@connects
@prints_messages(as_body)
def request(
    service: str,
    subject: str,
    body: str,
    *,
    headers: dict[str, Any],
    options: dict[str, Any],
    connection: Connection,
    render: Render,
) -> None:
    """Ask SERVICE, and print the bodies of the replies. BODY is text, or - for standard input.

    --timeout is for all the replies together; when it is over the exit code is 3. When a worker tells that it
    failed, by the header malamute.error of its reply, the exit code is 4.
    """
    from malamute.client.handling import ERROR_HEADER

    connection, service = connection.to(service, "service")
    failed = False
    with connection.open() as client:
        replies = client.request(
            service, subject, body_of(body), headers, timeout=connection.timeout, **options
        )
        for reply in replies:
            show([reply], render)
            error = reply.headers.get(ERROR_HEADER)
            if error is not None:
                failed = True
                click.echo(f"the worker failed: {printable(str(error))}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)
