"""Rows that a reader leaves out, and faults of options: all that needs no session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from histories import DAY, START, Told, numbered, operations, store
from history_files import Sent, damage, write
from pyarrow import fs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)
from quiet import quiet_broker

from malamute.errors import InvalidSelector, InvalidValue, NotFound
from malamute.spark import reading
from malamute.spark.export import export
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import open_history
from malamute.spark.options import SourceOptions
from malamute.spark.reading import LostRange, ReadQuery, RequestedColumns, Slice, cut, deal, read, slices
from malamute.spark.scan import HistoryBounds
from malamute.spark.schema import Promoted
from malamute.spark.writing import Target

PROMOTED: Promoted = {"price": "number", "n": "integer", "who": "text", "ok": "flag"}
NAN = float("nan")

MESSAGES = [
    *numbered(20, price=1.5),
    Told("b.none"),
    Told("b.nan", {"price": NAN, "n": 21, "who": "it's"}),
    Told("b.text", {"price": "much", "ok": True, "who": "øre"}),
    Told("b.frames", {"price": 2, "ok": False}, [b"ab", b"c"]),
    Told("raw", "raw", b"no record"),
    Told("b.large", {"price": 1e300, "n": 2**64 - 1}, bytes(70_000)),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SourceOptions]]:
    root = tmp_path_factory.mktemp("places")
    chunks = [operations("s", 1 + 10 * n, MESSAGES[10 * n : 10 * n + 10], START + n * DAY) for n in range(3)]
    for directory in ("data", "live"):
        store(root / directory, *chunks, operations("other", 1, numbered(3), START + 5 * DAY, sender="bob"))
    with open_history(data=str(root / "data")) as history:
        for stream in ("s", "other"):
            export(history, stream, ExportLocation(str(root / "out")), promoted=PROMOTED)
    with quiet_broker(root / "live") as broker:
        yield {
            "export": SourceOptions(path=str(root / "out")),
            "store": SourceOptions(data=str(root / "data"), promote=PROMOTED),
            "broker": SourceOptions(url=broker.url, promote=PROMOTED),
        }


def _read(options: SourceOptions) -> list[dict[str, Any]]:
    """The rows that the tasks of a query read, before Spark looks at them."""
    columns = ("sequence", "time_ns", "subject", "sender", *_PROMOTED)
    query = ReadQuery(options, options.promoted(), options.bounds(0), columns)
    rows: list[dict[str, Any]] = []
    for piece in slices(query):
        for batch in read(query, piece):
            assert not isinstance(batch, LostRange)
            rows += [{**row, "stream": piece.stream} for row in batch.select(columns).to_pylist()]
    return rows


_PROMOTED = tuple(f"h_{name}" for name in PROMOTED)


def _day(row: dict[str, Any]) -> int:
    return int((row["time_ns"] - START) // DAY)


CASES: list[tuple[dict[str, str], Callable[[dict[str, Any]], bool]]] = [
    ({"since": "seq:7", "until": "seq:8"}, lambda row: row["sequence"] == 7),
    ({"since": "seq:8"}, lambda row: row["sequence"] > 7),
    ({"until": "seq:8"}, lambda row: row["sequence"] < 8),
    ({"since": "seq:1000"}, lambda row: False),
    ({"since": "2024-10-05T00:00:00Z"}, lambda row: _day(row) >= 1),
    ({"since": "2024-10-05T00:00:00.000001Z"}, lambda row: _day(row) > 1),
    ({"until": "2024-10-05T00:00:00Z"}, lambda row: _day(row) < 1),
    ({"until": "2024-10-05T00:00:00.000001Z"}, lambda row: _day(row) <= 1),
    ({"since": "2024-10-05T00:00:00Z", "until": "seq:13"}, lambda row: _day(row) and row["sequence"] < 13),
    ({"until": "time:0"}, lambda row: False),
    ({"stream": "other"}, lambda row: row["stream"] == "other"),
    ({"subject": "b.nan"}, lambda row: row["subject"] == "b.nan"),
    ({"subject": "b.*"}, lambda row: row["subject"].startswith("b.")),
    ({"where": "sender = 'bob'"}, lambda row: row["sender"] == "bob"),
    ({"where": "subject prefix 'b'"}, lambda row: row["subject"].startswith("b")),
    ({"where": "price > 1.5"}, lambda row: (row["h_price"] or 0) > 1.5),
    ({"where": "not price <= 1.5"}, lambda row: not (row["h_price"] or 9) <= 1.5),
    ({"where": "exists price"}, lambda row: row["h_price"] is not None or row["subject"] == "b.text"),
    ({"where": "price = 'much' or n = 3"}, lambda row: row["subject"] == "b.text" or row["h_n"] == 3),
    ({"where": "ok = false"}, lambda row: row["h_ok"] is False),
    ({"where": "who = 'it''s' or who = 'øre'"}, lambda row: row["h_who"] is not None),
    ({"where": "n > 9007199254740993"}, lambda row: row["subject"] == "b.large"),
    (
        {"subject": "a.1", "where": "n >= 8", "since": "seq:2", "until": "seq:16"},
        lambda row: row["subject"] == "a.1" and row["h_n"] in (8, 15) and row["sequence"] < 16,
    ),
]


@pytest.mark.parametrize("place", ["export", "store", "broker"])
@pytest.mark.parametrize(("asked", "holds"), CASES, ids=[str(case[0]) for case in CASES])
def test_options_choose_the_same_rows_at_every_place(
    places: dict[str, SourceOptions],
    place: str,
    asked: dict[str, str],
    holds: Callable[[dict[str, Any]], bool],
) -> None:
    everything = _read(places[place])
    assert len(everything) == 29
    expected = [repr(row) for row in everything if holds(row)]
    assert [repr(row) for row in _read(places[place]._replace(**asked))] == expected


def test_options_open_only_what_they_have_to(places: dict[str, SourceOptions]) -> None:
    for options in places.values():
        options = options._replace(stream="s", since="seq:13", until="2024-10-06T00:00:00Z")
        query = ReadQuery(options, PROMOTED, options.bounds(0), ("sequence",))
        assert [(piece.first, piece.last) for piece in slices(query)] == [(13, 20)]


@pytest.mark.parametrize(
    "asked",
    [{"where": "price >"}, {"where": "x" * 5000}, {"subject": "x" * 1025}, {"subject": "a", "where": "("}],
)
def test_what_selects_nothing_is_refused_where_it_is_given(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidSelector):
        SourceOptions.parse({"path": "/a", **asked})


def test_gaps_have_no_subject() -> None:
    with pytest.raises(InvalidValue, match="subject or where with table=gaps: expected neither"):
        SourceOptions.parse({"path": "/a", "table": "gaps", "where": "n = 1"})


def test_slices_are_even_and_have_everything() -> None:
    for count, rows in ((0, 5), (1, 5), (5, 5), (6, 5), (23, 5), (10, 1)):
        pieces = cut("s", 100, 99 + count, rows)
        assert [n for piece in pieces for n in range(piece.first, piece.last + 1)] == [
            *range(100, 100 + count)
        ]
        sizes = [piece.last - piece.first + 1 for piece in pieces]
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert max(sizes, default=0) <= rows


def test_a_file_is_dealt_in_shares_of_its_range() -> None:
    for count, shares in ((0, 0), (1, 1), (5, 1), (6, 2), (11, 3)):
        file = Slice("s", 100, 99 + count, "f.parquet")
        pieces = deal(file, 5)
        assert [(p.first, p.last, p.path) for p in pieces] == [(100, 99 + count, "f.parquet")] * shares
        assert [(p.share, p.shares) for p in pieces] == [(n, shares) for n in range(shares)]


ALL_ROWS = [*range(1, 31)]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with row groups of 1 to 10, 11 to 20 and 21 to 30."""
    path = tmp_path_factory.mktemp("grouped") / "f.parquet"
    table = {"sequence": ALL_ROWS, "time_ns": [START + n for n in ALL_ROWS]}
    pq.write_table(pa.table(table), path, row_group_size=10)
    return path


