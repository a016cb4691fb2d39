"""Exported history, held against what was published; and what becomes of it when something goes wrong."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from depth import nightly
from histories import DAY, ROOT, START, Told, command, damage, numbered, operations, run, run_apart, store
from quiet import quiet_broker

import malamute
from malamute.errors import (
    ConfigError,
    InvalidValue,
    NotFound,
    StorageFull,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreTooNew,
)
from malamute.protocol.batch import Columns, pack_record
from malamute.spark import export as exporting
from malamute.spark.columns import Gatherer
from malamute.spark.export import Exported, export
from malamute.spark.export_location import ExportLocation, Sink
from malamute.spark.history import ExportGap, SequenceRange, open_history
from malamute.spark.layout import file_path, manifest_path, stream_directory
from malamute.spark.manifest import exported_streams, load, save
from malamute.spark.scan import ExportedHistory
from malamute.spark.schema import arrow_schema, parse_promoted
from malamute.spark.verify import verify
from malamute.store.operations import Reserve

KILLED = Path(__file__).with_name("killed_export.py")


def _export(data: Path, out: Path, stream: str = "s", **more: Any) -> Exported:
    with open_history(data=str(data)) as history:
        return export(history, stream, ExportLocation(str(out)), **more)


def _table(out: Path, stream: str = "s") -> pa.Table:
    """All that readers see of a stream, in the order of the files' names."""
    place = ExportLocation(str(out))
    return pa.concat_tables(
        [pq.read_table(out / path, partitioning=None) for path in place.data_files(stream_directory(stream))]
    )


def _faults(out: Path, data: Path | None = None, stream: str = "s") -> list[str]:
    place = ExportLocation(str(out))
    if data is None:
        return [found.fault for found in verify(place, stream) if found.fault]
    with open_history(data=str(data)) as history:
        return [found.fault for found in verify(place, stream, history) if found.fault]


def test_every_column(tmp_path: Path) -> None:
    time = START + 1_234_567_891
    messages = [
        Told("temp.oslo", {"t": -3.5, "n": 7, "who": "x", "ok": True, "nil": None}, b"body"),
        Told("", None, b""),
        Told("one", {"big": 2**64 - 1}, [b"ab", b"", b"c"]),
        Told("large", None, bytes(70_000)),
        Told("raw", "raw", b"no record"),
    ]
    store(tmp_path / "data", operations("s", 1, messages, time))
    done = _export(tmp_path / "data", tmp_path / "out", promoted={"t": "number"})
    assert (done.first, done.last, done.messages, done.files, done.malformed) == (1, 5, 5, 1, 1)
    table = _table(tmp_path / "out")
    assert table.schema.equals(arrow_schema({"t": "number"}))
    rows = table.to_pylist()
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["time"] for row in rows} == {datetime(2024, 10, 4, 0, 0, 1, 234_567, UTC)}
    assert {row["time_ns"] for row in rows} == {time}
    assert {row["sender"] for row in rows} == {"alice"}
    assert [row["parts"] for row in rows[:3]] == [["temp", "oslo"], [""], ["one"]]
    assert [row["body"] for row in rows] == [b"body", b"", b"abc", bytes(70_000), b"no record"]
    assert [row["size"] for row in rows] == [4, 0, 3, 70_000, 9]
    assert [row["frames"] for row in rows] == [None, None, [2, 0, 1], None, None]
    assert [row["h_t"] for row in rows] == [-3.5, None, None, None, None]
    assert rows[4]["headers"] is None
    assert rows[1]["headers"] == []
    nothing = dict.fromkeys(("text", "integer", "number", "flag"))
    assert dict(rows[2]["headers"]) == {"big": nothing | {"number": 2.0**64}}
    assert dict(rows[0]["headers"]) == {
        "t": nothing | {"number": -3.5},
        "n": nothing | {"integer": 7, "number": 7.0},
        "who": nothing | {"text": "x"},
        "ok": nothing | {"flag": True},
        "nil": nothing,
    }
    assert _faults(tmp_path / "out", tmp_path / "data") == []


