"""`make bench`: the commands of `malamute bench`, and the benchmarks of the laboratory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from lab import (
    asyncio_scenario,
    commands,
    filters,
    gateway,
    hostile,
    idle,
    iterator,
    journal,
    latency,
    match,
    queues,
    scale,
    security,
    slow_consumer,
    start,
    strangers,
)
from lab.attacks import ATTACKS
from lab.peers import measure as peers
from lab.peers.table import PEERS, WORKS
from malamute.bench.machine import describe, package_version
from malamute.cli.bench import (
    BATCH,
    CREDIT,
    DATA,
    SIZE,
    Decorator,
    RunByDefault,
    add_scenario,
    bench,
    count_option,
    given_options,
    measure_alone,
    messages_option,
    print_rows,
    rounds_option,
)
from malamute.cli.lazy import Lazy
from malamute.cli.options import json_option
from malamute.cli.printing import to_json
from malamute.cli.root import Root
from malamute.client.options import HEARTBEAT_SECONDS


def names_option(name: str, parameter: str, choices: Iterable[str], help_text: str) -> Decorator:
    """One of several names, which may be repeated."""
    return click.option(
        name, parameter, type=click.Choice([*choices]), multiple=True, metavar="NAME", help=help_text
    )


PRIORITY = click.option(
    "--priority",
    type=click.IntRange(1, 99),
    help="The real-time priority of all processes, on a machine with other work.",
)

make = Root(sections={"": {"bench": Lazy("lab.__main__:lab", "Measure this machine.")}})
"""`make bench`, with the error output of the command line."""


@click.group("bench", cls=RunByDefault, commands=dict(bench.commands))
def lab() -> None:
    """Measure this machine; without a command, run the benchmarks of `malamute bench`.

    Further ones measure other brokers, hostile clients, curves and single mechanisms.
    """


add_scenario(lab, "asyncio", asyncio_scenario.event_loop)


@lab.command("journal")
@messages_option(1_000_000, "Messages of a round; one message a command takes a fifth of it.")
@SIZE
@BATCH
@rounds_option(3)
@DATA
@json_option
def journal_command(as_json: bool, **given: Any) -> None:
    """Publish confirmed into a stream with a journal and into one without, alternating on one broker."""
    options = journal.JournalOptions(**given)
    measure_alone(
        options, journal.measure(options), {"journal off": f"--set '{journal.RULE}'"}, as_json=as_json
    )


@lab.command("latency")
@messages_option(1_000_000, "Messages of a run in batches; one message a command takes a fifth of it.")
@SIZE
@BATCH
@CREDIT
@count_option("--subscribers", 1, "Subscribers, who each get everything.", most=1000)
@rounds_option(3)
@DATA
@json_option
def latency_command(as_json: bool, **given: Any) -> None:
    """The time in the system at full rate, and at 90 and 50 percent of what was delivered then."""
    options = latency.LatencyOptions(**given)
    measure_alone(options, latency.measure(options), {"looked into": "one of 100"}, as_json=as_json)


@lab.command("filters")
@messages_option(500_000, "Messages of the history, and of each round.")
@SIZE
@BATCH
@count_option("--filters", 1_000, "Different filters at once, each for one value.", least=2, most=1_000)
@rounds_option(3)
@DATA
@json_option
def filters_command(as_json: bool, **given: Any) -> None:
    """Filter a stream and its history by a header: with one filter, and with many different ones."""
    options = filters.FiltersOptions(**given)
    measure_alone(options, filters.measure(options), {}, as_json=as_json)


@lab.command("slow-consumer")
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

    Measured alternating with one who reads, one who lets its window be used up, and one whose process is
    stopped. Latencies are those of the others; a ratio is to the one who reads, in the same round.
    """
    options = slow_consumer.SlowConsumerOptions(**given)
    about = {"window of the one": slow_consumer.WINDOW}
    measure_alone(options, slow_consumer.measure(options), about, as_json=as_json)


