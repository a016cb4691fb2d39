"""The data source on a real session: the same history from a directory, a store and a broker; and a sink."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from histories import DAY, START, Told, damage, numbered, operations, run, store
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from quiet import quiet_broker

import malamute
from malamute.errors import InvalidValue, NotFound, StoreCorrupt, StoreError
from malamute.protocol.admin import CursorsQuery
from malamute.protocol.messages import EXPIRED
from malamute.spark import read_export, tasks
from malamute.spark.options import SourceOptions
from malamute.spark.reading import LostRange
from malamute.spark.source import MalamuteSource
from malamute.spark.streaming import StreamReader
from malamute.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]

MESSAGES = [
    *numbered(20, price=1.5),
    Told("b.none"),
    Told("b.nan", {"price": float("nan"), "n": 21, "who": "it's"}),
    Told("b.text", {"price": "much", "ok": True}),
    Told("b.frames", {"price": 2}, [b"ab", b"c"]),
    Told("raw", "raw", b"no record"),
    Told("b.large", {"price": 1e300, "n": 2**64 - 1}, bytes(70_000)),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One history at three places."""
    root = tmp_path_factory.mktemp("places")
    data = root / "data"
    chunks = [operations("s", 1 + 10 * n, MESSAGES[10 * n : 10 * n + 10], START + n * DAY) for n in range(3)]
    store(data, *chunks, operations("other", 1, numbered(3), START + 5 * DAY, sender="bob"))
    promoted = ("price:number", "n:integer", "who:text", "ok:flag")
    run(
        *("journal", "export", "--data", str(data), "--to", str(root / "out")),
        *(word for each in promoted for word in ("--promote", each)),
    )
    store(root / "copy", *chunks, operations("other", 1, numbered(3), START + 5 * DAY, sender="bob"))
    with quiet_broker(root / "copy") as broker:
        yield {
            "export": {"path": str(root / "out")},
            "store": {"data": str(data), "promote": ",".join(promoted)},
            "broker": {"url": broker.url, "promote": ",".join(promoted)},
        }


@pytest.fixture(params=["export", "store", "broker"])
def load(request: pytest.FixtureRequest, spark: SparkSession, places: Any) -> Load:
    """Load from each of the places."""

    def load(**options: Any) -> DataFrame:
        return spark.read.format("malamute").options(**places[request.param], **options).load()

    return load


def test_all_of_it(load: Load) -> None:
    frame = load()
    rows = frame.orderBy("stream", "sequence").collect()
    assert [(row.stream, row.sequence) for row in rows] == [
        *(("other", n) for n in (1, 2, 3)),
        *(("s", n) for n in range(1, 27)),
    ]
    last = {row.sequence: row for row in rows if row.stream == "s"}
    assert last[1].body == b"1"
    assert last[1].time == datetime(2024, 10, 4, tzinfo=UTC).astimezone().replace(tzinfo=None)
    assert last[11].date == date(2024, 10, 5)
    assert last[22].h_who == "it's"
    assert last[23].headers["ok"].flag is True
    assert (last[24].body, last[24].frames, last[24].size) == (b"abc", [2, 1], 3)
    assert (last[25].headers, last[25].body) == (None, b"no record")
    assert (last[26].size, last[26].headers["n"].number, last[26].h_n) == (70_000, 2.0**64, None)
    assert {row.sender for row in rows} == {"alice", "bob"}


# Conditions on other columns are those of test_frames.py, and test_filters.py has all without a session.
CONDITIONS = [
    "time >= timestamp'2024-10-05'",
    "date in (date'2024-10-04', date'2024-10-06') and stream = 's'",
    "h_price = double('nan') or headers['price'].number > 1.5",
]


@pytest.fixture(scope="module")
def everything(spark: SparkSession, places: Any) -> DataFrame:
    """All rows, taken once, with nothing pushed down."""
    rows = spark.read.format("malamute").options(**places["store"]).load()
    return spark.createDataFrame(rows.collect(), rows.schema)


def test_conditions_take_the_same_rows_everywhere(
    spark: SparkSession, places: Any, everything: DataFrame
) -> None:
    def asked(*frames: DataFrame) -> list[Any]:
        parts = [
            frame.where(condition).selectExpr(f"{number} as number", "stream", "sequence", "h_price")
            for number, condition in enumerate(CONDITIONS)
            for frame in frames
        ]
        union = reduce(lambda one, other: one.unionAll(other), parts)
        return sorted(union.collect(), key=repr)

    expected = asked(everything)
    assert {row.number for row in expected} == {*range(len(CONDITIONS))}
    found = asked(*(spark.read.format("malamute").options(**place).load() for place in places.values()))
    assert [*map(repr, found)] == [repr(row) for row in expected for _ in places]


