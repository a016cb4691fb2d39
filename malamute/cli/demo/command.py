"""`malamute demo`: the command, its progress, and its table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from malamute.cli.demo.play import Advance, Files, Result, play
from malamute.cli.demo.rows import FLIGHTS, weather_beside
from malamute.cli.demo.tally import DemoTally, tally
from malamute.cli.exit_codes import ERROR
from malamute.cli.options import examples, json_option
from malamute.cli.printing import to_json
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_table
from malamute.server.process import BrokerProcess


@click.command(epilog=examples("malamute demo", "malamute demo --data flights.csv.gz --json"))
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=FLIGHTS,
    show_default="the sample of five days",
    help="The flights, as CSV or packed by gzip. The weather is taken from weather.csv.gz beside it.",
)
@click.option("--rows", type=click.IntRange(min=1), help="Take only the first flights of the file.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order of the requests.")
@json_option
def demo(data: Path, rows: int | None, seed: int, *, as_json: bool) -> None:
    """Move real flights through all three patterns, and check every count.

    A broker is started on a temporary directory. Flights and weather are published to topic subscribers, a
    report for each airport is sent to a recipient who connects only afterwards, and three workers of unequal
    speed answer requests about delays. A table shows the messages sent and received, beside the same counts
    made from the files without a broker. The exit code is 1 if they are not all equal.
    """
    files = Files(data, weather_beside(data), rows, seed)
    begun = time.monotonic()
    counted = tally(files.flights, files.weather, files.rows)
    with (
        interruptible(),
        TemporaryDirectory(prefix="malamute-demo-") as place,
        BrokerProcess(Path(place), "--set", "storage.preallocate=false") as broker,
        _progress(counted) as advance,
    ):
        result = play(broker.url, files, counted, advance)
    equal = all(line.equal for line in result.lines)
    seconds = time.monotonic() - begun
    if as_json:
        _show_json(result, equal=equal, seconds=seconds)
    else:
        _show(result, counted, equal=equal, seconds=seconds)
    if not equal:
        raise click.exceptions.Exit(ERROR)


@contextmanager
def _progress(counted: DemoTally) -> Iterator[Advance]:
    """Show bars on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda what, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        totals = {
            "flights": counted.count("flights"),
            "weather": counted.count("weather"),
            "requests": len(counted.delays),
        }
        tasks = {what: progress.add_task(what, total=total) for what, total in totals.items()}
        yield lambda what, count: progress.advance(tasks[what], count)


def _show_json(result: Result, *, equal: bool, seconds: float) -> None:
    lines = [{**line._asdict(), "equal": line.equal} for line in result.lines]
    shown = {"lines": lines, "workers": result.shares, "equal": equal, "seconds": round(seconds, 3)}
    click.echo(to_json(shown))


def _show(result: Result, counted: DemoTally, *, equal: bool, seconds: float) -> None:
    columns = ("what", "sent", "received", "from the file", "")
    rows = [
        (line.what, *map(_number, (line.sent, line.received, line.counted)), "" if line.equal else "DIFFERS")
        for line in result.lines
    ]
    show_table(columns, rows, (False, True, True, True, False))
    shares = ", ".join(f"{name} {count}" for name, count in result.shares.items())
    click.echo(f"requests by worker: {shares}")
    differ = [line.what for line in result.lines if not line.equal]
    verdict = "all counts are equal" if equal else f"not equal: {', '.join(differ)}"
    click.echo(f"{verdict}; {seconds:.1f} s")


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
