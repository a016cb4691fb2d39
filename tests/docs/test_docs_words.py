"""Pages, docstrings and comments use the words of the glossary, where a wrong one is found mechanically."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_blocks import ROOT

INSTEAD = {
    r"in good order": "cleanly",
    r"(?:comes?|came|coming) again\b": "is redelivered, is repeated",
    r"the disk (?:has said|knows)": "durable, committed",
    r"mends? (?:by )?(?:itself|themselves)": "reconnects",
    r"(?:can|could|cannot) (?:not )?be had": "available, unavailable",
    r"(?:deal|deals|dealt|dealing) out": "dispatch",
    r"clock on the wall": "wall clock",
    r"holes?\b": "gap",
    r"(?:bury|buried|buries|seizes?|seized)\b": "settle, dead-letter",
    r"(?:is|are|was|were|be|been|being) told\b(?! apart| from)": "is notified, is reported",
}
"""Words that are not said, and those in their place."""

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
NEVER = re.compile(
    r"\b(?:" + "|".join(f"(?:{pattern})" for pattern in INSTEAD).replace(" ", r"\s+") + ")", re.IGNORECASE
)


def _advice(said: str) -> str:
    words = " ".join(said.split())
    for pattern, instead in INSTEAD.items():
        if re.fullmatch(pattern, words, re.IGNORECASE):
            return f"{words!r}: say {instead}"
    raise AssertionError(words)


def _words(path: Path) -> Iterator[str]:
    """The docstrings of a file, each with its indentation left out, and its comments, by whole blocks."""
    with tokenize.open(path) as file:
        tokens = [*tokenize.generate_tokens(file.readline)]
    block: list[str] = []
    for token in tokens:
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("# "))
        elif block and token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            yield " ".join(block)
            block = []
    with tokenize.open(path) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def test_pages_use_the_words_of_the_glossary() -> None:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert [_advice(said) for said in NEVER.findall(prose)] == [], page


def _may_have_wrong_words(text: str) -> bool:
    """Whether its lines have one of them anywhere, for to take a file apart takes long."""
    return bool(NEVER.search(re.sub(r"\n\s*#[# ]*", " ", text)))


@pytest.mark.parametrize("package", ["malamute", "tests"])
def test_docstrings_and_comments_use_the_words_of_the_glossary(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {_advice(said)}"
        for path in (ROOT / package).glob("**/*.py")
        if _may_have_wrong_words(path.read_text(encoding="utf-8"))
        for text in _words(path)
        for said in NEVER.findall(text)
    }
    assert sorted(found) == []


RIDDLE = re.compile(r"\b(?:what|whatever|whoever)\b", re.IGNORECASE)
"""Words of relative clauses in place of a noun."""

BEGINNING = re.compile(r"(?:\A|[.!?]\s+|\n\s*\n\s*)(?:What|Whatever|Whoever|Those|Nobody|It|They)\b")
"""Sentences that begin with a pronoun in place of their subject."""

MOST_RIDDLES = 10
"""Maximum `RIDDLE` in 10,000 words of a package, which has no `BEGINNING`. Only to be lowered."""


def _counts(package: Path) -> tuple[int, int]:
    """Return `RIDDLE` in 10,000 words of docstrings and comments, rounded up, and `BEGINNING`."""
    texts = [text for path in package.glob("**/*.py") for text in _words(path)]
    riddles, beginnings = (sum(len(one.findall(text)) for text in texts) for one in (RIDDLE, BEGINNING))
    return -(-10_000 * riddles // sum(len(text.split()) for text in texts)), beginnings


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("malamute/*/__init__.py")))
def test_sentences_name_their_subject(package: str) -> None:
    riddles, beginnings = _counts(ROOT / "malamute" / package)
    assert riddles <= MOST_RIDDLES
    assert beginnings == 0


NOT_READ_YET = {
    *("acceptance", "bench", "core", "fuzz", "simulation", "torture"),
}
"""Folders of tests that have such beginnings. Only to be made smaller."""


@pytest.mark.parametrize(
    "folder", sorted({path.parent.name for path in ROOT.glob("tests/*/*.py")} - NOT_READ_YET)
)
def test_sentences_of_tests_begin_with_a_noun(folder: str) -> None:
    assert _counts(ROOT / "tests" / folder)[1] == 0


@pytest.mark.parametrize("said", ["What is kept.", "Kept. Those are next", "Kept\n\nNobody has it"])
def test_a_beginning_without_a_subject_would_be_found(said: str) -> None:
    assert BEGINNING.findall(said)


@pytest.mark.parametrize(
    "said",
    [
        "it comes\nagain",
        "cannot be had",
        "The disk knows",
        "dealt out",
        "in good order",
        "who is told",
        "a hole",
    ],
)
def test_a_wrong_word_would_be_found(said: str) -> None:
    assert [_advice(found) for found in NEVER.findall(said)]
