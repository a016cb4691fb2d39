"""Tables: by rich on a terminal, and as plain aligned text elsewhere.

A terminal shows the columns that it has room for: those of `DROPPED_FIRST` go first, then the last ones.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import Any

import click

from malamute.cli.error_output import WIDE
from malamute.cli.printing import printable, to_json
from malamute.protocol.quantities import shown_size, shown_span

TIMES = frozenset({"since", "last_heard", "configured_at"})
"""Columns in seconds since the epoch."""

SIZES = frozenset({"bytes", "size", "high_water", "streams_budget"})
"""Columns in bytes, beside those whose names end with `_bytes`."""

SPANS = frozenset({"oldest_age", "uptime", "seconds", "retain_age", "backoff", "ack_timeout"})
"""Columns in seconds, beside those whose names end with `_seconds`, and with `_ms` for milliseconds."""

DROPPED_FIRST = (
    *("settled_rate", "arrival_rate", "published_rate", "delayed", "skipped", "first", "software"),
    *("last_heard", "since", "attempts", "headers", "time", "delivered", "credit_bytes", "bytes"),
)
"""Columns that a narrow terminal lacks before others. The first column always stays."""

TEXT_CHARACTERS = 24
"""Characters of a text for which a column has to have room: longer ones go on in the next line."""

GAP = "  "


def cell(column: str, value: Any) -> str:
    """Return a value in words."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(cell(column, item) for item in value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, str):
        return printable(value)
    return _quantity(column, value)


def _quantity(column: str, value: Any) -> str:
    if column in TIMES:
        return cell(column, datetime.fromtimestamp(value, UTC))
    if column.startswith("retain_") and not value:
        return "-"
    if column.endswith("_ms"):
        return shown_span(value / 1000)
    if column in SPANS or column.endswith("_seconds"):
        return shown_span(value)
    if column in SIZES or column.endswith("_bytes"):
        return "unlimited" if value < 0 else shown_size(value)
    return f"{value:,.1f}" if isinstance(value, float) else printable(str(value))


def criteria_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its criteria in words."""
    criteria = " | ".join(f"{family} {pattern}".rstrip() for family, pattern in row["criteria"])
    # The id is only for requesting the next page.
    return {name: value for name, value in {**row, "criteria": criteria}.items() if name != "id"}


def show_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str = "") -> None:
    """Print rows that have the same columns, as JSON or as a table."""
    if as_json:
        click.echo(to_json(rows))
    elif rows:
        columns = list(rows[0])
        show_table(columns, [[cell(c, row.get(c)) for c in columns] for row in rows], _numeric(rows), title)


def show_map(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one resource with its properties, as JSON or in two columns. People do not see empty ones."""
    if as_json:
        click.echo(to_json(fields))
    else:
        width = max(map(len, fields), default=0)
        for name, value in fields.items():
            if shown := cell(name, value):
                click.echo(_hanging(f"{_words(name):<{width}}{GAP}", shown))


def _hanging(title: str, value: str) -> str:
    """Return a title and a value; on a terminal that is too narrow the value has several lines."""
    if not sys.stdout.isatty() or len(title) + len(value) <= (columns := get_terminal_size().columns):
        return title + value
    return "\n".join(
        textwrap.wrap(
            value,
            max(columns, 2 * len(title)),
            initial_indent=title,
            subsequent_indent=" " * len(title),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def show_whole(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one resource with its parts: its lists of rows are tables of their own."""
    if as_json:
        click.echo(to_json(found))
        return
    tables = {name: value for name, value in found.items() if isinstance(value, list) and name not in SPANS}
    show_map({name: value for name, value in found.items() if name not in tables}, as_json=False)
    for name, rows in tables.items():
        rows = [criteria_words(row) if "criteria" in row else row for row in rows]
        show_rows(rows, as_json=False, title=f"\n{_words(name)}")


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], title: str = ""
) -> None:
    """Print rows of texts; `right` are the columns aligned to the right."""
    titles = [_words(column) for column in columns]
    if sys.stdout.isatty():
        _show_rich(columns, rows, right, title)
        return
    if title:
        click.echo(title)
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = zip(row, widths, right, strict=True)
        click.echo(GAP.join(t.rjust(w) if r else t.ljust(w) for t, w, r in cells).rstrip())


def _show_rich(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], title: str
) -> None:
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    context = click.get_current_context(silent=True)
    is_wide = context is not None and context.meta.get(WIDE, False)
    widths = [max(map(cell_len, cells)) for cells in zip(map(_words, columns), *rows, strict=True)]
    console = Console(highlight=False, width=sum(widths) + 3 * len(widths) + 1 if is_wide else None)
    places = [*range(len(columns))] if is_wide else fitting(columns, widths, right, console.width)
    table = Table(box=SIMPLE, title=title or None, title_justify="left")
    for place in places:
        justify: Any = "right" if right[place] else "left"
        table.add_column(_words(columns[place]), justify=justify, overflow="fold", no_wrap=right[place])
    for row in rows:
        table.add_row(*(Text(row[place]) for place in places))
    console.print(table)
    if missing := [_words(column) for place, column in enumerate(columns) if place not in places]:
        console.print(Text(f"not shown: {', '.join(missing)} (-o wide)", "dim"))


def fitting(columns: Sequence[str], widths: Sequence[int], right: Sequence[bool], width: int) -> list[int]:
    """Return the places of the columns for which a terminal has room, in their order."""
    needed = [w if r else min(w, TEXT_CHARACTERS) for w, r in zip(widths, right, strict=True)]
    first = [columns.index(name) for name in DROPPED_FIRST if name in columns]
    dropped = [*first, *(place for place in reversed(range(len(columns))) if place not in first)]
    kept = [*range(len(columns))]
    # A column has a space at each side, and one between it and the next.
    while len(kept) > 1 and sum(needed[place] + 3 for place in kept) >= width:
        kept.remove(next(place for place in dropped if place in kept and place))
    return kept


def _words(column: str) -> str:
    return column.removesuffix("_ms").replace("_seconds", " time").replace("_", " ")


def _numeric(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    first = rows[0]
    return [
        column not in TIMES
        and isinstance(first[column], int | float | None)
        and not isinstance(first[column], bool)
        for column in first
    ]
