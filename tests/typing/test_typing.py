"""The types of the client, as a checker sees them. `make check` has mypy look at the same program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import malamute

SAMPLE = Path(__file__).with_name("sample.py")
ROOT = Path(malamute.__file__).parents[1]


def test_a_program_of_a_user_satisfies_pyright(tmp_path: Path) -> None:
    """By its fork that comes with all it needs: pyright itself wants the network when it starts."""
    pytest.importorskip("basedpyright")
    # Beside its configuration: pyright itself passes over a file that is named by its whole path.
    (tmp_path / SAMPLE.name).write_text(SAMPLE.read_text())
    (tmp_path / "pyrightconfig.json").write_text(
        f'{{"include": ["{SAMPLE.name}"], "extraPaths": ["{ROOT}"], "typeCheckingMode": "strict",'
        ' "reportUnnecessaryTypeIgnoreComment": "error", "enableTypeIgnoreComments": false}'
    )
    run = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--project", tmp_path, "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
