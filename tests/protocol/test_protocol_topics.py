"""docs/protocol.md names every topic of QUERY and CHANGE with its arguments."""

from __future__ import annotations

import re

import page

from malamute.core import administration, inspection


def words(cell: str) -> set[str]:
    return set(re.findall(r"\w+", cell))


def test_the_page_has_the_topics_of_query_with_their_arguments() -> None:
    rows = page.table(page.section("QUERY (11)"), "topic")
    listed = {row[0].strip("`"): words(row[1]) for row in rows}
    assert listed == {topic: set(arguments) for topic, (_, arguments) in inspection.TOPICS.items()}


def test_the_page_has_the_changes_with_their_arguments() -> None:
    rows = page.table(page.section("CHANGE (15)"), "topic")
    listed = {}
    for topic, arguments, _ in rows:
        required, _, optional = arguments.partition("optional")
        listed[topic.strip("`")] = (words(required), words(optional))
    assert listed == {
        topic: (set(required), set(optional))
        for topic, (_, required, optional) in administration.TOPICS.items()
    }
