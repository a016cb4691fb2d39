"""`malamute bench`: the commands, and the parameters that they print first."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from malamute.cli.bench.history import COMMANDS
from malamute.cli.bench.machine import describe
from malamute.cli.bench.options import BATCH, CREDIT, DATA, SIZE, messages_option
from malamute.cli.bench.report import Row, show
from malamute.cli.bench.scenarios import SCENARIOS, Options
from malamute.cli.bench.spark import spark_command
from malamute.cli.bench_match import match
from malamute.cli.options import examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_map


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

    Others take longer or have columns of their own: commands, hostile, idle, iterator, journal, queues,
    replay, slow-consumer, spark and start.

    Each benchmark starts a broker as a process on LMDB in a temporary directory, with its fsync, unless --url
    names one; publishers, subscribers and workers are processes too. Broker and clients share the machine.

    Columns: latencies in milliseconds, from giving a message to the client until it comes out (stored: until
    its receipt); processor time in microseconds a message, of the broker, the sender and the receiver; the
    most anonymous memory of the broker, in MiB; and messages that did not come, as they were overwritten.
    """


_OPTIONS = (
    messages_option(1_000_000, "Messages of the batched benchmarks; the slower ones take a part of it."),
    SIZE,
    BATCH,
    CREDIT,
    click.option(
        "--subscribers",
        type=click.IntRange(1, 1000),
        default=10,
        show_default=True,
        help="Subscribers of the fan-out.",
    ),
    click.option("--url", "-u", default="", help="Measure this broker, instead of one of our own."),
    DATA,
    json_option,
)


def _with_options(measure: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all benchmarks; the function gets them as `Options`."""

    def command(as_json: bool, **given: Any) -> None:
        measure(Options(**given), as_json=as_json)

    for option in reversed(_OPTIONS):
        command = option(command)
    return functools.wraps(measure, updated=())(command)


def _measure(names: Iterable[str], options: Options, *, as_json: bool) -> None:
    parameters = _parameters(options)
    if not as_json:
        show_map(parameters, as_json=False)
    results: list[Row] = []
    with interruptible():
        for name in names:
            rows = list(_told(SCENARIOS[name](options)))
            results += rows
            if not as_json:
                click.echo()
                show(rows)
    if as_json:
        click.echo(to_json({"parameters": parameters, "results": [row._asdict() for row in results]}))


def _told(rows: Iterable[Row]) -> Iterable[Row]:
    """Tell on a terminal what is done, since it takes a while."""
    for row in rows:
        if sys.stderr.isatty():
            click.echo(f"measured {row.what}", err=True)
        yield row


def _parameters(options: Options) -> dict[str, Any]:
    broker = (
        {"broker": options.url}
        if options.url
        else {
            "broker": "a process of its own, on LMDB in a new directory, default options",
            "durability": "fsync before each confirmation; deliveries of streams do not wait for it",
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
    def measure(options: Options, *, as_json: bool) -> None:
        _measure([name], options, as_json=as_json)

    words = (SCENARIOS[name].__doc__ or "").partition("\n")[0]
    bench.command(name, help=words)(_with_options(measure))


for _name in SCENARIOS:
    _benchmark(_name)


@bench.command("run")
@_with_options
def run(options: Options, *, as_json: bool) -> None:
    """Run all that are quick, and have the same columns."""
    _measure(SCENARIOS, options, as_json=as_json)


for _command in (*COMMANDS, match, spark_command):
    bench.add_command(_command)
