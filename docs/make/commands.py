"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from malamute.cli.lazy import LazyGroup
from malamute.cli.root import cli

INTRODUCTION = """\
# Commands

Every command, as `--help` shows it. What they have in common, and what programs can rely on, is in
[the command line](../cli.md).
"""


def page() -> str:
    """The page: the sections of the help, the commands in each, and their subcommands."""
    assert isinstance(cli, LazyGroup)
    return "\n\n".join([INTRODUCTION, *_sections(cli)]) + "\n"


def _sections(root: LazyGroup) -> Iterator[str]:
    context = click.Context(root, info_name="malamute")
    for title, names in root.sections.items():
        yield f"## {title}"
        for name in names:
            command = root.get_command(context, name)
            assert command is not None
            yield from _command(command, context, name)


def _command(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    words = context.command_path.removeprefix("malamute ")
    yield f"### {words}"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    yield _prose(command.help or "")
    if options := _options(command, context):
        yield options
    if command.epilog:
        yield _examples(command.epilog)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _command(found, context, child)


def _prose(text: str) -> str:
    return inspect.cleandoc(text).replace("\b\n", "")


def _options(command: click.Command, context: click.Context) -> str:
    parameters = [parameter for parameter in command.get_params(context) if parameter.name != "help"]
    records = [parameter.get_help_record(context) for parameter in parameters]
    rows = [(_cell(names), _cell(words)) for names, words in filter(None, records) if words]
    table = [f"| `{names}` | {words} |" for names, words in rows]
    return "\n".join(["| option | |", "|---|---|", *table]) if table else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _examples(epilog: str) -> str:
    lines = inspect.cleandoc(epilog.replace("\b", "")).splitlines()
    title, *commands = [line.strip() for line in lines if line.strip()]
    return "\n".join([title, "", "```bash", *commands, "```"])
