"""`malamute journal`: check, inspect, copy, restore and export a data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.exit_codes import ERROR
from malamute.cli.journal_export import data_option, export
from malamute.cli.journal_sql import analyze, replay, sql
from malamute.cli.options import examples, json_option
from malamute.cli.printing import printable, to_json
from malamute.cli.progress import bar
from malamute.cli.tables import show_map, show_rows
from malamute.protocol.time_units import to_seconds

if TYPE_CHECKING:
    from malamute.journal.disk import DiskStore
    from malamute.journal.store import Copied, Progress, Store

LIVING = ("mailbox", "service")
"""Kinds of queues with messages to be delivered."""

HEADERS_STEP = 1000
"""Headers read in one transaction."""

DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.group()
def journal() -> None:
    """The data directory of a broker.

    A directory in use is refused with error 801, except by an export, which only reads. A backup is a data
    directory itself, so all commands work on backups as well.
    """


for command in (analyze, export, replay, sql):
    journal.add_command(command)


@journal.command(
    epilog=examples("malamute journal verify", "malamute journal verify --data /backups/monday --json")
)
@data_option
@json_option
@click.pass_context
def verify(ctx: click.Context, data: Path, *, as_json: bool) -> None:
    """Read everything and check it.

    The exit code is 1 when something is damaged; exact ranges are printed.
    """
    with _opened(data, reads_all=True) as store:
        found = _verified(store)
    damages = [{"stream": row["stream"], **damage} for row in found for damage in row["damages"]]
    if as_json:
        click.echo(to_json({"good": not damages, "checked": found}))
    else:
        show_rows([{**row, "damages": len(row["damages"])} for row in found], as_json=False)
        for damage in damages:
            click.echo(_words(damage))
        click.echo(f"{len(damages)} damaged" if damages else "good")
    if damages:
        ctx.exit(ERROR)


def _verified(store: DiskStore) -> list[dict[str, Any]]:
    """Return the totals read of each stream, and of the log with None for its name."""
    rows: dict[str | None, dict[str, Any]] = {}
    with bar("verify", "bytes") as progress:
        total, done = store.status().used, 0
        for step in store.verify():
            row = rows.setdefault(
                step.stream, {"stream": step.stream, "last": 0, "chunks": 0, "bytes": 0, "damages": []}
            )
            row["last"] = max(row["last"], step.last)
            row["chunks"] += step.chunks
            row["bytes"] += step.bytes
            row["damages"] += [damage._asdict() for damage in step.damages]
            done += step.bytes
            progress(done, max(total, done))
    return list(rows.values())


@journal.command(
    epilog=examples(
        "malamute journal inspect",
        "malamute journal inspect --stream weather --from 100000 --limit 5",
    )
)
@data_option
@click.option("--stream", help="List the chunks of this stream.")
@click.option(
    "--from", "start", default=0, metavar="SEQUENCE", help="Begin with the chunk that has this sequence."
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Chunks to list.")
@json_option
def inspect(data: Path, stream: str | None, start: int, limit: int, *, as_json: bool) -> None:
    """Show the store and its streams, or the headers of the chunks of one stream."""
    with _opened(data) as store:
        if stream is not None:
            show_rows(list(_chunks(store, stream, start, limit)), as_json=as_json)
            return
        facts, streams = _facts(store), _streams(store)
    if as_json:
        click.echo(to_json({**facts, "streams": streams}))
    else:
        show_map(facts, as_json=False)
        click.echo()
        show_rows(streams, as_json=False)


def _facts(store: DiskStore) -> dict[str, Any]:
    from malamute.store.tables import CURSORS, FEEDS, QUEUE_FEEDS

    recovered = store.recover(records_bytes=0)
    status = store.status()
    return {
        "broker_id": recovered.broker_id.hex(),
        "format": store.format,
        "lsn": status.lsn,
        "size": status.size,
        "used": status.used,
        "streams_bytes": status.streams_bytes,
        "leaving_bytes": status.leaving_bytes,
        "log_bytes": status.log_bytes,
        "log_blocks": status.log_blocks,
        "log_unreadable": status.log_unreadable,
        "queues": sum(kind in LIVING for kind, _ in status.queues),
        "queued_messages": sum(queue.count for (kind, _), queue in status.queues.items() if kind in LIVING),
        "dead_letters": sum(queue.count for (kind, _), queue in status.queues.items() if kind not in LIVING),
        "sessions": status.sessions,
        "cursors": len(recovered.table(CURSORS)),
        "feeds": len(recovered.table(FEEDS)) + len(recovered.table(QUEUE_FEEDS)),
    }


def _streams(store: DiskStore) -> list[dict[str, Any]]:
    return [
        {
            "stream": name,
            "first": state.first,
            "last": state.last,
            "messages": state.count,
            "chunks": state.chunks,
            "bytes": state.bytes,
            "first_time": _time(state.first_time) if state.chunks else None,
            "last_time": _time(state.last_time) if state.chunks else None,
        }
        for name, state in sorted(store.status().streams.items())
    ]


def _chunks(store: DiskStore, stream: str, start: int, limit: int) -> Iterator[dict[str, Any]]:
    from malamute.store.operations import Damage

    while limit > 0:
        found = store.headers(stream, start, count_max=min(limit, HEADERS_STEP))
        for item in found:
            row: dict[str, Any] = {
                "first": item.first,
                "last": item.last,
                "time": None,
                "payload_bytes": None,
            }
            if isinstance(item, Damage):
                yield {**row, "large_records": None, "damage": item.reason}
            else:
                row |= {"time": _time(item.time_ns), "payload_bytes": item.payload_size}
                yield {**row, "large_records": item.large_count, "damage": None}
        if not found:
            return
        start = found[-1].last + 1
        limit -= len(found)


@journal.command(name="backup", epilog=examples("malamute journal backup /backups/monday"))
@click.argument("target", type=DIRECTORY)
@data_option
@json_option
@click.pass_context
def backup_command(ctx: click.Context, target: Path, data: Path, *, as_json: bool) -> None:
    """Copy the data directory to TARGET, which must not hold a store.

    Everything is checked on the way; damaged data is copied as it is, and the exit code is 1.
    """
    with _opened(data, reads_all=True) as store:
        _print_copied(ctx, _shown("backup", store, target), as_json=as_json)


@journal.command(epilog=examples("malamute journal restore /backups/monday malamute-data"))
@click.argument("backup", type=DIRECTORY)
@click.argument("directory", type=DIRECTORY)
@json_option
@click.pass_context
def restore(ctx: click.Context, backup: Path, directory: Path, *, as_json: bool) -> None:
    """Copy BACKUP to DIRECTORY, which must not hold a store, for a broker to start on.

    Everything is checked on the way; damaged data is copied as it is, and the exit code is 1.
    """
    with _opened(backup, reads_all=True) as store:
        _print_copied(ctx, _shown("restore", store, directory), as_json=as_json)


@journal.command(
    name="repair",
    epilog=examples(
        "malamute journal repair malamute-data --dry-run", "malamute journal repair malamute-data"
    ),
)
@click.argument("directory", type=DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Show the outcome, and change nothing.")
@json_option
@click.pass_context
def repair_command(ctx: click.Context, directory: Path, *, dry_run: bool, as_json: bool) -> None:
    """Rebuild damaged data in DIRECTORY that can be derived, while no broker uses it.

    Nothing is deleted: damaged data moves into files in DIRECTORY/damaged. Remaining damage is printed:
    readers get a gap for a damaged range, and at its start the broker settles the messages of damaged blocks.

    The exit code is 0 without remaining damage, and 1 otherwise, or with --dry-run when there is anything to
    do.
    """
    from malamute.journal.repair import LEFT, repair

    with bar("repair", "messages") as progress:
        done = repair(directory, dry_run=dry_run, progress=progress)
    rows = [row._asdict() for row in done]
    left = sum(row.action == LEFT for row in done)
    if as_json:
        click.echo(to_json({"dry_run": dry_run, "left": left, "repairs": rows}))
    elif rows:
        show_rows(rows, as_json=False)
    else:
        click.echo("nothing is damaged")
    if left or (dry_run and rows):
        ctx.exit(ERROR)


def backup(store: Store, target: Path, progress: Progress | None = None) -> Copied:
    """Copy a store, which may be in use, to a new data directory. Raises `StoreError`."""
    return store.backup(target, progress) if progress else store.backup(target)


def _shown(label: str, store: Store, target: Path) -> Copied:
    with bar(label, "bytes") as progress:
        return backup(store, target, progress)


def _print_copied(ctx: click.Context, copied: Copied, *, as_json: bool) -> None:
    damages = [{"stream": stream, **damage._asdict()} for stream, damage in copied.damages]
    fields = copied._asdict() | {"damages": damages if as_json else len(damages)}
    show_map(fields, as_json=as_json)
    if not as_json:
        for damage in damages:
            click.echo(_words(damage))
    if damages:
        ctx.exit(ERROR)


def _words(damage: dict[str, Any]) -> str:
    what = "log blocks" if damage["stream"] is None else f"stream {printable(damage['stream'])}"
    return f"damaged: {what} {damage['first']} to {damage['last']}, {damage['reason']}"


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(to_seconds(time_ns), UTC).isoformat(timespec="milliseconds")


@contextmanager
def _opened(directory: Path, *, reads_all: bool = False) -> Iterator[DiskStore]:
    """Open the store in a directory that is not in use. With `reads_all`, its pages are checked first.

    After a crash all is checked in any case, since the disk is suspect.
    """
    from malamute.journal.disk import DiskStore
    from malamute.server.crashes import CrashReport, report_in

    reads_all = reads_all or bool(report_in(directory))
    with (
        closing(DiskStore.open_existing(directory, reads_all=reads_all)) as store,
        closing(CrashReport(directory)),
    ):
        yield store
