"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from quiet import quiet_broker

from malamute.spark.session import open_session
from malamute.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on this machine. Its workers import what is tested here."""
    os.environ["PYTHONPATH"] = str(ROOT)
    session = open_session(
        "malamute-tests",
        "local[2]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")),
        spark__log__level="ERROR",
    )
    yield session
    session.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker on a directory."""
    with quiet_broker(tmp_path / "data") as broker:
        yield broker
