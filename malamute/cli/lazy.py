"""Commands imported when they are used: the help of the whole needs none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """The place of a command (`module:name`), and its help in a line."""

    target: str
    help: str


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