def test_options_choose_a_part(spark: SparkSession, places: Any) -> None:
    def load(**options: str) -> DataFrame:
        return spark.read.format("malamute").options(**places["export"], **options).load()

    # The rows that each option chooses are in test_filters.py, without a session.
    assert load(since="2024-10-05", until="2024-10-06", stream="s").count() == 10
    assert load(rows="4", stream="s").rdd.getNumPartitions() > 5


def test_columns_are_those_that_are_asked_for(spark: SparkSession, places: Any) -> None:
    reader = spark.read.format("malamute").options(**places["store"])
    frame = reader.option("columns", "subject, sequence,date,stream").load()
    assert frame.columns == ["subject", "sequence", "date", "stream"]
    assert frame.where("sequence = 26").collect() == [("b.large", 26, date(2024, 10, 6), "s")]
    reader = spark.read.format("malamute").options(**places["export"])
    assert reader.schema("sequence bigint, h_n bigint").load().where("h_n = 21").collect() == [(22, 21)]


def test_wrong_options_are_reported(spark: SparkSession, places: Any) -> None:
    def load(**options: str) -> DataFrame:
        return spark.read.format("malamute").options(**places["broker"], **options).load()

    with pytest.raises(Exception, match="stream 'nothing'"):
        load(stream="nothing").count()
    with pytest.raises(Exception, match="unknown column 'nothing': expected sequence, time"):
        load(columns="nothing")


def test_a_wrong_schema_is_reported(spark: SparkSession, places: Any) -> None:
    with pytest.raises(Exception, match="invalid type string of column 'sequence': expected bigint"):
        spark.read.format("malamute").options(**places["export"]).schema("sequence string").load().count()


def test_spark_reads_an_export_by_itself(spark: SparkSession, places: Any, tmp_path: Path) -> None:
    def asked(frame: DataFrame) -> list[str]:
        return sorted(map(repr, frame.where("sequence > 9").collect()))

    path = places["export"]["path"]
    ours = spark.read.format("malamute").load(path)
    plain = read_export(spark, path)
    assert plain.dtypes == ours.dtypes
    assert asked(plain) == asked(ours)
    assert asked(read_export(spark, path, "s")) == asked(ours.where("stream = 's'"))
    with pytest.raises(NotFound, match="no stream was exported to"):
        read_export(spark, str(tmp_path))
    names = ["a/b=%20 ø$", "__HIVE_DEFAULT_PARTITION__", "x" * 250, "/" * 91]
    data, out = tmp_path / "data", tmp_path / "[a] {b,c} \\d ?*"
    store(data, *(operations(name, 1, numbered(2)) for name in names))
    run("journal", "export", "--data", str(data), "--to", str(out))
    expected = sorted((name, number) for name in names for number in (1, 2))
    for frame in (read_export(spark, str(out)), spark.read.format("malamute").load(str(out))):
        assert sorted((row.stream, row.sequence) for row in frame.collect()) == expected
    for name in names:
        frame = read_export(spark, str(out), name).where(f.col("stream") == name)
        assert [(row.stream, row.sequence) for row in frame.collect()] == [(name, 1), (name, 2)]


def test_nothing_there(spark: SparkSession, tmp_path: Path) -> None:
    read = spark.read.format("malamute")
    with pytest.raises(Exception, match="no stream was exported to"):
        read.load(str(tmp_path)).count()
    with pytest.raises(Exception, match="there is no store in"):
        read.option("data", str(tmp_path)).load().count()


