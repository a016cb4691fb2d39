"""docs/cli.md tells of every command, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

import click
from cli_commands import ROOT

from malamute.cli.check import MEASURES
from malamute.cli.root import cli
from malamute.client.contexts import Context, Contexts, load

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.+?) \| (.+) \|$", PAGE.partition("\n## ")[0], re.MULTILINE)

MAILBOX = dict(ROWS)["`mailbox`"]


def _words(text: str) -> list[str]:
    return re.findall(r"`([a-z-]+)`", text)


def test_the_table_has_every_command() -> None:
    named = [name for first, _ in ROWS for name in _words(first)]
    assert sorted(named) == sorted(cli.list_commands(click.Context(cli)))


def test_the_table_has_every_verb_of_a_group() -> None:
    context, groups = click.Context(cli), set()
    for first, words in ROWS:
        for name in _words(first):
            command = cli.get_command(context, name)
            if isinstance(command, click.Group) and name != "bench":
                verbs = _words(words) + (_words(MAILBOX) if "the same" in words else [])
                assert sorted(verbs) == sorted(command.list_commands(context)), name
                groups.add(name)
    assert {"stream", "mailbox", "service"} <= groups


def test_the_figures_of_the_check_are_reported() -> None:
    section = PAGE.partition("## Monitoring")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*MEASURES]


def test_the_contexts_shown_can_be_loaded(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "contexts.toml"
    path.write_text(text, encoding="utf-8")
    assert load(path) == Contexts("lab", {"lab": Context("tcp://lab.example.org:9999", "alice", 2.0)})
