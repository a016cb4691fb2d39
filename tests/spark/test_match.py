"""Matching history: as the broker would have matched it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from depth import some
from history_files import Sent, damage, write

from malamute.errors import InvalidSelector, InvalidValue
from malamute.matching import Index, Selector
from malamute.spark import match as spark_match
from malamute.spark.match import MatchPlan, MatchSubscription, decoded, header_names, load, match
from malamute.spark.scan import ExportedHistory, HistoryBounds, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
[[subscription]]
name = "paged_out"
criteria = [["topic", "temp.*"]]
where = "value < 0"

[[subscription]]
name = "oslo"
criteria = [["topic", "*.oslo"], ["exact", "wind.rome"]]

[[subscription]]
name = "other"
stream = "other"

[[subscription]]
name = "nothing"
criteria = [["exact", "no.such"]]
"""


def history(directory: Path) -> list[tuple[str, Sent]]:
    """Messages of two streams and two days, in files below the directory."""
    chance = Random(2)
    found = []
    for stream in ("one", "other"):
        for day in (0, 1):
            messages = [
                Sent(
                    day * 500 + n,
                    f"{chance.choice(('temp', 'wind'))}.{chance.choice(('oslo', 'rome'))}",
                    b"%d" % n,
                    {"value": chance.randrange(-5, 5), "unit": chance.choice("CF")} if n % 7 else None,
                    chance.choice(("alice", "")),
                    day * 86_400 + n,
                )
                for n in range(1, 501)
            ]
            write(directory, stream, messages, rows=120)
            found += [(stream, message) for message in messages]
    return found


def naive(messages: list[tuple[str, Sent]], wanted: list[MatchSubscription]) -> Counter[tuple[str, str, str]]:
    """Hits by subscription, stream and day, one message after the other."""
    hits: Counter[tuple[str, str, str]] = Counter()
    for one in wanted:
        index = Index()
        index.add(one.name, one.selector)
        for stream, m in messages:
            day = f"2024-01-0{1 + int(m.seconds // 86_400)}"
            if one.stream in ("", stream) and index.match(m.subject, m.headers, m.sender):
                hits[one.name, stream, day] += 1
    return hits


@pytest.mark.parametrize("by_headers", some([False, True], True))
def test_as_the_broker_would(spark: SparkSession, tmp_path: Path, by_headers: bool) -> None:
    messages = history(tmp_path / "h")
    (tmp_path / "wanted.toml").write_text(FILE)
    wanted = load(tmp_path / "wanted.toml")
    if not by_headers:
        wanted = [one for one in wanted if not one.selector.where]
    found = match(spark, ExportedHistory(str(tmp_path / "h")), wanted, examples=2)
    hits = {(r["name"], r["stream"], r["date"]): r["messages"] for r in found.hits.collect()}
    assert hits == naive(messages, wanted)
    assert found.damage.collect() == []
    examples = found.examples.collect()
    there = {(stream, m.sequence): m for stream, m in messages}
    selectors = {one.name: one.selector for one in wanted}
    for row in examples:
        m = there[row["stream"], row["sequence"]]
        assert (bytes(row["body"]), row["subject"]) == (m.body, m.subject)
        index = Index()
        index.add("it", selectors[row["name"]])
        assert index.match(m.subject, m.headers, m.sender)
    assert sum(row["name"] == "oslo" for row in examples) == 4
    assert {r["stream"] for r in examples if r["name"] == "other"} == {"other"}
    found.release()


MIXED: list[tuple[list[Any], str]] = [
    ([["topic", "temp.*"]], "value < 0 and unit = 'C'"),
    ([["topic", "temp.*"]], ""),
    ([["topic", "temp.*"], ["fields", "unit=F"]], "not value = 3"),
    ([["topic", "*.rome"], ["exact", "wind.oslo"]], "sender = 'alice' or exists value"),
    ([["fields", {"any": [["unit", "C"], ["nothing"]]}], ["fields", "value=1"]], ""),
    ([["geo", {"box": [-3, -5, 3, 2], "lat": "value", "lon": "value"}]], "subject prefix 'wind'"),
    ([["exact", "no.such"]], "value > 0"),
]


