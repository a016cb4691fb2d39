"""The sheets are held to the commands: every line can be typed."""

from __future__ import annotations

import json
import re
import shlex

import click
import pytest
from cli_commands import Run

from malamute.cli.cheat import SHEETS
from malamute.cli.root import cli

LINES = [line for sheet in SHEETS.values() for _, line in sheet]


def _commands(line: str) -> list[list[str]]:
    """The words of each malamute command in a line of a shell."""
    line = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line)
    words = shlex.split(line, posix=True)
    commands: list[list[str]] = []
    for word in words:
        if word == "malamute":
            commands.append([])
        elif word == "|":
            pass
        else:
            commands[-1].append(word)
    return [words[: words.index("<")] if "<" in words else words for words in commands]


@pytest.mark.parametrize("line", LINES)
def test_a_line_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files and directories are only named in a sheet.
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    commands = _commands(line)
    assert commands
    for words in commands:
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group):
            name = words.pop(0)
            found = command.get_command(context, name)
            assert found is not None, name
            command = found
        command.make_context(name, words)


def test_sheets_are_shown_one_by_one_or_together(run: Run) -> None:
    assert "malamute pub weather" in run("cheat", "streams").stdout
    everything = run("cheat").stdout
    assert all(line in everything for line in LINES)
    rows = json.loads(run("cheat", "start", "--json").stdout)
    assert [row["command"] for row in rows["start"]] == [line for _, line in SHEETS["start"]]
    run("cheat", "nonsense", exit_code=2)
