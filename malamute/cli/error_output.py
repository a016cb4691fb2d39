"""Errors on standard error, as text or JSON. Standard output has only results."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from malamute.cli.escaping import to_json, visible
from malamute.errors import MalamuteError

JSON = "malamute.json"
"""The key of `click.Context.meta` under which a command notes a request for JSON."""

WIDE = "malamute.wide"
"""The key of a request for all columns."""


class BadInput(MalamuteError):
    """Raised when a command cannot use a file or standard input."""


def report(text: str) -> None:
    """Write a text to standard error: on a terminal in lines of its width, broken between words."""
    click.echo(fitted(text), err=True)


def report_json(value: object) -> None:
    """Write a value to standard error, as JSON on one line."""
    click.echo(to_json(value), err=True)


def print_error(error: MalamuteError, *, as_json: bool) -> None:
    """Write an error to standard error, for people or for programs."""
    text = visible(error.text or type(error).__name__)
    if as_json:
        shown = {"error": {"code": error.code, "text": error.text or text, "hint": error.hint}}
        report_json(shown)
        return
    number = f" {error.code}" if error.code else ""
    report(f"error{number}: {text}")
    if error.hint:
        report(f"hint: {error.hint}")


@contextmanager
def fitted_usage_errors() -> Iterator[None]:
    """Have the errors of click fit into the terminal, too: `click.ClickException` is raised again."""
    try:
        yield
    except click.ClickException as error:
        prefix = "Error: "
        words = fitted(prefix + error.format_message()).removeprefix(prefix)
        error.format_message = lambda: words  # type: ignore[method-assign]
        raise


def fitted(text: str) -> str:
    """Return a text in lines of the terminal that standard error is, if it is one."""
    columns = 0
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return "\n".join(_lines(text, columns)) if columns else text


def _lines(text: str, columns: int) -> Iterator[str]:
    for line in text.split("\n"):
        if len(line) <= columns:
            yield line
        else:
            yield from textwrap.wrap(
                line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
