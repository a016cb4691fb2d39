"""The commands of the benchmarks that have rows of their own; most measure in rounds and show medians."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from malamute.cli.bench import (
    commands,
    hostile,
    idle,
    iterator,
    journal,
    queues,
    replay,
    slow_consumer,
    start,
)
from malamute.cli.bench.attacks import ATTACKS
from malamute.cli.bench.machine import describe
from malamute.cli.bench.options import BATCH, CREDIT, DATA, SIZE, count_option, messages_option, rounds_option
from malamute.cli.bench.report import show_figures
from malamute.cli.options import json_option
from malamute.cli.printing import to_json
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_map
from malamute.client.calls import HEARTBEAT

DURABILITY = "fsync before each confirmation; deliveries of streams do not wait for it"


def _tell(options: Any, rows: Iterable[Any], about: dict[str, Any], *, as_json: bool) -> None:
    """Print the parameters first, and then the rows as a table or all of it as JSON."""
    given = {name: value for name, value in options._asdict().items() if name != "directory"}
    if "size_bytes" in given:
        about = {"body": f"{given.pop('size_bytes')} bytes, with 3 headers", **about}
    parameters = {
        **describe(options.directory),
        "broker": "a process of its own, on LMDB in a new directory",
        "durability": DURABILITY,
        **given,
        **about,
    }
    if not as_json:
        show_map(parameters, as_json=False)
        click.echo()
    with interruptible():
        results = [_noted(row) for row in rows]
    if as_json:
        click.echo(to_json({"parameters": parameters, "results": [row._asdict() for row in results]}))
    else:
        show_figures(results)


def _noted(row: Any) -> Any:
    """Tell on a terminal what is done, since it takes a while."""
    if sys.stderr.isatty():
        click.echo(f"measured {row.what}", err=True)
    return row


@click.command("journal")
@messages_option(1_000_000, "Messages of a round; one message a command takes a fifth of it.")
@SIZE
@BATCH
@rounds_option(3)
@DATA
@json_option
def journal_command(as_json: bool, **given: Any) -> None:
    """Publish confirmed into a stream with a journal and into one without, in turns on one broker."""
    options = journal.Options(**given)
    _tell(options, journal.measure(options), {"journal off": f"--set '{journal.RULE}'"}, as_json=as_json)


@click.command("replay")
@messages_option(2_000_000, "Messages of the history.")
@SIZE
@BATCH
@CREDIT
@count_option("--readers", 50, "Readers at once, in the last row.", most=500)
@rounds_option(3)
@DATA
@json_option
def replay_command(as_json: bool, **given: Any) -> None:
    """Read a history from its first message on.

    One reader takes all of it, or a half of it by subject or by header; then there are many at once. They
    are spread over the history, in two processes, and each takes a twentieth of it.
    """
    options = replay.Options(**given)
    _tell(options, replay.measure(options), {}, as_json=as_json)


@click.command("slow-consumer")
@count_option("--rate", 1000, "Messages a second of the moderate rate.")
@count_option("--seconds", 4, "Seconds of the moderate rate.")
@messages_option(50_000, "Messages of the full rate.")
@SIZE
@BATCH
@CREDIT
@count_option("--subscribers", 100, "Subscribers, the one who does not read included.", least=2, most=1000)
@rounds_option(5)
@DATA
@json_option
def slow_consumer_command(as_json: bool, **given: Any) -> None:
    """One subscriber among many does not read: what the publisher and the others notice.

    Measured in turns with one who reads, one who lets its window be used up, and one whose process is
    stopped. Latencies are those of the others; a ratio is to the one who reads, in the same round.
    """
    options = slow_consumer.Options(**given)
    about = {"window of the one": slow_consumer.WINDOW}
    _tell(options, slow_consumer.measure(options), about, as_json=as_json)


@click.command("queues")
@messages_option(300_000, "Messages of a round; requests with a reply are a quarter of it.")
@count_option("--depth", 1_000_000, "Requests in the deep queue.")
@SIZE
@count_option("--batch", 1000, "Messages in a command, at most.", most=10_000)
@rounds_option(3)
@DATA
@json_option
def queues_command(as_json: bool, **given: Any) -> None:
    """Mailboxes and services at full rate, and a queue of a million requests beside one of a hundred.

    Peers speak the protocol in batches, without the client. While requests are taken from the queues of both
    depths, in turns, as many new ones come, so that the depths stay what they are.
    """
    options = queues.Options(**given)
    _tell(options, queues.measure(options), {"depth of the other": queues.SHALLOW}, as_json=as_json)


@click.command("idle")
@count_option("--connections", 10_000, "Connections; the first row has a tenth of them.", most=50_000)
@count_option("--seconds", 60, "How long they do nothing.", most=3600)
@DATA
@json_option
def idle_command(as_json: bool, **given: Any) -> None:
    """Clients that are connected and do nothing: how many hold, and what each costs the broker."""
    options = idle.Options(**given)
    _tell(options, idle.measure(options), {"heartbeat": f"{HEARTBEAT:g} s"}, as_json=as_json)


@click.command("start")
@click.option(
    "--gigabytes",
    type=click.FloatRange(0.001, 10_000),
    default=1.0,
    show_default=True,
    help="History to start with, in units of a thousand million bytes. The disk needs 1.8 times as much.",
)
@SIZE
@rounds_option(3)
@DATA
@json_option
def start_command(as_json: bool, **given: Any) -> None:
    """Start a broker on a store without and with a history: the time until it answers."""
    options = start.Options(**given)
    _tell(options, start.measure(options), {}, as_json=as_json)


@click.command("hostile")
@count_option("--depth", 200_000, "Requests in the queue that is attacked.")
@click.option(
    "--attack",
    "attacks",
    type=click.Choice([*ATTACKS]),
    multiple=True,
    metavar="NAME",
    help="One of the attacks; may be repeated. All of them if it is not given.",
)
@DATA
@json_option
def hostile_command(as_json: bool, **given: Any) -> None:
    """One client sends what costs the broker most: how long the others wait, and what memory it takes.

    Each row is an attack on a broker with default settings, and the last is all of them together. The times
    are those of another client.
    """
    options = hostile.Options(**{**given, "attacks": given["attacks"] or (*ATTACKS,)})
    _tell(options, hostile.measure(options), {}, as_json=as_json)


@click.command("iterator")
@messages_option(1_000_000, "Messages of the history.")
@SIZE
@BATCH
@CREDIT
@rounds_option(5)
@DATA
@json_option
def iterator_command(as_json: bool, **given: Any) -> None:
    """Take messages one by one and in lists: what `for message in subscription` costs more, a message."""
    options = iterator.Options(**given)
    _tell(options, iterator.measure(options), {"messages in a list": iterator.LIST}, as_json=as_json)


@click.command("commands")
@rounds_option(20)
@DATA
@json_option
def commands_command(as_json: bool, **given: Any) -> None:
    """Start the command line: how long `malamute --help` takes, beside the interpreter alone."""
    options = commands.Options(**given)
    _tell(options, commands.measure(options), {}, as_json=as_json)


COMMANDS = (
    commands_command,
    hostile_command,
    idle_command,
    iterator_command,
    journal_command,
    queues_command,
    replay_command,
    slow_consumer_command,
    start_command,
)
