"""`malamute gateway`: an HTTP server in front of a broker."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import click

from malamute.cli.console import CONSOLE, host_and_port
from malamute.cli.error_output import BadInput
from malamute.cli.escaping import to_json
from malamute.cli.options import (
    URL,
    Function,
    connection_of,
    context_option,
    examples,
    json_option,
    timeout_option,
)
from malamute.cli.signals import echo_if_read
from malamute.door.addresses import Gateways
from malamute.errors import ConfigError, NotInstalled
from malamute.version import __version__


def _rate_option(name: str, words: str) -> Callable[[Function], Function]:
    return click.option(
        name, type=click.FloatRange(min=0, min_open=True), default=None, metavar="NUMBER", help=words
    )


@click.group()
def gateway() -> None:
    """An HTTP server for browsers, scripts and other languages."""


@gateway.command(
    epilog=examples(
        "malamute gateway run",
        "malamute gateway run --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem",
        "malamute gateway run --broker tcp://broker.example.org:9999 --allow-origin https://app.example.org",
    )
)
@click.option(
    "--listen",
    default=CONSOLE,
    show_default=True,
    envvar="MALAMUTE_GATEWAY_LISTEN",
    metavar="HOST:PORT",
    help="The address to listen on; with port 0 the system chooses the port.",
)
@click.option("--broker", "url", envvar="MALAMUTE_URL", help="The broker.", show_default=URL)
@context_option
@timeout_option("How long to wait for the broker.")
@click.option("--tls-cert", "ssl_certfile", metavar="FILE", help="The certificate for https, in PEM.")
@click.option("--tls-key", "ssl_keyfile", metavar="FILE", help="The key of the certificate, in PEM.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen on other than loopback addresses without TLS, behind a proxy with TLS.",
)
@click.option(
    "--require-credentials",
    is_flag=True,
    help="Ask for credentials on loopback, too, if a proxy on this machine serves others.",
)
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="URL", help="A site that may use it (CORS)."
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A host name by which clients call the gateway.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="NETWORK",
    help="A proxy on another machine in front of the gateway: wrong passwords from there count by user.",
)
@_rate_option("--user-rate", "The most requests a second of a user.")
@_rate_option("--address-rate", "The most requests a second of an address.")
@click.option(
    "--prefix",
    default="",
    envvar="MALAMUTE_GATEWAY_PREFIX",
    metavar="PATH",
    help="The path below which a proxy serves the gateway, such as /malamute.",
)
@click.option(
    "--mercure-stream",
    default="mercure",
    show_default=True,
    metavar="NAME",
    help="The stream that the updates of Mercure's hub are in.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input is closed.")
@json_option
def run(
    *,
    listen: str,
    with_parent: bool,
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
    insecure: bool,
    require_credentials: bool,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    proxies: tuple[str, ...],
    user_rate: float | None,
    address_rate: float | None,
    prefix: str,
    mercure_stream: str,
    as_json: bool,
    **connection_options: Any,
) -> None:
    """Run a gateway until SIGTERM or SIGINT.

    The gateway acts as the user that a request names, by Basic or Bearer, with that user's permissions at the
    broker. Requests without credentials are served on loopback alone, as the user of the gateway's own
    context or environment. When the gateway listens, its address is printed, with --json as one line.
    """
    try:
        from malamute.gateway import server
    except ImportError as error:
        raise NotInstalled.module(error.name) from error
    from malamute.gateway.settings import LOOPBACK_NAMES, GatewaySettings, is_loopback

    host, port = host_and_port(listen)
    try:
        Gateways(proxies)
    except ValueError as error:
        raise BadInput(f"invalid --proxy: {error}; expected a network, as 10.0.0.0/24") from None
    local = is_loopback(host)
    if not (local or ssl_certfile or insecure):
        raise ConfigError(
            f"{listen} can be reached from other machines: expected --tls-cert and --tls-key, or --insecure "
            "where a proxy before it has them",
            hint=f"malamute gateway run --listen {listen} --tls-cert cert.pem --tls-key key.pem",
        )
    connection = connection_of(click.get_current_context())
    settings = GatewaySettings(
        broker=connection.url,
        credentials=connection.credentials,
        server_key=connection.credentials.get("server_key", ""),
        anonymous=local and not require_credentials,
        hosts=(*LOOPBACK_NAMES, *hosts) if local or hosts else (),
        proxies=proxies,
        origins=origins,
        user_rate=user_rate or 0.0,
        address_rate=address_rate or 0.0,
        prefix=_prefix(prefix),
        mercure_stream=mercure_stream,
        timeout_seconds=connection.timeout_seconds,
    )

    def started(urls: list[str]) -> None:
        fields = {"version": __version__, "urls": urls, "broker": connection.url}
        words = f"Malamute gateway {__version__} serves {', '.join(urls)} for {connection.url}"
        echo_if_read(to_json(fields) if as_json else words)

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if with_parent:
        _end_with_parent()
        # The gateway's broker ends at the same time, and has a log of its own.
        logging.getLogger("malamute").setLevel(logging.ERROR)
    tls = {"ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile} if ssl_certfile else {}
    server.run(settings, host, port, started, **tls)


def _prefix(path: str) -> str:
    if path and not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", path):
        raise BadInput(
            f"invalid prefix {path!r}: expected a path such as /malamute, without a slash at its end"
        )
    return path


def _end_with_parent() -> None:
    """End this process when its standard input is closed, by the end of its parent."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()
