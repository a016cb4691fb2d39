"""The types of the client, as the checkers of its users see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import malamute

SAMPLE = Path(__file__).with_name("sample.py")
ROOT = Path(malamute.__file__).parents[1]


def check(*command: str, where: Path) -> None:
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, cwd=where
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_program_of_a_user_satisfies_mypy(tmp_path: Path) -> None:
    options = (
        "--strict",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--cache-dir",
        str(tmp_path),
    )
    check("mypy", *options, str(SAMPLE), where=tmp_path)


def test_a_program_of_a_user_satisfies_pyright(tmp_path: Path) -> None:
    """By its fork that comes with all it needs: pyright itself wants the network when it starts."""
    pytest.importorskip("basedpyright")
    # Beside its configuration: pyright itself passes over a file that is named by its whole path.
    (tmp_path / SAMPLE.name).write_text(SAMPLE.read_text())
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"include": ["{SAMPLE.name}"], "extraPaths": ["{ROOT}"], "typeCheckingMode": "strict",'
        ' "reportUnnecessaryTypeIgnoreComment": "error", "enableTypeIgnoreComments": false}'
    )
    check("basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, where=tmp_path)
