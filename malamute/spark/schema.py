"""The columns of exported history, for pyarrow and for Spark.

A message is a row. `stream` and `date` are not in the files: they are in the names of their directories
(`layout`), and Spark gives them as columns at the end.

    sequence   the number of the message in its stream
    time       of acceptance by the broker, UTC, in microseconds; `time_ns` has the nanoseconds
    sender     the address of its publisher, empty for one without
    subject    and `parts`, the subject between its dots
    headers    by name; each value stands in the field of its type, a header without a value in none
    body       its frames as one piece of bytes; `frames` has their sizes when there is not exactly one
    size       the bytes of the body, to be summed without reading it
    expires    the time of its expiry, UTC; null without one

`headers['price'].number` is how Spark SQL reads a header. An integer stands in `number` as well, so that
numbers can be compared without knowing how they were written; one that needs more than 63 bits stands only
there. A record that is none (a publisher may send any bytes) has no map at all in `headers`, and the whole
of it is the `body`.

A frequently used header may be *promoted*: it has a column of its own, `h_NAME`, in one of the four types of
a value. A message that lacks it, or has it in another type, has null there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from malamute.errors import InvalidValue

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["text", "integer", "number", "flag"]
"""The types of a header's value."""

Promoted = Mapping[str, Kind]
"""The promoted headers and their types."""

KINDS: tuple[Kind, ...] = get_args(Kind)

PREFIX = "h_"
"""Begins the name of a promoted header's column."""


class Column(NamedTuple):
    """A column: its name, its type in the words of Spark's DDL, and whether every row has a value."""

    name: str
    ddl: str
    always: bool


_SQL: dict[Kind, str] = {"text": "string", "integer": "bigint", "number": "double", "flag": "boolean"}
_VALUE = ", ".join(f"{kind}: {sql}" for kind, sql in _SQL.items())

COLUMNS = (
    Column("sequence", "bigint", True),
    Column("time", "timestamp", True),
    Column("time_ns", "bigint", True),
    Column("sender", "string", True),
    Column("subject", "string", True),
    Column("parts", "array<string>", True),
    Column("headers", f"map<string, struct<{_VALUE}>>", False),
    Column("body", "binary", True),
    Column("frames", "array<int>", False),
    Column("size", "int", True),
    Column("expires", "timestamp", False),
)
"""The columns that every file has, in order."""

PARTITIONS = (Column("stream", "string", True), Column("date", "date", True))
"""The columns that the names of directories hold."""

_SPEC = re.compile(r"(?P<name>.+):(?P<kind>\w+)")


def promoted_columns(promoted: Promoted) -> tuple[Column, ...]:
    """The columns of promoted headers. Raises `InvalidValue` when two would have one name in Spark."""
    columns = tuple(Column(PREFIX + name, _SQL[kind], False) for name, kind in promoted.items())
    if len({column.name.lower() for column in columns}) < len(columns):
        raise InvalidValue("promoted headers differ in upper and lower case only: expected different names")
    return columns


def parse_promoted(words: str) -> tuple[str, Kind]:
    """Read `NAME:TYPE`. Raises `InvalidValue`."""
    found = _SPEC.fullmatch(words)
    if found is None or found["kind"] not in KINDS:
        raise InvalidValue(
            f"invalid promoted header {words!r}: expected NAME:TYPE with the type {', '.join(KINDS)}"
        )
    return found["name"], found["kind"]


def ddl(promoted: Promoted | None = None) -> str:
    """The schema of a whole export for Spark: `spark.read.schema(ddl()).parquet(…)`."""
    return ddl_of(all_columns(promoted or {}))


def all_columns(promoted: Promoted) -> tuple[Column, ...]:
    """The columns of a whole export, in order."""
    return (*COLUMNS, *promoted_columns(promoted), *PARTITIONS)


def ddl_of(columns: Iterable[Column]) -> str:
    """Columns in the words of Spark's DDL."""
    return ", ".join(f"`{c.name.replace('`', '``')}` {c.ddl}{' NOT NULL' * c.always}" for c in columns)


def arrow_schema(promoted: Promoted | None = None) -> pa.Schema:
    """The schema of a file."""
    import pyarrow as pa

    return pa.schema(to_arrow((*COLUMNS, *promoted_columns(promoted or {}))))


def to_arrow(columns: Iterable[Column]) -> list[pa.Field]:
    """Columns as fields of Arrow."""
    import pyarrow as pa

    simple = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<string>": pa.list_(pa.field("element", pa.string(), False)),
        "array<int>": pa.list_(pa.field("element", pa.int32(), False)),
    }
    value = pa.struct([(kind, simple[sql]) for kind, sql in _SQL.items()])
    headers = pa.map_(pa.string(), pa.field("value", value, False))
    return [
        pa.field(column.name, simple.get(column.ddl, headers), nullable=not column.always)
        for column in columns
    ]
