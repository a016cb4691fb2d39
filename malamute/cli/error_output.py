"""Errors on standard error, as text or JSON. Standard output has only results."""

from __future__ import annotations

import click

from malamute.cli.escaping import to_json, visible
from malamute.errors import MalamuteError

JSON = "malamute.json"
"""The key of `click.Context.meta` under which a command notes a request for JSON."""

WIDE = "malamute.wide"
"""The key of a request for all columns."""


class BadInput(MalamuteError):
    """Raised when a command cannot use a file or standard input."""


def print_error(error: MalamuteError, *, as_json: bool) -> None:
    """Write an error to standard error, for people or for programs."""
    text = visible(error.text or type(error).__name__)
    if as_json:
        shown = {"error": {"code": error.code, "text": error.text or text, "hint": error.hint}}
        click.echo(to_json(shown), err=True)
        return
    number = f" {error.code}" if error.code else ""
    click.echo(f"error{number}: {text}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
