"""The modules that an import loads, and that no file imports itself by way of others.

`lint-imports` checks which package may import which.
"""

from __future__ import annotations

import subprocess
import sys

import grimp
import pytest


def _loaded_by(module: str) -> set[str]:
    """The packages, by their first names, that a fresh interpreter has after importing `module`."""
    code = f"import sys, {module}; print(*(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


STORE_MODULES_MAX = 10


def _modules_of_malamute_loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name for name in run.stdout.split() if name.partition(".")[0] == "malamute"}


@pytest.mark.parametrize(
    "module",
    [
        "malamute.store",
        "malamute.store.operations, malamute.store.codec, malamute.store.commit, malamute.store.policies",
        "malamute.journal",
    ],
)
def test_the_ground_floor_of_the_store_is_light(module: str) -> None:
    assert len(_modules_of_malamute_loaded_by(module)) <= STORE_MODULES_MAX


@pytest.mark.parametrize("module", ["malamute.config", "malamute.journal.format", "malamute.journal.reader"])
def test_neither_the_options_nor_the_disk_load_the_broker(module: str) -> None:
    assert "malamute.core" not in _modules_of_malamute_loaded_by(module)


MODULES = ["malamute", "malamute.matching", "malamute.core.broker", "malamute.config", "malamute.store"]


@pytest.mark.parametrize("module", MODULES)
def test_using_malamute_loads_neither_the_store_nor_spark_nor_the_command_line(module: str) -> None:
    assert not _loaded_by(module) & {"lmdb", "pyspark", "pyarrow", "pandas", "click", "rich"}


def test_the_client_loads_no_adapter_and_no_framework() -> None:
    loaded = _loaded_by("malamute, malamute.aio, malamute.errors")
    assert not loaded & {"celery", "django", "django_tasks", "kombu", "mcp", "taskiq"}
    assert not any(
        name.startswith("malamute.integrations") for name in _modules_of_malamute_loaded_by("malamute")
    )


def test_the_command_line_loads_neither_the_store_nor_spark() -> None:
    assert not _loaded_by("malamute.cli") & {"lmdb", "pyspark", "pyarrow", "pandas"}


def test_what_verifies_tokens_is_loaded_only_where_there_are_some() -> None:
    assert not _loaded_by("malamute.server.daemon") & {"jwt", "cryptography"}


def _circles(graph: grimp.ImportGraph) -> list[set[str]]:
    """The largest sets of files of which each imports all others, be it by way of them or for types alone."""
    upstream = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles = {
        frozenset({module, *(other for other in used if module in upstream[other])})
        for module, used in upstream.items()
    }
    return [{*circle} for circle in circles if len(circle) > 1]


def test_there_is_no_circle_of_imports() -> None:
    graph = grimp.build_graph("malamute", exclude_type_checking_imports=False, cache_dir=None)
    assert _circles(graph) == []


def test_a_circle_of_imports_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")):
        graph.add_import(importer=importer, imported=imported)
    assert _circles(graph) == [{"a", "b", "c"}]
