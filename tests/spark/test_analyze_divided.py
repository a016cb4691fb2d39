"""However a history is divided among files, row groups and tasks, the analysis finds the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from depth import some
from history_files import Sent, write

from malamute.spark import local, partial_aggregates, scan
from malamute.spark.analyze_tables import AnalyzeOptions
from malamute.spark.final_aggregates import PERCENTILES, PERCENTS, Known, whole
from malamute.spark.partial_aggregates import EACH_DOUBLING
from malamute.spark.scan import ExportedHistory, HistoryPart, Piece, deal, read

if TYPE_CHECKING:
    pass

WINDOW = 10 * 10**9
DAY = 86_400


def messages_of(count: int) -> list[Sent]:
    """Messages with gaps, of senders of whom some fall silent, with headers of all types."""
    chance = Random(3)
    seconds, sequence, found = 0.0, 0, []
    for number in range(count):
        seconds += chance.choice([0, 0.001, 0.5])
        sequence += chance.choice([1, 1, 1, 4])
        headers = {
            "price": chance.gauss(100, 20),
            "unit": chance.choice("CFK"),
            "n": number % 9,
            "open": True,
        }
        sender = "gone" if number < count // 3 and number % 7 == 0 else chance.choice(["alice", "bob", ""])
        found.append(Sent(sequence, f"{chance.choice('ab')}.{number % 20}", b"x", headers, sender, seconds))
    return found


def tables(hands: Sequence[Sequence[Piece]], history: ExportedHistory) -> list[dict[str, Any]]:
    """The rows of all tables, as tasks with these files make them."""
    parts = [
        batch
        for hand in hands
        for batch in partial_aggregates.partial_tables(
            read(history.location, hand, partial_aggregates.COLUMNS, history.bounds), WINDOW, 1
        )
    ]
    rows = [row for batch in parts for row in batch.to_pylist()]
    ends: Counter[str] = Counter()
    windows: Counter[tuple[str, int]] = Counter()
    for row in rows:
        if row["kind"] == "run":
            ends[row["stream"]] = max(ends[row["stream"]], row["last_time"])
        elif row["kind"] == "window":
            windows[row["stream"], row["slot"]] += row["messages"]
    most = {stream: max(n for (of, _), n in windows.items() if of == stream) for stream in ends}
    found = [row for batch in whole(parts, Known(ends, most, {})) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: [str(row[name]) for name in ("kind", *KEYS)])


KEYS = ("stream", "name", "value", "slot", "first")


def test_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, count in (("s", 240), ("other", 60)):
        messages = messages_of(count)
        write(tmp_path / "one", stream, messages)
        for start in range(0, count, 20):
            write(tmp_path / "many", stream, messages[start : start + 20], rows=6)
    one, many = ExportedHistory(str(tmp_path / "one")), ExportedHistory(str(tmp_path / "many"))
    monkeypatch.setattr(scan, "PART_ROWS", 1)  # each row group is a part
    monkeypatch.setattr(scan, "SHARE_BYTES", 1)
    expected = tables([one.pieces], one)
    assert {row["kind"] for row in expected} >= {
        "stream",
        "sender_total",
        "gap",
        "interval",
        "header",
        "value",
    }
    assert not any(row["crossed"] for row in expected)
    for tasks in (1, 4, 50):
        found = tables(deal(many.pieces, tasks)[::-1], many)
        for row, same in zip(found, expected, strict=True):
            assert row == {k: v if not isinstance(v, float) else pytest.approx(v) for k, v in same.items()}


class Plain(NamedTuple):
    """The result of one pass over all messages, without partial sums."""

    gaps: list[tuple[int, int]]
    fullest: int
    steps: dict[str | None, list[int]]
    """From one message to the next, in nanoseconds, of each sender and of all (None)."""
    silences: dict[str, tuple[int, int]]
    """The longest of each sender, and since when."""

    @classmethod
    def of(cls, messages: Sequence[Sent]) -> Plain:
        messages = sorted(messages)
        times: dict[str | None, list[int]] = {None: [message.time_ns for message in messages]}
        for message in messages:
            times.setdefault(message.sender, []).append(message.time_ns)
        end = messages[-1].time_ns
        return cls(
            [(a.sequence + 1, b.sequence - 1) for a, b in pairwise(messages) if b.sequence > a.sequence + 1],
            max(Counter(message.time_ns // WINDOW for message in messages).values()),
            {name: [b - a for a, b in pairwise(of)] for name, of in times.items()},
            {
                name: max((b - a, a) for a, b in pairwise([*of, end]))
                for name, of in times.items()
                if name is not None
            },
        )

    def percentiles(self, name: str | None) -> list[Any]:
        steps = sorted(self.steps[name])
        wanted = [steps[max(0, math.ceil(share * len(steps)) - 1)] / 1e9 for share in PERCENTILES]
        return [pytest.approx(value, rel=2 ** (1 / EACH_DOUBLING) - 1) for value in wanted]


def three_senders(count: int) -> list[Sent]:
    """One that is always heard, one that falls silent now and then, and one that does for good."""
    chance = Random(5)
    seconds, sequence, found = 0.0, 0, []
    for number in range(count):
        seconds += chance.expovariate(10)
        sequence += chance.choice([1] * 30 + [3])
        sender = "steady"
        if chance.random() < 0.3 and number % 500 < 300:
            sender = chance.choice(["rare", "gone"]) if number < count // 2 else "rare"
        found.append(Sent(sequence, f"a.{number % 3}", b"x", None, sender, seconds))
    return found


@pytest.mark.parametrize(
    "blocks", some([True, False], True), ids=lambda each: "by row groups" if each else "by messages"
)
def test_interleaved_files_are_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: bool) -> None:
    """Three files with a third of the messages each; the sums of 60 row groups come together."""
    messages = three_senders(3000)
    for file in range(3):
        each = [m for n, m in enumerate(messages) if (n // 50 if blocks else n) % 3 == file]
        write(tmp_path / "h", "s", each, rows=50)
    history = ExportedHistory(str(tmp_path / "h"))
    if blocks:
        monkeypatch.setattr(scan, "PART_ROWS", 1)  # each row group is a part
    pieces = read(history.location, history.pieces, partial_aggregates.COLUMNS, history.bounds)
    batches = [*partial_aggregates.partial_tables(pieces, WINDOW, 1)]
    Random(2).shuffle(batches)
    monkeypatch.setattr(
        local, "_add_parts", lambda engine, parts, *_: [engine.add(parts, batch) for batch in batches]
    )
    monkeypatch.setattr(local, "ROWS_EACH", 200)
    with local.analysed(history, AnalyzeOptions(window_seconds=WINDOW // 10**9)) as (engine, tables):
        found = {name: engine.rows(tables[name]) for name in ("streams", "senders", "gaps")}
    plain = Plain.of(messages)
    [stream] = found["streams"]
    assert (stream["gaps"], stream["duplicates"]) == (len(plain.gaps), 0)
    assert sorted((gap["first"], gap["last"]) for gap in found["gaps"]) == plain.gaps
    assert stream["peak_per_second"] == plain.fullest * 10**9 / WINDOW
    assert [stream[name] for name in PERCENTS] == plain.percentiles(None)
    assert {sender["sender"] for sender in found["senders"]} == {"steady", "rare", "gone"}
    for sender in found["senders"]:
        silence, since = plain.silences[sender["sender"]]
        assert sender["longest_silence"] == pytest.approx(silence / 1e9)
        assert sender["silent_since"].timestamp() == pytest.approx(since / 1e9, abs=1e-5)
        assert [sender[name] for name in PERCENTS] == plain.percentiles(sender["sender"])


def test_small_files_of_a_day_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(1, 13):
        day = 0 if first <= 7 else DAY
        numbers = range(10 * first, 10 * first + 10)
        write(tmp_path / "h", "s", [Sent(n, f"a.{n}", headers={"h": str(n)}, seconds=day) for n in numbers])
    write(tmp_path / "h", "t", [Sent(1)])
    history = ExportedHistory(str(tmp_path / "h"))

    def sizes() -> list[tuple[str, int]]:
        found = [*read(history.location, history.pieces, ("sequence", "subject", "headers"), history.bounds)]
        parts = [part for part in found if isinstance(part, HistoryPart)]
        assert len(parts) == len(found)
        rows = [row for part in parts if part.stream == "s" for row in part.batch.to_pylist()]
        assert [row["sequence"] for row in rows] == [*range(10, 130)]
        for row in rows:
            assert row["subject"] == f"a.{row['sequence']}"
            assert dict(row["headers"])["h"]["text"] == str(row["sequence"])
        return [(part.stream, part.batch.num_rows) for part in parts]

    assert sizes() == [("s", 70), ("s", 50), ("t", 1)]
    monkeypatch.setattr(scan, "PART_ROWS", 30)
    assert sizes() == [("s", 30), ("s", 30), ("s", 10), ("s", 30), ("s", 20), ("t", 1)]
    monkeypatch.setattr(scan, "PART_BYTES", 1)
    assert sizes() == [*[("s", 10)] * 12, ("t", 1)]


def test_small_files_that_overlap_are_exact_where_one_task_reads_them(tmp_path: Path) -> None:
    for numbers in ([1, 2, 5, 6], [2, 3, 6, 9]):
        write(tmp_path / "h", "s", [Sent(n) for n in numbers])
    history = ExportedHistory(str(tmp_path / "h"))
    found = tables([history.pieces], history)
    [stream] = [row for row in found if row["kind"] == "stream"]
    assert (stream["gaps"], stream["missing"], stream["duplicates"], stream["crossed"]) == (2, 3, 2, False)
    assert [(row["first"], row["last"]) for row in found if row["kind"] == "gap"] == [(4, 4), (7, 8)]
    apart = tables([history.pieces[:1], history.pieces[1:]], history)
    assert [row["crossed"] for row in apart if row["kind"] == "stream"] == [True]


def test_tasks_get_runs_of_files_of_about_the_same_size() -> None:
    chance = Random(1)
    sizes = [chance.choice([1, 1000, 10**6, 10**8]) for _ in range(500)]
    pieces = [Piece("s", "2024-01-01", f"{number:05}", size) for number, size in enumerate(sizes)]
    hands = deal(pieces, 6)
    shares = [piece for hand in hands for piece in hand]
    assert shares == sorted(shares)
    assert Counter(piece.path for piece in shares) == {
        path: shares_of for path, shares_of in ((p.path, p.shares) for p in shares)
    }
    costs = [sum(piece.size_bytes + scan.OPEN_BYTES for piece in hand) for hand in hands]
    assert len(hands) == 6
    assert max(costs) < 1.2 * min(costs)
    assert deal([], 6) == []
    assert len(deal(pieces[:1], 6)) == 1
