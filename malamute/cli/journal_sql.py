"""`malamute journal sql`, `analyze` and `replay`: the work with history on one machine, without Spark."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.journal_export import (
    context_option,
    data_option,
    source_of,
    streams_option,
    url_option,
    when,
)
from malamute.cli.options import examples, json_option
from malamute.cli.progress import bar
from malamute.cli.spark import (
    Function,
    end,
    over_history,
    replay_options,
    replayed,
    report_options,
    show_report,
)
from malamute.cli.tables import show_rows

if TYPE_CHECKING:
    from malamute.spark.scan import ExportedHistory


def over_messages(function: Function) -> Function:
    """Add the options for a source and a part of it; the command gets a context of it as `history`."""

    @streams_option
    @click.option("--from", "location", metavar="DIR|URL", help="Read what `malamute journal export` wrote.")
    @data_option
    @url_option
    @context_option
    @click.option(
        "--since", default="", metavar="WHEN", help="Only messages from then on: 2024-05-31T12:00 or 7d."
    )
    @click.option("--until", default="", metavar="WHEN", help="Only messages before then.")
    @functools.wraps(function)
    def command(
        *args: Any,
        streams: tuple[str, ...],
        location: str | None,
        data: Path,
        url: str | None,
        context: str | None,
        since: str,
        until: str,
        **more: Any,
    ) -> Any:
        source = {} if location else source_of(data, url, context)
        history = _history(streams, location, source, when(since), when(until))
        return function(*args, history=history, **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


@contextmanager
def _history(
    streams: tuple[str, ...], location: str | None, source: dict[str, Any], since: str, until: str
) -> Iterator[ExportedHistory]:
    from malamute.spark.dependencies import need

    need("duckdb")
    from malamute.spark.history import open_history
    from malamute.spark.local import exported
    from malamute.spark.options import SourceOptions
    from malamute.spark.scan import ExportedHistory

    if location:
        bounds = SourceOptions(path=location, since=since, until=until).bounds(time.time_ns())
        yield ExportedHistory(location, bounds._replace(streams=streams))
        return
    with ExitStack() as stack:
        with open_history(**source) as found, bar("reading", "messages") as progress:
            place = stack.enter_context(exported(found, streams, progress, since, until))
        yield ExportedHistory(place)


@click.command(
    epilog=examples(
        'malamute journal sql "select subject, count(*) from history group by subject"',
        "malamute journal sql --url tcp://127.0.0.1:9999 --stream orders --since 1h --json \\",
        "    \"select time, headers['price'].number as price from history order by price desc limit 10\"",
        "malamute journal sql --from /data/history \\",
        "    \"copy (select * from history where subject like 'ord%') to 'orders.csv'\"",
    )
)
@click.argument("query")
@over_messages
@json_option
def sql(query: str, *, history: Any, as_json: bool) -> None:
    """Run a query in DuckDB's SQL over the messages, which are the table `history`.

    Its columns are those of an export. Messages of a data directory or a broker are copied to a temporary
    directory first: name streams and times, or export once for more than one query.
    """
    from malamute.spark.local import opened

    with history as found, opened(found) as engine:
        rows = [*engine.answer(query)]
    show_rows(rows, as_json=as_json)


@click.command(
    epilog=examples(
        "malamute journal analyze --to report",
        "malamute journal analyze --from /data/history --stream flights --to report \\",
        "    --measure \"delay = headers['arr_delay'].number by carrier = headers['carrier'].text\"",
    )
)
@over_messages
@report_options
@json_option
def analyze(
    *,
    history: Any,
    target: str,
    window_seconds: int | None,
    depth: int,
    top: int,
    measures: tuple[str, ...],
    as_json: bool,
) -> None:
    """Analyze messages as `malamute spark analyze` does, on this machine and without Spark.

    The tables are directories of Parquet in DIR, and the page is report.html beside them. Unreadable parts
    are printed, and the exit code is 1; the rest is analyzed all the same.
    """
    from malamute.spark.analyze_tables import AnalyzeOptions, Measure
    from malamute.spark.local import analysed, save
    from malamute.spark.report import window_of

    for measure in measures:
        Measure.parse(measure)
    with ExitStack() as stack:
        found = stack.enter_context(history)
        window = window_seconds or window_of(found.seconds())
        options = AnalyzeOptions(found.bounds, window, depth, measures)
        with bar("analyze", "tasks") as progress:
            engine, tables = stack.enter_context(analysed(found, options, progress))
            save(engine, tables, target)
        damage = show_report(engine, tables, found.location, options, target, top, as_json=as_json)
    end(damage, as_json=as_json)


@click.command(
    epilog=examples(
        "malamute journal replay /exports --stream orders --into orders-again --dry-run",
        "malamute journal replay /exports --stream orders --into orders-again --speed 10",
    )
)
@over_history
@replay_options
@json_option
def replay(history: ExportedHistory, **given: Any) -> None:
    """Publish an export again as `malamute spark replay` does, on this machine and without Spark.

    Streams are replayed side by side. Either command continues what the other one has begun.
    """
    from malamute.spark.replay import replay_here

    replayed(history, lambda options: replay_here(history, options), **given)
