"""What an import loads. `lint-imports` checks who may import whom; this is about what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _loaded_by(module: str) -> set[str]:
    """The packages, by their first names, that a fresh interpreter has after importing `module`."""
    code = f"import sys, {module}; print(*(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", ["malamute", "malamute.matching", "malamute.core", "malamute.config"])
def test_using_malamute_loads_neither_the_store_nor_spark_nor_the_command_line(module: str) -> None:
    assert not _loaded_by(module) & {"lmdb", "pyspark", "pyarrow", "pandas", "click", "rich"}


def test_the_command_line_loads_neither_the_store_nor_spark() -> None:
    assert not _loaded_by("malamute.cli") & {"lmdb", "pyspark", "pyarrow", "pandas"}
