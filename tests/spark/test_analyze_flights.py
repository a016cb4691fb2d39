"""The example in docs/spark-jobs.md, block by block, against numbers straight from the files."""

from __future__ import annotations

import csv
import gzip
import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from depth import nightly

from malamute.cli.demo.rows import FLIGHTS, WEATHER
from malamute.cli.root import cli
from malamute.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark-jobs.md"


def blocks(language: str) -> list[str]:
    """The blocks of the section about flights."""
    section = PAGE.read_text(encoding="utf-8").partition("## A year of flights")[2]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def means(pairs: list[tuple[Any, float]]) -> dict[Any, tuple[int, float]]:
    found = defaultdict(list)
    for group, value in pairs:
        found[group].append(value)
    return {group: (len(values), pytest.approx(fmean(values))) for group, values in found.items()}


Malamute = Callable[[str], None]


@pytest.fixture
def malamute(
    spark: SparkSession, tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> Malamute:
    """Run a command of the page, in this process, with the session that is there."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)

    def run(line: str) -> None:
        # Java has a directory of its own, wherever this process is.
        places = {name: str(tmp_path / name) for name in ("history", "report")}
        words = [places.get(word, word) for word in shlex.split(line.replace("$url", broker.url))]
        assert words[0] == "malamute"
        done = CliRunner().invoke(cli, words[1:], prog_name="malamute")
        assert done.exit_code == 0, done.output[-2000:]

    return run


@nightly
def test_flights(spark: SparkSession, tmp_path: Path, broker: Broker, malamute: Malamute) -> None:
    publish, join = blocks("python")
    [commands] = blocks("sh")
    exec(publish, {"url": broker.url, "csv": FLIGHTS})
    for line in commands.replace("\\\n", "").splitlines():
        malamute(line)

    flights = table(FLIGHTS)
    by_month = [
        ((row["carrier"], int(row["month"])), float(row["arr_delay"]))
        for row in flights
        if row["arr_delay"] != "NA"
    ]
    rows = pq.read_table(tmp_path / "report" / "measure_delay").to_pylist()
    assert {(r["carrier"], r["month"]): (r["messages"], r["mean"]) for r in rows} == means(by_month)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "Measure: delay" in page
    totals = defaultdict(float)
    for group, delay in by_month:
        totals[group] += delay
    for (carrier, month), total in totals.items():
        assert re.search(rf"<td>{carrier}</td><td class=n>{month}</td>.*?>{total:,.0f}<", page)

    names: dict[str, Any] = {"directory": str(tmp_path / "history")}
    exec(join, names)
    wind = {
        (row["origin"], row["time_hour"]): int(float(row["wind_speed"]) / 10) * 10
        for row in table(FLIGHTS.with_name(WEATHER))
        if row["wind_speed"] != "NA"
    }
    joined = [(wind[key], row) for row in flights if (key := (row["origin"], row["time_hour"])) in wind]
    late = means([(speed, float(row["dep_delay"])) for speed, row in joined if row["dep_delay"] != "NA"])
    found = {row["wind"]: row for row in names["late"].collect()}
    assert {speed: row["mean_delay"] for speed, row in found.items()} == {
        speed: mean for speed, (_, mean) in late.items()
    }
    assert sum(row["departures"] for row in found.values()) == len(joined)
