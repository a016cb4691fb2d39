"""Maintenance of an export: joined files hold the same messages, expired days are gone, at every moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from errno import ENOSPC
from itertools import accumulate
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from depth import NIGHT
from histories import DAY, START, numbered, operations, run, store
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.errors import StorageFull, StoreCorrupt, StoreError, StoreLocked
from malamute.protocol.time_units import NS_PER_SECOND
from malamute.spark import export as exporting
from malamute.spark import maintenance
from malamute.spark.export import export
from malamute.spark.export_location import ExportLocation, Sink
from malamute.spark.history import open_history
from malamute.spark.layout import stream_directory
from malamute.spark.local import opened
from malamute.spark.manifest import load
from malamute.spark.scan import ExportedHistory
from malamute.spark.verify import verify
from malamute.store.operations import Reserve


class Case:
    """A stream's journal, and an export with a file for each step: messages, their time, and missing ones."""

    def __init__(self, path: Path, *steps: tuple[int, int] | tuple[int, int, int]) -> None:
        self.data, self.out = path / "data", path / "out"
        self.last = 0
        self.add(*steps)

    def add(self, *steps: tuple[int, int] | tuple[int, int, int]) -> None:
        """Publish and export more steps."""
        chunks, ends = [], []
        for count, when, *missing in steps:
            if sum(missing):
                self.last += sum(missing)
                chunks.append(Reserve("s", self.last))
            chunks.append(operations("s", self.last + 1, numbered(count, self.last + 1), when))
            self.last += count
            ends.append(self.last)
        store(self.data, *chunks)
        with open_history(data=str(self.data)) as history:
            for end in ends:
                export(history, "s", self.place, until=f"seq:{end + 1}")

    @property
    def place(self) -> ExportLocation:
        return ExportLocation(str(self.out))

    @property
    def files(self) -> list[str]:
        return self.place.data_files(stream_directory("s"))

    def table(self) -> pa.Table:
        tables = [pq.read_table(self.out / path, partitioning=None) for path in self.files]
        return pa.concat_tables(tables) if tables else pa.table({"sequence": pa.array([], pa.int64())})

    def sequences(self) -> list[int]:
        return [*self.table().column("sequence").to_pylist()]

    def faults(self) -> list[str]:
        with open_history(data=str(self.data)) as history:
            return [found.fault for found in verify(self.place, "s", history) if found.fault]


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=8))
def test_joined_files_hold_the_same_messages_by_day(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    times = accumulate((days * DAY for _, days, _ in steps), initial=START)
    next(times)
    plan = [(count, time, missing) for (count, _, missing), time in zip(steps, times, strict=True)]
    case = Case(tmp_path_factory.mktemp("case"), *plan)
    before = case.table()
    done = maintenance.compact(case.place, "s")
    assert case.table().equals(before)
    assert case.faults() == []
    assert len(case.files) == len({path.split("/")[1] for path in case.files}), "one file a day"
    assert len(steps) - done.files + done.into == len(case.files)
    assert maintenance.compact(case.place, "s")[1:] == (0, 0, 0)
    case.add((3, plan[-1][1]))
    assert case.sequences() == [*before.column("sequence").to_pylist(), *range(case.last - 2, case.last + 1)]
    assert case.faults() == []


def test_files_of_today_are_joined_when_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "OPEN_FILES", 5)
    # The day must not end during the test.
    later = time.time_ns() + DAY
    case = Case(tmp_path, *[(2, later)] * 4)
    assert maintenance.compact(case.place, "s").files == 0
    case.add((2, later))
    assert maintenance.compact(case.place, "s")[1:] == (5, 1, 10)
    assert case.sequences() == [*range(1, 11)]


def test_a_joined_file_is_no_larger_than_an_exported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "FILE_ROWS", 10)
    case = Case(tmp_path, *[(count, START) for count in (4, 6, 1, 9, 9, 2)])
    maintenance.compact(case.place, "s")
    places = [place.split("/")[-1][:41] for place in case.files]
    assert [tuple(map(int, place.split("-"))) for place in places] == [(1, 10), (11, 20), (21, 29), (30, 31)]
    assert case.faults() == []


