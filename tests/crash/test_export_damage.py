"""Damage of any place of an exported file is reported with its range, and the rest is read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from depth import DEPTH
from export_damage import AGES, BARE, KINDS, MANIFEST, NEW, OLD, REPORTED, UNCOVERED, WAYS, run

COUNT = len(AGES) * len(KINDS) * len(WAYS) * DEPTH // 8


def test_damage_of_any_place_is_reported_with_its_range(tmp_path: Path) -> None:
    found = [*run(COUNT, 1, tmp_path)]
    assert len(found) == COUNT
    assert not [one for one in found if one.outcome.startswith("FAULT")]
    outcomes = Counter((one.age, one.kind, one.outcome) for one in found)
    assert min(outcomes[age, kind, REPORTED] for age in (NEW, OLD) for kind in KINDS) > 0
    # No checksum covers a manifest of an earlier version; and no reader looks at the beginning of a file.
    uncovered = {(one.age, one.kind) for one in found if one.outcome == UNCOVERED}
    assert uncovered <= {(OLD, MANIFEST), *((BARE, kind) for kind in KINDS)}