def test_what_is_damaged_is_reported_and_the_rest_is_read(spark: SparkSession, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    store(data, *(operations("s", 1 + 10 * n, numbered(10, 1 + 10 * n), START + n * DAY) for n in range(4)))
    run("journal", "export", "--data", str(data), "--to", str(out))
    damage(data, 11)
    files = sorted(out.rglob("*.parquet"))
    files[1].write_bytes(b"PAR1 this is no file PAR1")
    body = pq.read_metadata(files[3]).row_group(0).column(11)
    assert body.path_in_schema == "body"
    place = body.data_page_offset + body.total_compressed_size - 1
    whole = files[3].read_bytes()
    files[3].write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])

    def read(**options: str) -> DataFrame:
        return spark.read.format("malamute").options(**options).load()

    assert read(data=str(data)).count() == 30
    assert [tuple(row) for row in read(data=str(data), table="gaps").collect()] == [
        ("s", 11, 20, "corrupt", "")
    ]
    assert [row.sequence for row in read(path=str(out)).orderBy("sequence").collect()] == [
        *range(1, 11),
        *range(21, 31),
    ]
    gaps = read(path=str(out), table="gaps").orderBy("first").collect()
    assert [(row.first, row.last, Path(row.path).name) for row in gaps] == [
        (11, 20, files[1].name),
        (31, 40, files[3].name),
    ]
    assert all("cannot be read" in row.reason for row in gaps)
    run("journal", "export", "--data", str(data), "--to", str(tmp_path / "later"), "--until", "seq:4")
    run("journal", "export", "--data", str(data), "--to", str(tmp_path / "later"), "--since", "seq:8")
    gaps = read(path=str(tmp_path / "later"), table="gaps").orderBy("first").collect()
    assert [(row.first, row.last, row.reason) for row in gaps] == [
        (4, 7, "left-out"),
        (11, 20, "corrupt"),
    ]
    with pytest.raises(Exception, match="no 11 to 20 of the stream 's': corrupt"):
        read(data=str(data), lost="fail").count()


def test_writing_what_was_read(spark: SparkSession, places: Any, broker: Broker) -> None:
    frame = spark.read.format("malamute").options(**places["store"], stream="s", rows="100").load()
    frame = frame.where("headers is not null").orderBy("sequence").coalesce(1)
    target = {"url": broker.url, "stream": "again"}
    frame.write.format("malamute").options(**target).mode("append").save()
    back = spark.read.format("malamute").options(**target, promote="price:number").load()
    # An integer of more than 63 bits comes back as a number, which is how it can be read.
    columns = ("subject", "parts", "body", "frames", "size", "h_price")
    expected = [repr(row[:]) for row in frame.orderBy("sequence").select(*columns).collect()]
    assert [repr(row[:]) for row in back.orderBy("sequence").select(*columns).collect()] == expected


def test_writing_plain_columns(spark: SparkSession, broker: Broker) -> None:
    frame = spark.createDataFrame(
        [("a.1", "øre", {"x": "1"}, 2, None), ("a.2", None, None, None, True)],
        "subject string, body string, headers map<string, string>, h_n int, h_ok boolean",
    ).coalesce(1)
    frame.write.format("malamute").options(url=broker.url, stream="s").mode("append").save()
    with malamute.connect(broker.url) as client, client.subscribe("s", start="first") as subscription:
        reported = [subscription.receive(60) for _ in range(2)]
    assert [(m.subject, m.body, m.headers) for m in reported] == [
        ("a.1", "øre".encode(), {"x": "1", "n": 2}),
        ("a.2", b"", {"ok": True}),
    ]


@pytest.mark.parametrize(
    ("columns", "stream", "reported"),
    [
        ("'a' as name", "s", "no column 'subject' among name: a message needs one"),
        ("cast(null as string) as subject", "s", "null in the column 'subject'"),
        ("'a' as subject", "$sys", "401"),
    ],
)
def test_what_cannot_be_written_is_reported(
    spark: SparkSession, broker: Broker, columns: str, stream: str, reported: str
) -> None:
    writer = spark.sql(f"select {columns}").write.format("malamute").options(url=broker.url, stream=stream)
    with pytest.raises(Exception, match=reported):
        writer.mode("append").save()


def _copy(spark: SparkSession, url: str, root: Path, **options: str) -> None:
    """Let a stream of Spark take what there is of the stream `s` into Parquet, and end."""
    read = spark.readStream.format("malamute").options(url=url, stream="s", **options).load()
    query = (
        read.select("sequence", "body")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root / "sink"))
    )
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()


def test_a_query_that_runs_continues_when_the_broker_is_restarted(
    spark: SparkSession, tmp_path: Path
) -> None:
    with quiet_broker(tmp_path / "data") as broker:
        with malamute.connect(broker.url) as client:
            client.publish("s", "a", b"0", assurance="stored")
        read = spark.readStream.format("malamute").options(url=broker.url, stream="s", columns="body").load()
        writer = read.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(str(tmp_path / "sink"))
        try:
            for number in (b"1", b"2"):
                query.processAllAvailable()
                broker.restart()
                with malamute.connect(broker.url) as client:
                    client.publish("s", "a", number, assurance="stored")
            query.processAllAvailable()
        finally:
            query.stop()
        rows = spark.read.parquet(str(tmp_path / "sink")).collect()
        assert sorted(row.body for row in rows) == [b"0", b"1", b"2"]