def test_an_export_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(10)))
    assert _export(data, out).messages == 10
    before = sorted(out.rglob("*"))
    assert _export(data, out) == Exported("s", 0, 0, 0, 0, 0, 0, [])
    assert sorted(out.rglob("*")) == before
    store(data, operations("s", 11, numbered(5, 11)))
    assert _export(data, out)[:4] == ("s", 11, 15, 5)
    assert _table(out).column("sequence").to_pylist() == [*range(1, 16)]
    assert [path.name for path in sorted(out.rglob("*.parquet"))] == [
        f"{1:020}-{10:020}.parquet",
        f"{11:020}-{15:020}.parquet",
    ]


def test_files_end_with_the_day_and_at_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    monkeypatch.setattr(exporting, "FILE_ROWS", 20)
    monkeypatch.setattr("malamute.spark.columns.BATCH_ROWS", 10)
    times = [START, START + DAY - 1, START + DAY, START + 3 * DAY]
    store(
        data, *(operations("s", 1 + 20 * n, numbered(20, 1 + 20 * n), time) for n, time in enumerate(times))
    )
    assert _export(data, out).files == 4
    found = [(path.parent.name, path.name[:20].lstrip("0")) for path in sorted(out.rglob("*.parquet"))]
    assert found == [
        ("date=2024-10-04", "1"),
        ("date=2024-10-04", "21"),
        ("date=2024-10-05", "41"),
        ("date=2024-10-07", "61"),
    ]
    assert _table(out).column("sequence").to_pylist() == [*range(1, 81)]
    assert _faults(out, data) == []


def test_row_groups_report_their_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    monkeypatch.setattr("malamute.spark.columns.BATCH_ROWS", 10)
    store(data, *(operations("s", first, numbered(10, first)) for first in (1, 11, 21)))
    _export(data, out)
    [path] = out.rglob("*.parquet")
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(n).column(0) for n in range(metadata.num_row_groups)]
    assert [(g.statistics.min, g.statistics.max) for g in groups] == [(1, 10), (11, 20), (21, 30)]
    assert {group.compression for group in groups} == {"ZSTD"}


