"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from history_files import EVIL, STARTED, Sent, Whole, some_messages, write
from quiet import quiet_broker

from malamute.errors import NotInstalled
from malamute.spark.analyze_tables import AnalyzeOptions
from malamute.spark.local import analysed
from malamute.spark.scan import ExportedHistory
from malamute.spark.session import check_java, open_session
from malamute.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Every session, of this process or of one that a test starts, is one for small tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{HERE}")
        patch.setenv("SPARK_CONF_DIR", str(HERE / "conf"))
        yield


@pytest.fixture(scope="session")
def java() -> None:
    """Skip what needs Java where there is none. CI says that it has to be there: then that is an error."""
    try:
        check_java()
    except NotInstalled as error:
        if os.environ.get("MALAMUTE_TESTS_NEED_JAVA"):
            raise
        pytest.skip(f"without Java nothing is tested of Spark. {error.text}")


@pytest.fixture(scope="session")
def spark_errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard error of the session: a line `STARTED` is behind its start."""
    return tmp_path_factory.mktemp("errors") / "errors"


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    own = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


@pytest.fixture(scope="session")
def spark(
    java: None, environment: None, tmp_path_factory: pytest.TempPathFactory, spark_errors: Path
) -> Iterator[SparkSession]:
    """A session on this machine. Its workers import what is tested here."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with _errors_to(spark_errors):
        session = open_session("malamute-tests", "local[2]", spark__sql__warehouse__dir=str(warehouse))
    session._jvm.java.lang.System.err.println(STARTED)  # type: ignore[union-attr]
    yield session
    session.stop()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A history that was analysed whole, once: one stream as any, and one that is bad for a page."""
    root = tmp_path_factory.mktemp("whole")
    messages = some_messages(3000)
    write(root / "h", "s", messages[:1700], rows=400)
    write(root / "h", "s", messages[1700:], rows=400)
    bad = [Sent(n, f"a.{EVIL}.{n % 3}", headers={EVIL: EVIL}, sender=EVIL, seconds=n) for n in range(1, 50)]
    write(root / "h", EVIL, [*bad, Sent(60)])
    options = AnalyzeOptions(window_seconds=60, measures=("delay = sequence by stream = stream; s = sender",))
    with analysed(ExportedHistory(str(root / "h")), options) as found:
        yield Whole(messages, *found)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker on a directory."""
    with quiet_broker(tmp_path / "data") as broker:
        yield broker
