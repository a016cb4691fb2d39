"""Every id of a requirement resolves in docs/requirements.md, and what that page names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from docs_blocks import ROOT

PAGE = ROOT / "docs" / "requirements.md"
SERIES = r"(?:RQ|WK|XU|WP|ZN|ADD|AD)"
LISTED = re.compile(rf"^\| ((?:{SERIES}|E)[1-9]\d*) \| (.+) \|$", re.MULTILINE)
USED = re.compile(rf"\b{SERIES}[1-9]\d*\b")
USED_IN_NAME = re.compile(rf"(?<=_)(?:{SERIES.lower()}|e)[1-9]\d*(?=_)")
STATES = re.compile(r"(?:met|in part|not yet)\b")
ALONE = re.compile(rf'(\w+)\((?:[^()]|\([^()]*\))*\)[^()]*:\n +"""(?:{SERIES}[1-9]\d*(?:, | and )?)+\.?"""')
"""A function whose docstring is ids and nothing else."""
IDS = re.compile(rf'"""(?:{SERIES}[1-9]\d*(?:, | and )?)+\.?"""')
"""Such a docstring. To look for its function takes long."""
WORDS_OF_A_SENTENCE = 5


@cache
def _rows() -> dict[str, list[str]]:
    """The cells of each row, by id."""
    return {name: cells.split(" | ") for name, cells in LISTED.findall(PAGE.read_text(encoding="utf-8"))}


def _texts() -> Iterator[tuple[Path, str]]:
    """Places that may name a requirement: code, tests and pages."""
    for pattern in ("malamute/**/*.py", "tests/**/*.py", "tests/**/*.txt", "docs/**/*.md", "*.md"):
        for path in ROOT.glob(pattern):
            yield path, path.read_text(encoding="utf-8")


@cache
def _tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").glob("**/*.py")
        for name in re.findall(
            r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def test_every_id_that_is_used_is_listed() -> None:
    listed = set(_rows())
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in _texts()
        for name in (*USED.findall(text), *_in_names(text))
        if name not in listed
    }
    assert sorted(unknown) == []


def _in_names(text: str) -> list[str]:
    """The ids in the names of tests, as in `test_rq7_wp55_identical_selectors`."""
    names = re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)
    return [found.upper() for name in names for found in USED_IN_NAME.findall(name)]


def test_every_id_stands_beside_a_sentence() -> None:
    """The name of a test is one, if it is long enough."""
    alone = [name for _, text in _texts() if IDS.search(text) for name in ALONE.findall(text)]
    assert [name for name in alone if len(name.split("_")) <= WORDS_OF_A_SENTENCE] == []


def test_an_id_that_stands_alone_would_be_found() -> None:
    assert ALONE.findall('def test_topics(a: dict[str, int]) -> None:\n    """RQ1, WP2."""\n') == [
        "test_topics"
    ]
    assert not ALONE.findall('def test_topics() -> None:\n    """RQ1: they match."""\n')


def test_ids_are_listed_once_and_without_a_gap() -> None:
    names = [name for name, _ in LISTED.findall(PAGE.read_text(encoding="utf-8"))]
    for series in ("RQ", "WK", "XU", "WP", "ZN", "ADD", "E"):
        numbers = [int(name.removeprefix(series)) for name in names if re.fullmatch(rf"{series}\d+", name)]
        assert numbers == list(range(1, len(numbers) + 1)), series


def test_a_requirement_shows_its_state_its_place_and_its_tests() -> None:
    for name, row in _rows().items():
        if name.startswith("E"):
            continue
        what, state, shown = (*row, "")[:3]
        assert what.endswith("."), name
        assert STATES.match(state), (name, state)
        named = re.findall(r"`(\w+)`", shown)
        assert re.sub(r"`\w+`", "", shown).strip(" ,|") == "", name
        assert [test for test in named if test not in _tests()] == [], name
        assert named or not state.startswith("met:"), f"{name}: what is met is shown by a test"
        reference = re.match(r"met by (\w+)", state)
        assert reference is None or reference[1] in _rows(), name
