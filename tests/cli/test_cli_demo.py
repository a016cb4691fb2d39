"""The demo on a part of its sample, and what it does when counts differ."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cli_commands import Run

from malamute.cli.demo import command
from malamute.cli.demo.play import Result, ResultLine
from malamute.cli.demo.rows import FLIGHTS, SAMPLE, WEATHER, flights, weather
from malamute.cli.demo.tally import tally


def test_a_small_run_is_equal(run: Run) -> None:
    shown = json.loads(run("demo", "--rows", "400", "--json").stdout)
    lines = {line["what"]: line for line in shown["lines"]}
    assert shown["equal"]
    assert all(line["equal"] for line in shown["lines"])
    flights_line = lines["flights published"]
    assert (flights_line["sent"], flights_line["received"], flights_line["counted"]) == (400, 400, 400)
    assert lines["flights JFK.#"]["received"] > 0
    assert sum(shown["workers"].values()) == lines["requests answered"]["sent"]
    assert set(shown["workers"]) == {"fast", "medium", "slow"}


def test_other_data_and_the_table(run: Run, tmp_path: Path) -> None:
    lines = gzip.decompress(FLIGHTS.read_bytes()).splitlines(keepends=True)[:50]
    data = tmp_path / "flights.csv"
    data.write_bytes(b"".join(lines))
    table = run("demo", "--data", str(data), "--seed", "7").stdout
    assert "all counts are equal" in table
    assert table.splitlines()[0].split()[:3] == ["what", "sent", "received"]


def test_counts_that_differ_are_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result([ResultLine("good", 1, None, 1), ResultLine("bad", 1, 2, 1)], {"fast": 1})
    monkeypatch.setattr(command, "play", lambda *arguments: result)
    assert "not equal: bad" in run("demo", "--rows", "5", exit_code=1).stdout


@pytest.mark.parametrize("text", ["", "nonsense\n1\n", "origin,dest,carrier,month,arr_delay\nJFK,LAX\n"])
def test_a_file_of_something_else_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    data = tmp_path / "flights.csv"
    data.write_text(text)
    assert run("demo", "--data", str(data), exit_code=1).stderr.startswith("error: ")


def test_a_flight_as_a_message() -> None:
    first = next(flights(FLIGHTS))
    assert first.subject == "EWR.ALB.EV"
    assert first.headers == {
        "carrier": "EV",
        "origin": "EWR",
        "dest": "ALB",
        "tailnum": "N13903",
        "dep_delay": 143,
        "arr_delay": 128,
        "distance": 143,
        "lat": pytest.approx(42.75, abs=0.1),
        "lon": pytest.approx(-73.8, abs=0.1),
    }
    assert first.body.startswith(b"2013,11,24,22,")
    first_value = next(weather(SAMPLE / WEATHER))
    assert (first_value.subject, first_value.body) == ("EWR.temp", b"35.06")


def test_what_is_missing_is_left_out() -> None:
    cancelled = next(row for row in flights(FLIGHTS) if b",NA," in row.body)
    assert "dep_delay" not in (cancelled.headers or {})
    assert not any(row.body == b"NA" for row in weather(SAMPLE / WEATHER))


def test_the_sample_has_what_its_page_says() -> None:
    counted = tally(FLIGHTS, SAMPLE / WEATHER)
    assert counted.count("flights") == 4359
    carriers = {values[2] for values in counted.rows["flights"]}
    destinations = {values[1] for values in counted.rows["flights"]}
    assert (len(carriers), len(destinations), len(counted.origins)) == (16, 105, 3)
