"""The pages of the cookbook: each is short, and has a program that runs when it is pasted.

One broker and one gateway serve all pages, so each has names of its own for what it makes there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from docs_blocks import ROOT, Reader, Terminal, blocks_of, missing_libraries, runs_its_own_broker
from free_ports import free_port

from malamute.testing import Broker

COOKBOOK = ROOT / "docs" / "cookbook"
PAGES = sorted(page for page in COOKBOOK.glob("*.md") if page.stem != "index")
WORDS_MIN, WORDS_MAX = 150, 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("cookbook")) as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "malamute", "gateway", "run", "--listen", address]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "MALAMUTE_URL": broker.url}
    terminal = Terminal(command, tmp_path_factory.mktemp("gateway"), environ)
    try:
        terminal.begins()
        yield address
    finally:
        terminal.interrupt()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_program_of_a_page_runs(
    page: Path, broker: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert not runs_its_own_broker(blocks)
    with ExitStack() as stack:
        reader = Reader(
            tmp_path, broker.url, request.getfixturevalue("gateway") if "127.0.0.1:8080" in text else ""
        )
        stack.callback(reader.leave)
        skipped: list[str] = []
        for block in blocks:
            if missing := missing_libraries([block]):
                skipped += missing
            elif not (skipped and block.language in ("text", "sh")):
                reader.follow(block)
    if skipped:
        pytest.skip(f"not installed: {', '.join(skipped)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_is_listed(page: Path) -> None:
    assert WORDS_MIN <= len(page.read_text(encoding="utf-8").split()) <= WORDS_MAX
    assert f"]({page.name})" in (COOKBOOK / "index.md").read_text(encoding="utf-8")


def test_files_of_pages_have_different_names() -> None:
    titles = [
        title
        for page in PAGES
        for title in re.findall(r'^```python title="(.+)"', page.read_text("utf-8"), re.M)
    ]
    assert len(titles) == len(set(titles))