@pytest.mark.parametrize(
    ("first", "last", "bounds", "expected", "filtered"),
    [
        (1, 30, HistoryBounds(), ALL_ROWS, set()),
        (0, 99, HistoryBounds(), ALL_ROWS, set()),
        # A slice that ends with the last row of a group, one before it, and one past it.
        (1, 20, HistoryBounds(), [*range(1, 21)], set()),
        (1, 19, HistoryBounds(), [*range(1, 20)], {1}),
        (1, 21, HistoryBounds(), [*range(1, 22)], {2}),
        # And one that begins with the first row of a group, one before it, and one past it.
        (11, 30, HistoryBounds(), [*range(11, 31)], set()),
        (10, 30, HistoryBounds(), [*range(10, 31)], {0}),
        (12, 30, HistoryBounds(), [*range(12, 31)], {1}),
        (13, 18, HistoryBounds(), [*range(13, 19)], {1}),
        (31, 40, HistoryBounds(), [], set()),
        (1, 30, HistoryBounds(since=START + 11), [*range(11, 31)], set()),
        (1, 30, HistoryBounds(since=START + 12), [*range(12, 31)], {1}),
        (1, 30, HistoryBounds(until=START + 21), [*range(1, 21)], set()),
        (1, 30, HistoryBounds(until=START + 20), [*range(1, 20)], {1}),
    ],
)
def test_only_row_groups_that_are_wanted_in_part_are_filtered(
    grouped: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    last: int,
    bounds: HistoryBounds,
    expected: list[int],
    filtered: set[int],
) -> None:
    kept = []

    class Group(NamedTuple):
        """A row group that notes whether it is filtered."""

        group: Any

        @property
        def row_groups(self) -> Any:
            return self.group.row_groups

        def to_table(self, schema: Any, columns: Any, within: Any, **more: Any) -> Any:
            if within is not None:
                kept.append(self.row_groups[0].id)
            return self.group.to_table(schema, columns, within, **more)

    class Fragment(NamedTuple):
        """A file of such row groups."""

        fragment: Any

        def split_by_row_group(self, *given: Any) -> list[Group]:
            return [*map(Group, self.fragment.split_by_row_group(*given))]

    monkeypatch.setattr(reading, "BATCH_ROWS", 4)
    query = ReadQuery(SourceOptions(path=str(grouped.parent)), {}, bounds, ("sequence",))
    piece = Slice("s", first, last, grouped.name)
    with grouped.open("rb") as source:
        fragment = ds.ParquetFileFormat().make_fragment(str(grouped), fs.LocalFileSystem())
        found = [*reading._row_groups(query, piece, source, Fragment(fragment))]
    batches = [batch for batch in found if isinstance(batch, pa.RecordBatch)]
    assert [n for batch in batches for n in batch["sequence"].to_pylist()] == expected
    assert all(batch.num_rows <= 4 for batch in batches)
    assert {*kept} == filtered


