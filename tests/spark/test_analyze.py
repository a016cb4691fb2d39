"""The analysis: its numbers against numbers counted plainly."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from depth import nightly, some
from history_files import BEGIN, EVIL, Sent, Whole, damage, some_messages, write

from malamute.errors import InvalidValue, NotFound
from malamute.protocol.batch import pack
from malamute.spark import analyze_tables, local, partial_aggregates, report
from malamute.spark.analyze import SparkEngine, analysed
from malamute.spark.analyze_tables import DERIVED, LATE, TABLES, AnalyzeOptions, Measure
from malamute.spark.partial_aggregates import EACH_DOUBLING, VALUES_MAX, buckets, partial_tables
from malamute.spark.report import Facts, page
from malamute.spark.scan import ExportedHistory, HistoryBounds, HistoryPart, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Rows = dict[str, list[dict[str, Any]]]


def analysis(history: Path, options: AnalyzeOptions = AnalyzeOptions()) -> Rows:  # noqa: B008  # it is a value
    """All tables of a history, as DuckDB makes them."""
    with local.analysed(ExportedHistory(str(history), options.bounds), options) as (engine, tables):
        return {name: engine.rows(table) for name, table in tables.items()}


def one(rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    [found] = [row for row in rows if fields.items() <= row.items()]
    return found


def near(value: float, wanted: float) -> bool:
    """Whether a percentile is within a bucket of what it should be."""
    return abs(value - wanted) <= wanted * (2 ** (1 / EACH_DOUBLING) - 1)


def nearest(values: list[float], share: float) -> float:
    return sorted(values)[max(0, -(-len(values) * round(share * 100) // 100) - 1)]


def test_everything_is_counted_as_by_hand(whole: Whole) -> None:
    messages = whole.messages
    tables = {
        name: [row for row in whole.engine.rows(table) if row.get("stream", "s") == "s"]
        for name, table in whole.tables.items()
    }
    [stream] = tables["streams"]
    size = sum(len(m.body) for m in messages)
    assert (stream["messages"], stream["bytes"], stream["first"], stream["last"]) == (3000, size, 1, 3000)
    assert (stream["gaps"], stream["missing"], stream["duplicates"]) == (0, 0, 0)
    span = messages[-1].time_ns - messages[0].time_ns
    assert stream["per_second"] == pytest.approx(3000 * 1e9 / span)
    minutes = Counter((m.time_ns - BEGIN) // (60 * 10**9) for m in messages)
    assert stream["peak_per_second"] == max(minutes.values()) / 60

    volume = Counter((m.subject.split(".")[0], (m.time_ns - BEGIN) // (60 * 10**9)) for m in messages)
    assert {
        (row["prefix"], (row["window"].timestamp() * 10**9 - BEGIN) // (60 * 10**9)): row["messages"]
        for row in tables["volume"]
    } == volume
    assert {r["subject"]: r["messages"] for r in tables["subjects"]} == Counter(m.subject for m in messages)
    assert sum(row["bytes"] for row in tables["sender_volume"]) == size
    begins = {m.subject: m.time_ns for m in reversed(messages)}
    ends = {m.subject: m.time_ns for m in messages}
    for row in tables["subjects"]:
        extent = [row["begin"].timestamp() * 10**6, row["end"].timestamp() * 10**6]
        assert extent == [begins[row["subject"]] // 1000, ends[row["subject"]] // 1000]
    grown = Counter((time - BEGIN) // (60 * 10**9) for time in begins.values())
    growth = sorted(tables["growth"], key=lambda row: row["window"])
    assert [row["new"] for row in growth] == [grown[window] for window in sorted(grown)]
    assert growth[-1]["subjects"] == len(begins)

    for sender in ("alice", "bob", ""):
        times = [m.time_ns for m in messages if m.sender == sender]
        steps = [(b - a) / 1e9 for a, b in pairwise(times)]
        row = one(tables["senders"], sender=sender)
        assert row["messages"] == len(times)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert near(row[name], nearest(steps, share)), name
        assert row["longest_silence"] == max(*steps, (messages[-1].time_ns - times[-1]) / 1e9)
    counted = sum(row["messages"] for row in tables["intervals"] if row["sender"] is None)
    assert counted == 2999

    prices = [m.headers["price"] for m in messages if m.headers]
    price = one(tables["headers"], header="price")
    assert (price["messages"], price["number"], price["low"], price["high"]) == (
        3000,
        3000,
        min(prices),
        max(prices),
    )
    assert price["mean"] == pytest.approx(statistics.fmean(prices))
    assert price["deviation"] == pytest.approx(statistics.pstdev(prices))
    urgent = sum("urgent" in (m.headers or ()) for m in messages)
    assert one(tables["headers"], header="urgent")["none"] == urgent
    assert one(tables["headers"], header="urgent")["mean"] is None
    assert one(tables["headers"], header="open")["flag"] == urgent
    assert one(tables["headers"], header="n")["integer"] == 3000
    units = {r["value"]: r["messages"] for r in tables["header_values"] if r["header"] == "unit"}
    assert units == Counter(m.headers["unit"] for m in messages if m.headers)
    assert tables["damage"] == tables["gaps"] == tables["queues"] == []


def test_changes_of_headers(tmp_path: Path) -> None:
    """A type came late, another one left, and a rare one did neither."""

    def headers(n: int) -> dict[str, Any]:
        always = {"old": "x"} if n <= 600 else {"old": 7}
        return {**always, **({"rare": 1} if n % 300 == 0 else {})}

    messages = [Sent(n, headers=headers(n), seconds=n) for n in range(1, 1001)]
    write(tmp_path / "h", "s", messages, rows=90)
    tables = analysis(tmp_path / "h")
    changes = sorted((row["header"], row["type"], row["change"]) for row in tables["changes"])
    assert changes == [("old", "integer", "came"), ("old", "text", "left")]
    at = {row["change"]: row["time"].timestamp() for row in tables["changes"]}
    assert at["came"] - at["left"] == 1
    found = {(row["header"], row["type"]): row["messages"] for row in tables["schema"]}
    assert found == {("old", "text"): 600, ("old", "integer"): 400, ("rare", "integer"): 3}


def test_many_sums_are_finished_in_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "h", "s", some_messages(500), rows=100)
    few = analysis(tmp_path / "h")
    monkeypatch.setattr(local, "ROWS_EACH", 200)
    assert plain(analysis(tmp_path / "h")) == plain(few)


def plain(tables: Rows) -> Rows:
    """The same tables in one order, without the last digits of sums."""
    return {
        name: sorted(
            (
                {key: float(f"{v:.9g}") if isinstance(v, float) else v for key, v in row.items()}
                for row in rows
            ),
            key=str,
        )
        for name, rows in tables.items()
    }


@nightly
def test_spark_makes_the_same_tables(spark: SparkSession, history: Path, together: Rows) -> None:
    exported = ExportedHistory(str(history))
    with analysed(spark, exported, OPTIONS) as tables:
        engine = SparkEngine(spark, exported)
        found = plain({name: engine.rows(table) for name, table in tables.items()})
    assert {name for name, rows in found.items() if rows != plain(together)[name]} == set()


BY_DAY = ("Streams", "Headers")
"""Sections that need most of what a query may have: sums, times, and values of several types."""


def test_spark_makes_the_same_page(
    spark: SparkSession, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = some([title for title, _, _ in report.SECTIONS], *BY_DAY)
    monkeypatch.setattr(report, "SECTIONS", [section for section in report.SECTIONS if section[0] in titles])
    exported, facts = ExportedHistory(str(history)), Facts("here", 1, 20)
    with analysed(spark, exported, OPTIONS) as tables:
        html = page(SparkEngine(spark, exported), tables, facts)
    with local.analysed(exported, OPTIONS) as (other, same):
        assert undated(html) == undated(page(other, same, facts))


def test_spark_measures_the_same(spark: SparkSession, history: Path) -> None:
    few = ExportedHistory(str(history), HistoryBounds(("measured",), first=5))
    measure = Measure.parse("price = headers['price'].number by unit = headers['unit'].text; s = stream")
    found = []
    with local.opened(few) as duck:
        for engine in (SparkEngine(spark, few), duck):
            found.append({"price": engine.rows(analyze_tables.measured(engine, measure))})
    assert plain(found[0]) == plain(found[1])
    assert len(found[0]["price"]) == 3


def undated(html: str) -> str:
    """A page without the time of its making."""
    return re.sub(r"malamute [^<]*", "", html)


def test_a_task_hands_over_its_rows_before_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "h", "s", some_messages(500), rows=50)
    history = ExportedHistory(str(tmp_path / "h"))

    def summed() -> tuple[int, Counter[Any], Counter[Any]]:
        found = read(history.location, history.pieces, partial_aggregates.COLUMNS, history.bounds)
        tables = list(partial_tables(found, 60 * 10**9, 1))
        messages: Counter[Any] = Counter()
        size_bytes: Counter[Any] = Counter()
        for row in (row for table in tables for row in table.to_pylist()):
            key = (row["kind"], row["name"], row["value"], row["slot"])
            messages[key] += row["messages"] or 0
            size_bytes[key] += row["bytes"] or 0
        return len(tables), messages, size_bytes

    batches, *sums = summed()
    monkeypatch.setattr(partial_aggregates, "ROWS_MAX", 400)
    in_more, *same = summed()
    assert in_more > batches
    assert same == sums


QUICK = some([(0.039, False), (0.999, False), (1.0, True)], (0.999, False), (1.0, True))
"""Silences of a sender that says something each millisecond, and whether it is late."""


OPTIONS = AnalyzeOptions(window_seconds=1)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One history with the streams of several tests: an analysis costs the same for all of them."""
    history = tmp_path_factory.mktemp("together")
    write(history, "measured", some_messages(300), rows=100)
    write(history, EVIL, [Sent(n, f"a.{EVIL}", headers={EVIL: EVIL}, sender=EVIL) for n in range(1, 50)])
    write(history, "gaps", [Sent(n) for n in (5, 6, 9, 10)], rows=2)
    write(history, "gaps", [Sent(n) for n in (20, 21, 30)])
    write(history, "overlap", [Sent(n) for n in (1, 2, 5, 6)], rows=2)
    write(history, "overlap", [Sent(n) for n in (2, 3, 6, 9)])
    write(history, "twice", [Sent(n) for n in (1, 3, 3)])
    steady = [Sent(0, sender="steady", seconds=n) for n in range(1000)]
    silent = [Sent(0, sender="silent", seconds=n + 0.5) for n in range(200)]
    gap = [Sent(0, sender="gap", seconds=n + 0.7 + (500 if n > 100 else 0)) for n in range(400)]
    messages = sorted([*steady, *silent, *gap], key=lambda m: m.seconds)
    write(history, "senders", [m._replace(sequence=n) for n, m in enumerate(messages, 1)], rows=300)
    for silence, _ in QUICK:
        moments = [n / 1000 for n in range(200)]
        moments.append(moments[-1] + silence)
        write(history, f"quick {silence}", [Sent(n, seconds=at) for n, at in enumerate(moments, 1)])
    damage(write(history, "damaged", some_messages(400), rows=100), 2, "time_ns")
    torn = write(history, "torn", [Sent(1)])
    torn.write_bytes(torn.read_bytes()[:-20])
    pa.parquet.write_table(pa.table({"sequence": [1]}), write(history, "wrong", [Sent(1)]))
    write(history, "$sys", [event._replace(sequence=n) for n, event in enumerate(reported(), 1)])
    return history


