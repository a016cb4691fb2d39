"""`malamute completion`: the script of a shell, and completion of names from a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click
from click.shell_completion import get_completion_class

from malamute.cli.options import connection_of, examples, json_option
from malamute.cli.printing import to_json
from malamute.errors import MalamuteError

PATIENCE_SECONDS = 0.5
"""Seconds that a completion waits for a broker."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command(
    epilog=examples(
        'eval "$(malamute completion bash)"       # in ~/.bashrc',
        'eval "$(malamute completion zsh)"        # in ~/.zshrc',
        "malamute completion fish > ~/.config/fish/completions/malamute.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, *, as_json: bool) -> None:
    """Print the script that makes SHELL complete commands, options, and names in a broker."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "malamute", "_MALAMUTE_COMPLETE").source()
    click.echo(to_json({"shell": shell, "script": script}) if as_json else script)


def names(topic: str, *columns: str) -> Complete:
    """Return a completion of names: the rows of a query, if a broker answers fast."""
    named = columns or ("name",)
    return _completing(topic, lambda rows, ctx: [getattr(row, column) for column in named for row in rows])


def _completing(topic: str, pick: Callable[[list[Any], click.Context], Iterable[Any]]) -> Complete:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        # An error has no place to be printed: the line is still being typed.
        from malamute.protocol.admin import QUERIES

        with suppress(MalamuteError):
            connection = replace(connection_of(ctx), address="", timeout_seconds=PATIENCE_SECONDS)
            with connection.open() as client:
                found = sorted(map(str, pick(client.query(QUERIES[topic]()), ctx)))
            return [name for name in found if name and name.startswith(incomplete)]
        return []

    return complete


cursors = _completing(
    "cursors", lambda rows, ctx: [row.name for row in rows if row.stream == ctx.params.get("name")]
)
"""Completes the cursor of the stream named before it."""