def test_a_row_group_without_statistics_is_filtered(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sequence": ALL_ROWS}), tmp_path / "f.parquet", write_statistics=False)
    query = ReadQuery(SourceOptions(path=str(tmp_path)), {}, HistoryBounds(), ("sequence",))
    [batch] = read(query, Slice("s", 3, 5, "f.parquet"))
    assert isinstance(batch, pa.RecordBatch)
    assert batch["sequence"].to_pylist() == [3, 4, 5]


def test_a_damaged_row_group_is_lost_as_far_as_it_is_in_the_slice(tmp_path: Path) -> None:
    path = write(tmp_path, "s", [Sent(n, seconds=n) for n in ALL_ROWS], rows=10)
    damage(path, 1, "body")
    query = ReadQuery(SourceOptions(path=str(tmp_path)), {}, HistoryBounds(), ("sequence", "body"))
    name = str(path.relative_to(tmp_path))
    for first, last, lost, rows in (
        (1, 30, (11, 20), [*range(1, 11), *range(21, 31)]),
        (13, 25, (13, 20), [*range(21, 26)]),
    ):
        found = list(read(query, Slice("s", first, last, name)))
        assert [item[1:3] for item in found if isinstance(item, LostRange)] == [lost]
        batches = [item for item in found if not isinstance(item, LostRange)]
        assert [n for batch in batches for n in batch["sequence"].to_pylist()] == rows


def test_a_damaged_row_group_without_statistics_is_lost_with_its_slice(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    table = pa.table({"sequence": ALL_ROWS, "body": [b"body"] * len(ALL_ROWS)})
    pq.write_table(table, path, write_statistics=False, write_page_checksum=True)
    damage(path, 0, "body")
    query = ReadQuery(SourceOptions(path=str(tmp_path)), {}, HistoryBounds(), ("sequence", "body"))
    [lost] = read(query, Slice("s", 3, 5, "f.parquet"))
    assert isinstance(lost, LostRange)
    assert lost[1:3] == (3, 5)


@pytest.mark.parametrize("shares", [1, 2, 3, 5])
def test_each_row_group_is_in_one_share_and_what_is_lost_is_reported_once(
    tmp_path: Path, shares: int
) -> None:
    path = write(tmp_path, "s", [Sent(n, seconds=n) for n in ALL_ROWS], rows=10)
    query = ReadQuery(SourceOptions(path=str(tmp_path)), {}, HistoryBounds(), ("sequence", "body"))
    name = str(path.relative_to(tmp_path))

    def found() -> list[pa.RecordBatch | LostRange]:
        pieces = [Slice("s", 3, 28, name, share, shares) for share in range(shares)]
        return [item for piece in pieces for item in read(query, piece)]

    def numbers() -> list[int]:
        return [
            n for item in found() if not isinstance(item, LostRange) for n in item["sequence"].to_pylist()
        ]

    assert numbers() == [*range(3, 29)]
    damage(path, 1, "body")
    assert numbers() == [*range(3, 11), *range(21, 29)]
    assert [item[1:3] for item in found() if isinstance(item, LostRange)] == [(11, 20)]
    path.write_bytes(b"nothing")
    assert [item[1:3] for item in found() if isinstance(item, LostRange)] == [(3, 28)]


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"nothing": "1"}, "unknown option 'nothing': expected act_as, columns, context, cursor"),
        ({"rows": "many"}, "invalid rows 'many': expected a number of messages"),
        ({"rows": "-1"}, "invalid rows '-1'"),
        ({"table": "x"}, "invalid table 'x': expected messages or gaps"),
        ({"lost": "x"}, "invalid lost 'x': expected report or fail"),
        ({"promote": "x"}, "invalid promoted header"),
        ({"data": "/b"}, "expected a path, or one of the options"),
        ({"path": ""}, "expected a path, or one of the options"),
    ],
)
def test_wrong_options(options: dict[str, str], reported: str) -> None:
    with pytest.raises(InvalidValue, match=reported):
        SourceOptions.parse({"path": "/a", **options})


