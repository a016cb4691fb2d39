"""`malamute bench`: the benchmarks of `malamute.bench` as commands, and how their rows are printed."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from malamute.bench import (
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
    replay,
    scale,
    scenarios,
    security,
    slow_consumer,
    start,
    strangers,
)
from malamute.bench.attacks import ATTACKS
from malamute.bench.machine import describe, package_version
from malamute.bench.peers import measure as peers
from malamute.bench.peers.table import PEERS, WORKS
from malamute.bench.scenarios import SCENARIOS, ScenarioOptions
from malamute.cli.options import examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_map, show_table
from malamute.client.options import HEARTBEAT_SECONDS

DURABILITY = "fsync before each confirmation; deliveries of streams do not wait for it"

SHUFFLES = "2"
"""Partitions that the Spark session of the benchmark shuffles into."""

MEMORY = "4g"
"""Memory of its driver."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


# Options that several benchmarks have


def count_option(name: str, default: int, help_text: str, *, least: int = 1, most: int = 10**9) -> Decorator:
    """A whole number."""
    return click.option(
        name, type=click.IntRange(least, most), default=default, show_default=True, help=help_text
    )


def messages_option(default: int, help_text: str) -> Decorator:
    """--messages, with what it means for this benchmark."""
    return count_option("--messages", default, help_text, least=10)


def rounds_option(default: int) -> Decorator:
    """--rounds."""
    words = "How often each is measured, alternating; shown are medians, and the extent."
    return count_option("--rounds", default, words, most=100)


def names_option(name: str, parameter: str, choices: Iterable[str], help_text: str) -> Decorator:
    """One of several names, which may be repeated."""
    return click.option(
        name, parameter, type=click.Choice([*choices]), multiple=True, metavar="NAME", help=help_text
    )


SIZE = click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(min=8),
    default=100,
    show_default=True,
    help="Bytes of a body.",
)
BATCH = count_option("--batch", 1000, "Messages in a batch, at most; 64 KiB end one too.", most=10_000)
CREDIT = count_option("--credit", 20_000, "Messages that a subscriber allows the broker to be ahead.")
DATA = click.option(
    "--data",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=tempfile.gettempdir,
    help="Where the temporary data directory is made.",
)


# What is printed


def show_scenarios(rows: Sequence[scenarios.ScenarioRow]) -> None:
    """Print rows of the quick benchmarks as a table."""
    columns = (
        "",
        "messages",
        "msg/s",
        "p50 ms",
        "p99 ms",
        "broker µs",
        "sender µs",
        "receiver µs",
        "MiB",
        "missing",
    )
    cells = [[row.what, *map(_cell, row[1:])] for row in rows]
    show_table(columns, cells, [False] + [True] * (len(columns) - 1))


