"""The benchmark with a tiny history: that it measures what it says, not how fast anything is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest
from depth import nightly
from lab import spark as bench

from malamute.spark import analyze
from malamute.spark.match import match
from malamute.spark.scan import ExportedHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 5_000


@nightly
def test_everything_is_measured(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The run is watched, and done.
    analysis = create_autospec(analyze.analyze, side_effect=analyze.analyze)
    monkeypatch.setattr(analyze, "analyze", analysis)
    # Java need not be warm for what is looked at here.
    monkeypatch.setattr(bench, "WARM", 1)
    rows = list(bench.measure(spark, bench.SparkBenchOptions(COUNT, 20, 30, 1, 2, tmp_path)))
    assert list(tmp_path.iterdir()) == []
    whats = [row.what for row in rows]
    assert len(set(whats)) == len(whats) >= 8
    assert {row.messages for row in rows} == {COUNT, COUNT // 4, COUNT // 10}
    for row in rows:
        assert row.extent[0] <= row.per_second <= row.extent[1]
    assert rows[0].of_plain_spark is None
    plain = rows[1]
    for row in rows[1:]:
        plain = row if "plain " in row.what else plain
        assert row.of_plain_spark == pytest.approx(row.per_second / plain.per_second, abs=0.001)
    assert [row.what for row in rows if row.of_plain_spark == 1.0 and "plain " in row.what] == [
        "counts and bytes by subject and minute, plain Spark",
        "plain spark.read.parquet: all columns",
        "plain spark.read.parquet: subject, sequence, time, size",
    ]
    assert analysis.call_count == 2
    for called in analysis.call_args_list:
        assert called.args[1].pieces
        assert called.args[1].bounds.whole


@nightly
def test_the_history_is_whole(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FILE_ROWS", 10_000)
    bench.make(tmp_path / "h", COUNT, 20)
    history = ExportedHistory(str(tmp_path / "h"))
    plain = bench._plain_counts(analyze.messages(spark, history))
    assert sum(row["count(1)"] for row in plain.collect()) == COUNT
    found = match(spark, history, bench.subscriptions(50, by_headers=True), 1)
    assert 0 < found.hits.count() <= 50
    found.release()