@pytest.mark.parametrize("messages_each", [0, 10**9])
def test_by_columns_and_by_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages_each: int
) -> None:
    monkeypatch.setattr(spark_match, "MESSAGES_EACH", messages_each)
    messages = history(tmp_path)
    wanted = [MatchSubscription(str(n), Selector.parse(*selector)) for n, selector in enumerate(MIXED)]
    wanted += [wanted[0]._replace(name="again"), wanted[0]._replace(name="elsewhere", stream="other")]
    plan, opened = MatchPlan.of(wanted, 2), ExportedHistory(str(tmp_path))
    found = spark_match._matches(plan, read(opened.location, opened.pieces, plan.columns, opened.bounds))
    rows = [row for table in found for row in table.to_pylist()]
    hits = {(wanted[r["subscription"]].name, r["stream"], r["date"]): r["messages"] for r in rows}
    assert hits == naive(messages, wanted)
    for row in rows:
        assert len(row["examples"]) == 2 == len(set(row["examples"]))
        of = naive(
            [m for m in messages if m[0] == row["stream"] and m[1].sequence in row["examples"]], wanted
        )
        assert of[wanted[row["subscription"]].name, row["stream"], row["date"]] == 2


def test_bounds_and_damage(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "h", "s", [Sent(n, f"a.{n % 90}") for n in range(1, 301)], rows=100)
    damage(path, 1, "sequence")
    wanted = [MatchSubscription("all", Selector.parse([["all", None]]))]
    found = match(spark, ExportedHistory(str(tmp_path / "h"), HistoryBounds(first=51)), wanted)
    assert [r["messages"] for r in found.hits.collect()] == [150]
    assert [(r["row_group"], r["messages"]) for r in found.damage.collect()] == [(1, 100)]
    found.release()


def test_what_is_decoded(tmp_path: Path) -> None:
    headers: list[dict[str, Any]] = [
        {"a": "text", "b": 5, "c": 1.5, "d": True, "e": None},
        {},
        {"b": -7, "other": "x"},
        {"a": "", "b": 2**40},
    ]
    write(tmp_path / "h", "s", [Sent(n, headers=found) for n, found in enumerate(headers, 1)])
    opened = ExportedHistory(str(tmp_path / "h"))
    [part] = read(opened.location, opened.pieces, ["headers"], opened.bounds)
    column = part.batch.column("headers")  # type: ignore[union-attr]
    assert decoded(column) == headers
    assert [list(map(type, found.values())) for found in decoded(column)] == [
        list(map(type, found.values())) for found in headers
    ]
    assert decoded(column, ["b"]) == [{"b": 5}, {}, {"b": -7}, {"b": 2**40}]


def test_which_headers_are_needed() -> None:
    def names(criteria: list[Any], where: str = "") -> Any:
        return header_names([MatchSubscription("w", Selector.parse(criteria, where))])

    assert names([["topic", "a.*"]]) == ()
    assert names([["topic", "a.*"]], "price > 1 and subject prefix 'a' and exists urgent") == (
        "price",
        "urgent",
    )
    assert names([["fields", "unit=C"], ["geo", {"box": [0, 0, 1, 1]}]]) == ("lat", "lon", "unit")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no TOML", "expected TOML or JSON"),
        pytest.param("x = " + "[" * 100_000, "expected TOML or JSON", id="nested"),
        ("x = 1", "expected a list of 1 to"),
        ("subscription = []", "expected a list of 1 to"),
        ('[[subscription]]\nnmae = "x"', "invalid subscription 1"),
        ("[[subscription]]\nname = 5", "expected name and stream as text"),
        ('[[subscription]]\nname = "x"\n[[subscription]]\nname = "x"', "two subscriptions"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "w.toml").write_text(text)
    with pytest.raises(InvalidValue, match=words):
        load(tmp_path / "w.toml")


def test_a_wrong_selector_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps([{"name": "mine", "where": "price >"}]))
    with pytest.raises(InvalidSelector, match=r"'mine'.*position"):
        load(tmp_path / "w.json")
    (tmp_path / "w.json").write_text("[" * 100_000)
    with pytest.raises(InvalidValue, match="expected TOML or JSON"):
        load(tmp_path / "w.json")
    with pytest.raises(InvalidValue, match="cannot read"):
        load(tmp_path / "nowhere.json")
