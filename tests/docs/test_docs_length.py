"""The documentation stays short enough to be read."""

import re
from pathlib import Path

import pytest
from docs_blocks import ROOT

MOST_WORDS = 90_000
"""Maximum of README and docs together. Only to be lowered."""

MOST_WORDS_OF_A_GUIDE = 900
"""Maximum of a guide, or of the tutorial, beside its blocks of code."""

GUIDES = sorted([*ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/tutorial/*.md")])


def _words(text: str) -> int:
    """Return the number of words, without the bars of tables."""
    return sum(not re.fullmatch(r"[|:-]+", word) for word in text.split())


def test_the_documentation_has_a_limit_of_words() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    assert sum(_words(page.read_text(encoding="utf-8")) for page in pages) <= MOST_WORDS


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_has_a_limit_of_words(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert _words(prose) <= MOST_WORDS_OF_A_GUIDE


def test_bars_of_tables_are_no_words() -> None:
    assert _words("| a | b |\n|---|---|\n| `x` | y |") == 4
