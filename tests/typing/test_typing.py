"""The types of the client, as checkers of its users see them, in a sample and in the cookbook.

`make check` has mypy look at the sample.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from depth import nightly
from docs_blocks import blocks_of, missing_libraries

import malamute

SAMPLE = Path(__file__).with_name("sample.py")
ROOT = Path(malamute.__file__).parents[1]
COOKBOOK = sorted((ROOT / "docs" / "cookbook").glob("*.md"))
UNTYPED = "# pyright: basic, reportGeneralTypeIssues=false\n"
"""The first line of a program with Django, which has no types of its own."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the sample, and each program of the cookbook whose libraries are here."""
    directory = tmp_path_factory.mktemp("programs")
    # Beside its configuration: pyright itself passes over a file that is named by its whole path.
    (directory / SAMPLE.name).write_text(SAMPLE.read_text())
    for page in COOKBOOK:
        blocks = [block for block in blocks_of(page.read_text()) if block.language == "python"]
        for block in blocks:
            name = block.title or f"page_{re.sub('-', '_', page.stem)}.py"
            if not missing_libraries([block]):
                with (directory / name).open("a") as file:
                    file.write(UNTYPED * ("import django" in block.text or "from django" in block.text))
                    file.write(block.text)
    return directory


def check(*command: str, where: Path) -> None:
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, cwd=where
    )
    assert run.returncode == 0, run.stdout + run.stderr


@nightly
def test_programs_of_a_user_satisfy_mypy(programs: Path) -> None:
    (programs / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nfollow_imports = silent\nignore_missing_imports = True\n"
        "[mypy-duckdb.*,numpy.*,pandas.*]\nfollow_imports = skip\n"
    )
    check("mypy", ".", where=programs)


def test_programs_of_a_user_satisfy_pyright(programs: Path) -> None:
    """By its fork that comes with all it needs: pyright itself wants the network when it starts."""
    pytest.importorskip("basedpyright")
    config = {
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        "reportMissingTypeStubs": False,
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(config))
    check("basedpyright", "--project", str(programs), "--pythonpath", sys.executable, where=programs)