@pytest.fixture(scope="module")
def together(history: Path) -> Rows:
    """Its tables."""
    return analysis(history, OPTIONS)


def test_gaps_within_and_between_files(together: Rows) -> None:
    found = sorted((r["first"], r["last"], r["messages"]) for r in together["gaps"] if r["stream"] == "gaps")
    assert found == [(7, 8, 2), (11, 19, 9), (22, 29, 8)]


def test_files_that_overlap_are_counted_exactly(together: Rows) -> None:
    found = [(row["stream"], row["first"], row["last"]) for row in together["gaps"]]
    assert sorted(row for row in found if row[0] in ("overlap", "twice")) == [
        ("overlap", 4, 4),
        ("overlap", 7, 8),
        ("twice", 2, 2),
    ]
    duplicates = {row["stream"]: row["duplicates"] for row in together["streams"] if row["duplicates"]}
    assert duplicates == {"overlap": 2, "twice": 1}


def test_a_sender_that_fell_silent_is_late(together: Rows) -> None:
    senders = {row["sender"]: row for row in together["senders"] if row["stream"] == "senders"}
    assert {name: row["late"] for name, row in senders.items()} == {
        "steady": False,
        "silent": True,
        "gap": True,
    }
    assert senders["gap"]["longest_silence"] == 501
    assert senders["gap"]["silent_since"].timestamp() == pytest.approx(BEGIN / 1e9 + 100.7)
    assert senders["silent"]["longest_silence"] == pytest.approx(999 - 199.5)