def test_since_and_until(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store(data, *(operations("s", 1 + 10 * n, numbered(10, 1 + 10 * n), START + n * DAY) for n in range(4)))
    for number, (since, until, first, last) in enumerate(
        [
            ("2024-10-05", "", 11, 40),
            ("", "2024-10-06", 1, 20),
            ("time:2024-10-05T00:00:00Z", "seq:25", 11, 24),
            ("seq:15", "", 15, 40),
            ("seq:41", "", 0, 0),
            ("", "2001-01-01", 0, 0),
        ]
    ):
        done = _export(data, tmp_path / str(number), since=since, until=until)
        assert (done.first, done.last) == (first, last), (since, until)
    # A later start leaves out what is between, and never goes back.
    out = tmp_path / "0"
    assert _export(data, out, since="seq:5").messages == 0


def test_what_is_unavailable_is_reported_and_the_rest_is_exported(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, *(operations("s", first, numbered(10, first)) for first in (1, 11, 21)), Reserve("s", 50))
    store(data, operations("s", 51, numbered(10, 51)))
    damage(data, 11)
    done = _export(data, out)
    gaps = [ExportGap(11, 20, "corrupt"), ExportGap(31, 50, "restart")]
    assert done.gaps == gaps
    assert _table(out).column("sequence").to_pylist() == [*range(1, 11), *range(21, 31), *range(51, 61)]
    manifest = load(ExportLocation(str(out)), "s")
    assert manifest is not None
    assert [gap for file in manifest.files for gap in file.part.gaps] == gaps
    assert _faults(out, data) == []


def test_a_payload_that_is_none_is_a_gap(tmp_path: Path) -> None:
    bad = operations("s", 3, numbered(2, 3))
    bad = bad._replace(chunk=bad.chunk._replace(payload=b"\xc1"), subjects=())
    store(tmp_path / "data", operations("s", 1, numbered(2)), bad, operations("s", 5, numbered(2, 5)))
    done = _export(tmp_path / "data", tmp_path / "out")
    assert done.gaps == [ExportGap(3, 4, "malformed")]
    assert done.messages == 4


def test_names_that_are_hard_on_a_file_system(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    streams = ["a/b", "..", "_a", "%2F", "$sys", "date=1", "{[*?]}", "ø" * 115]
    # The longest that a broker takes, one that grows when it is encoded, and one that others read as null.
    streams += ["x" * 250, "x" * 249 + "y", "/" * 91, "ø" * 116, "__HIVE_DEFAULT_PARTITION__"]
    store(data, *(operations(name, 1, numbered(1)) for name in streams))
    for name in streams:
        assert _export(data, out, name).messages == 1
        assert _faults(out, data, name) == []
    assert sorted(exported_streams(ExportLocation(str(out)))) == sorted(streams)
    assert len([*out.iterdir()]) == len(streams)
    assert ExportedHistory(str(out)).streams == sorted(streams)
    # A cut name is found without the manifest, too.
    for path in Path(f"{out}.manifest").glob("*.json"):
        path.unlink()
    assert exported_streams(ExportLocation(str(out))) == sorted(streams)
    assert ExportedHistory(str(out)).streams == sorted(streams)


def test_other_readers_take_the_directory_as_it_is(tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(10)), operations("t", 1, numbered(5)))

    def counts() -> set[int]:
        with duckdb.connect() as connection:
            [(found,)] = connection.execute(f"select count(*) from '{out}/**/*.parquet'").fetchall()
        return {
            found,
            len(pd.read_parquet(out)),
            polars.read_parquet(out).height,
            ds.dataset(out).count_rows(),
        }

    for stream in "st":
        _export(data, out, stream)
    place = ExportLocation(str(out))
    with suppress(Crash), place.writing("stream=s/date=2024-10-04/x.parquet") as sink:
        sink.write(b"PAR1")
        assert counts() == {15}, "a file that is being written is nowhere"
        raise Crash
    # An earlier version had the manifests and its unfinished files among the data.
    Path(f"{out}.manifest").rename(out / "_manifest")
    (out / "stream=s" / "date=2024-10-04" / "_writing.x.parquet").write_bytes(b"PAR1")
    assert _faults(out, data) == []
    store(data, operations("s", 11, numbered(5, 11)))
    assert _export(data, out).messages == 5
    assert counts() == {20}
    assert _faults(out, data) == [] == _faults(out, data, "t")
    assert not (out / "_manifest").exists()


def test_a_removed_export_begins_anew_and_a_mounted_one_has_its_manifest_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(10)))
    _export(data, out)
    shutil.rmtree(out)
    assert _export(data, out).messages == 10
    shutil.rmtree(out)
    shutil.rmtree(Path(f"{out}.manifest"))
    out.mkdir()
    monkeypatch.setattr(os.path, "ismount", str(out).__eq__)
    assert _export(data, out).messages == 10
    assert sorted(path.name for path in out.iterdir()) == ["_manifest", "stream=s"]
    assert _faults(out, data) == []
    assert _export(data, out).messages == 0


