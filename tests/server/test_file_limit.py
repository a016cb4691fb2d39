"""How many files the broker may open."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from malamute.door.files import raise_file_limit


def test_where_the_system_has_a_lower_limit_of_its_own_the_one_in_force_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, where the hard limit is none and none is refused."""

    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 256


@pytest.mark.parametrize("files", [12, 19])
def test_a_broker_with_hardly_any_files_says_how_many_it_needs(tmp_path: Path, files: int) -> None:
    """The limit is that of the child."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))\n"
        "from malamute.cli import main; import sys; sys.argv = ['malamute', 'broker', 'run']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error 700: the broker may open {files} files, and needs more than " in done.stderr
    assert "ulimit -Hn" in done.stderr
    assert "Traceback" not in done.stderr