@pytest.mark.parametrize(("silence", "late"), QUICK)
def test_only_a_silence_of_a_window_or_more_is_late(together: Rows, silence: float, late: bool) -> None:
    """However many times as long as its usual one it is."""
    row = one(together["senders"], stream=f"quick {silence}")
    assert row["longest_silence"] == pytest.approx(silence)
    assert row["longest_silence"] > LATE * row["p99"]
    assert row["late"] is late


def test_bounds(tmp_path: Path) -> None:
    write(tmp_path / "h", "s", [Sent(n, seconds=n) for n in range(1, 101)], rows=10)
    write(tmp_path / "h", "other", [Sent(1)])
    until = BEGIN + 60 * 10**9
    bounds = HistoryBounds(("s",), since=BEGIN + 20 * 10**9, until=until, last=50)
    tables = analysis(tmp_path / "h", AnalyzeOptions(bounds))
    [stream] = tables["streams"]
    assert (stream["stream"], stream["first"], stream["last"]) == ("s", 20, 50)


def test_an_empty_range_has_empty_tables(tmp_path: Path) -> None:
    write(tmp_path / "h", "s", [Sent(1)])
    tables = analysis(tmp_path / "h", AnalyzeOptions(HistoryBounds(first=100)))
    assert tables.keys() == {*TABLES, *DERIVED}
    assert all(rows == [] for rows in tables.values())


