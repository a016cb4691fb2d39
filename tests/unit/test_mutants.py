"""Each mutant still fits the code, and each requirement that is met has one, of a test that its row names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mutants import MUTANTS, UNBROKEN, Mutant
from run_mutants import MADE, RECORD, Result, places_of, words_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ((?:RQ|WK|XU|WP|ZN|ADD|AD)\d+) \| (.+) \|$", PAGE, re.MULTILINE))


def bare(code: str) -> str:
    """Code without comments and spaces."""
    return re.sub(r"(?m)\s|# .*$", "", code)


def test_a_mutant_is_other_code_of_which_a_test_of_its_row_is_run() -> None:
    for name, mutant in MUTANTS.items():
        code = (ROOT / "malamute" / mutant.file).read_text(encoding="utf-8")
        compile(mutant.applied_to(code), mutant.file, "exec")
        assert bare(mutant.replacement) != bare(mutant.text), name
        assert f"`{mutant.test}`" in ROWS[name]
        assert len(places_of(mutant.test)) == 1, name


def test_every_requirement_that_is_met_has_a_mutant_or_a_reason() -> None:
    met = {name for name, row in ROWS.items() if not re.search(r" \| (?:met by |not yet)", row)}
    assert met == {*MUTANTS, *UNBROKEN}
    assert not MUTANTS.keys() & UNBROKEN.keys()
    assert all(reason for reason in UNBROKEN.values())


@pytest.mark.parametrize("code", ["none", "twice twice"])
def test_a_text_that_is_not_there_once_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match="expected it once"):
        Mutant("a.py", "twice", "", "test_a").applied_to(code)


def test_the_page_says_what_was_recorded_last() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    results = [Result(**row) for row in recorded["results"]]
    assert {result.id for result in results} <= {*MUTANTS}
    found = MADE.search(PAGE)
    assert found is not None
    assert found[0] == found[1] + words_of(results, recorded["date"], recorded["commit"]) + found[2]
