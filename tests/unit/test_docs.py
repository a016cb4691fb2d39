"""The documents point to what exists: links, headings, files, targets of make, and decisions."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for place in ("*.md", "docs/**/*.md", "deploy/**/*.md", "malamute/**/*.md")
    for page in ROOT.glob(place)
)


@cache
def _made() -> dict[Path, str]:
    """The pages that are made when the site is built, and what is in them."""
    pages = runpy.run_path(str(ROOT / "docs" / "make" / "pages.py"))["PAGES"]
    return {ROOT / "docs" / path: make() for path, make in pages.items()}


def _text(page: Path) -> str:
    return _made()[page] if page in _made() else page.read_text(encoding="utf-8")


@cache
def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", _text(page), flags=re.MULTILINE | re.DOTALL)


@cache
def _anchors(page: Path) -> set[str]:
    """The headings of a page in the form in which links name them."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target in _made() or target.exists(), f"{page}: {link} leads nowhere"
            assert not anchor or anchor in _anchors(target), f"{page}: {link} has no such heading"


def test_every_file_that_is_named_exists() -> None:
    named = re.compile(r"`((?:malamute|tests|config|deploy|docs|bin)/[\w./-]*)`")
    found = {(page, name) for page in PAGES for name in named.findall(_prose(page))}
    assert [one for one in found if not (ROOT / one[1]).exists()] == []


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?m)(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"))
        assert {*named} <= targets, page


def test_every_target_of_make_is_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    declared = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)[0].split()
    assert set(re.findall(r"^([a-z-]+):.* ## \S", text, re.MULTILINE)) == set(declared)


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(folder.glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        number, title = re.match(r"# (\d+)\. (.+)\n", page.read_text(encoding="utf-8")).groups()  # type: ignore[union-attr]
        assert f"| [{number}]({page.name}) | {title} |" in (folder / "README.md").read_text(encoding="utf-8")
        assert int(number) == int(page.name[:4])


def test_a_decision_has_at_most_150_words_beside_its_title_and_tables() -> None:
    for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        lines = page.read_text(encoding="utf-8").splitlines()[1:]
        words = sum(len(line.split()) for line in lines if not line.startswith("|"))
        assert words <= 150, f"{page.name} has {words}"


def test_the_changelog_begins_with_the_policy_and_what_is_unreleased() -> None:
    headings = re.findall(
        r"^## (.+)$", (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert headings[:2] == ["What stays compatible", "0.1.0 (2026-11-29)"]


def test_the_counts_of_reliability_are_those_of_the_recorded_runs() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make" / "reliability.py"))
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert made["made"](page) == page
    assert set(re.findall(r"<!-- run: ([\w-]+) -->", page)) <= set(made["latest"]())
