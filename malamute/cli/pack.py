"""`malamute pack`: the process beside a broker that carries its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from malamute.cli.admin import show_found
from malamute.cli.error_output import BadInput, report
from malamute.cli.escaping import to_json
from malamute.cli.options import ConnectionOptions, connects, examples, json_option
from malamute.cli.signals import echo_if_read
from malamute.cli.units import DurationRange
from malamute.version import __version__

if TYPE_CHECKING:
    from malamute.pack.discovery import Discovered


@click.group("pack")
def pack() -> None:
    """The process beside a broker that carries messages from other brokers."""


_interfaces = click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="ADDRESS",
    help="The address of a network interface to use for announcements. Default: all of them.",
)

_zre = click.option("--zre", is_flag=True, help="By ZRE, too, the protocol of Zyre.")


@pack.command(
    epilog=examples(
        "malamute pack run",
        "malamute pack run --context centre",
        "malamute pack run --announce centre --advertise tcp://10.0.0.1:9999 --interface 10.0.0.1",
    )
)
@click.option(
    "--announce", default="", metavar="NAME", help="Announce the broker on the network by this name."
)
@click.option("--advertise", "urls", multiple=True, metavar="URL", help="A URL of the broker to announce.")
@_interfaces
@_zre
@connects
@json_option
def run(
    *,
    announce: str,
    urls: tuple[str, ...],
    interfaces: tuple[str, ...],
    zre: bool,
    connection: ConnectionOptions,
    as_json: bool,
) -> None:
    """Carry the links of the broker, as `malamute link` defines them, until SIGTERM or SIGINT.

    The process keeps nothing: it may be killed at any moment, and several may run for one broker.
    """
    import asyncio
    import logging

    from malamute.pack import runner

    if announce and not urls:
        raise BadInput("nothing to announce: expected --advertise URL, such as tcp://10.0.0.1:9999")

    def started() -> None:
        fields = {"version": __version__, "broker": connection.url}
        words = f"Malamute pack {__version__} carries the links of {connection.url}"
        echo_if_read(to_json(fields) if as_json else words)

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("malamute").setLevel(logging.WARNING)
    logging.getLogger("malamute.pack").setLevel(logging.INFO)
    software = f"malamute-pack/{__version__}"
    options: Any = {"timeout": connection.timeout_seconds, "software": software, **connection.credentials}
    shown = runner.Announcement(announce, urls, interfaces, zre) if announce else None
    asyncio.run(runner.run(connection.url, options, started, shown))


@pack.command(epilog=examples("malamute pack discover", "malamute pack discover --wait 5s --json"))
@click.option(
    "--wait",
    type=DurationRange(min=0),
    default="3s",
    show_default=True,
    metavar="DURATION",
    help="How long to look.",
)
@_interfaces
@_zre
@json_option
def discover(*, wait: float, interfaces: tuple[str, ...], zre: bool, as_json: bool) -> None:
    """List the brokers that are announced on the network. Anybody can announce one: nothing is proved."""
    import asyncio

    found = asyncio.run(_discovered(wait, interfaces, zre=zre))
    if found.left_out:
        report(f"{found.left_out} announcements are of no broker")
    rows = [{**broker._asdict(), "urls": [*broker.urls]} for broker in found.brokers]
    show_found(
        rows if as_json else [{**row, "urls": ", ".join(row["urls"])} for row in rows],
        "brokers",
        as_json=as_json,
    )


async def _discovered(wait: float, interfaces: tuple[str, ...], *, zre: bool) -> Discovered:
    """Return the brokers of all ways of discovery."""
    import asyncio

    from malamute.pack import discovery
    from malamute.pack import zre as by_zre

    ways = [discovery.discover(wait, interfaces), *([by_zre.discover(wait)] if zre else [])]
    every = await asyncio.gather(*ways)
    brokers = sorted({broker for found in every for broker in found.brokers})
    return discovery.Discovered(brokers, sum(found.left_out for found in every))
