"""The common part of commands that query a broker about itself, or change something in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from malamute.cli.error_output import fitted, report
from malamute.cli.options import ConnectionOptions, Function, asks
from malamute.cli.tables import show_map, show_rows
from malamute.protocol.names import Kind

if TYPE_CHECKING:
    from malamute.protocol import admin

dry_run_option = click.option("--dry-run", is_flag=True, help="Show the outcome, and change nothing.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def show_list(
    connection: ConnectionOptions,
    topic: str,
    *,
    as_json: bool,
    column: str = "name",
    columns: Sequence[str] = (),
) -> None:
    """Print the rows of a query, sorted by a column. A table may show only some of the columns."""
    from malamute.protocol.admin import QUERIES

    with connection.open() as client:
        found: list[admin.Row] = client.query(QUERIES[topic]())
    rows = [row.as_map() for row in sorted(found, key=lambda row: str(getattr(row, column)))]
    if columns and not as_json:
        rows = [{name: row[name] for name in columns} for row in rows]
    show_found(rows, topic, as_json=as_json)


def show_found(rows: Sequence[Mapping[str, Any]], what: str, *, as_json: bool) -> None:
    """Print rows; without rows, print a sentence for people."""
    if not rows and not as_json:
        report(f"no {what}")
    show_rows(rows, as_json=as_json)


def make_change(connection: ConnectionOptions, change: admin.AdminChange[Any], *, as_json: bool) -> None:
    """Make a change, and print its result."""
    with connection.open() as client:
        done: admin.Row = client.change(change)
    show_map(done.as_map(), as_json=as_json)


def changes(
    kind: Kind | None = None, question: str | Callable[[dict[str, Any]], str] = ""
) -> Callable[[Callable[..., admin.AdminChange[Any]]], Callable[..., None]]:
    """Make a command of a function that returns a change: the change is made, and its result is printed.

    Adds --dry-run, the options of a connection and --json, and with a question --yes. The argument `name` may
    be a URI of a `kind`. The question may have the arguments in braces.
    """

    def decorate(function: Callable[..., admin.AdminChange[Any]]) -> Callable[..., None]:
        @asks
        @functools.wraps(function)
        def command(
            *, connection: ConnectionOptions, as_json: bool, dry_run: bool, yes: bool = True, **more: Any
        ) -> None:
            if kind is not None:
                connection, more["name"] = connection.to(more["name"], kind)
            words = question(more) if callable(question) else question.format_map(more)
            confirm(words, yes=yes, dry_run=dry_run)
            make_change(connection, function(dry_run=dry_run, **more), as_json=as_json)

        return dry_run_option(yes_option(command) if question else command)

    return decorate


def removes(question: str) -> Callable[[Function], Function]:
    """Add --dry-run and --yes to a command that removes something, with a question first.

    The question may have the command's arguments in braces. The command gets `dry_run`.
    """

    def decorate(function: Function) -> Function:
        @dry_run_option
        @yes_option
        @functools.wraps(function)
        def command(*args: Any, dry_run: bool, yes: bool, **more: Any) -> Any:
            confirm(question.format_map(more), yes=yes, dry_run=dry_run)
            return function(*args, dry_run=dry_run, **more)

        return command  # type: ignore[return-value]  # the wrapper replaces the command

    return decorate


def confirm(question: str, *, yes: bool, dry_run: bool) -> None:
    """Ask a person for a confirmation; not with a dry run or --yes. Raises `click.Abort`."""
    if not (yes or dry_run):
        click.confirm(fitted(question), abort=True, err=True)