def test_unknown_streams_and_places_are_errors(tmp_path: Path) -> None:
    write(tmp_path / "h", "s", [Sent(1)])
    with pytest.raises(NotFound, match=r"no stream 'nosuch' in .*expected s"):
        ExportedHistory(str(tmp_path / "h"), HistoryBounds(("nosuch",)))
    with pytest.raises(NotFound):
        ExportedHistory(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no exported history"):
        ExportedHistory(str(tmp_path / "empty"))
    with pytest.raises(InvalidValue, match="expected a path or URL"):
        ExportedHistory("nosuch://x/y")


def test_damage_is_reported_and_the_rest_is_analysed(together: Rows) -> None:
    damage = together["damage"]
    found = {(Path(row["path"]).parts[-3], row["row_group"], row["messages"]) for row in damage}
    assert found == {("stream=damaged", 2, 100), ("stream=torn", -1, 0), ("stream=wrong", -1, 0)}
    assert all(row["reason"] for row in damage)
    stream = one(together["streams"], stream="damaged")
    assert (stream["messages"], stream["missing"]) == (300, 100)


def test_measures(tmp_path: Path) -> None:
    rows = [("AA", 5, 1), ("AA", 7, 1), ("AA", None, 1), ("UA", -3, 2)]
    messages = [
        Sent(
            n,
            headers={"carrier": carrier} | ({} if delay is None else {"delay": delay}),
            body=b"x" * month,
        )
        for n, (carrier, delay, month) in enumerate(rows, 1)
    ]
    write(tmp_path / "h", "s", messages)
    words = "delay = headers['delay'].number by carrier = headers['carrier'].text; month = size"
    found = analysis(tmp_path / "h", AnalyzeOptions(measures=(words,)))["measure_delay"]
    assert [(r["carrier"], r["month"], r["messages"], r["total"]) for r in found] == [
        ("AA", 1, 2, 12.0),
        ("UA", 2, 1, -3.0),
    ]
    with pytest.raises(InvalidValue, match="measure 'x'"):
        analysis(tmp_path / "h", AnalyzeOptions(measures=("x = nosuch by s = sender",)))


@pytest.mark.parametrize("words", ["", "x", "x = 1", "x by y = 1", "x = 1 by y"])
def test_measures_that_are_none(words: str) -> None:
    with pytest.raises(InvalidValue):
        Measure.parse(words)


def settled(queue: str, **columns: Any) -> Sent:
    """An event of the broker about messages of a queue that were settled together."""
    kind, _, name = queue.partition(" ")
    body = {"worker": "w", "settled": BEGIN + 10 * 10**9, **columns}
    return Sent(
        0, f"{kind}.settled.{name.replace('.', '_')}", pack(body), {"name": name, "count": 2}, "$broker"
    )


def gap(kind: str, name: str, **details: Any) -> Sent:
    """An event of the broker about messages that a consumer missed."""
    return Sent(0, f"{kind}.gap.{name.replace('.', '_')}", b"", {"name": name, **details}, "$broker")


def reported() -> list[Sent]:
    """The events of a broker."""
    second = 10**9
    return [
        settled(
            "service a.b",
            sequences=[1, 2, 3],
            queued=BEGIN,
            delivered=[BEGIN + second, BEGIN + 4 * second, 0],
            attempts=[1, 3, 0],
            outcome=["acknowledged", "dead-lettered", "expired"],
        ),
        settled(
            "service a.b",
            sequences=[4],
            queued=BEGIN,
            delivered=BEGIN + second,
            attempts=1,
            outcome="acknowledged",
        ),
        settled(
            "mailbox bob", sequences=[1], queued=BEGIN, delivered=BEGIN, attempts=1, outcome="acknowledged"
        ),
        Sent(0, "service.settled.bad", b"\xc1", {"name": "bad"}, "$broker"),
        Sent(0, "client.connected.alice", b"", {"name": "alice"}, "$broker"),
        Sent(0, "subscription.replay.s", b"", {"name": "s", "address": "slow", "sequence": 5}, "$broker"),
        gap("subscription", "s", address="slow", first=3, last=6, reason="overwritten"),
        gap("subscription", "s", address="slow", first=7, last=99, reason="restart"),
        Sent(0, "feed.full.a_b", b"", {"name": "a.b", "stream": "s", "messages": 9}, "$broker"),
        gap("feed", "a.b", stream="s", first=5, last=5, reason="too-large"),
        Sent(0, "mailbox.expired.bob", b"", {"name": "bob", "count": 3}, "$broker"),
    ]


def test_what_the_broker_reports(together: Rows) -> None:
    tables = together
    assert sorted((r["queue"], r["outcome"], r["messages"], r["redeliveries"]) for r in tables["queues"]) == [
        ("mailbox bob", "acknowledged", 1, 0),
        ("service a.b", "acknowledged", 2, 0),
        ("service a.b", "dead-lettered", 1, 2),
        ("service a.b", "expired", 1, 0),
    ]
    times = {(row["queue"], row["time"]): row for row in tables["queue_times"]}
    assert near(times["service a.b", "queue_time"]["p50"], 1)
    assert near(times["service a.b", "queue_time"]["p99"], 4)
    assert near(times["service a.b", "processing_time"]["p50"], 9)
    assert near(times["service a.b", "total_time"]["p50"], 10)
    assert times["mailbox bob", "queue_time"]["p50"] == 0
    consumers = sorted(tables["consumers"], key=lambda row: row["consumer"])
    assert consumers == [
        {"stream": "s", "consumer": "service a.b", "fell_behind": 1, "gaps": 1, "missed": 1},
        {"stream": "s", "consumer": "slow", "fell_behind": 1, "gaps": 1, "missed": 4},
    ]
    assert [{**row, "window": 0} for row in sorted(tables["lag"], key=lambda row: row["consumer"])] == [
        {**row, "window": 0} for row in consumers
    ]
    waits = {(row["queue"], row["outcome"]): row for row in tables["settlements"]}
    assert {key: row["messages"] for key, row in waits.items()} == {
        (row["queue"], row["outcome"]): row["messages"] for row in tables["queues"]
    }
    assert waits["mailbox bob", "acknowledged"]["mean_wait"] == 0
    assert [waits["service a.b", "dead-lettered"][name] for name in ("mean_wait", "mean_total")] == [4, 10]
    assert one(tables["events"], event="client.connected")["times"] == 1
    assert one(tables["events"], event="mailbox.expired")["times"] == 3


def test_buckets_are_narrow() -> None:
    durations = np.unique(
        np.concatenate([np.arange(1, 3000), 2 ** np.arange(0, 62), 3 * 10 ** np.arange(0, 18)])
    )
    found = buckets(durations)
    middle = 2 ** ((found - 0.5) / EACH_DOUBLING)
    assert np.abs(middle / durations - 1).max() < 0.0221
    assert buckets(np.array([0, -5])).tolist() == [0, 0]


def test_values_beyond_the_limit_are_counted_and_bounded(tmp_path: Path) -> None:
    counts = {f"v{n}": 1 for n in range(VALUES_MAX)} | {"often": 5}
    messages = [Sent(0, headers={"h": value}) for value, count in counts.items() for _ in range(count)]
    write(tmp_path / "h", "s", [m._replace(sequence=n) for n, m in enumerate(messages, 1)], rows=10_000)
    history = ExportedHistory(str(tmp_path / "h"))
    found = read(history.location, history.pieces, partial_aggregates.COLUMNS, history.bounds)
    tables = [table.to_pylist() for table in partial_tables(found, 60 * 10**9, 1)]
    values = [row for rows in tables for row in rows if row["kind"] == "value"]
    assert len(values) == VALUES_MAX
    assert one(values, value="often")["messages"] == 5
    [rest] = [row for rows in tables for row in rows if row["kind"] == "rest"]
    assert (rest["messages"], rest["high"]) == (1, 1.0)


def test_the_rows_of_a_task_do_not_grow_with_the_messages(tmp_path: Path) -> None:
    """Twice as many messages of the same kind in a row group make as many rows, but for the last few."""
    sizes = []
    for count in (2000, 4000):
        messages = [
            Sent(n, f"a.{n % 20}", b"x", {"u": n % 3}, f"s{n % 5}", n * 0.01) for n in range(1, count + 1)
        ]
        write(tmp_path / str(count), "s", messages, rows=10_000)
        history = ExportedHistory(str(tmp_path / str(count)))
        found = list(read(history.location, history.pieces, partial_aggregates.COLUMNS, history.bounds))
        assert all(isinstance(part, HistoryPart) for part in found)
        sizes.append(sum(table.num_rows for table in partial_tables(iter(found), 3600 * 10**9, 1)))
    assert sizes[0] == sizes[1]