def test_expired_days_are_gone_and_stay_away(tmp_path: Path) -> None:
    today = time.time_ns() // DAY * DAY
    case = Case(tmp_path, *[(10, today - days * DAY) for days in (9, 8, 3, 0)])
    left = maintenance.expire(case.place, "s", 5 * DAY // NS_PER_SECOND)
    assert (left.files, left.messages, left.last) == (2, 20, 20)
    assert case.sequences() == [*range(21, 41)]
    assert len([*case.out.rglob("date=*")]) == 2
    case.add((5, today))
    assert case.sequences() == [*range(21, 46)]
    assert case.faults() == []
    maintenance.expire(case.place, "s", -2 * DAY // NS_PER_SECOND)
    assert case.sequences() == []
    assert case.faults() == []
    case.add((5, today))
    assert case.sequences() == [*range(46, 51)]
    assert case.faults() == []


class Killed(BaseException):
    """The end of a process."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, call: Callable[[], Any]) -> bool:
    """Make a call which ends before the step-th thing that lasts, and does nothing after it."""
    left = step

    def killing(real: Callable[..., Any]) -> Callable[..., Any]:
        def does(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Killed
            return real(*args, **more)

        return does

    with monkeypatch.context() as patch:
        for of, name in ((Sink, "write"), (ExportLocation, "_sync"), (ExportLocation, "remove")):
            patch.setattr(of, name, killing(getattr(of, name)))
        patch.setattr(maintenance, "save", killing(maintenance.save))
        try:
            call()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("work", ["compact", "expire"])
def test_a_kill_at_any_moment_loses_nothing_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    today, step = time.time_ns() // DAY * DAY, 1
    case = Case(tmp_path / "case", *[(2, today - days * DAY) for days in (9, 9, 8, 8, 8, 1)])
    for end in ("", ".manifest"):
        Path(f"{case.out}{end}").rename(tmp_path / f"exported{end}")
    kept = [*range(1, 13)] if work == "compact" else [11, 12]
    calls: dict[str, Callable[[], Any]] = {
        "compact": lambda: maintenance.compact(case.place, "s"),
        "expire": lambda: maintenance.expire(case.place, "s", 5 * DAY // NS_PER_SECOND),
    }
    killed = True
    while killed:
        case.out = tmp_path / str(step)
        for end in ("", ".manifest"):
            copytree(tmp_path / f"exported{end}", f"{case.out}{end}")
        killed = killed_at(monkeypatch, step, calls[work])
        assert {*kept} <= {*case.sequences()}, "what is to stay is there at every moment"
        calls[work]()
        assert case.sequences() == kept
        assert [found.fault for found in verify(case.place, "s") if found.fault] == []
        step += 1 if NIGHT else 3
    assert step > 5


def test_a_disk_that_fills_up_while_files_are_joined_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, *[(50, START)] * 4)
    before = case.files
    with monkeypatch.context() as patch:
        full = Mock(write=Mock(side_effect=OSError(ENOSPC, "No space left on device")))
        real = Sink.__init__
        patch.setattr(Sink, "__init__", lambda sink, path, stream: real(sink, path, full))
        with pytest.raises(StorageFull, match="No space left"):
            maintenance.compact(case.place, "s")
    assert case.files == before
    assert case.faults() == []
    maintenance.compact(case.place, "s")
    assert len(case.files) == 1
    assert case.sequences() == [*range(1, 201)]
    assert case.faults() == []


def test_a_day_that_expires_while_it_is_read(tmp_path: Path) -> None:
    case = Case(tmp_path, (50, START), (50, START + DAY))
    with opened(ExportedHistory(str(case.out))) as engine:
        maintenance.expire(case.place, "s", 90 * 86_400)
        with pytest.raises(StoreError, match="parquet"):
            [*engine.answer("select max(subject) from history")]
    assert case.sequences() == []


def test_a_damaged_file_is_not_joined(tmp_path: Path) -> None:
    case = Case(tmp_path, *[(5, START)] * 3)
    files = case.files
    spoiled = bytearray((case.out / files[1]).read_bytes())
    spoiled[40] ^= 1
    (case.out / files[1]).write_bytes(spoiled)
    with pytest.raises(StoreCorrupt, match="is not as it was written"):
        maintenance.compact(case.place, "s")
    assert case.files == files
    with case.place.lock("s"), pytest.raises(StoreLocked):
        maintenance.expire(case.place, "s", 86_400)


def test_the_command_joins_and_expires(tmp_path: Path) -> None:
    today = time.time_ns() // DAY * DAY
    case = Case(tmp_path, *[(10, today - days * DAY) for days in (200, 100, 100, 1)])
    where = ("--data", str(case.data), "--to", str(case.out))
    said = run("journal", "export", *where, "--compact", "--expire", "150d")
    assert "s: 1 files of 10 messages have expired\n" in said
    assert "s: 2 files joined into 1\n" in said
    manifest = load(case.place, "s")
    assert manifest is not None
    assert [(file.part.first, file.part.last) for file in manifest.files] == [(11, 30), (31, 40)]
    assert manifest.expired.last == 10