def test_all_streams_are_exported_whatever_their_names(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    streams = ["a", "/" * 91, "x" * 250, "z"]
    store(data, *(operations(name, 1, numbered(2)) for name in streams))
    rows = json.loads(run("journal", "export", "--data", str(data), "--to", str(out), "--json"))
    assert {row["stream"]: row["messages"] for row in rows} == dict.fromkeys(streams, 2)
    assert json.loads(run("journal", "export", "verify", "--from", str(out), "--json"))["good"]


def test_an_export_goes_on_in_its_own_store_alone(tmp_path: Path) -> None:
    out, before = tmp_path / "out", tmp_path / "before"
    for name, count in (("one", 5), ("shorter", 3), ("longer", 9)):
        store(tmp_path / name, operations("s", 1, numbered(count)))
    _export(tmp_path / "one", out)
    _export(tmp_path / "one", before)
    # As an earlier version has written it.
    [path] = Path(f"{before}.manifest").glob("*.json")
    value = json.loads(path.read_text())
    del value["crc32"], value["files"][0]["store"]
    path.write_text(json.dumps({**value, "crc32": zlib.crc32(json.dumps(value).encode())}))
    for name in ("shorter", "longer"):
        words = run(*("journal", "export", "--data", str(tmp_path / name), "--to", str(out)), code=1)
        assert "the export of 's' in" in words
        assert "export to another directory" in words
        faults = _faults(out, tmp_path / name)
        assert faults
        assert all("the file is of the store" in fault for fault in faults)
    # Of an export that an earlier version has made it is known only where it ends.
    with pytest.raises(StoreError, match="ends with 5, and the stream with 3: it is of another store"):
        _export(tmp_path / "shorter", before)
    assert _export(tmp_path / "longer", before).messages == 4
    assert _export(tmp_path / "one", out).messages == 0
    store(tmp_path / "one", operations("s", 6, numbered(1, 6)))
    assert _export(tmp_path / "one", out).messages == 1
    assert _faults(out, tmp_path / "one") == []


def test_an_export_goes_on_when_its_store_was_restored(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(5)))
    _export(data, out)
    run("journal", "backup", "--data", str(data), str(tmp_path / "copy"))
    with quiet_broker(tmp_path / "copy") as broker:
        with malamute.connect(broker.url) as client:
            client.publish("s", "a", b"new", assurance="stored")
        rows = json.loads(run("journal", "export", "--url", broker.url, "--to", str(out), "--json"))
        assert {row["stream"]: row["messages"] for row in rows}["s"] == 1
        assert json.loads(run("journal", "export", "verify", "--from", str(out), "--json"))["good"]
    # New messages of the restored one come before nothing of the old one.
    store(data, operations("s", 6, numbered(1, 6)))
    assert "export to another directory" in run(
        *("journal", "export", "--data", str(data), "--to", str(out)), code=1
    )


def test_a_broker_and_its_directory_are_one_store(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with quiet_broker(tmp_path / "data") as broker:
        with malamute.connect(broker.url) as client:
            client.publish("s", "a", b"", assurance="stored")
        run("journal", "export", "--url", broker.url, "--to", str(out))
    assert _export(tmp_path / "data", out).messages == 0


def test_a_later_since_leaves_a_gap_that_is_accounted_for(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, *(operations("s", n, numbered(10, n)) for n in (1, 11, 21)))
    assert _export(data, out, since="seq:5", until="seq:10").gaps == []
    done = _export(data, out, since="seq:20", until="seq:25")
    assert (done.first, done.last, done.gaps) == (20, 24, [ExportGap(10, 19, "left-out")])
    assert _export(data, out, since="seq:25").gaps == []
    # A start behind the end leaves nothing behind, because nothing follows it yet.
    assert _export(data, out, since="seq:99").gaps == []
    assert _faults(out, data) == []
    words = run("journal", "export", "--data", str(data), "--to", str(tmp_path / "2"), "--until", "seq:3")
    words = run("journal", "export", "--data", str(data), "--to", str(tmp_path / "2"), "--since", "seq:9")
    assert "s: no 3 to 8, left-out" in words


def test_promoted_headers_stay_those_of_the_first_export(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(2)))
    _export(data, out, promoted={"n": "integer"})
    store(data, operations("s", 3, numbered(2, 3)))
    with pytest.raises(InvalidValue, match="other promoted headers"):
        _export(data, out, promoted={"n": "text"})
    assert _export(data, out).messages == 2
    assert _table(out).column("h_n").to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("words", ["n", "n:", ":text", "n:int", ""])
def test_a_promotion_needs_a_name_and_a_type(words: str) -> None:
    with pytest.raises(InvalidValue, match="invalid promoted header"):
        parse_promoted(words)