def show_figures(rows: Sequence[Any]) -> None:
    """Print rows of a kind of their own, named tuples, as a table: its columns are their fields."""
    columns = rows[0]._fields
    right = [not isinstance(value, str) for value in rows[0]]
    show_table(["" if name == "what" else name for name in columns], [[*map(_cell, r)] for r in rows], right)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " to ".join(map(_cell, value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def _noted(rows: Iterable[Any]) -> Iterator[Any]:
    """The rows. On a terminal it says what is measured, since it takes a while."""
    for row in rows:
        if sys.stderr.isatty():
            click.echo(f"measured {row.what}", err=True)
        yield row


def _print_json(parameters: Mapping[str, Any], rows: Iterable[Any]) -> None:
    click.echo(to_json({"parameters": parameters, "results": [row._asdict() for row in rows]}))


def _print_rows(parameters: Mapping[str, Any], rows: Iterable[Any], *, as_json: bool) -> None:
    """Print the parameters first, and then the rows as a table or all of it as JSON."""
    if not as_json:
        show_map(parameters, as_json=False)
        click.echo()
    with interruptible():
        results = [*_noted(rows)]
    if as_json:
        _print_json(parameters, results)
    else:
        show_figures(results)


def _given(options: Any) -> dict[str, Any]:
    """The options of a benchmark, as they are printed."""
    return {name: value for name, value in options._asdict().items() if name != "directory"}


def _measure_alone(options: Any, rows: Iterable[Any], about: dict[str, Any], *, as_json: bool) -> None:
    """Print a benchmark that has columns of its own."""
    given = _given(options)
    if "size_bytes" in given:
        about = {"body": f"{given.pop('size_bytes')} bytes, with 3 headers", **about}
    parameters = {
        **describe(options.directory),
        "broker": "a process of its own, on LMDB in a new directory",
        "durability": DURABILITY,
        **given,
        **about,
    }
    _print_rows(parameters, rows, as_json=as_json)


# The quick ones, which have the same columns


class _RunByDefault(click.Group):
    """A group that runs everything when no benchmark is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        helped = {"-h", "--help"} & set(args)
        named = any(argument in self.commands for argument in args[:1])
        return super().parse_args(ctx, args if helped or named else ["run", *args])


@click.group(
    cls=_RunByDefault,
    epilog=examples(
        "malamute bench", "malamute bench publish --messages 5000000", "malamute bench run --json"
    ),
)
def bench() -> None:
    """Measure what this machine does; without a command it is run, which is all of them that are quick.

    Others take longer or have columns of their own: commands, gateway, hostile, idle, iterator, journal,
    latency, peers, queues, replay, scale, security, slow-consumer, spark and start.

    Each benchmark starts a broker as a process on LMDB in a temporary directory, with its fsync, unless --url
    names one; publishers, subscribers and workers are processes too. Broker and clients share the machine.

    Columns: latencies in milliseconds, from giving a message to the client until it comes out (stored: until
    its receipt). Processor time is in microseconds a message, of the broker, the sender and the receiver.
    Then there is the most anonymous memory of the broker, in MiB, and messages that did not come, as they
    were overwritten.
    """


_OPTIONS = (
    messages_option(1_000_000, "Messages of the batched benchmarks; the slower ones take a part of it."),
    SIZE,
    BATCH,
    CREDIT,
    count_option("--subscribers", 10, "Subscribers of the fan-out.", most=1000),
    click.option("--url", "-u", default="", help="Measure this broker, instead of one of our own."),
    DATA,
    json_option,
)


def _with_options(measure: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the quick benchmarks; the function gets them as `ScenarioOptions`."""

    def command(as_json: bool, **given: Any) -> None:
        measure(ScenarioOptions(**given), as_json=as_json)

    for option in reversed(_OPTIONS):
        command = option(command)
    return functools.wraps(measure, updated=())(command)


def _measure(names: Iterable[str], options: ScenarioOptions, *, as_json: bool) -> None:
    parameters = _parameters(options)
    if not as_json:
        show_map(parameters, as_json=False)
    results: list[scenarios.ScenarioRow] = []
    with interruptible():
        for name in names:
            rows = [*_noted(SCENARIOS[name](options))]
            results += rows
            if not as_json:
                click.echo()
                show_scenarios(rows)
    if as_json:
        _print_json(parameters, results)


def _parameters(options: ScenarioOptions) -> dict[str, Any]:
    broker = (
        {"broker": options.url}
        if options.url
        else {
            "broker": "a process of its own, on LMDB in a new directory, default options",
            "durability": DURABILITY,
        }
    )
    return {
        **describe(options.directory),
        **broker,
        "messages": options.messages,
        "body": f"{options.size_bytes} bytes, with 3 headers",
        "publisher": f"confirmed, batches of up to {options.batch}, the client's own window",
        "subscriber": f"credit of {options.credit}, looks into one of 100 messages",
        "subscribers": options.subscribers,
    }


def _benchmark(name: str) -> None:
    def measure(options: ScenarioOptions, *, as_json: bool) -> None:
        _measure([name], options, as_json=as_json)

    words = (SCENARIOS[name].__doc__ or "").partition("\n")[0]
    bench.command(name, help=words)(_with_options(measure))


for _name in SCENARIOS:
    _benchmark(_name)


@bench.command("run")
@_with_options
def run(options: ScenarioOptions, *, as_json: bool) -> None:
    """Run all that are quick, and have the same columns."""
    _measure(SCENARIOS, options, as_json=as_json)


# Those with columns of their own; most measure in rounds and show medians


@bench.command("journal")
@messages_option(1_000_000, "Messages of a round; one message a command takes a fifth of it.")
@SIZE
@BATCH
@rounds_option(3)
@DATA
@json_option
def journal_command(as_json: bool, **given: Any) -> None:
    """Publish confirmed into a stream with a journal and into one without, alternating on one broker."""
    options = journal.JournalOptions(**given)
    _measure_alone(
        options, journal.measure(options), {"journal off": f"--set '{journal.RULE}'"}, as_json=as_json
    )


@bench.command("latency")
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
    _measure_alone(options, latency.measure(options), {"looked into": "one of 100"}, as_json=as_json)


@bench.command("replay")
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
    options = replay.ReplayOptions(**given)
    _measure_alone(options, replay.measure(options), {}, as_json=as_json)


@bench.command("filters")
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
    _measure_alone(options, filters.measure(options), {}, as_json=as_json)


@bench.command("slow-consumer")
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
    _measure_alone(options, slow_consumer.measure(options), about, as_json=as_json)


@bench.command("queues")
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
    _measure_alone(options, queues.measure(options), {"depth of the other": queues.SHALLOW}, as_json=as_json)


@bench.command("idle")
@count_option("--connections", 10_000, "Connections; the first row has a tenth of them.", most=50_000)
@count_option("--seconds", 60, "How long they do nothing.", most=3600)
@DATA
@json_option
def idle_command(as_json: bool, **given: Any) -> None:
    """Clients that are connected and do nothing: how many hold, and what each costs the broker."""
    options = idle.IdleOptions(**given)
    _measure_alone(options, idle.measure(options), {"heartbeat": f"{HEARTBEAT_SECONDS:g} s"}, as_json=as_json)


@bench.command("start")
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
    _measure_alone(options, start.measure(options), {}, as_json=as_json)


@bench.command("hostile")
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
    _measure_alone(options, hostile.measure(options), {}, as_json=as_json)


@bench.command("security")
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
    _measure_alone(options, security.measure(options), about, as_json=as_json)


@bench.command("gateway")
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
    _measure_alone(options, gateway.measure(options), about, as_json=as_json)


@bench.command("iterator")
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
    _measure_alone(options, iterator.measure(options), {"messages in a list": iterator.LIST}, as_json=as_json)


@bench.command("commands")
@rounds_option(20)
@DATA
@json_option
def commands_command(as_json: bool, **given: Any) -> None:
    """Start the command line: how long `malamute --help` takes, beside the interpreter alone."""
    options = commands.CommandsOptions(**given)
    _measure_alone(options, commands.measure(options), {}, as_json=as_json)


@bench.command("peers")
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
@DATA
@json_option
def peers_command(as_json: bool, **given: Any) -> None:
    """Measure Malamute beside NATS, JetStream, Redis Streams, RabbitMQ, Mosquitto and bare ZeroMQ.

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
    parameters = {**describe(options.directory), **_given(options), **about}
    _print_rows(parameters, peers.measure(options), as_json=as_json)


@bench.command("scale")
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
    _measure_alone(options, scale.measure(options), {}, as_json=as_json)


@bench.command("match")
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


@bench.command("spark")
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
    from malamute.spark.session import open_session

    need("pyarrow")
    from malamute.bench.spark import SparkBenchOptions, measure

    options = SparkBenchOptions(messages, size_bytes, subscriptions, rounds, cores, Path(directory))
    # Opened before anything is printed: it is slow, and it fails where Java is missing.
    session = open_session(
        "malamute-bench",
        f"local[{cores}]",
        spark__ui__enabled="false",
        spark__log__level="ERROR",
        spark__driver__memory=MEMORY,
        spark__ui__showConsoleProgress="false",
        spark__sql__shuffle__partitions=SHUFFLES,
    )
    try:
        _print_rows(_spark_parameters(options), measure(session, options), as_json=as_json)
    finally:
        session.stop()


def _spark_parameters(options: Any) -> dict[str, Any]:
    given = _given(options)
    return {
        **describe(options.directory),
        **{name: package_version(name) for name in ("pyspark", "pyarrow", "duckdb")},
        **given,
        "size_bytes": f"{given['size_bytes']}, with 3 headers, 1,000 subjects, 20 senders",
        "file": "1,000,000 messages, row groups of 131,072, zstd",
        "session": f"local[{options.cores}], {MEMORY}, {SHUFFLES} shuffle partitions",
    }
