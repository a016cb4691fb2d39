"""Damage of any page of LMDB ends no process and is never silent, and a repair brings back the rest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from depth import DEPTH
from page_damage import BRANCH, FREE, FREE_TREE, LEAF, ROOT, VALUE, WAYS, run

COUNT = 3 * len(WAYS) * DEPTH


def test_damage_of_any_page_is_reported_and_ends_no_process(tmp_path: Path) -> None:
    found = [*run(COUNT, 1, tmp_path)]
    assert len(found) == COUNT
    assert not [one for one in found if one[3].startswith("FAULT")]
    # A store is refused for good only if the file was cut off.
    assert {way for _, way, _, word in found if word.startswith("refused")} <= {"cut"}
    outcomes = Counter((kind, word.split()[0]) for _, _, kind, word in found)
    assert {kind for kind, _ in outcomes} == {ROOT, BRANCH, LEAF, VALUE, FREE_TREE, FREE}
    assert min(outcomes[kind, "repaired"] for kind in (ROOT, BRANCH, LEAF, FREE_TREE)) > 0
    assert outcomes[VALUE, "reported"] > 0
