"""Commands imported when they are used: the help of the whole needs none of them.

Options of every command may stand before its name, too: they are moved behind it before click reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """The place of a command (`module:name`), and its help in a line."""

    target: str
    help: str


VALUES = ("--url", "-u", "--context", "--address", "--act-as", "--timeout", "--output", "-o")
"""Options that may stand before a command, with a value."""

FLAGS = ("--json",)
"""The same without one."""

Sections = Mapping[str, Mapping[str, Lazy]]
"""Commands by name, in sections of the help."""


class LazyGroup(click.Group):
    """A group whose commands are rows of a table."""

    def __init__(self, *args: Any, sections: Sections, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections = sections
        self.table = {name: lazy for section in sections.values() for name, lazy in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for an unknown name."""
        lazy = self.table.get(cmd_name)
        if lazy is None:
            return None
        module, _, name = lazy.target.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `click.UsageError` for an unknown command, with those like it."""
        return super().parse_args(ctx, in_order(self, ctx, args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands with this beginning, without importing one, and the options of the group."""
        found = [(name, lazy.help) for name, lazy in self.table.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=words) for name, words in found] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, without importing a command."""
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, lazy.help) for name, lazy in commands.items()])


def in_order(group: click.Group, ctx: click.Context, args: Sequence[str]) -> list[str]:
    """Return arguments with the options of `VALUES` and `FLAGS` behind the names of commands.

    Raises `click.UsageError` for an unknown name.
    """
    names: list[str] = []
    options: list[str] = []
    rest = [*args]
    while True:
        while size := _option_size(rest):
            options += rest[:size]
            rest = rest[size:]
        if not rest or rest[0].startswith("-"):
            return [*names, *options, *rest] if names else [*args]
        found = group.get_command(ctx, rest[0])
        if found is None:
            if ctx.resilient_parsing:
                return [*args]
            raise click.UsageError(_unknown(rest[0], group.list_commands(ctx)), ctx)
        names.append(rest.pop(0))
        if not isinstance(found, click.Group):
            return [*names, *options, *rest]
        group, ctx = found, click.Context(found, ctx, names[-1], resilient_parsing=ctx.resilient_parsing)


def _option_size(args: Sequence[str]) -> int:
    """Return how many arguments an option at their beginning takes; 0 for none that may stand there."""
    if not args:
        return 0
    name, has_value, _ = args[0].partition("=")
    if name in VALUES:
        return 1 if has_value else 2
    return int(args[0] in FLAGS)


def _unknown(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    begins = [each for each in known if name.startswith(each) or each.startswith(name)]
    like = dict.fromkeys([*begins, *get_close_matches(name, known)])
    meant = f" Did you mean {' or '.join(like)}?" if like else ""
    return f"No such command {name!r}.{meant}"
