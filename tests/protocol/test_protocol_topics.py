"""The topics of QUERY and CHANGE: each is on the page that is made of them, and each change has a dry run."""

from __future__ import annotations

import runpy
from pathlib import Path

from malamute.protocol.admin import CHANGES, QUERIES
from malamute.protocol.admin.topic import arguments_of


def test_every_change_can_be_tried_without_changing_anything() -> None:
    assert all("dry_run" in arguments_of(kind).optional for kind in CHANGES.values())


def test_the_page_has_each_topic_and_the_rows_of_its_answer() -> None:
    made = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make" / "administration.py"))["page"]()
    assert all(f"| `{topic}` |" in made for topic in {**QUERIES, **CHANGES})
    linked = {link.partition(")")[0] for link in made.split("](#")[1:]}
    assert linked == {line[4:].lower() for line in made.splitlines() if line.startswith("### ")}
