"""Tables: by rich on a terminal, and as plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from malamute.cli.printing import printable, to_json

TIMES = frozenset({"since", "last_heard", "configured_at"})
"""Columns in seconds since the epoch."""

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
    if column in TIMES:
        return cell(column, datetime.fromtimestamp(value, UTC))
    if isinstance(value, float):
        return f"{value:,.1f}"
    return printable(str(value))


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
    """Print one resource with its properties, as JSON or in two columns."""
    if as_json:
        click.echo(to_json(fields))
    else:
        width = max(map(len, fields), default=0)
        for name, value in fields.items():
            click.echo(f"{_words(name):<{width}}{GAP}{cell(name, value)}")


def show_whole(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one resource with its parts: its lists of rows are tables of their own."""
    if as_json:
        click.echo(to_json(found))
        return
    tables = {name: value for name, value in found.items() if isinstance(value, list)}
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
        _show_rich(titles, rows, right, title)
        return
    if title:
        click.echo(title)
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = zip(row, widths, right, strict=True)
        click.echo(GAP.join(t.rjust(w) if r else t.ljust(w) for t, w, r in cells).rstrip())


def _show_rich(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], title: str
) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, title=title or None, title_justify="left")
    for name, to_right in zip(titles, right, strict=True):
        table.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def _words(column: str) -> str:
    return column.replace("_", " ")


def _numeric(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    first = rows[0]
    return [
        column not in TIMES
        and isinstance(first[column], int | float | None)
        and not isinstance(first[column], bool)
        for column in first
    ]