def test_wrong_columns_and_points(places: dict[str, SourceOptions]) -> None:
    assert SourceOptions.parse({"PATH": "/a", "Columns": "a, b"}).columns == ("a", "b")
    with pytest.raises(InvalidValue, match="unknown column 'nothing': expected sequence, time"):
        places["export"]._replace(columns=("nothing",)).read_columns()
    with pytest.raises(InvalidValue, match="unknown column 'subject': expected stream, first, last"):
        places["export"]._replace(columns=("subject",), table="gaps").read_columns()
    with pytest.raises(InvalidValue, match="invalid start"):
        places["export"]._replace(since="yesterday").bounds(0)
    with pytest.raises(InvalidValue, match=r"option promote for an export.*leave it out"):
        places["export"]._replace(promote={"n": "text"}).promoted()
    with pytest.raises(NotFound, match="no stream 'nothing' was exported to"):
        places["export"]._replace(stream="nothing").promoted()
    with pytest.raises(NotFound, match="there is no stream 'nothing'"):
        slices(ReadQuery(places["store"]._replace(stream="nothing"), PROMOTED, HistoryBounds(), ()))


@pytest.mark.parametrize(
    ("name", "kind", "reported"),
    [
        ("sequence", StringType(), "column 'sequence': expected bigint"),
        ("other", LongType(), "unknown column 'other'"),
        ("headers", MapType(StringType(), StringType()), "column 'headers': expected map<"),
        ("parts", ArrayType(LongType()), "column 'parts': expected array<string>"),
    ],
)
def test_a_wrong_schema(places: dict[str, SourceOptions], name: str, kind: Any, reported: str) -> None:
    with pytest.raises(InvalidValue, match=reported):
        RequestedColumns(StructType().add(name, kind), places["export"].all_columns())