def test_promoted_headers_of_one_name_in_spark_are_refused() -> None:
    assert parse_promoted("a:b:text") == ("a:b", "text")
    with pytest.raises(InvalidValue, match="upper and lower case"):
        arrow_schema({"n": "text", "N": "text"})


def test_an_unknown_stream_and_no_store(tmp_path: Path) -> None:
    store(tmp_path / "data", operations("s", 1, numbered(1)))
    with pytest.raises(NotFound, match="no stream 'other'"):
        _export(tmp_path / "data", tmp_path / "out", "other")
    assert not (tmp_path / "out").exists()
    with pytest.raises(malamute.MalamuteError, match="there is no store"):
        _export(tmp_path / "none", tmp_path / "out")
    with pytest.raises(ConfigError, match="expected either a data directory or"):
        open_history()
    with pytest.raises(ConfigError, match="cannot use what://"):
        ExportLocation("what://is/that")


def test_an_empty_stream_is_exported_as_nothing(tmp_path: Path) -> None:
    store(tmp_path / "data", Reserve("s", 10))
    assert _export(tmp_path / "data", tmp_path / "out").messages == 0
    assert [*(tmp_path / "out").rglob("*.parquet")] == []


def test_one_process_exports_a_stream_at_a_time(tmp_path: Path) -> None:
    store(tmp_path / "data", operations("s", 1, numbered(1)))
    with (
        ExportLocation(str(tmp_path / "out")).lock("s"),
        pytest.raises(StoreLocked, match="another process exports 's'"),
    ):
        _export(tmp_path / "data", tmp_path / "out")
    assert _export(tmp_path / "data", tmp_path / "out").messages == 1


class Crash(Exception):
    pass


