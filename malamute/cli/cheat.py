"""`malamute cheat`: frequent commands, by topic. The tests check every line against the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from malamute.cli.options import json_option
from malamute.cli.printing import to_json

Sheet = Sequence[tuple[str, str]]
"""Pairs of a purpose and a command."""

SHEETS: Mapping[str, Sheet] = {
    "start": (
        ("Run a broker on ./malamute-data", "malamute broker run"),
        ("Run one that keeps nothing", "malamute broker run --memory"),
        ("Give a broker elsewhere a name, and use it", "malamute context add lab --url tcp://lab:9999 --use"),
        ("Ask how it is", "malamute broker status"),
        ("Watch it live", "malamute top"),
        ("Complete commands and names in bash", 'eval "$(malamute completion bash)"'),
    ),
    "streams": (
        ("Publish a message", "malamute pub weather temp.oslo -H unit=C -- -3.5"),
        ("Publish each line of a file", "malamute pub logs web.access --lines < access.log"),
        ("Subscribe by subject", "malamute sub weather 'temp.*' 'wind.#'"),
        ("Subscribe by header", "malamute sub weather --where \"unit = 'C' and height > 100\""),
        ("Replay the last hour, then go on live", "malamute sub weather --start since:1h"),
        ("Go on where this reader was", "malamute sub orders --cursor billing"),
        ("Copy a stream", "malamute sub one --start first --wait 1 --json | malamute pub two --file -"),
        ("Page through its history", "malamute stream view weather --since 1h"),
        ("See its readers and their lag", "malamute stream show weather"),
        (
            "Why does a subscriber not get this?",
            "malamute stream explain weather temp.oslo --failed",
        ),
        ("Keep a week, 10 GiB at the most", "malamute stream edit weather --age 7d --bytes 10GiB"),
        ("Move a reader back", "malamute cursor reset orders billing --to first --dry-run"),
        ("Drop its messages", "malamute stream purge weather --dry-run"),
    ),
    "mailboxes": (
        ("Send a message", "malamute send bob hello 'see you at nine'"),
        ("Receive one", "malamute recv bob"),
        ("Receive all that come", "malamute recv bob --count 0 --json"),
        ("Look without taking", "malamute mailbox browse bob"),
        ("List dead letters, with the reason", "malamute mailbox dead bob"),
        ("Redrive them", "malamute mailbox redrive bob --dry-run"),
    ),
    "services": (
        ("Answer requests with a command", "malamute work shout 'text.*' -- tr a-z A-Z"),
        ("Ask", "malamute request shout text.en 'good morning'"),
        ("See the queues and their workers", "malamute service list"),
        ("See queued messages", "malamute service browse shout"),
        ("List dead letters", "malamute service dead shout"),
    ),
    "operations": (
        ("For the monitoring: exit codes 0 to 3", "malamute broker check --lag 1000,10000 --fill 80,95"),
        ("Follow the events of the broker", "malamute events"),
        ("List the clients", "malamute client list"),
        ("Send somebody away", "malamute client disconnect alice --dry-run"),
        ("Back up a broker that runs", "malamute broker backup monday"),
        ("Check a data directory", "malamute journal verify --data malamute-data/backups/monday"),
        ("Check a configuration", "malamute config check malamute.toml"),
        ("Explain an error", "malamute errors 503"),
    ),
}


@click.command()
@click.argument("topic", type=click.Choice([*SHEETS]), required=False)
@json_option
def cheat(topic: str | None, *, as_json: bool) -> None:
    """Show the frequent commands of a TOPIC, or of all topics."""
    shown = {topic: SHEETS[topic]} if topic else SHEETS
    if as_json:
        rows = {name: [{"what": what, "command": how} for what, how in s] for name, s in shown.items()}
        click.echo(to_json(rows))
        return
    for place, (name, sheet) in enumerate(shown.items()):
        if place:
            click.echo()
        click.secho(name, bold=True)
        for what, how in sheet:
            click.echo(click.style(f"\n  # {what}", dim=True) + f"\n  {how}")
