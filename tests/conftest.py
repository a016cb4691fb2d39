"""Two halves of the tests, for two processes: those of the data pipeline share a session of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

SPARK = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say in which half each test is."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if SPARK in item.path.parents else "broker"))
