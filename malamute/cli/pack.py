"""`malamute pack`: the process beside a broker that carries its links."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import click

from malamute.cli.escaping import to_json
from malamute.cli.options import ConnectionOptions, connects, examples, json_option
from malamute.cli.signals import echo_if_read
from malamute.version import __version__


@click.group("pack")
def pack() -> None:
    """The process beside a broker that carries messages from other brokers."""


@pack.command(epilog=examples("malamute pack run", "malamute pack run --context centre"))
@connects
@json_option
def run(*, connection: ConnectionOptions, as_json: bool) -> None:
    """Carry the links of the broker, as `malamute link` defines them, until SIGTERM or SIGINT.

    It keeps nothing: it may be killed at any moment, and several may run for one broker.
    """
    from malamute.pack import runner

    def started() -> None:
        fields = {"version": __version__, "broker": connection.url}
        words = f"Malamute pack {__version__} carries the links of {connection.url}"
        echo_if_read(to_json(fields) if as_json else words)

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("malamute").setLevel(logging.WARNING)
    logging.getLogger("malamute.pack").setLevel(logging.INFO)
    software = f"malamute-pack/{__version__}"
    options: Any = {"timeout": connection.timeout_seconds, "software": software, **connection.credentials}
    asyncio.run(runner.run(connection.url, options, started))
