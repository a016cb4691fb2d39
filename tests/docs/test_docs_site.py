"""The site is built without a warning, has all that there is, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import click
import pytest
from depth import nightly
from docs_blocks import ROOT

from malamute.cli.root import cli
from malamute.config.sections import SECTIONS, types_of
from malamute.errors import BY_CODE

DOCS = ROOT / "docs"
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//"""
    r"""|<link[^>]*\srel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*href=["'](?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//|@import\s+["'](?:https?:)?//"""
)
"""Elements that make a browser ask another machine."""


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_make_{name}", DOCS / "make" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "DOCS_SEARCH": "false"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr
    return directory


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_document_is_in_it(site: Path) -> None:
    documents = [
        page.relative_to(DOCS).with_suffix(".html")
        for page in DOCS.glob("**/*.md")
        if page.parent.name != "make"
    ]
    pages = [page.with_name("index.html") if page.stem == "README" else page for page in documents]
    assert [str(page) for page in pages if not (site / page).exists()] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = [page for kind in ("html", "css", "svg") for page in site.glob(f"**/*.{kind}")]
    assert len(pages) > 30
    assert [str(page) for page in pages if LOADED.search(_text(page))] == []
    # The theme would fetch the library for these when it meets one.
    assert [str(page) for page in site.glob("**/*.html") if 'class="mermaid"' in _text(page)] == []


def test_what_is_loaded_from_elsewhere_would_be_found() -> None:
    assert LOADED.search('<script async src="https://example.org/a.js">')
    assert LOADED.search('<link rel="stylesheet" href="//example.org/a.css">')
    assert LOADED.search("@font-face { src: url(https://example.org/a.woff) }")
    assert not LOADED.search('<a href="https://example.org">')


def _paths(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield " ".join((*words, name))
        if isinstance(command, click.Group):
            yield from _paths(command, (*words, name))


def test_every_command_has_its_place(site: Path) -> None:
    page = _text(site / "reference" / "commands.html")
    assert [words for words in _paths(cli) if f'id="{words.replace(" ", "-")}"' not in page] == []


def test_every_error_and_every_option_has_its_place(site: Path) -> None:
    errors = _text(site / "reference" / "errors.html")
    assert sorted(map(int, re.findall(r"<td>(\d+)</td>", errors))) == sorted(BY_CODE)
    options = _text(site / "reference" / "configuration.html")
    named = [option for section in SECTIONS.values() for option in types_of(section)]
    assert [option for option in named if f"<td><code>{option}</code></td>" not in options] == []


@pytest.mark.parametrize("name", _module("python_reference").CLASSES)
def test_each_class_has_its_page_with_its_arguments(site: Path, name: str) -> None:
    page = _text(site / "reference" / "python" / f"{name}.html")
    for path in _module("python_reference").CLASSES[name].objects:
        assert f'id="malamute.client.{path}"' in page
    assert "Unpack" not in page


def test_an_argument_is_described_where_it_is_used(site: Path) -> None:
    client = _text(site / "reference" / "python" / "client.html")
    assert 'id="malamute.client.sync.client.Client.work"' in client
    assert client.count("Time without a settlement or a report after which a request is redelivered") >= 2


def test_the_search_works_from_the_disk(site: Path, tmp_path: Path) -> None:
    """A page that is read from the disk may fetch nothing and have no worker: the index is a script."""
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text("{}")
    _module("hooks").on_post_build(SimpleNamespace(site_dir=tmp_path))
    assert _text(tmp_path / "search" / "search_index.js") == "var __index = {}"
    assert '<script src="iframe-worker.js"' in _text(site / "index.html")


def test_the_diagrams_are_those_that_are_drawn() -> None:
    diagrams = _module("diagrams").DIAGRAMS
    assert {name for name, make in diagrams.items() if _text(DOCS / "images" / name) != make().svg} == set()


@nightly
def test_the_pictures_of_terminals_can_be_taken_anew() -> None:
    screenshots = _module("screenshots")
    taken = dict(screenshots.shots())
    assert set(taken) == set(screenshots.SCREENS)
    for name, svg in taken.items():
        words = " ".join(" ".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ").split())
        for command in screenshots.SCREENS[name].commands:
            assert command in words
        assert (DOCS / "images" / f"{name}.svg").exists()
        assert "Traceback" not in words
    assert "GOOD MORNING" in taken["streams"].replace("&#160;", " ")
    drawn = set(taken) | {Path(name).stem for name in _module("diagrams").DIAGRAMS}
    assert {image.stem for image in (DOCS / "images").glob("*.svg")} == drawn
