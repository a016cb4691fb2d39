"""What fuzzing has found worth keeping is tried each time, without the fuzzer (`fuzz.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_targets import CORPUS, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_each_kept_input_is_taken_as_it_should_be(name: str) -> None:
    target = TARGETS[name]
    kept = target.kept(name)
    assert kept
    try:
        for path in kept:
            try:
                target.run(path.read_bytes())
            except BaseException as error:
                error.add_note(f"the input is {path}")
                raise
    finally:
        target.close()


def test_the_corpus_is_small_and_has_no_other_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*TARGETS}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= 220_000


def test_without_the_fuzzer_it_says_what_to_install() -> None:
    script = Path(__file__).parent / "fuzz.py"
    code = (
        "import sys, runpy; sys.modules['atheris'] = None; sys.argv = ['fuzz'];"
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'.[fuzz]'" in done.stderr
