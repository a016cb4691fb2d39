"""Exported files, read so that no damage goes unnoticed; tests/crash damages them by thousands."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import Told, numbered, operations, run, store
from hypothesis import given
from hypothesis import strategies as st

from malamute.errors import StoreCorrupt
from malamute.spark import read_export, reading
from malamute.spark.checked_file import CheckedFile, open_checked
from malamute.spark.checksums import Blocks, footer_lead, is_footer
from malamute.spark.export import export
from malamute.spark.export_location import ExportLocation, Sink
from malamute.spark.history import open_history
from malamute.spark.layout import manifest_path
from malamute.spark.manifest import described, exported_streams, load, read_footer, settle
from malamute.spark.options import SourceOptions
from malamute.spark.reading import LostRange, ReadQuery, read, slices
from malamute.spark.scan import ExportDamage, ExportedHistory, HistoryBounds
from malamute.spark.scan import read as read_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Memory:
    """A file in memory."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: memoryview) -> None:
        self.data += data


@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=12), st.data())
def test_every_read_has_the_bytes_or_reports_them(sizes: list[int], data: st.DataObject) -> None:
    memory = Memory()
    sink = Sink("f", memory)
    for number, size in enumerate(sizes):
        sink.write(bytes([number]) * size)
    sink.end_block()
    blocks, whole = Blocks.decode(sink.blocks.encode()), memory.data
    assert (blocks, blocks.ends[-1]) == (sink.blocks, len(whole))
    assert max(b - a for a, b in zip(blocks.ends, blocks.ends[1:], strict=False)) <= max(*sizes, 16_384)
    wrong = data.draw(st.integers(0, len(whole) - 1) | st.none())
    damaged = bytearray(whole)
    if wrong is not None:
        damaged[wrong] ^= 0x10
    file = CheckedFile(pa.BufferReader(damaged), blocks, b"tail")
    start = file.seek(data.draw(st.integers(0, len(whole) - 1)))
    size = data.draw(st.integers(1, len(whole) - start))
    read = blocks.around(start, start + size)
    if wrong is not None and blocks.ends[read[0] - 1] <= wrong < blocks.ends[read[-1]]:
        with pytest.raises(StoreCorrupt, match="wrong CRC of the bytes"), file.whole():
            assert file.read(size) == bytes(size)
    else:
        assert file.read(size) == whole[start : start + size]
        assert file.tell() == start + size
    # Bytes that are read with the footer are not looked at, and so not given either.
    file.seek(-6, 2)
    assert file.read() == b"\0\0tail"
    assert file.read(1) == b""


