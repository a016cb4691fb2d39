"""Frames that are used again: whatever was asked of a frame, the next query has its own rows.

DuckDB answers the same queries over the same rows. The frame has the notions of Spark where that
matters here: a number that is none equals itself and is greater than all others, and zero has no sign.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from depth import DEPTH
from histories import START, Told, operations, run, store
from quiet import quiet_broker

from malamute.spark import read_export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAIRS = 10 if DEPTH == 1 else 20 * DEPTH
"""So many pairs of conditions; `make nightly` asks 500, with a new seed."""

SEED = int(os.environ.get("MALAMUTE_SEED", "2035"))

STATEMENTS = {"export": 2, "store": 4, "broker": 4, "cached": 5, "native": 5}
"""About each frame so many statements, or one for each change, with as many pairs each: one costs Spark half
a second, whatever is in it. A scan by Python is a task, which takes 50 ms of the processor; of an export it
is one for each file."""

NAN = math.nan
NUMBERS = [NAN, -NAN, 0.0, -0.0, 1.0, 2.5, -3.0, 1e300, math.inf, -math.inf, 2.0**53, None]
INTEGERS = [0, -1, 7, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), None]
TEXTS = ["", "a", "ab", "it's", "Ø", None]
COLUMNS = ("stream", "sequence", "subject", "sender", "h_n", "h_i", "h_t", "h_b")
MESSAGES = 60


def _messages(chance: Random) -> list[Told]:
    """Messages in whose row groups there are some numbers that are none, only such, and none of these."""
    found = []
    for number in range(MESSAGES):
        numbers = NUMBERS[2:] if number % 20 < 10 else NUMBERS[:2] if number < 20 else NUMBERS
        values = {
            "n": chance.choice(numbers),
            "i": chance.choice(INTEGERS),
            "t": chance.choice(TEXTS),
            "b": chance.choice([True, False, None]),
        }
        headers = {name: value for name, value in values.items() if value is not None}
        found.append(Told(chance.choice(["a.1", "a.2", "b"]), headers, b""))
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """One history at three places, in three files."""
    root = tmp_path_factory.mktemp("frames [of] {all} \\ kinds")
    messages = _messages(Random(35))
    chunks = [operations("s", 1 + n, messages[n : n + 20], START + n) for n in range(0, MESSAGES, 20)]
    promoted = ("n:number", "i:integer", "t:text", "b:flag")
    for number in range(3):
        directories = ("data",) if number < 2 else ("data", "live")
        for directory in directories:
            store(root / directory, *(chunks if directory == "live" else chunks[number : number + 1]))
        run(
            *("journal", "export", "--data", str(root / "data"), "--to", str(root / "out")),
            *(word for each in promoted for word in ("--promote", each)),
        )
    with quiet_broker(root / "live") as broker:
        yield {
            "export": {"path": str(root / "out")},
            "store": {"data": str(root / "data"), "promote": ",".join(promoted)},
            "broker": {"url": broker.url, "promote": ",".join(promoted)},
        }


def _number(value: float | None) -> str:
    if value is None:
        return "cast(null as double)"
    return f"cast('{str(value).replace('inf', 'Infinity')}' as double)"


def _literal(chance: Random, column: str) -> str:
    if column == "h_n":
        return _number(chance.choice(NUMBERS))
    if column in ("h_i", "sequence"):
        value = chance.choice([*INTEGERS[:-1], 1, 10, 20, 21, 40, 60])
        # The lowest one is no literal of either.
        return f"({value + 1} - 1)" if value < 0 else str(value)
    if column == "h_b":
        return chance.choice(["true", "false"])
    text = chance.choice([*TEXTS[:-1], "a.1", "a.2", "b", "s", "alice"])
    return "'" + text.replace("'", "''") + "'"


def _test(chance: Random) -> str:
    """A condition on one column."""
    column = chance.choice(["h_n", "h_n", "h_n", "h_i", "h_i", "h_t", "h_b", "sequence", "subject", "sender"])
    one, other = _literal(chance, column), _literal(chance, column)
    forms = [
        *(f"{column} {operator} {one}" for operator in ("=", "<>", "<", "<=", ">", ">=")),
        f"{column} in ({one}, {other})",
        f"{column} between {one} and {other}",
        f"{column} is null",
        f"{column} is not null",
    ]
    if column in ("h_t", "subject", "sender"):
        forms += [f"{column} like 'a%'", f"{column} like '%.1'"]
    return chance.choice(forms)


def _condition(chance: Random, depth: int = 2) -> str:
    kind = chance.randrange(6) if depth else 0
    if kind < 3:
        return _test(chance)
    inner = _condition(chance, depth - 1)
    if kind == 3:
        return f"not ({inner})"
    return f"({inner}) {'and' if kind == 4 else 'or'} ({_condition(chance, depth - 1)})"


def _union(number: int, one: str, other: str) -> str:
    """Two parts of the table `frame`, row by row."""
    return " union all ".join(
        f"select {number} as number, sequence as x from frame where {condition}" for condition in (one, other)
    )


def _mixed(number: int, one: str, other: str) -> str:
    """One answer about two parts of the table `frame`: a join with itself, or sub-queries."""
    forms = (
        f"from frame a join frame b on a.sequence = b.sequence where ({_named(one, 'a')})"
        f" and ({_named(other, 'b')})",
        f"from frame a where ({one}) and sequence in (select sequence from frame where {other})",
        f"from (select sequence from frame where {one} except select sequence from frame where {other}) a",
        f"from frame a where ({one}) and sequence > (select count(*) from frame where {other})",
    )
    return f"select {number} as number, sum(a.sequence) as x {forms[number % len(forms)]}"


def _named(condition: str, table: str) -> str:
    for column in ("h_n", "h_i", "h_t", "h_b", "sequence", "subject", "sender"):
        condition = condition.replace(column, f"{table}.{column}")
    return condition


@pytest.fixture(scope="module")
def duckdb(spark: SparkSession, places: dict[str, dict[str, str]]) -> Any:
    """All rows, read once, in DuckDB. CI says that it has to be there."""
    if not os.environ.get("MALAMUTE_TESTS_NEED_JAVA"):
        pytest.importorskip("duckdb")
    import duckdb

    database = duckdb.connect()
    frame = spark.read.format("malamute").options(**places["store"], columns=",".join(COLUMNS)).load()
    rows = frame.toArrow()
    assert rows.num_rows == MESSAGES
    database.register("frame", rows)
    return database


def test_whatever_was_asked_before_a_query_has_its_rows(
    spark: SparkSession, places: dict[str, dict[str, str]], duckdb: Any
) -> None:
    frames = {
        place: spark.read.format("malamute").options(**options, columns=",".join(COLUMNS)).load()
        for place, options in places.items()
    }
    for frame in frames.values():
        # Spark plans it anew for each part of a statement until one is done, and each plan costs a process.
        assert frame.where("sequence <= 7").count() == 7
    frames["cached"] = frames["broker"].where("sequence > 0").cache()
    frames["native"] = read_export(spark, places["export"]["path"])
    # Spark's own cache passes over NaN by the least and greatest numbers of its batches.
    spark.conf.set("spark.sql.inMemoryColumnarStorage.partitionPruning", "false")
    chance, wrong = Random(SEED), []
    most = 1 if DEPTH == 1 else max(STATEMENTS.values())
    places_asked = [(place, n) for place, count in STATEMENTS.items() for n in range(min(count, most))]
    together = -(-PAIRS // len(places_asked))
    for asked, (place, number) in enumerate(places_asked):
        frames[place].createOrReplaceTempView("frame")
        spark.conf.set("spark.sql.adaptive.enabled", str(asked % 2 == 0).lower())
        pairs = [(_condition(chance), _condition(chance)) for _ in range(together)]
        # A frame that is asked but once is asked in both ways.
        kinds = (_union, _mixed) if most == 1 else (_mixed if number == 1 else _union,)
        asks = [kinds[of % len(kinds)](of + asked, *pair) for of, pair in enumerate(pairs)]
        statement = " union all ".join(asks)
        found = Counter(map(tuple, spark.sql(statement).collect()))
        expected = Counter(duckdb.execute(statement).fetchall())
        differing = {row[0] for row in (found - expected) + (expected - found)}
        wrong += [(place, asks[of - asked]) for of in sorted(differing)]
    for option in ("adaptive.enabled", "inMemoryColumnarStorage.partitionPruning"):
        spark.conf.unset(f"spark.sql.{option}")
    frames["cached"].unpersist()
    assert not wrong, wrong[:5]


def test_a_frame_is_what_there_was_when_it_was_first_asked(
    spark: SparkSession, places: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    """The promise of `docs/spark.md` for a frame that is used again."""
    store(tmp_path / "data", operations("s", 1, [Told("a")] * 3))
    read = spark.read.format("malamute").options(data=str(tmp_path / "data"), columns="sequence,subject")
    frame = read.load()
    assert frame.where("subject = 'a'").count() == 3
    store(tmp_path / "data", operations("s", 4, [Told("a")] * 2))
    assert frame.count() == 3
    assert read.load().count() == 5


def test_micro_batches_of_one_frame_have_their_own_rows(
    spark: SparkSession, places: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    frame: DataFrame = (
        spark.readStream.format("malamute").options(**places["broker"], stream="s", rows="25").load()
    )
    found: Counter[str] = Counter()

    def count(batch: DataFrame, number: int) -> None:
        for name, condition in (("low", "sequence <= 30"), ("all", "true"), ("high", "sequence > 30")):
            found[name] += batch.where(condition).count()

    query = (
        frame.select("sequence")
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert found == {"low": 30, "all": 60, "high": 30}