@pytest.mark.parametrize("call", ["move", "delete_file", "create_dir", "open_output_stream"])
def test_a_fault_leaves_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The n-th use of the file system fails: what is visible is whole, and the next export completes it."""
    data = tmp_path / "data"
    monkeypatch.setattr(exporting, "FILE_ROWS", 5)
    monkeypatch.setattr("malamute.spark.columns.BATCH_ROWS", 5)
    store(data, *(operations("s", first, numbered(5, first)) for first in (1, 6, 11)))
    for number in range(1, 20):
        out = tmp_path / str(number)
        place, left = ExportLocation(str(out)), [number]
        real = place.system

        class Faulty:
            def __getattr__(self, name: str, real: Any = real, left: list[int] = left) -> Any:
                method = getattr(real, name)
                if name != call:
                    return method

                def counted(*args: Any, **more: Any) -> Any:
                    left[0] -= 1
                    if not left[0]:
                        raise Crash
                    return method(*args, **more)

                return counted

        monkeypatch.setattr(place, "_system", Faulty())
        try:
            with open_history(data=str(data)) as history:
                export(history, "s", place)
        except Crash:
            crashed = True
        else:
            crashed = False
        sequences = [s for file in sorted(out.rglob("*.parquet")) for s in _sequences(file)]
        assert sequences == [*range(1, len(sequences) + 1)]
        _export(data, out)
        assert _table(out).column("sequence").to_pylist() == [*range(1, 16)]
        assert _faults(out, data) == []
        assert [*Path(f"{out}.manifest").rglob("*.parquet")] == []
        if not crashed:
            assert number > 1 or call == "delete_file"
            return
    raise AssertionError("it never ran through")


def _sequences(file: Path) -> list[int]:
    return pq.read_table(file, partitioning=None).column("sequence").to_pylist()


def test_a_file_that_was_not_entered_is_entered_by_the_next_export(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(3)))
    _export(data, out)
    manifest = Path(f"{out}{manifest_path('s')}")
    reported = manifest.read_text()
    store(data, operations("s", 4, numbered(3, 4)))
    _export(data, out)
    manifest.write_text(reported)
    assert _faults(out) == ["not in the manifest; the next export enters it"]
    assert _export(data, out).messages == 0
    assert _faults(out, data) == []
    manifest.unlink()
    assert _export(data, out).messages == 0
    assert _faults(out, data) == []
    [stray] = [path for path in out.rglob("*.parquet") if path.name.startswith(f"{4:020}")]
    stray.rename(stray.with_name("other.parquet"))
    with pytest.raises(StoreCorrupt, match=r"other\.parquet is not in the manifest, and does not follow"):
        _export(data, out)
    stray.with_name("other.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreCorrupt, match=r"other\.parquet is no Parquet file"):
        _export(data, out)


def test_verify_finds_what_is_wrong(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, [*numbered(5), Told("nan", {"x": float("nan")})]))
    _export(data, out)
    assert _faults(out, data) == []
    [path] = out.rglob("*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert _faults(out) == ["wrong CRC"]
    path.write_bytes(whole[:-1])
    assert _faults(out) == [f"{len(whole) - 1} bytes, and {len(whole)} were written"]
    path.unlink()
    [fault] = _faults(out)
    assert "No such file" in fault
    path.write_bytes(whole)
    written = load(place := ExportLocation(str(out)), "s")
    assert written is not None
    [file] = written.files
    for change, reported in (
        ({"count": 7}, "7 messages where 6 belong, from 1 to 6"),
        ({"malformed": 1}, "its footer differs from the manifest"),
    ):
        save(place, written._replace(files=(file._replace(part=file.part._replace(**change)),)))
        assert _faults(out) == [reported]
    manifest = Path(f"{out}{manifest_path('s')}")
    newer = json.loads(manifest.read_text()) | {"format": 2}
    manifest.write_text(json.dumps(newer))
    assert _faults(out) == [".manifest/stream=s.json is not as it was written: wrong CRC"]
    del newer["crc32"]
    manifest.write_text(json.dumps(newer))
    with pytest.raises(StoreTooNew, match="export has format 2"):
        _faults(out)
    manifest.write_text(json.dumps(newer | {"format": 1}))
    assert _faults(out) == [".manifest/stream=s.json is not as it was written: no CRC"]
    damaged: list[dict[str, Any]] = [
        {"files": [{**newer["files"][0], "size": "1"}]},
        {"files": [{**newer["files"][0], "first": None}]},
        {"files": [{**newer["files"][0], "limited": 0}]},
        {"files": [{**newer["files"][0], "gaps": [["1", 2, "x"]]}]},
    ]
    changed = (json.dumps({**newer, "format": 1, **change}) for change in damaged)
    for text in ("{}", "[" * 100_000, *changed):
        manifest.write_text(text)
        assert "is no manifest" in _faults(out)[0]
    manifest.unlink()
    assert _faults(out) == [".manifest/stream=s.json is not there"]
    with pytest.raises(NotFound, match="no export of the stream 't'"):
        _faults(out, stream="t")


def test_verify_compares_with_the_journal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    store(tmp_path / "data")
    for copy in ("other", "later"):
        shutil.copytree(tmp_path / "data", tmp_path / copy)
    store(tmp_path / "data", operations("s", 1, numbered(5)))
    _export(tmp_path / "data", out)
    store(tmp_path / "other", operations("s", 1, [*numbered(4), Told("a.5", {"n": 6}, b"5")]))
    assert _faults(out, tmp_path / "other") == ["differs from the journal between 1 and 5"]
    # Messages that the journal does not have any more cannot be compared.
    store(tmp_path / "later", operations("s", 4, numbered(2, 4)))
    with open_history(data=str(tmp_path / "later")) as history:
        assert history.streams()["s"] == SequenceRange(4, 5)
        [found] = verify(ExportLocation(str(out)), "s", history)
    assert (found.compared, found.fault) == (2, "")


def test_an_export_beside_a_broker_that_publishes(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    begun, enough, published = threading.Event(), threading.Event(), 0

    def publish(url: str) -> None:
        nonlocal published
        with malamute.connect(url) as client:
            while not enough.is_set():
                client.publish("s", "a.b", b"%d" % published, {"n": published}, assurance="stored")
                published += 1
                begun.set()

    with quiet_broker(data) as broker:
        url = broker.url
        publisher = threading.Thread(target=publish, args=(url,))
        publisher.start()
        exported = []
        try:
            assert begun.wait(60)
            for _ in range(2):
                reported = run_apart("journal", "export", "--data", str(data), "--to", str(out), "--json")
                exported.append(sum(row["messages"] for row in json.loads(reported)))
        finally:
            enough.set()
            publisher.join()
        # Each of them had something new, so it was published while they went on.
        assert all(exported)
        run_apart("journal", "export", "--data", str(data), "--to", str(out))
        assert "good" in run("journal", "export", "verify", "--from", str(out), "--url", url)
        assert "good" in run_apart("journal", "export", "verify", "--from", str(out), "--data", str(data))
    assert _table(out).column("body").to_pylist() == [b"%d" % n for n in range(published)]


def test_a_live_broker_gives_the_same_as_its_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store(data, *(operations("s", first, numbered(10, first)) for first in (1, 11, 21)), Reserve("s", 50))
    store(data, operations("s", 51, numbered(10, 51), START + DAY))
    damage(data, 11)
    _export(data, tmp_path / "one")
    with quiet_broker(data) as broker, open_history(url=broker.url) as history:
        done = export(history, "s", ExportLocation(str(tmp_path / "two")))
        assert done.gaps == [ExportGap(11, 20, "corrupt"), ExportGap(31, 50, "restart")]
        assert (
            export(history, "s", ExportLocation(str(tmp_path / "three")), since="2024-10-05").messages == 10
        )
        with pytest.raises(NotFound):
            export(history, "t", ExportLocation(str(tmp_path / "three")))
    assert _table(tmp_path / "one").equals(_table(tmp_path / "two"))


def test_following_until_interrupted(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    with quiet_broker(data) as broker, malamute.connect(broker.url) as client:
        client.publish("s", "a", b"1", assurance="stored")
        where = ("--data", str(data), "--to", str(out))
        process = command("journal", "export", *where, "--follow", "--every", "0.1", "--json")
        assert process.stdout is not None
        assert json.loads(_block(process.stdout))[0]["last"] == 1
        client.publish("s", "a", b"2", assurance="stored")
        while not (rows := json.loads(_block(process.stdout))):
            pass
        assert (rows[0]["first"], rows[0]["last"]) == (2, 2)
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr is not None
        process.stderr.close()
    assert _faults(out, data) == []


def _block(lines: Any) -> str:
    """One JSON text, which is printed on lines of its own."""
    text = lines.readline()
    if text.strip() == "[":
        while (line := lines.readline()).rstrip() != "]":
            text += line
        text += "]"
    return text


@nightly
def test_an_export_that_is_killed_again_and_again(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, *(operations("s", first, numbered(500, first)) for first in range(1, 8001, 500)))
    killed = 0
    for left in range(30, 1000, 29):
        arguments = [sys.executable, "-W", "error", str(KILLED), str(left), str(data), str(out)]
        done = subprocess.run(arguments, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=60)
        # Visible files are whole at every moment.
        sequences = [s for file in sorted(out.rglob("*.parquet")) for s in _sequences(file)]
        assert sequences == [*range(1, len(sequences) + 1)]
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        killed += 1
    assert killed >= 3
    assert _table(out).column("sequence").to_pylist() == [*range(1, 8001)]
    assert _faults(out, data) == []
    assert [*Path(f"{out}.manifest").rglob("*.parquet")] == []


def test_the_command_shows_what_is_wrong(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, *(operations("s", first, numbered(10, first)) for first in (1, 11, 21)))
    damage(data, 11)
    reported = run("journal", "export", "--data", str(data), "--to", str(out), "--stream", "s")
    assert "s: no 11 to 20, corrupt" in reported
    [path] = out.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    assert "1 wrong" in run("journal", "export", "verify", "--from", str(out), code=1)
    assert "no export in" in run("journal", "export", "verify", "--from", str(data), code=1)
    assert "error 404" in run(
        "journal", "export", "--data", str(data), "--to", str(out), "--stream", "t", code=1
    )
    where = ("--data", str(data), "--to", str(out))
    assert "--follow with --until" in run("journal", "export", *where, "--follow", "--until", "1d", code=2)
    assert "invalid promoted header" in run("journal", "export", *where, "--promote", "x", code=2)


def test_a_place_at_a_url(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store(data, operations("s", 1, numbered(10)))
    # A file system in memory stands for those that are not on this machine.
    for url in ("mock:///bucket/history", f"file://{tmp_path}/out"):
        place = ExportLocation(url)
        with open_history(data=str(data)) as history:
            assert export(history, "s", place).messages == 10
            assert export(history, "s", place).messages == 0
            assert [found.fault for found in verify(place, "s", history)] == [""]


@pytest.mark.parametrize("write", [1, 5, 10_000_000])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """The disk is full at the n-th write of data, or when the file is ended."""
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, operations("s", 1, numbered(10)))
    left = [write]

    class Full:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def write(self, data: memoryview) -> None:
            left[0] -= 1
            if left[0] == 0 or (write > 5 and bytes(data).endswith(b"PAR1") and left[0] < write - 1):
                raise OSError(errno.ENOSPC, "No space left on device")
            self.stream.write(data)

        def close(self) -> None:
            self.stream.close()

    real = Sink.__init__
    monkeypatch.setattr(Sink, "__init__", lambda sink, path, stream: real(sink, path, Full(stream)))
    with pytest.raises(StorageFull, match="No space left"):
        _export(data, out)
    monkeypatch.undo()
    assert [*out.rglob("*.parquet")] == []
    assert _export(data, out).messages == 10
    assert _faults(out, data) == []


def test_paths() -> None:
    assert file_path("a/b", "2024-10-04", 1, 20) == (f"stream=a%2Fb/date=2024-10-04/{1:020}-{20:020}.parquet")


def test_a_column_says_when_a_message_expires() -> None:
    gatherer = Gatherer()
    plain = ["s", "s"], [pack_record(None, b"x")] * 2
    gatherer.add(Columns(1, 1_000_000_000, "", *plain, ttls=[0, 1500]))
    gatherer.add(Columns(3, 2_000_000_000, "", *plain))
    gatherer.add(Columns(5, 3_000_000_000, "", *plain, ttls=1))
    found = gatherer.take().column("expires").to_pylist()
    assert [moment and moment.timestamp() for moment in found] == [None, 2.5, None, None, 3.001, 3.001]


def test_deleted_messages_are_gaps_of_an_export_from_the_broker_and_from_its_directory(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with quiet_broker(data) as broker, malamute.connect(broker.url, timeout=60) as client:
        for number in range(9):
            client.publish("s", "abc"[number % 3], f"personal-{'abc'[number % 3]}")
        deleted = client.change("stream.delete-messages", stream="s", subject="b")
        assert deleted["messages"] == 3
        assert client.change("stream.delete-messages", stream="s", sequence=9)["messages"] == 1
        with open_history(url=broker.url) as history:
            live = export(history, "s", ExportLocation(str(tmp_path / "live")))
    read = _export(data, tmp_path / "read")
    for out, done in (("live", live), ("read", read)):
        rows = _table(tmp_path / out).to_pylist()
        assert [(row["sequence"], row["subject"]) for row in rows] == [
            (1, "a"), (3, "c"), (4, "a"), (6, "c"), (7, "a")
        ]  # fmt: skip
        gaps = [(gap.first, gap.last, gap.reason) for gap in done.gaps]
        assert gaps[:2] == [(2, 2, "deleted"), (5, 5, "deleted")]
        assert {reason for *_, reason in gaps} == {"deleted"}
        assert _faults(tmp_path / out, data) == []
        files = [path.read_bytes() for path in (tmp_path / out).rglob("*") if path.is_file()]
        assert not any(b"personal-b" in content for content in files)