def test_headers_promoted_with_two_types(tmp_path: Path) -> None:
    store(tmp_path / "data", operations("s", 1, numbered(1)), operations("t", 1, numbered(1)))
    with open_history(data=str(tmp_path / "data")) as history:
        export(history, "s", ExportLocation(str(tmp_path / "out")), promoted={"n": "integer"})
        export(history, "t", ExportLocation(str(tmp_path / "out")), promoted={"n": "text"})
    with pytest.raises(InvalidValue, match="header 'n' was promoted with two types: name one stream"):
        SourceOptions(path=str(tmp_path / "out")).promoted()
    assert SourceOptions(path=str(tmp_path / "out"), stream="t").promoted() == {"n": "text"}


_TEXT = ("subject", StringType())


@pytest.mark.parametrize(
    ("columns", "options", "reported"),
    [
        ([("name", StringType())], {}, "no column 'subject' among name: a message needs one"),
        ([_TEXT, ("price", LongType())], {}, "unknown column 'price': for a header name it h_price"),
        ([("subject", IntegerType())], {}, "invalid type int32 of column 'subject': expected text"),
        ([_TEXT, ("body", LongType())], {}, "column 'body': expected binary or text"),
        ([_TEXT, ("headers", BinaryType())], {}, "'headers': expected a map of text"),
        ([_TEXT, ("headers", MapType(LongType(), StringType()))], {}, "'headers': expected a map of text"),
        ([_TEXT, ("headers", MapType(StringType(), BinaryType()))], {}, "'headers': expected a map of text"),
        ([_TEXT, ("h_a", ArrayType(LongType()))], {}, "column 'h_a': expected text, a number or a boolean"),
        ([_TEXT, ("frames", LongType())], {}, "column 'frames': expected a list of sizes"),
        ([_TEXT], {"stream": ""}, "missing option for writing: expected url and stream"),
        ([_TEXT], {"other": "1"}, "unknown option 'other' for writing"),
    ],
)
def test_what_cannot_be_written(
    columns: list[tuple[str, Any]], options: dict[str, str], reported: str
) -> None:
    schema = StructType()
    for name, kind in columns:
        schema = schema.add(name, kind)
    with pytest.raises(InvalidValue, match=reported):
        Target.parse({"url": "tcp://a", "stream": "s", **options}, schema, overwrite=False)


def test_writing_over_a_stream_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"write with mode\('append'\)"):
        Target.parse({"url": "tcp://a", "stream": "s"}, StructType().add(*_TEXT), overwrite=True)


def test_frames_that_do_not_fit_their_body(tmp_path: Path) -> None:
    schema = StructType().add(*_TEXT).add("body", BinaryType()).add("frames", ArrayType(IntegerType()))
    batch = pa.RecordBatch.from_pydict({"subject": ["a"], "body": [b"abc"], "frames": [[1, 1]]})
    with quiet_broker(tmp_path) as broker:
        target = Target.parse({"url": broker.url, "stream": "s"}, schema, overwrite=False)
        with pytest.raises(InvalidValue, match="frames of 2 bytes: expected 3, the size of the body"):
            target.publish(iter([batch]))


def test_values_of_each_type_can_be_headers() -> None:
    schema = (
        StructType()
        .add(*_TEXT)
        .add("h_a", DoubleType())
        .add("h_b", BooleanType())
        .add("sequence", LongType())
    )
    assert Target.parse({"url": "u", "stream": "s"}, schema, overwrite=False).columns == (
        "subject",
        "h_a",
        "h_b",
    )
