"""The documentation uses the words of the glossary, where a wrong one can be told mechanically."""

from __future__ import annotations

import ast
import re
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
}
"""What is not said, and what is said instead."""

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
NEVER = re.compile("|".join(f"(?:{pattern})" for pattern in INSTEAD).replace(" ", r"\s+"), re.IGNORECASE)


def _advice(said: str) -> str:
    words = " ".join(said.split())
    for pattern, instead in INSTEAD.items():
        if re.fullmatch(pattern, words, re.IGNORECASE):
            return f"{words!r}: say {instead}"
    raise AssertionError(words)


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [_advice(said) for said in NEVER.findall(prose)] == []


def test_docstrings_use_the_words_of_the_glossary() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {_advice(said)}"
        for path in (ROOT / "malamute").glob("**/*.py")
        for text in _docstrings(path.read_text(encoding="utf-8"))
        for said in NEVER.findall(text)
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    "said", ["it comes\nagain", "cannot be had", "The disk knows", "dealt out", "in good order"]
)
def test_a_wrong_word_would_be_found(said: str) -> None:
    assert [_advice(found) for found in NEVER.findall(said)]
