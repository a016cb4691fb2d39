"""docs/protocol.md names every topic of QUERY and CHANGE with its arguments, and what each may hold."""

from __future__ import annotations

import re

import page
import pytest

from malamute.protocol.admin import CHANGES, QUERIES
from malamute.protocol.admin.topic import Arguments, arguments_of

TOPICS = {
    "QUERY (11)": {topic: arguments_of(kind) for topic, kind in QUERIES.items()},
    "CHANGE (15)": {topic: arguments_of(kind) for topic, kind in CHANGES.items()},
}


def words(cell: str) -> set[str]:
    return set(re.findall(r"\w+", cell))


@pytest.mark.parametrize("section", TOPICS)
def test_the_page_has_the_topics_with_their_arguments(section: str) -> None:
    listed = {}
    for topic, arguments, meaning in page.table(page.section(section), "topic"):
        required, _, optional = arguments.partition("optional")
        listed[topic.strip("`")] = (words(required), words(optional))
        assert meaning
    assert listed == {
        topic: (set(takes.required), set(takes.optional) - {"dry_run"})
        for topic, takes in TOPICS[section].items()
    }


def test_every_change_can_be_tried_without_changing_anything() -> None:
    assert all("dry_run" in takes.optional for takes in TOPICS["CHANGE (15)"].values())


def test_the_page_has_the_types_of_all_arguments() -> None:
    rows = page.table(page.section("Arguments"), "argument")
    used: dict[str, set[str]] = {}
    for takes in (takes for topics in TOPICS.values() for takes in topics.values()):
        assert isinstance(takes, Arguments)
        for name, rule in takes.rules.items():
            used.setdefault(name, set()).add(rule.words)
    assert {name.strip("`"): set(types.split(", ")) for name, types, _ in rows} == used
