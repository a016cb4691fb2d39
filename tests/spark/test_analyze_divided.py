"""However a history is divided among files, row groups and tasks, the analysis finds the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from history_files import Sent, write

from malamute.spark import analyze_parts, scan
from malamute.spark.analyze_whole import Known, whole
from malamute.spark.scan import History, Part, Piece, deal, read

WINDOW = 10 * 10**9
DAY = 86_400


def messages_of(count: int) -> list[Sent]:
    """Messages with holes, of senders of whom some fall silent, with headers of all types."""
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


def tables(hands: Sequence[Sequence[Piece]], history: History) -> list[dict[str, Any]]:
    """The rows of all tables, as tasks with these files make them."""
    parts = [
        batch
        for hand in hands
        for batch in analyze_parts.partial_tables(
            read(history.location, hand, analyze_parts.COLUMNS, history.bounds), WINDOW, 1
        )
    ]
    runs = [row for batch in parts for row in batch.to_pylist() if row["kind"] == "run"]
    ends = {row["stream"]: max(r["last_time"] for r in runs if r["stream"] == row["stream"]) for row in runs}
    found = [row for batch in whole(parts, Known(ends, {})) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: [str(row[name]) for name in ("kind", *KEYS)])


KEYS = ("stream", "name", "value", "slot", "first")


def test_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, count in (("s", 240), ("other", 60)):
        messages = messages_of(count)
        write(tmp_path / "one", stream, messages)
        for start in range(0, count, 20):
            write(tmp_path / "many", stream, messages[start : start + 20], rows=6)
    one, many = History(str(tmp_path / "one")), History(str(tmp_path / "many"))
    monkeypatch.setattr(scan, "PART_ROWS", 1)  # each row group is a part
    monkeypatch.setattr(scan, "SHARE_BYTES", 1)
    expected = tables([one.pieces], one)
    assert {row["kind"] for row in expected} >= {"stream", "heard", "hole", "interval", "header", "value"}
    assert not any(row["crossed"] for row in expected)
    for tasks in (1, 4, 50):
        found = tables(deal(many.pieces, tasks)[::-1], many)
        for row, same in zip(found, expected, strict=True):
            assert row == {k: v if not isinstance(v, float) else pytest.approx(v) for k, v in same.items()}


def test_small_files_of_a_day_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(1, 13):
        day = 0 if first <= 7 else DAY
        numbers = range(10 * first, 10 * first + 10)
        write(tmp_path / "h", "s", [Sent(n, f"a.{n}", headers={"h": str(n)}, seconds=day) for n in numbers])
    write(tmp_path / "h", "t", [Sent(1)])
    history = History(str(tmp_path / "h"))

    def sizes() -> list[tuple[str, int]]:
        found = [*read(history.location, history.pieces, ("sequence", "subject", "headers"), history.bounds)]
        parts = [part for part in found if isinstance(part, Part)]
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
    history = History(str(tmp_path / "h"))
    found = tables([history.pieces], history)
    [stream] = [row for row in found if row["kind"] == "stream"]
    assert (stream["gaps"], stream["missing"], stream["doubles"], stream["crossed"]) == (2, 3, 2, False)
    assert [(row["first"], row["last"]) for row in found if row["kind"] == "hole"] == [(4, 4), (7, 8)]
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
