"""`malamute mcp`: mailboxes, streams and services as tools of an agent."""

from __future__ import annotations

import signal

import click

from malamute.cli.console import host_and_port
from malamute.cli.error_output import report
from malamute.cli.options import ConnectionOptions, asks, examples
from malamute.errors import ConfigError, NotInstalled
from malamute.version import __version__

ALLOWED = ("send", "settle", "redrive")
HTTP = "127.0.0.1:8765"


def _allowed(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    names = [name.strip() for value in values for name in value.split(",")]
    for name in names:
        if name not in ALLOWED:
            raise click.BadParameter(f"{name!r}: expected {', '.join(ALLOWED)}, such as --allow send,settle")
    return names


@click.command(
    epilog=examples(
        "malamute mcp --address agent-1 --allow send,settle",
        "malamute mcp --context production",
        "malamute mcp --allow send --http 127.0.0.1:8765",
    )
)
@click.option(
    "--allow",
    multiple=True,
    callback=_allowed,
    metavar="NAMES",
    help="The changes that agents may make: send, settle, redrive; by default none.",
)
@click.option(
    "--http",
    is_flag=False,
    flag_value=HTTP,
    metavar="[HOST:PORT]",
    help=f"Serve by HTTP on an address of this machine, by default {HTTP}, in place of standard input.",
)
@asks
def mcp(*, allow: list[str], http: str | None, connection: ConnectionOptions, as_json: bool) -> None:
    """Serve agents by the Model Context Protocol, on standard input and output.

    An agent reads mail, streams and queues by tools; it sends, publishes and asks with --allow send, settles
    mail with --allow settle, and redrives dead letters with --allow redrive. Its rights are those of the user
    of the connection. Mail that it has read and not settled goes back when its session
    ends; over HTTP after ten minutes.
    """
    import asyncio

    try:
        from malamute.integrations.mcp import serve
    except ImportError as error:
        raise NotInstalled.module(error.name) from error
    from malamute.gateway.settings import is_loopback

    listen = None
    if http is not None:
        listen = host_and_port(http)
        if not is_loopback(listen[0]):
            raise ConfigError(
                f"{http} can be reached from other machines, and has no log-in: expected an address of this "
                f"one, such as {HTTP}"
            )
        report(f"http://{http}/mcp")
    else:
        # The thread that reads standard input would outlive Control-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = {
        "address": connection.address,
        "timeout": connection.timeout_seconds,
        "software": f"malamute-mcp/{__version__}",
        **connection.credentials,
    }
    asyncio.run(serve(connection.url, options, allow, listen))
