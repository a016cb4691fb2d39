"""`malamute journal export` and `export verify`: history as Parquet files, for any data tool."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from malamute.cli.error_output import report
from malamute.cli.exit_codes import ERROR
from malamute.cli.options import connection_of, examples, json_option
from malamute.cli.printing import printable, to_json
from malamute.cli.signals import until_stopped
from malamute.cli.tables import show_rows
from malamute.cli.units import DurationRange
from malamute.errors import MalamuteError, NotFound

if TYPE_CHECKING:
    from malamute.spark.export import Exported
    from malamute.spark.export_location import ExportLocation
    from malamute.spark.history import HistorySource
    from malamute.spark.maintenance import Joined, Left
    from malamute.spark.schema import Kind

DIRECTORY = click.Path(file_okay=False, path_type=Path)

data_option = click.option(
    "--data",
    type=DIRECTORY,
    default="malamute-data",
    show_default=True,
    envvar="MALAMUTE_STORAGE__DIRECTORY",
    help="The data directory.",
)
url_option = click.option(
    "--url", "-u", help="Read from the broker at this address instead of a data directory."
)
context_option = click.option(
    "--context", metavar="NAME", help="Read from the broker that `malamute context add` gave this name."
)
streams_option = click.option(
    "--stream", "streams", multiple=True, metavar="NAME", help="A stream; all of them without this option."
)


def _promoted(
    ctx: click.Context, parameter: click.Parameter, words: tuple[str, ...]
) -> dict[str, Kind] | None:
    from malamute.spark.schema import parse_promoted

    try:
        return dict(map(parse_promoted, words)) or None
    except MalamuteError as error:
        raise click.BadParameter(error.text, ctx, parameter) from error


@click.group(
    invoke_without_command=True,
    subcommand_metavar="[verify ...]",
    epilog=examples(
        "malamute journal export --stream flights --to /data/history",
        "malamute journal export --url tcp://127.0.0.1:9999 --to s3://bucket/history --since 7d --follow",
        "malamute journal export --stream quotes --to history --promote price:number --promote venue:text",
        "malamute journal export --to /data/history --follow --compact --expire 90d",
        "malamute journal export --stream flights --to /data/tables --format delta --follow",
    ),
)
@streams_option
@click.option("--to", "target", metavar="DIR|URL", help="Where the files go.")
@data_option
@url_option
@context_option
@click.option(
    "--since", default="", metavar="WHEN", help="Only messages from then on: 2024-05-31T12:00, 7d or seq:N."
)
@click.option("--until", default="", metavar="WHEN", help="Only messages before then.")
@click.option("--follow", is_flag=True, help="Continue with new messages, until interrupted.")
@click.option(
    "--every",
    type=DurationRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="DURATION",
    help="With --follow: how long to gather messages for the next file.",
)
@click.option(
    "--promote",
    "promoted",
    multiple=True,
    callback=_promoted,
    metavar="HEADER:TYPE",
    help="Give a header a column h_HEADER; TYPE is text, integer, number or flag.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Parquet files, or a table of each stream: --to is a directory, or [CATALOG.]NAMESPACE of Iceberg.",
)
@click.option("--compact", is_flag=True, help="Join small files into few, those of a day at its end.")
@click.option(
    "--expire",
    type=DurationRange(min=86_400),
    metavar="DURATION",
    help="Remove exported days that ended longer ago, such as 90d.",
)
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    streams: tuple[str, ...],
    target: str | None,
    data: Path,
    url: str | None,
    context: str | None,
    since: str,
    until: str,
    *,
    follow: bool,
    every: float,
    promoted: dict[str, Kind] | None,
    form: str,
    compact: bool,
    expire: float | None,
    as_json: bool,
) -> None:
    """Write history to Parquet files, by stream and date, from where the last export ended.

    The data directory is only read, so the broker may be running. Files appear whole, and an interrupted
    export continues when it is repeated. Unavailable messages are reported, and all others are exported.
    """
    if ctx.invoked_subcommand is not None:
        if any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ctx.params):
            raise click.UsageError(f"options before {ctx.invoked_subcommand}: expected them behind it")
        return
    if target is None:
        raise click.UsageError("no target: give --to")
    from malamute.spark.history import open_history

    if follow and until:
        raise click.UsageError("--follow with --until: expected one of them, because --follow has no end")
    place = _place(target) if form == "parquet" else None
    limits = {"since": when(since), "until": when(until)}
    with open_history(**source_of(data, url, context)) as history:
        work = partial(_export_to, place, target, form, history, promoted=promoted, **limits)
        care = partial(_maintain, place, target, form, compact=compact, expire=expire)
        if not follow:
            _print_rows(rows := _export_all(work, history, streams), as_json=as_json)
            care(streams, rows)
            return
        stop = threading.Event()
        with until_stopped():
            while True:
                rows = _export_all(work, history, streams)
                _print_rows([row for row in rows if row["files"] or row["gaps"]], as_json=as_json)
                care(streams, rows)
                stop.wait(every)


def source_of(data: Path, url: str | None, context: str | None) -> dict[str, Any]:
    """Return the source: a data directory, or a broker with the user of the context or the environment."""
    from malamute.spark.login import Login

    if not (url or context):
        return {"data": str(data)}
    connection = connection_of(click.get_current_context())
    return {"url": connection.url, "login": Login.of(connection.credentials)}


def _place(target: str) -> ExportLocation:
    from malamute.spark.export_location import ExportLocation

    return ExportLocation(target)


def when(words: str) -> str:
    """Return the time; a duration alone is an age."""
    from malamute.protocol.start import SINCE, Start

    try:
        Start.parse(f"{SINCE}:{words}")
    except MalamuteError:
        return words
    return f"{SINCE}:{words}"


def _export_to(
    place: ExportLocation | None,
    target: str,
    form: str,
    history: HistorySource,
    stream: str,
    **options: Any,
) -> Exported:
    """Export one stream to files, or to its table."""
    if place is not None:
        from malamute.spark.export import export as export_stream

        return export_stream(history, stream, place, **options)
    from malamute.spark.table_formats import FORMATS, export_to_table

    return export_to_table(history, stream, FORMATS[form](target, stream), **options)


def _export_all(
    work: Callable[..., Exported], history: HistorySource, streams: tuple[str, ...]
) -> list[dict[str, Any]]:
    rows = []
    for stream in streams or sorted(history.streams()):
        with _bar(stream) as progress:
            done = work(stream, progress=progress)
        rows.append({**done._asdict(), "gaps": [gap._asdict() for gap in done.gaps]})
    return rows


def _maintain(
    place: ExportLocation | None,
    target: str,
    form: str,
    streams: tuple[str, ...],
    rows: list[dict[str, Any]],
    *,
    compact: bool,
    expire: float | None,
) -> None:
    """Remove old days and join small files, of an export also those of streams that the broker has lost."""
    if not compact and expire is None:
        return
    if place is None:
        from malamute.spark.table_formats import FORMATS, maintain

        for row in rows:
            name = row["stream"]
            _tell_of(*maintain(FORMATS[form](target, name), name, compact=compact, age_seconds=expire))
        return
    from malamute.spark import maintenance
    from malamute.spark.manifest import exported_streams

    for stream in streams or exported_streams(place):
        if expire is not None:
            _tell_of(maintenance.expire(place, stream, expire))
        if compact:
            with _bar(stream) as progress:
                joined = maintenance.compact(place, stream, progress)
            _tell_of(joined=joined)


def _tell_of(left: Left | None = None, joined: Joined | None = None) -> None:
    if left and left.files:
        _tell(f"{left.stream}: {left.files} files of {left.messages} messages have expired")
    if joined and joined.files != joined.into:
        _tell(f"{joined.stream}: {joined.files} files joined into {joined.into}")


def _tell(words: str) -> None:
    report(printable(words))


def _print_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(rows))
        return
    show_rows([{**row, "gaps": len(row["gaps"])} for row in rows], as_json=False)
    for row in rows:
        stream = printable(row["stream"])
        if row["limited"]:
            report(f"limited: stream {stream}")
        for gap in row["gaps"]:
            report(f"{stream}: no {gap['first']} to {gap['last']}, {gap['reason']}")


@export.command(
    "verify",
    epilog=examples(
        "malamute journal export verify --from /data/history",
        "malamute journal export verify --from /data/history --data malamute-data --stream flights",
    ),
)
@streams_option
@click.option("--from", "target", required=True, metavar="DIR|URL", help="The directory of the files.")
@click.option("--data", type=DIRECTORY, help="Compare with the journal in this data directory.")
@url_option
@context_option
@json_option
@click.pass_context
def export_verify(
    ctx: click.Context,
    streams: tuple[str, ...],
    target: str,
    data: Path | None,
    url: str | None,
    context: str | None,
    *,
    as_json: bool,
) -> None:
    """Check exported files against their manifest, and against a journal if given.

    The exit code is 1 when something is wrong; faults are printed with their file. Messages dropped from the
    journal since then cannot be compared.
    """
    from malamute.spark.history import open_history
    from malamute.spark.manifest import exported_streams

    place = _place(target)
    names = streams or tuple(exported_streams(place))
    if not names:
        raise NotFound(f"no export in {target}: export to it first, with `malamute journal export`")
    if data or url or context:
        with open_history(**source_of(data or Path(), url, context)) as history:
            rows = _verified(place, names, history)
    else:
        rows = _verified(place, names, None)
    faults = [row for row in rows if row["fault"]]
    if as_json:
        click.echo(to_json({"good": not faults, "files": rows}))
    else:
        show_rows(rows, as_json=False)
        click.echo(f"{len(faults)} wrong" if faults else "good")
    if faults:
        ctx.exit(ERROR)


def _verified(
    place: ExportLocation, streams: tuple[str, ...], history: HistorySource | None
) -> list[dict[str, Any]]:
    from malamute.spark.verify import verify

    rows = []
    for stream in streams:
        with _bar(stream) as progress:
            rows += [row._asdict() for row in verify(place, stream, history, progress)]
    return rows


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of messages on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # The label is the name of a stream, which is no markup.
    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(printable(label), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