@pytest.mark.parametrize("text", ["AAAA", "no", "AAAAAAAAAAA=", 7])
def test_what_are_no_checksums(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        Blocks.decode(text)


def test_the_checksum_of_a_footer() -> None:
    footer = b"a footer"
    assert is_footer(footer_lead(footer) + footer)
    assert is_footer(footer_lead(footer) + b"another1") is False
    assert is_footer(b"data" + footer_lead(footer) + footer) is None


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An export of two streams, with a promoted header, in two files each."""
    out = tmp_path / "out"
    for first in (1, 11):
        chunks = [operations(stream, first, numbered(10, first)) for stream in ("s", "t")]
        store(tmp_path / "data", *chunks)
        with open_history(data=str(tmp_path / "data")) as history:
            for stream in ("s", "t"):
                export(history, stream, ExportLocation(str(out)), promoted={"n": "integer"})
    return out


def _files(out: Path, stream: str) -> list[Path]:
    return sorted((out / f"stream={stream}").rglob("*.parquet"))


def _column(path: Path, name: str) -> Any:
    """The footer of a column of the first row group."""
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    return next(column for column in columns if column.path_in_schema == name)


def _source(out: Path, stream: str = "") -> tuple[list[int], list[tuple[int, int, str]]]:
    """The rows and the losses that the data source reads."""
    options = SourceOptions(path=str(out), stream=stream)
    query = ReadQuery(options, options.promoted(), HistoryBounds(), ("sequence", "h_n"))
    found = [item for piece in slices(query) for item in read(query, piece)]
    lost = [item for item in found if isinstance(item, LostRange)]
    rows = [n for item in found if isinstance(item, pa.RecordBatch) for n in item["h_n"].to_pylist()]
    return rows, [(item.first, item.last, item.reason) for item in lost]


def _jobs(out: Path) -> tuple[list[int], list[ExportDamage]]:
    """The rows and the losses that the jobs read of one stream."""
    history = ExportedHistory(str(out), HistoryBounds(("s",)))
    found = [*read_jobs(history.location, history.pieces, ("sequence",), history.bounds)]
    rows = [n for p in found if not isinstance(p, ExportDamage) for n in p.batch["sequence"].to_pylist()]
    return rows, [item for item in found if isinstance(item, ExportDamage)]


def test_a_file_that_is_missing_is_reported(out: Path) -> None:
    _files(out, "s")[0].unlink()
    rows, [(first, last, reason)] = _source(out, "s")
    assert (rows, first, last) == ([*range(11, 21)], 1, 10)
    assert "No such file" in reason
    rows, [damage] = _jobs(out)
    assert (rows, damage.row_group, damage.messages) == ([*range(11, 21)], -1, 10)
    _files(out, "s")[0].unlink()
    assert [lost[:2] for lost in _source(out)[1]] == [(1, 10), (11, 20)]
    assert [damage.messages for damage in _jobs(out)[1]] == [10, 10]
    assert len(ExportedHistory(str(out)).of("s")) == 2


@pytest.mark.parametrize("is_listed", [True, False])
def test_another_file_of_the_export_is_reported(out: Path, is_listed: bool) -> None:
    if not is_listed:
        for stream in "st":
            Path(f"{out}{manifest_path(stream)}").unlink()
    one, two = _files(out, "s")
    [other, _] = _files(out, "t")
    one.write_bytes(other.read_bytes())
    [damage] = _jobs(out)[1]
    assert "it is the file of 1 to 10 of the stream 't'" in damage.reason
    assert _source(out, "s")[0] == [*range(11, 21)]
    one.write_bytes(two.read_bytes())
    [damage] = _jobs(out)[1]
    assert is_listed or "it is the file of 11 to 20 of the stream 's'" in damage.reason
    assert _source(out, "s")[1][-1][:2] == (1, 10)


def test_a_manifest_that_is_damaged_or_missing_is_reported_and_all_is_read(out: Path) -> None:
    manifest = Path(f"{out}{manifest_path('s')}")
    whole = manifest.read_text()
    for text, reported in (
        (whole.replace('"last": 20', '"last": 30'), "is not as it was written: wrong CRC"),
        (whole.replace('"crc32": ', '"cRc32": '), "is no manifest"),
        (whole[: whole.rindex(",")] + "}", "is not as it was written: no CRC"),
        (Path(f"{out}{manifest_path('t')}").read_text(), "is that of the stream 't'"),
        (whole[:-5], "is no manifest"),
    ):
        assert text != whole
        manifest.write_text(text)
        rows, [(first, last, reason)] = _source(out)
        assert rows == [*range(1, 21)] * 2
        assert first > last
        assert reported in reason
        rows, [damage] = _jobs(out)
        assert rows == [*range(1, 21)]
        assert reported in damage.reason
        assert reported in run("journal", "export", "verify", "--from", str(out), code=1)
    manifest.unlink()
    assert _source(out) == ([*range(1, 21)] * 2, [(1, 0, ".manifest/stream=s.json is not there")])
    assert _jobs(out) == ([*range(1, 21)], [])
    # The footers are incomplete where they are damaged, too.
    one = _files(out, "s")[0]
    one.write_bytes(one.read_bytes()[:-9])
    found = described(ExportLocation(str(out)), "s")
    assert found is not None
    assert [(file.part.first, file.part.last, file.part.count) for file in found.files] == [
        (1, 10, 0),
        (11, 20, 10),
    ]
    assert [lost[:2] for lost in _source(out)[1]] == [(1, 0), (1, 10)]


@pytest.mark.parametrize(
    ("before", "after"),
    [('"integer"', '"intEger"'), ('"first": 1,', '"first": 1.5,'), ('"size": ', '"size": "9", "x": ')],
)
def test_a_manifest_without_checksum_that_cannot_be_is_damaged(out: Path, before: str, after: str) -> None:
    manifest = Path(f"{out}{manifest_path('s')}")
    whole = manifest.read_text()
    old = whole[: whole.rindex(",")].replace('"checksums": true', '"checksums": false') + "}"
    manifest.write_text(old.replace(before, after))
    rows, [lost] = _source(out, "s")
    assert rows == [*range(1, 21)]
    assert "is no manifest" in lost[2]


def test_damage_leaves_nothing_in_memory(out: Path) -> None:
    """Arrow keeps what is raised within it."""
    files = _files(out, "s")
    for path in files:
        data = bytearray(path.read_bytes())
        data[_column(path, "sequence").data_page_offset] ^= 1
        path.write_bytes(data)
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(20):
        assert _source(out, "s")[0] == _jobs(out)[0] == []
    gc.collect()
    assert pa.total_allocated_bytes() == before
    assert not [one for one in gc.get_objects() if isinstance(one, CheckedFile)]


def test_what_a_killed_export_has_left_is_no_stream(out: Path) -> None:
    left = out / "stream=u" / "date=2024-10-04" / "_writing.x.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1")
    assert exported_streams(ExportLocation(str(out))) == ["s", "t"]
    assert "good" in run("journal", "export", "verify", "--from", str(out))
    # One whose files are all gone, and whose manifest is damaged, is reported.
    for path in _files(out, "s"):
        path.unlink()
    Path(f"{out}{manifest_path('s')}").write_text("{")
    assert [lost[:2] for lost in _source(out)[1]] == [(1, 0)]


def test_a_footer_that_arrow_cannot_read_is_damaged(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(source: Any) -> Any:
        raise pa.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    place = ExportLocation(str(out))
    path = str(_files(out, "s")[0].relative_to(out))
    monkeypatch.setattr(pq, "read_metadata", unknown)
    with pytest.raises(StoreCorrupt, match="is no Parquet file: Integers"):
        read_footer(place, path)
    monkeypatch.undo()
    whole = (out / path).read_bytes()
    (out / path).write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    with pytest.raises(StoreCorrupt, match="the footer is not as it was written"):
        read_footer(place, path)
    # And an export that finds it after it was killed does not enter it.
    Path(f"{out}{manifest_path('s')}").unlink()
    with pytest.raises(StoreCorrupt, match="is not in the manifest, and the footer is not as it was written"):
        settle(place, "s", None)


def test_an_export_makes_a_lost_manifest_anew(tmp_path: Path, out: Path) -> None:
    place = ExportLocation(str(out))
    before = load(place, "s")
    Path(f"{out}{manifest_path('s')}").unlink()
    with open_history(data=str(tmp_path / "data")) as history:
        assert export(history, "s", place).messages == 0
    assert load(place, "s") == before


def test_an_export_of_an_earlier_version(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an export has no checksums but those of its files, which are read by one task each."""
    manifest = Path(f"{out}{manifest_path('s')}")
    value = json.loads(manifest.read_text())
    del value["crc32"]
    for entry, path in zip(value["files"], _files(out, "s"), strict=True):
        del entry["checksums"]
        table = pq.read_table(path, partitioning=None)
        old = json.loads(pq.read_metadata(path).metadata[b"malamute"])
        del old["blocks"]
        pq.write_table(table.replace_schema_metadata({b"malamute": json.dumps(old).encode()}), path)
        entry["size"], entry["crc32"] = ExportLocation(str(out)).measure(str(path.relative_to(out)))
    manifest.write_text(json.dumps(value))
    assert _source(out) == ([*range(1, 21)] * 2, [])
    monkeypatch.setattr(reading, "SHARE_ROWS", 5)
    options = SourceOptions(path=str(out))
    pieces = slices(ReadQuery(options, options.promoted(), HistoryBounds(), ("sequence",)))
    assert [piece.shares for piece in pieces] == [1, 1, 2, 2, 2, 2]
    assert [piece.split(1)[0].shares for piece in ExportedHistory(str(out)).of("s")] == [1, 1]
    one = _files(out, "s")[0]
    one.write_bytes(b"XXXX" + one.read_bytes()[4:])
    rows, [lost] = _source(out, "s")
    assert (rows, lost[:2]) == ([*range(11, 21)], (1, 10))
    assert _jobs(out)[0] == rows


def test_a_store_that_is_far_away_is_asked_for_whole_row_groups(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow reads several columns at once there, and what is between them."""
    location = ExportLocation(str(out))
    location.is_local = False
    monkeypatch.setattr(reading, "ExportLocation", lambda path: location)
    assert _source(out) == ([*range(1, 21)] * 2, [])
    one = _files(out, "s")[0]
    whole = one.read_bytes()
    place = _column(one, "h_n").data_page_offset + 1
    one.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    rows, [lost] = _source(out, "s")
    assert (rows, lost[:2]) == ([*range(11, 21)], (1, 10))


def test_checksums_that_do_not_go_with_their_file(out: Path) -> None:
    one = _files(out, "s")[0]
    whole = one.read_bytes()
    length = struct.unpack("<I", whole[-8:-4])[0]
    footer = len(whole) - 8 - length
    system = ExportLocation(str(out)).system
    # A block is missing, and the footer is right.
    one.write_bytes(whole[: footer - 20] + whole[footer - 8 :])
    with pytest.raises(StoreCorrupt, match="the footer is not as it was written"):
        open_checked(system, str(one), None)
    # The checksum is missing, and the footer says that there is one.
    one.write_bytes(whole[: footer - 8] + bytes(8) + whole[footer:])
    with pytest.raises(StoreCorrupt, match="the footer is not as it was written"):
        open_checked(system, str(one), None)


def test_damage_is_reported_through_spark(spark: SparkSession, out: Path) -> None:
    one, two = _files(out, "s")
    whole = one.read_bytes()
    one.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    manifest = Path(f"{out}{manifest_path('t')}")
    manifest.write_text(manifest.read_text().replace('"count": 10', '"count": 11', 1))
    read = spark.read.format("malamute")
    assert read.load(str(out)).count() == 30
    gaps = read.option("table", "gaps").load(str(out)).orderBy("stream").collect()
    assert [(row.stream, row.first, row.last, row.path) for row in gaps] == [
        ("s", 1, 10, str(one.relative_to(out))),
        ("t", 1, 0, manifest_path("t")),
    ]
    read = spark.read.format("malamute").option("lost", "fail")
    with pytest.raises(Exception, match="no 1 to 10 of the stream 's' in"):
        read.option("stream", "s").load(str(out)).count()
    with pytest.raises(Exception, match=r"damage of the stream 't' in \.manifest/stream=t\.json: "):
        read.option("stream", "t").load(str(out)).count()
    assert two.exists()


def test_spark_by_itself_looks_at_the_checksums_of_pages(spark: SparkSession, tmp_path: Path) -> None:
    body = bytes(range(256)) * 8
    store(tmp_path / "data", operations("s", 1, [Told("a", None, body)]))
    run("journal", "export", "--data", str(tmp_path / "data"), "--to", str(tmp_path / "out"))
    [path] = _files(tmp_path / "out", "s")
    assert read_export(spark, str(tmp_path / "out")).collect()[0].body == body
    column = _column(path, "body")
    place = column.data_page_offset + column.total_compressed_size - 100
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(Exception, match=r"(?i)crc|checksum"):
        read_export(spark, str(tmp_path / "out")).collect()
