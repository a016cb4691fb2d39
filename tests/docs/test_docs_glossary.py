"""The glossary is in order, and each entry says where its word is met."""

from __future__ import annotations

import re

import click
from docs_blocks import ROOT

from malamute.cli.root import cli

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRIES: dict[str, str] = dict(re.findall(r"^## (.+)\n\n((?:.+\n)+)", PAGE, re.MULTILINE))


def test_the_entries_are_in_order_and_each_is_there_once() -> None:
    words = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert words == sorted(set(words), key=str.lower)
    assert words == list(ENTRIES), "an entry is one paragraph"


def test_an_entry_has_a_meaning_and_a_place() -> None:
    for word, entry in ENTRIES.items():
        meaning, place = entry.strip().split("\n*See* ")
        assert meaning.endswith("."), word
        one = r"(?:\[[^]]+\]\([^)]+\)|`[^`]+`)"
        assert re.fullmatch(rf"{one}(?:, {one})*\.", place), word


def test_a_command_that_is_named_exists() -> None:
    for command in set(re.findall(r"`malamute ([a-z -]+)`", PAGE)):
        group: click.Command | None = cli
        for word in command.split():
            assert isinstance(group, click.Group)
            group = group.get_command(click.Context(group), word)
            assert group is not None, command