@lab.command("queues")
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
    depths, alternating, as many new ones come, so that the depths stay what they are.
    """
    options = queues.QueuesOptions(**given)
    measure_alone(options, queues.measure(options), {"depth of the other": queues.SHALLOW}, as_json=as_json)


@lab.command("idle")
@count_option("--connections", 10_000, "Connections; the first row has a tenth of them.", most=50_000)
@count_option("--seconds", 60, "How long they do nothing.", most=3600)
@DATA
@json_option
def idle_command(as_json: bool, **given: Any) -> None:
    """Clients that are connected and do nothing: how many hold, and what each costs the broker."""
    options = idle.IdleOptions(**given)
    measure_alone(options, idle.measure(options), {"heartbeat": f"{HEARTBEAT_SECONDS:g} s"}, as_json=as_json)


@lab.command("start")
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
    options = start.StartOptions(**given)
    measure_alone(options, start.measure(options), {}, as_json=as_json)


@lab.command("hostile")
@count_option("--depth", 200_000, "Requests in the queue that is attacked.")
@names_option(
    "--attack", "attacks", ATTACKS, "One of the attacks; may be repeated. All of them if it is not given."
)
@DATA
@json_option
def hostile_command(as_json: bool, **given: Any) -> None:
    """One client sends what costs the broker most: how long the others wait, and what memory it takes.

    Each row is an attack on a broker with default settings, and the last is all of them together. The times
    are those of another client.
    """
    options = hostile.HostileOptions(**{**given, "attacks": given["attacks"] or (*ATTACKS,)})
    measure_alone(options, hostile.measure(options), {}, as_json=as_json)


@lab.command("security")
@messages_option(1_000_000, "Messages of the batched work; a hundredth of them are requests.")
@SIZE
@BATCH
@count_option("--rules", 1000, "Rules, of which four are about what is measured.", least=4, most=100_000)
@count_option("--rate", 1000, "Strangers that connect in a second.", most=100_000)
@count_option("--sessions", 10_000, "Sessions when the rules change.", most=1_000_000)
@count_option("--users", 100_000, "Accounts.", most=1_000_000)
@rounds_option(5)
@DATA
@json_option
def security_command(as_json: bool, **given: Any) -> None:
    """What rules, CURVE, strangers at the door, a change of rules and many users cost.

    Each round is one without and one with. A ratio is the time with it in parts of the time without.
    """
    options = security.SecurityOptions(**given)
    about = {"strangers": f"of niceness {strangers.FLOOD_NICENESS}, with keys that nobody knows"}
    measure_alone(options, security.measure(options), about, as_json=as_json)


@lab.command("gateway")
@messages_option(
    200_000, "Messages of a history, and in bodies of many; a fiftieth of them is posted singly."
)
@SIZE
@count_option("--pages", 1000, "Pages that follow a stream at the same time.", most=9_000)
@count_option("--rate", 100, "Events a second: for all pages together, and then for each.", most=100_000)
@count_option("--seconds", 10, "How long they come.", most=3600)
@count_option("--connections", 16, "Connections that single messages are posted over.", most=1000)
@count_option("--streams", 10_000, "Streams of the broker that is looked at.", most=1_000_000)
@rounds_option(3)
@DATA
@json_option
def gateway_command(as_json: bool, **given: Any) -> None:
    """Events, posted messages and pages of a gateway, which is a process of its own before a broker."""
    options = gateway.GatewayOptions(**given)
    about = {
        "gateway": "a process of its own, default options",
        "bodies of many": f"{gateway.LINES:,} lines of NDJSON",
    }
    measure_alone(options, gateway.measure(options), about, as_json=as_json)


@lab.command("iterator")
@messages_option(1_000_000, "Messages of the history.")
@SIZE
@BATCH
@CREDIT
@rounds_option(5)
@DATA
@json_option
def iterator_command(as_json: bool, **given: Any) -> None:
    """Take messages one by one and in lists: what `for message in subscription` costs more, a message."""
    options = iterator.IteratorOptions(**given)
    measure_alone(options, iterator.measure(options), {"messages in a list": iterator.LIST}, as_json=as_json)


@lab.command("commands")
@rounds_option(20)
@DATA
@json_option
def commands_command(as_json: bool, **given: Any) -> None:
    """Start the command line: how long `malamute --help` takes, beside the interpreter alone."""
    options = commands.CommandsOptions(**given)
    measure_alone(options, commands.measure(options), {}, as_json=as_json)


@lab.command("peers")
@messages_option(200_000, "Messages of the batched work; the slower ones take a part of it.")
@SIZE
@BATCH
@CREDIT
@count_option("--subscribers", 10, "Subscribers of the fan-out.", most=1000)
@rounds_option(5)
@names_option(
    "--peer", "peers", PEERS, "One to measure; may be repeated. All that are installed if not given."
)
@names_option("--work", "works", WORKS, "One of the works; may be repeated. All of them if it is not given.")
@PRIORITY
@DATA
@json_option
def peers_command(as_json: bool, priority: int | None, **given: Any) -> None:
    """Measure Malamute beside NATS, JetStream, Redis Streams, RabbitMQ, Mosquitto and bare ZeroMQ.

    A floor is the least that a server of pyzmq with a writer thread takes for a work.

    Each round of each work takes the peers in turn, each with a new server on loopback and in a temporary
    directory. Ratios are what Malamute has in parts of what the peer has in the same round: of rates, or of
    the median latency where one message waits for the one before. What is not installed is left out, and
    named with what to install; a --peer that is not is an error.
    """
    names, lacking = peers.choose(given["peers"])
    for name, words in lacking.items():
        click.echo(f"without {name}: {words}", err=True)
    options = peers.PeersOptions(**{**given, "peers": names, "works": given["works"] or (*WORKS,)})
    about = {
        **{f"without {name}": words for name, words in lacking.items()},
        **{name: PEERS[name].about for name in names},
    }
    ran = {"priority": peers.take_priority(priority)}
    parameters = {**describe(options.directory), **given_options(options), **ran, **about}
    print_rows(parameters, peers.measure(options), as_json=as_json)


@lab.command("scale")
@messages_option(100_000, "Messages of each point; where each is a command of its own it is a part of it.")
@SIZE
@count_option("--max", 10**9, "The highest point that is measured, of any axis.")
@names_option("--axis", "axes", scale.AXES, "One of the axes; may be repeated. All if it is not given.")
@rounds_option(3)
@DATA
@json_option
def scale_command(as_json: bool, **given: Any) -> None:
    """Measure how the broker's cost and memory grow with the number of things, one axis after the other.

    Axes: subscriptions, mixed (those of all families), streams, mailboxes, connections, readers (of one
    stream), body (bytes), batch, fan-out, ring (megabytes) and depth (of a queue). Costs are processor time
    of the broker. The slope is the exponent with which the cost grows over the whole curve; it is flat up to
    0.1.
    """
    largest, axes = given.pop("max"), given.pop("axes")
    options = scale.ScaleOptions(**given, largest=largest, axes=axes or (*scale.AXES,))
    measure_alone(options, scale.measure(options), {}, as_json=as_json)


@lab.command("match")
@click.option("--seed", default=1, show_default=True, help="Seed of the workloads.")
@click.option("--rounds", default=match.ROUNDS, show_default=True, help="Rounds that the median is of.")
@click.option("--max", "largest", default=match.SIZES[-1], show_default=True, help="Most topic selectors.")
@click.option(
    "--plot", "path", type=click.Path(path_type=Path), help=f"Draw the curve, such as {match.CURVE}."
)
@json_option
def match_command(seed: int, rounds: int, largest: int, path: Path | None, as_json: bool) -> None:
    """Measure the matching engine."""
    rows = match.run([size for size in match.SIZES if size <= largest], seed, rounds)
    if as_json:
        click.echo(to_json([row._asdict() for row in rows]))
    else:
        for row in rows:
            click.echo(f"{row.what:34}{row.value:14,.3f} {row.unit:4} {row.parameters}")
    if path is not None and not match.plot(rows, path):
        raise click.ClickException("no matplotlib, which the curve needs: install malamute[plot]")


@lab.command("pipeline")
@messages_option(4_000_000, "Messages of the history.")
@SIZE
@rounds_option(3)
@click.option("--spark", "with_spark", is_flag=True, help="Analyze and replay by Spark as well.")
@PRIORITY
@DATA
@json_option
def pipeline_command(*, priority: int | None, with_spark: bool, as_json: bool, **given: Any) -> None:
    """Export a journal, join files, count, analyze, and publish again, with the processor time of each.

    Tables of Iceberg are in a catalog of SQLite in a temporary directory.
    """
    from lab import pipeline
    from lab.spark import session_of

    options = pipeline.PipelineOptions(**given)
    about = {"priority": peers.take_priority(priority)}
    with pipeline.catalog(options.directory), session_of(2) if with_spark else nullcontext() as session:
        measure_alone(options, pipeline.measure(options, session), about, as_json=as_json)


@lab.command("spark")
@messages_option(20_000_000, "Messages of the history; with headers a tenth is matched.")
@SIZE
@count_option("--subscriptions", 1000, "Subscriptions that are matched.", most=100_000)
@count_option("--cores", 2, "Cores that Spark and DuckDB may use.", most=1024)
@rounds_option(3)
@DATA
@json_option
def spark_command(
    messages: int,
    size_bytes: int,
    subscriptions: int,
    cores: int,
    rounds: int,
    directory: Path,
    *,
    as_json: bool,
) -> None:
    """Count, analyse, match and read an exported history, made for it, on a Spark session of this machine.

    The start of the session and a first round are not measured.
    """
    from malamute.spark.dependencies import need

    need("pyarrow")
    from lab.spark import SparkBenchOptions, measure, session_of

    options = SparkBenchOptions(messages, size_bytes, subscriptions, rounds, cores, Path(directory))
    # Opened before anything is printed: it is slow, and it fails where Java is missing.
    with session_of(cores) as session:
        print_rows(_spark_parameters(options), measure(session, options), as_json=as_json)


def _spark_parameters(options: Any) -> dict[str, Any]:
    from lab import spark

    given = given_options(options)
    return {
        **describe(options.directory),
        **{name: package_version(name) for name in ("pyspark", "pyarrow", "duckdb")},
        **given,
        "size_bytes": f"{given['size_bytes']}, with 3 headers, 1,000 subjects, 20 senders",
        "file": "1,000,000 messages, row groups of 131,072, zstd",
        "session": f"local[{options.cores}], {spark.MEMORY}, {spark.SHUFFLES} shuffle partitions",
    }


if __name__ == "__main__":
    make(["bench", *sys.argv[1:]], prog_name="make")
