"""`malamute bench`: the benchmarks of `malamute.bench` as commands, and the printing of their rows."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from malamute.bench import replay, scenarios
from malamute.bench.machine import describe
from malamute.bench.scenarios import SCENARIOS, Scenario, ScenarioOptions
from malamute.cli.error_output import report
from malamute.cli.options import examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_map, show_table

DURABILITY = "fsync before each confirmation; deliveries of streams do not wait for it"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


# Options that several benchmarks have


def count_option(name: str, default: int, help_text: str, *, least: int = 1, most: int = 10**9) -> Decorator:
    """Add an option with a whole number."""
    return click.option(
        name, type=click.IntRange(least, most), default=default, show_default=True, help=help_text
    )


def messages_option(default: int, help_text: str) -> Decorator:
    """Add --messages, with its meaning for this benchmark."""
    return count_option("--messages", default, help_text, least=10)


def rounds_option(default: int) -> Decorator:
    """Add --rounds."""
    words = "How often each is measured, alternating; shown are medians, and the extent."
    return count_option("--rounds", default, words, most=100)


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


# Output


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
    """Print rows of another kind, named tuples, as a table of their fields."""
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
    """Yield the rows. On a terminal, report the running measurement, since it takes a while."""
    for row in rows:
        if sys.stderr.isatty():
            report(f"measured {row.what}")
        yield row


def _print_json(parameters: Mapping[str, Any], rows: Iterable[Any]) -> None:
    click.echo(to_json({"parameters": parameters, "results": [row._asdict() for row in rows]}))


def print_rows(parameters: Mapping[str, Any], rows: Iterable[Any], *, as_json: bool) -> None:
    """Print the parameters first, and then the rows as a table; or all of it as JSON."""
    if not as_json:
        show_map(parameters, as_json=False)
        click.echo()
    with interruptible():
        results = [*_noted(rows)]
    if as_json:
        _print_json(parameters, results)
    else:
        show_figures(results)


def given_options(options: Any) -> dict[str, Any]:
    """Return the options of a benchmark, in printed form."""
    return {name: value for name, value in options._asdict().items() if name != "directory"}


def measure_alone(options: Any, rows: Iterable[Any], about: dict[str, Any], *, as_json: bool) -> None:
    """Print a benchmark with columns of its own."""
    given = given_options(options)
    if "size_bytes" in given:
        about = {"body": f"{given.pop('size_bytes')} bytes, with 3 headers", **about}
    parameters = {
        **describe(options.directory),
        "broker": "a process of its own, on LMDB in a new directory",
        "durability": DURABILITY,
        **given,
        **about,
    }
    print_rows(parameters, rows, as_json=as_json)


# Benchmarks with the same columns


class RunByDefault(click.Group):
    """A group that runs everything without the name of a benchmark."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before arguments without the name of a benchmark."""
        helped = {"-h", "--help"} & set(args)
        named = any(argument in self.commands for argument in args[:1])
        return super().parse_args(ctx, args if helped or named else ["run", *args])


@click.group(
    cls=RunByDefault,
    epilog=examples(
        "malamute bench", "malamute bench publish --messages 5000000", "malamute bench run --json"
    ),
)
def bench() -> None:
    """Measure the broker on this machine; without a command, run all benchmarks with common columns.

    Each benchmark starts a broker as a process on LMDB in a temporary directory, with its fsync, unless --url
    names one; publishers, subscribers and workers are processes too. Broker and clients share the machine.

    Columns: latencies in milliseconds, from publishing a message until its delivery (stored: until its
    receipt). Processor time is in microseconds per message, of the broker, the sender and the receiver. The
    last columns are the broker's maximum anonymous memory in MiB, and messages lost by overwriting.
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
    """Add the options of the scenarios; the function gets them as `ScenarioOptions`."""

    def command(as_json: bool, **given: Any) -> None:
        measure(ScenarioOptions(**given), as_json=as_json)

    for option in reversed(_OPTIONS):
        command = option(command)
    return functools.wraps(measure, updated=())(command)


def _measure(measured: Iterable[Scenario], options: ScenarioOptions, *, as_json: bool) -> None:
    parameters = _parameters(options)
    if not as_json:
        show_map(parameters, as_json=False)
    results: list[scenarios.ScenarioRow] = []
    with interruptible():
        for scenario in measured:
            rows = [*_noted(scenario(options))]
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


def add_scenario(group: click.Group, name: str, scenario: Scenario) -> None:
    """Add a command that runs a scenario."""

    def measure(options: ScenarioOptions, *, as_json: bool) -> None:
        _measure([scenario], options, as_json=as_json)

    words = (scenario.__doc__ or "").partition("\n")[0]
    group.command(name, help=words)(_with_options(measure))


for _name, _scenario in SCENARIOS.items():
    add_scenario(bench, _name, _scenario)


@bench.command("run")
@_with_options
def run(options: ScenarioOptions, *, as_json: bool) -> None:
    """Run publish, mailbox and service."""
    _measure(SCENARIOS.values(), options, as_json=as_json)


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
    """Read a history from its first message.

    One reader reads all of it, or half of it by subject or by header; then many read at once. These are
    spread over the history, in two processes, and each reads a twentieth of it.
    """
    options = replay.ReplayOptions(**given)
    measure_alone(options, replay.measure(options), {}, as_json=as_json)
