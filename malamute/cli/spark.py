"""`malamute spark`: jobs over exported history, on this machine or on a cluster.

`deploy/spark/job.py` runs the same commands under spark-submit, which chooses the cluster.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from malamute.cli.error_output import report
from malamute.cli.exit_codes import ERROR
from malamute.cli.options import URL, connection_of, context_option, examples, json_option
from malamute.cli.printing import printable, to_json
from malamute.cli.progress import Progress, bar
from malamute.cli.signals import interruptible
from malamute.cli.tables import show_rows
from malamute.cli.units import DurationRange
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.start import Start
from malamute.protocol.time_units import to_ns, to_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.status import StatusTracker

    from malamute.spark.analyze_tables import AnalyzeOptions, Engine, Tables
    from malamute.spark.replay import ReplaySettings
    from malamute.spark.scan import ExportedHistory

LOOK_SECONDS = 0.5
"""Seconds between two looks at Spark's progress."""

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group()
def spark() -> None:
    """Analyze exported history, and publish it again.

    HISTORY is a directory that `malamute journal export` has written, or its URL. Spark runs on all cores of
    this machine unless --master names a cluster. The command needs malamute[spark] and Java.
    """


def _parse_time(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return nanoseconds since the epoch."""
    if text is None:
        return None
    kind, colon, _ = text.partition(":")
    start = Start.parse(text if colon and kind in ("time", "since") else f"time:{text}")
    return start.value if start.kind == "time" else to_ns(datetime.now(UTC).timestamp()) - start.value


def over_history(function: Function) -> Function:
    """Add HISTORY and the options that select a part of it; the command gets it as `history`."""

    @click.argument("location", metavar="HISTORY")
    @click.option("--stream", "streams", multiple=True, metavar="NAME", help="This stream; may be repeated.")
    @click.option(
        "--since", callback=_parse_time, metavar="TIME", help="From then on: 2026-01-31T12:00, or since:1h."
    )
    @click.option("--until", callback=_parse_time, metavar="TIME", help="Before then.")
    @click.option("--first", type=click.IntRange(0), default=0, metavar="SEQUENCE", help="From this one on.")
    @click.option(
        "--last", type=click.IntRange(0), default=NUMBER_MAX, metavar="SEQUENCE", help="Up to this one."
    )
    @functools.wraps(function)
    def command(
        *args: Any,
        location: str,
        streams: Sequence[str],
        since: int | None,
        until: int | None,
        first: int,
        last: int,
        **more: Any,
    ) -> Any:
        from malamute.spark.dependencies import need

        need("pyarrow")
        from malamute.spark.scan import ExportedHistory, HistoryBounds

        bounds = HistoryBounds(
            tuple(streams), since or 0, NUMBER_MAX if until is None else until, first, last
        )
        return function(*args, history=ExportedHistory(location, bounds), **more)

    return command  # type: ignore[return-value]  # the wrapper replaces the command


master_option = click.option("--master", default="", metavar="URL", help="Spark's master, spark://host:7077.")


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    from malamute.spark.session import close_session, open_session

    with interruptible():
        settings = {"spark__log__level": "ERROR", "spark__ui__showConsoleProgress": "false"}
        if not master and "PYSPARK_GATEWAY_PORT" not in os.environ:
            # This is for one machine: Spark's default of 200 is for a cluster, which has settings of its own.
            settings["spark__sql__shuffle__partitions"] = str(4 * (os.cpu_count() or 1))
        with bar("starting Spark", "seconds"):
            session = open_session("malamute", master, **settings)
        try:
            with (
                bar(click.get_current_context().info_name or "", "tasks") as progress,
                _watched(session, progress),
            ):
                yield session
        finally:
            close_session(session)


@contextmanager
def _watched(session: SparkSession, progress: Progress) -> Iterator[None]:
    """Report the known and the finished tasks of Spark, during the block."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(session.sparkContext.statusTracker(), progress, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(tracker: StatusTracker, progress: Progress, ended: threading.Event) -> None:
    from py4j.protocol import Py4JError

    stages: dict[int, tuple[int, int]] = {}
    with suppress(Py4JError, OSError):  # Spark has ended, which its caller reports
        while not ended.wait(LOOK_SECONDS):
            # A stage that is no longer active is done.
            stages = {number: (total, total) for number, (_, total) in stages.items()}
            for number in tracker.getActiveStageIds():
                if found := tracker.getStageInfo(number):
                    stages[number] = found.numCompletedTasks, found.numTasks
            done, known = (sum(counts) for counts in zip((0, 0), *stages.values(), strict=True))
            progress(done, known or None)


def report_options(function: Function) -> Function:
    """Add the target, the resolution and the measures of an analysis."""
    for option in (
        click.option(
            "--measure",
            "measures",
            multiple=True,
            metavar="NAME=SQL by NAME=SQL; …",
            help="Sum up a number by groups, both in SQL on the columns of the history; may be repeated.",
        ),
        click.option(
            "--top", type=click.IntRange(1, 200), default=20, show_default=True, help="Rows of rankings."
        ),
        click.option(
            "--depth",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Parts of a subject in a prefix.",
        ),
        click.option(
            "--window",
            "window_seconds",
            type=click.IntRange(1),
            show_default="by the length of the history",
            help="Seconds of a window.",
        ),
        click.option(
            "--to",
            "target",
            required=True,
            metavar="DIR",
            help="Where tables and report are written, or a URL.",
        ),
    ):
        function = option(function)
    return function


@spark.command(
    epilog=examples(
        "malamute spark analyze /exports --to report",
        "malamute spark analyze /exports --stream flights --to report \\",
        "    --measure \"delay = headers['arr_delay'].number by carrier = headers['carrier'].text\"",
    )
)
@over_history
@report_options
@master_option
@json_option
def analyze(
    history: ExportedHistory,
    *,
    target: str,
    window_seconds: int | None,
    depth: int,
    top: int,
    measures: tuple[str, ...],
    master: str,
    as_json: bool,
) -> None:
    """Analyze volume, order, senders, headers and queues, as tables and as one page of HTML.

    The tables are directories of Parquet in DIR, and the page is report.html beside them. Unreadable parts
    are printed, and the exit code is 1; the rest is analyzed all the same.
    """
    from malamute.spark.analyze import SparkEngine
    from malamute.spark.analyze import analyze as run
    from malamute.spark.analyze_tables import AnalyzeOptions, Measure
    from malamute.spark.report import window_of

    window_seconds = window_seconds or window_of(history.seconds())
    for measure in measures:
        Measure.parse(measure)
    options = AnalyzeOptions(history.bounds, window_seconds, depth, measures)
    with _session(master) as session:
        tables = run(session, history, target, options)
        damage = show_report(
            SparkEngine(session, history), tables, history.location, options, target, top, as_json=as_json
        )
    end(damage, as_json=as_json)


def show_report(
    engine: Engine,
    tables: Tables,
    location: str,
    options: AnalyzeOptions,
    target: str,
    top: int,
    *,
    as_json: bool,
) -> list[dict[str, Any]]:
    """Write the page of an analysis, and print its streams. Returns the damage."""
    from malamute.spark.report import Facts, page, save

    save(page(engine, tables, Facts(location, options.window_seconds, top)), target)
    streams = engine.rows(engine.sql("select * from {streams} order by stream", **tables))
    damage = engine.rows(tables["damage"])
    if as_json:
        click.echo(to_json({"streams": streams, "damage": damage, "target": target}))
    else:
        show_rows([{name: row[name] for name in _SHOWN} for row in streams], as_json=False)
        click.echo(f"report: {target.rstrip('/')}/report.html")
    return damage


_SHOWN = ("stream", "messages", "bytes", "first", "last", "gaps", "missing", "duplicates", "per_second")


@spark.command(
    name="match",
    epilog=examples("malamute spark match /exports wanted.toml --since 2026-01-01 --json"),
)
@over_history
@click.argument("subscriptions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "target", default="", metavar="DIR", help="Write the tables hits and examples there.")
@click.option(
    "--examples",
    "count",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Examples of each subscription.",
)
@master_option
@json_option
def match_command(
    history: ExportedHistory, *, subscriptions: Path, target: str, count: int, master: str, as_json: bool
) -> None:
    """Count the messages that the SUBSCRIPTIONS of a file would have received: hits a day, and examples.

    The file is TOML or JSON: a list named `subscription` of tables with name, criteria, where and stream, all
    of them optional. Matching is the broker's own.
    """
    from malamute.spark.match import load, match

    wanted = load(subscriptions)
    with _session(master) as session:
        matched = match(session, history, wanted, count)
        if target:
            for name, table in (("hits", matched.hits), ("examples", matched.examples)):
                table.write.mode("overwrite").parquet(f"{target.rstrip('/')}/{name}")
        hits = [row.asDict() for row in matched.hits.orderBy("name", "stream", "date").collect()]
        shown = [row.asDict(recursive=True) for row in matched.examples.drop("headers").collect()]
        damage = [row.asDict() for row in matched.damage.collect()]
    if as_json:
        click.echo(to_json({"hits": hits, "none": _none(wanted, hits), "examples": shown, "damage": damage}))
    else:
        show_rows(hits, as_json=False)
        for row in shown:
            body = printable(bytes(row["body"][:60]).decode("utf-8", "backslashreplace"))
            stream, subject = printable(row["stream"]), printable(row["subject"])
            click.echo(f"{row['name']}: {stream} {row['sequence']} {subject} {body}")
        click.echo(f"nothing for {', '.join(_none(wanted, hits)) or 'none of them'}")
    end(damage, as_json=as_json)


def _none(wanted: Sequence[Any], hits: Sequence[Any]) -> list[str]:
    found = {row["name"] for row in hits}
    return [one.name for one in wanted if one.name not in found]


def replay_options(function: Function) -> Function:
    """Add the choice of messages, the target, and how a replay goes on."""
    for option in (
        context_option,
        click.option("--url", "-u", envvar="MALAMUTE_URL", show_default=URL, help="The broker."),
        click.option("--dry-run", is_flag=True, help="Only show the messages to be published."),
        click.option(
            "--patience",
            "patience_seconds",
            type=DurationRange(min=0),
            default=60.0,
            show_default=True,
            metavar="DURATION",
            help="How long to wait for a broker.",
        ),
        click.option(
            "--name",
            default="",
            help="The name of the replay: it continues where one of this name has ended.",
        ),
        click.option(
            "--speed",
            type=click.FloatRange(min=0),
            default=0.0,
            metavar="FACTOR",
            help="1 as it was, 2 twice as fast; 0, which is the default, as fast as possible.",
        ),
        click.option(
            "--into",
            default="",
            metavar="STREAM",
            help="Publish to this stream; by default each message to the stream that it came from.",
        ),
        click.option("--where", default="", metavar="EXPRESSION", help="A match expression on the headers."),
        click.option(
            "--match", "patterns", multiple=True, metavar="PATTERN", help="Subjects; may be repeated."
        ),
    ):
        function = option(function)
    return function


@spark.command(
    epilog=examples(
        "malamute spark replay /exports --stream orders --into orders-again --dry-run",
        "malamute spark replay /exports --stream orders --into orders-again --speed 10",
    )
)
@over_history
@replay_options
@master_option
@json_option
def replay(history: ExportedHistory, *, master: str, **given: Any) -> None:
    """Publish history again, into streams of the broker at --url, in order and each message once.

    After a failure the same command continues from there. Messages get headers with their origin:
    malamute.stream, malamute.sequence, malamute.time and malamute.sender.
    """
    from malamute.spark.replay import replay as run

    def by_spark(options: ReplaySettings) -> Sequence[Mapping[str, Any]]:
        with _session(master) as session:
            return run(session, history, options)

    replayed(history, by_spark, **given)


def replayed(
    history: ExportedHistory,
    run: Callable[[ReplaySettings], Sequence[Mapping[str, Any]]],
    *,
    patterns: tuple[str, ...],
    where: str,
    into: str,
    speed: float,
    name: str,
    patience_seconds: float,
    dry_run: bool,
    url: str | None,
    context: str | None,
    as_json: bool,
) -> None:
    """Replay history by `run`, or show the plan, and print the result."""
    from malamute.spark.login import Login
    from malamute.spark.replay import ReplaySettings, plan

    connection = connection_of(click.get_current_context())
    login = Login.of(connection.credentials)
    options = ReplaySettings(connection.url, into, patterns, where, speed, name, patience_seconds, login)
    options = options.named(history)
    if dry_run:
        show_rows([_planned(one) for one in plan(history, options)], as_json=as_json)
        return
    rows = run(options)
    done = [
        {key: row[key] for key in ("stream", "target", "published", "position")}
        for row in rows
        if not row["path"]
    ]
    damage = [row for row in rows if row["path"]]
    if as_json:
        click.echo(to_json({"name": options.name, "streams": done, "damage": damage}))
    else:
        show_rows(done, as_json=False)
        click.echo(f"replay {options.name}")
    end(damage, as_json=as_json)


def _planned(one: Any) -> dict[str, Any]:
    row: dict[str, Any] = one._asdict()
    for key in ("first_time", "last_time"):
        row[key] = datetime.fromtimestamp(to_seconds(row[key]), UTC).isoformat() if one.messages else None
    return row


def end(damage: Sequence[Any], *, as_json: bool) -> None:
    """Print damage as an error."""
    if not damage:
        return
    if not as_json:
        for row in damage:
            where = "the file" if row["row_group"] < 0 else f"row group {row['row_group']}"
            report(f"damaged: {where} of {printable(row['path'])}, {printable(row['reason'])}")
    click.get_current_context().exit(ERROR)
