"""`malamute journal sql` and `analyze`: questions to messages wherever they are, without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from histories import START, Told, numbered, operations, run, store
from history_files import damage
from quiet import quiet_broker

import malamute

COUNT = "select stream, count(*) as n, sum(size) as bytes from history group by stream order by stream"


def ask(query: str, *source: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run("journal", "sql", query, *source, "--json"))
    return found


@pytest.fixture
def data(tmp_path: Path) -> str:
    odd = operations("it's {odd}", 1, [Told("a", {"price": 1.5, "'": "x"}, b"12345")])
    store(tmp_path / "data", operations("s", 1, numbered(1000)), odd)
    return str(tmp_path / "data")


def test_the_same_answer_of_a_directory_and_an_export(tmp_path: Path, data: str) -> None:
    answer = [{"stream": "it's {odd}", "n": 1, "bytes": 5}, {"stream": "s", "n": 1000, "bytes": 2893}]
    assert ask(COUNT, "--data", data) == answer
    out = str(tmp_path / "out")
    run("journal", "export", "--data", data, "--to", out, "--promote", "n:integer")
    assert ask(COUNT, "--from", out) == answer
    assert ask(COUNT, "--from", out, "--stream", "it's {odd}") == answer[:1]
    sums = "sum(h_n) as n, sum(headers['n'].number) as same"
    whole = f"select {sums}, min(time_ns) as t, max(date) as d from history"
    [row] = ask(whole, "--from", out, "--since", "seq:101")
    assert row == {"n": 495_450, "same": 495_450.0, "t": START, "d": "2024-10-04"}
    copied = tmp_path / "copied.parquet"
    ask(f"copy (select subject from history where sequence % 10 = 0) to '{copied}'", "--from", out)
    assert pq.read_table(copied).num_rows == 100


def test_the_answer_of_a_broker(tmp_path: Path) -> None:
    name = f"t{uuid4().hex}"
    with quiet_broker(tmp_path / "data") as broker, malamute.connect(broker.url) as client:
        for number in range(5):
            client.publish(name, "a", b"x" * number)
        assert ask(COUNT, "--url", broker.url, "--stream", name) == [{"stream": name, "n": 5, "bytes": 10}]


@pytest.mark.parametrize(
    ("query", "words"),
    [("selec 1", "syntax error"), ("select nosuch from history", "nosuch"), ("from nosuch", "nosuch")],
)
def test_wrong_queries(data: str, query: str, words: str) -> None:
    assert words in run("journal", "sql", query, "--data", data, code=1)


def test_sources_without_messages_and_damaged_ones(tmp_path: Path, data: str) -> None:
    words = run("journal", "sql", COUNT, "--data", data, "--since", "seq:2000", code=1)
    assert "there are no messages" in words
    assert "no exported history" in run("journal", "sql", COUNT, "--from", str(tmp_path), code=1)
    out = tmp_path / "out"
    run("journal", "export", "--data", data, "--to", str(out), "--stream", "s")
    [path] = out.rglob("*.parquet")
    damage(path, 0, "subject")
    run("journal", "sql", "select max(subject) as s from history", "--from", str(out), code=1)
    assert ask("select count(sequence) as n from history", "--from", str(out)) == [{"n": 1000}]


def test_the_report_without_spark(tmp_path: Path, data: str) -> None:
    target = tmp_path / "report"
    found = json.loads(run("journal", "analyze", "--data", data, "--to", str(target), "--json"))
    assert [(row["stream"], row["messages"]) for row in found["streams"]] == [("it's {odd}", 1), ("s", 1000)]
    again = run("journal", "analyze", "--data", data, "--to", str(target), "--stream", "s")
    assert "report.html" in again
    assert pq.read_table(target / "streams").column("messages").to_pylist() == [1000]
    assert "<h2>Streams</h2>" in (target / "report.html").read_text(encoding="utf-8")


def test_without_duckdb_the_error_says_how_to_get_it(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "pip install 'malamute[parquet]'" in run("journal", "sql", COUNT, "--data", data, code=1)
