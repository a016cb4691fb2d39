"""What MkDocs calls while it builds the site: functions whose names it knows (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from griffe import ModuleFinder
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from pages import PAGES

_FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_NESTED = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )", re.MULTILINE)

NOT_DOCUMENTED = {"bench", "cli", "core", "gateway", "integrations", "journal", "server", "spark", "store"}
"""Packages that no page of the reference names. To read them takes a quarter of the time."""

_submodules = ModuleFinder.submodules


def _documented(finder: ModuleFinder, module: Any) -> list[tuple[tuple[str, ...], Path]]:
    return [found for found in _submodules(finder, module) if found[0][0] not in NOT_DOCUMENTED]


def on_startup(**more: Any) -> None:
    """Leave out what is not documented when modules are read."""
    ModuleFinder.submodules = _documented


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, **more: Any) -> str:
    """Indent lists within lists by four, as Python-Markdown wants them; others take two or three as well."""
    parts = _FENCED.split(markdown)
    parts[::2] = [_NESTED.sub("    ", prose) for prose in parts[::2]]
    return "".join(parts)


@event_priority(-100)
def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, too: a page that is read from the disk may fetch nothing."""
    index = Path(config.site_dir, "search", "search_index.json")
    if index.exists():
        index.with_suffix(".js").write_text(f"var __index = {index.read_text('utf-8')}", encoding="utf-8")
