"""Jobs in a session of Spark Connect, in a process of its own: a process has sessions of one kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from depth import nightly
from histories import ROOT
from history_files import some_messages, write

PROGRAM = """
import sys

from pyspark.sql import SparkSession

from malamute.matching import Selector
from malamute.spark import read_export, register
from malamute.spark.analyze import analyze
from malamute.spark.analyze_tables import AnalyzeOptions
from malamute.spark.match import MatchSubscription, match
from malamute.spark.scan import ExportedHistory

place, out = sys.argv[1:]
builder = SparkSession.builder.remote("local[1]").config("spark.sql.shuffle.partitions", "1")
session = builder.config("spark.ui.enabled", "false").getOrCreate()
register(session)
history = ExportedHistory(place)
wanted = [MatchSubscription("x", Selector.parse([["topic", "#"]], ""))]
print(
    "counted",
    session.read.format("malamute").load(place).count(),
    read_export(session, place).count(),
    analyze(session, history, out, AnalyzeOptions())["streams"].collect()[0]["messages"],
    sum(row["messages"] for row in match(session, history, wanted, 1).hits.collect()),
)
session.stop()
"""


@nightly
def test_the_source_and_the_jobs_on_spark_connect(java: None, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="there is no Spark Connect: pip install 'pyspark[connect]'")
    write(tmp_path / "h", "s", some_messages(300), rows=100)
    # The log configuration and the daemon of the tests are for sessions of the tests.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment = {**plain, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    program = tmp_path / "jobs.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, program, str(tmp_path / "h"), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "counted 300 300 300 300" in run.stdout, run.stderr[:2000]