def test_a_stream_continues_from_its_checkpoint_and_a_micro_batch_that_is_run_again_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    with quiet_broker(tmp_path / "data") as broker:
        with malamute.connect(broker.url) as client, client.publisher("s") as publisher:
            for number in range(300):
                publisher.publish("a", b"%d" % number)
        _copy(spark, broker.url, tmp_path, rows="100")
        # As a driver leaves it that dies when a batch is in the sink and before that is noted.
        for name in ("2", ".2.crc"):
            (tmp_path / "checkpoint" / "commits" / name).unlink()
        broker.restart()
        with malamute.connect(broker.url) as client:
            client.publish("s", "a", b"300", assurance="stored")
        _copy(spark, broker.url, tmp_path, rows="100")
        rows = spark.read.parquet(str(tmp_path / "sink")).orderBy("sequence").collect()
        assert [row.body for row in rows] == [b"%d" % number for number in range(301)]
        offsets = [path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
        assert len(offsets) == 4


def test_a_stream_begins_at_its_start(spark: SparkSession, tmp_path: Path, broker: Broker) -> None:
    with malamute.connect(broker.url) as client:
        for number in range(10):
            client.publish("s", "a", b"%d" % number, assurance="stored")
        _copy(spark, broker.url, tmp_path / "5", since="seq:5")
        _copy(spark, broker.url, tmp_path / "new", since="new")
        client.publish("s", "a", b"10", assurance="stored")
        _copy(spark, broker.url, tmp_path / "new", since="new")
    assert spark.read.parquet(str(tmp_path / "5" / "sink")).count() == 6
    assert [row.body for row in spark.read.parquet(str(tmp_path / "new" / "sink")).collect()] == [b"10"]


def test_a_stream_that_lost_messages_ends(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    store(data, *(operations("s", 1 + 10 * n, numbered(10, 1 + 10 * n)) for n in range(3)))
    damage(data, 11)
    with quiet_broker(data) as broker:
        with pytest.raises(Exception, match="no 11 to 20 of the stream 's': corrupt"):
            _copy(spark, broker.url, tmp_path / "fail")
        _copy(spark, broker.url, tmp_path / "report", lost="report")
    assert spark.read.parquet(str(tmp_path / "report" / "sink")).count() == 20


def test_a_checkpoint_of_another_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name, count in (("one", 2), ("longer", 5)):
        with quiet_broker(tmp_path / name) as broker:
            with malamute.connect(broker.url) as client:
                for _ in range(count):
                    client.publish("s", "a", b"", assurance="stored")
            if name == "one":
                _copy(spark, broker.url, tmp_path)
                continue
            with pytest.raises(Exception, match="checkpoint is of the store"):
                _copy(spark, broker.url, tmp_path)
            # A micro-batch that is to be run again says it in its tasks.
            for log in (tmp_path / "checkpoint" / "commits", tmp_path / "sink" / "_spark_metadata"):
                for path in ("0", ".0.crc"):
                    (log / path).unlink()
            with pytest.raises(Exception, match="what was planned of 's' is of the store"):
                _copy(spark, broker.url, tmp_path)
    assert spark.read.parquet(str(tmp_path / "sink" / "*.parquet")).count() == 2


def test_offsets_are_of_a_stream_and_a_store(places: Any, tmp_path: Path) -> None:
    """Without a session: what a checkpoint says, what it is held against, and one of an earlier version."""
    schema = MalamuteSource({**places["broker"], "stream": "s"}).schema()
    reader, other = (
        StreamReader(SourceOptions.parse({**places["broker"], "stream": stream}, lost="fail"), schema)
        for stream in ("s", "other")
    )
    start = reader.initialOffset()
    assert (start["next"], start["stream"]) == (1, "s")
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert end == {**start, "next": 11}
    assert [piece.store for piece in reader.partitions(start, end)] == [start["store"]]
    # With nothing new the offset is written as it was, or Spark would run a micro-batch.
    last = reader.latestOffset(end, ReadAllAvailable())
    assert list(reader.latestOffset(last, ReadAllAvailable()).items()) == list(last.items())
    for call in (lambda: other.latestOffset(start, ReadAllAvailable()), lambda: other.partitions(start, end)):
        with pytest.raises(StoreError, match="checkpoint is of the stream 's', and 'other' is read: begin"):
            call()
    foreign = {**start, "store": "0" * 32}
    with pytest.raises(StoreError, match=f"checkpoint is of the store {'0' * 32}, and the broker has"):
        reader.latestOffset(foreign, ReadAllAvailable())
    [piece] = reader.partitions(foreign, {**end, "store": "0" * 32})
    with pytest.raises(StoreError, match=r"what was planned of 's' is of the store 0+, and this is"):
        list(reader.read(piece))
    assert reader.latestOffset({"next": 4}, ReadAllAvailable()) == last
    assert [piece.first for piece in reader.partitions({"next": 4}, {"next": 6})] == [4]
    # One that was restored goes on; one that is older than the checkpoint does not.
    assert reader.latestOffset(start, ReadAllAvailable())
    newer = {**start, "store": f"{start['store']}.7"}
    with pytest.raises(StoreError, match="checkpoint is of the store"):
        reader.latestOffset(newer, ReadAllAvailable())


def test_the_broker_shows_the_lag_of_a_query(places: Any) -> None:
    """Without a session: the calls of a query that Spark makes."""
    options, name = {**places["broker"], "stream": "s"}, f"c{uuid4().hex}"
    reader = MalamuteSource({**options, "cursor": name}).streamReader(MalamuteSource(options).schema())

    def found() -> list[tuple[int, int]]:
        with malamute.connect(places["broker"]["url"]) as client:
            rows = client.query(CursorsQuery(stream="s"))
        return [(row.sequence, row.lag) for row in rows if row.name == name]

    start = reader.initialOffset()
    end = reader.reportLatestOffset()
    assert found() == []
    reader.commit({**start, "next": 5})
    assert found() == [(4, end["next"] - 5)]
    # A driver that begins again commits the same.
    reader.commit({**start, "next": 5})
    reader.commit(end)
    assert found() == [(end["next"] - 1, 0)]
    with pytest.raises(InvalidValue, match="only readStream moves it"):
        MalamuteSource({**options, "cursor": name}).reader(MalamuteSource(options).schema())


def test_expired_messages_end_no_query(monkeypatch: pytest.MonkeyPatch, places: Any) -> None:
    lost = [LostRange("s", 1, 2, EXPIRED), LostRange("s", 3, 4, "overwritten")]
    options = {**places["broker"], "stream": "s"}
    reader = MalamuteSource(options).streamReader(MalamuteSource(options).schema())
    [piece] = reader.partitions({"next": 1}, {"next": 5})
    monkeypatch.setattr(tasks, "read", lambda *_: iter(lost[:1]))
    assert [*reader.read(piece)] == []
    monkeypatch.setattr(tasks, "read", lambda *_: iter(lost))
    with pytest.raises(StoreCorrupt, match="no 3 to 4"):
        list(reader.read(piece))


def test_a_stream_without_a_broker_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    read = spark.readStream.format("malamute").option("data", str(tmp_path)).option("stream", "s")
    with pytest.raises(Exception, match="invalid options of a stream of Spark: expected url and stream"):
        read.load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().processAllAvailable()


def test_publishing_a_stream(spark: SparkSession, tmp_path: Path, broker: Broker) -> None:
    with malamute.connect(broker.url) as client, client.publisher("s") as publisher:
        for number in range(50):
            publisher.publish("a.b", b"%d" % number, {"n": number})
    read = spark.readStream.format("malamute").options(url=broker.url, stream="s", promote="n:integer").load()
    query = (
        read.where("h_n % 2 = 0")
        .selectExpr("concat('even.', subject) as subject", "body", "headers")
        .writeStream.format("malamute")
        .options(url=broker.url, stream="even", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    query.stop()
    rows = spark.read.format("malamute").options(url=broker.url, stream="even").load().collect()
    assert sorted(int(row.headers["n"].integer) for row in rows) == [*range(0, 50, 2)]
    assert {row.subject for row in rows} == {"even.a.b"}


def test_times_are_utc_to_the_microsecond(spark: SparkSession, tmp_path: Path) -> None:
    store(tmp_path, operations("s", 1, numbered(1), START + 1_234_567_891))
    frame = spark.read.format("malamute").option("data", str(tmp_path)).load()
    [row] = frame.selectExpr("unix_micros(time) as us", "time_ns").collect()
    assert row.us == (START + 1_234_567_891) // 1000
    assert datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row.us) == datetime(
        2024, 10, 4, 0, 0, 1, 234_567, UTC
    )
