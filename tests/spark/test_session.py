"""The needs of a session, and the errors where they are missing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest
from depth import nightly, some
from history_files import STARTED

from malamute.cli import spark as cli_spark
from malamute.errors import NotInstalled
from malamute.spark import session
from malamute.spark.dependencies import need
from malamute.spark.session import check_java, java_version
from malamute.spark.spark_home import compiled_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def test_a_session_has_times_in_utc(spark: SparkSession) -> None:
    [row] = spark.sql("select current_timezone() as zone, 1 as one").collect()
    assert (row.zone, row.one) == ("UTC", 1)


@pytest.mark.parametrize(
    ("needed", "exit_code", "word"),
    some(
        [
            ("", 0, "1 skipped: without Java nothing is tested of Spark"),
            ("1", 1, "ERROR tests/spark/test_session.py"),
        ],
        ("1", 1, "ERROR tests/spark/test_session.py"),
    ),
)
def test_without_java_the_tests_of_spark_are_skipped_unless_it_has_to_be_there(
    tmp_path: Path, needed: str, exit_code: int, word: str
) -> None:
    test = f"{Path(__file__).relative_to(ROOT)}::{test_a_session_has_times_in_utc.__name__}"
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", test],
        cwd=ROOT,
        env={**environ, "JAVA_HOME": str(tmp_path), "MALAMUTE_TESTS_NEED_JAVA": needed},
        capture_output=True,
        text=True,
    )
    assert run.returncode == exit_code, run.stdout + run.stderr
    assert word in run.stdout
    assert "install a Java runtime of version 17 or later" in run.stdout


def test_workers_import_a_library_that_is_compiled(spark: SparkSession) -> None:
    def compiled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        files = [module.__cached__ for module in (pyspark, py4j)]
        yield pa.RecordBatch.from_pydict({"there": [os.path.exists(file) for file in files]})

    found = spark.range(1, numPartitions=1).mapInArrow(compiled, "there boolean").collect()
    assert [row.there for row in found] == [True, True]


@pytest.mark.parametrize("name", ["SPARK_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_a_spark_home_that_is_said_is_kept_and_yarn_gets_its_archives(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with compiled_spark():
        assert Path(os.environ["SPARK_HOME"], "bin", "spark-submit").is_file()
    assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv(name, "/said")
    before = dict(os.environ)
    with compiled_spark():
        assert os.environ == before


def test_a_session_starts_without_a_word_and_reports_later_errors(
    spark: SparkSession, spark_errors: Path
) -> None:
    while STARTED not in (written := spark_errors.read_text()):
        time.sleep(0.01)
    assert written.partition(STARTED)[0] == ""


@nightly
def test_a_program_with_a_session_leaves_nothing_and_says_what_goes_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = (
        "import sys; from malamute.spark.session import open_session; "
        "session = open_session('quiet', 'local[1]'); print(session.range(3).count()); "
        "session._jvm.java.lang.System.err.println('an error'); session.stop(); print('own', file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "3\n"
    assert [*tmp_path.glob("malamute-spark-*")] == []
    assert [line for line in run.stderr.splitlines() if "WARN" in line] == []
    assert "an error" in run.stderr
    assert "own" in run.stderr


def test_no_java_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(NotInstalled, match="apt install openjdk-17-jre-headless"):
        check_java()


@pytest.mark.parametrize(("said", "version"), [("11.0.2", 11), ("1.8.0_292", 8), ("", 0)])
def test_an_old_java_names_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, version: int
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"""#!/bin/sh\necho 'openjdk version "{said}" 2021-01-19' >&2\n""")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(
        NotInstalled, match=f"is version {version}: Spark needs Java 17; install a Java runtime of version 17"
    ):
        check_java()


def test_what_java_says() -> None:
    assert java_version('openjdk version "17.0.15" 2025-04-15') == 17
    assert java_version('java version "21" 2023-09-19 LTS') == 21


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotInstalled, match=r"pyarrow is missing: pip install 'malamute\[parquet\]'"):
        need("pyarrow")


def test_what_is_written_when_a_session_ends_is_dropped() -> None:
    stopped: list[bool] = []

    class Session:
        """A session that complains when it is stopped."""

        def stop(self) -> None:
            os.write(writing, b"Traceback")
            os.close(writing)
            thread.join()
            stopped.append(True)

    reading, writing = os.pipe()
    shown, errors = os.pipe()
    thread = threading.Thread(target=session._pass_on, args=(reading, errors))
    thread.start()
    os.write(writing, b"a warning\n")
    assert os.read(shown, 100) == b"a warning\n"
    try:
        session.close_session(Session())  # type: ignore[arg-type]  # all that it uses
    finally:
        session._ending.clear()
    assert stopped
    with open(shown, "rb") as rest:
        assert rest.read() == b""


CLOSED = b"""Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/spark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = CLOSED.replace(b"outfile.flush()", b"outfile.write(rows)")


def test_a_worker_whose_socket_java_has_closed_says_nothing() -> None:
    said = b"\n".join([b"", OTHER, CLOSED + CLOSED, b"\r[Stage 0:>", CLOSED + OTHER, OTHER[:-9]])
    expected = said.replace(CLOSED, b"")
    assert b"".join(session.without_closed([said])) == expected
    assert b"".join(session.without_closed(said.splitlines(keepends=True))) == expected
    # A line that is no traceback does not wait for more.
    assert next(session.without_closed(iter([b"\r[Stage 0:>"]))) == b"\r[Stage 0:>"


def test_a_terminal_shows_how_many_tasks_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stage(NamedTuple):
        """The report of Spark on a stage."""

        numCompletedTasks: int  # noqa: N815  # Spark's names
        numTasks: int  # noqa: N815

    looks: Iterator[dict[int, Stage | None]] = iter([{}, {1: Stage(2, 8)}, {2: Stage(0, 3), 3: None}, {}])

    class Tracker:
        """Spark, with a stage after another."""

        now: dict[int, Stage | None]

        def getActiveStageIds(self) -> list[int]:  # noqa: N802
            self.now = next(looks, {})
            if not self.now and len(shown) > 2:
                ended.set()
            return [*self.now]

        def getStageInfo(self, number: int) -> Stage | None:  # noqa: N802
            return self.now[number]

    monkeypatch.setattr(cli_spark, "LOOK_SECONDS", 0)
    ended, shown = threading.Event(), list[tuple[int, int | None]]()
    cli_spark._watch(Tracker(), lambda done, total: shown.append((done, total)), ended)
    assert shown == [(0, None), (2, 8), (8, 11), (11, 11)]
