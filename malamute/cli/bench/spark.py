"""`malamute bench spark`: the data pipeline, beside plain Spark and DuckDB."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from malamute.cli.bench.machine import describe
from malamute.cli.bench.options import DATA, SIZE, count_option, messages_option, rounds_option
from malamute.cli.bench.report import show_figures
from malamute.cli.options import json_option
from malamute.cli.printing import to_json
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_map

SHUFFLES = "2"
MEMORY = "4g"


@click.command("spark")
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
    from malamute.spark.session import need, open_session

    need("pyarrow")
    from malamute.spark.bench import Options, measure

    options = Options(messages, size_bytes, subscriptions, rounds, cores, Path(directory))
    parameters = _parameters(options)
    if not as_json:
        show_map(parameters, as_json=False)
        click.echo()
    with interruptible():
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
            rows = [_noted(row) for row in measure(session, options)]
        finally:
            session.stop()
    if as_json:
        click.echo(to_json({"parameters": parameters, "results": [row._asdict() for row in rows]}))
    else:
        show_figures(rows)


def _parameters(options: Any) -> dict[str, Any]:
    given = {name: value for name, value in options._asdict().items() if name != "directory"}
    return {
        **describe(options.directory),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "duckdb")},
        **given,
        "size_bytes": f"{given['size_bytes']}, with 3 headers, 1,000 subjects, 20 senders",
        "file": "1,000,000 messages, row groups of 131,072, zstd",
        "session": f"local[{options.cores}], {MEMORY}, {SHUFFLES} shuffle partitions",
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _noted(row: Any) -> Any:
    """Tell on a terminal what is done, since it takes a while."""
    if sys.stderr.isatty():
        click.echo(f"measured {row.what}", err=True)
    return row
