"""A frame, or a stream of Spark, published to a stream of a broker.

The columns are those of a message: `subject`, and if they are there `body` (binary, or text as UTF-8) with
`frames`, `headers`, and `h_NAME` for single headers, where null is no header. `headers` is a map to text,
numbers or booleans, or to the values that this source reads. Columns of the broker, such as sequence and
time, are ignored, so that a frame that was read can be written.

A task publishes its rows in order, a bounded number of them unconfirmed, and is done when the last one is
stored. A task that Spark runs again publishes again: this is at least once. `malamute spark replay` is
exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from malamute.client.contexts import CREDENTIALS
from malamute.errors import InvalidValue
from malamute.protocol.batch import Body
from malamute.spark.history import TIMEOUT_SECONDS
from malamute.spark.login import ANYBODY, Login, login_of, with_context
from malamute.spark.schema import KINDS, PREFIX

ROWS = 5000
"""Messages made at a time."""

GIVEN = frozenset(("sequence", "time", "time_ns", "sender", "parts", "size", "expires", "stream", "date"))
"""Columns of the broker."""

_OPTIONS = frozenset(("url", "context", "stream", "checkpointlocation", "path", *CREDENTIALS))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_body(kind: pa.DataType) -> bool:
    return _is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_value(kind: pa.DataType) -> bool:
    return (
        _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_map(kind) or not _is_text(kind.key_type):
        return False
    item = kind.item_type
    return _is_value(item) or (pa.types.is_struct(item) and {field.name for field in item} == set(KINDS))


_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "subject": (_is_text, "text"),
    "body": (_is_body, "binary or text"),
    "headers": (_is_headers, "a map of text to text, numbers, booleans, or values as they are read"),
    "frames": (pa.types.is_list, "a list of sizes"),
}


class Target(NamedTuple):
    """The target of publishing, and the columns of the frame."""

    url: str
    stream: str
    columns: tuple[str, ...]
    login: Login = ANYBODY

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Target:
        """Read the options of Spark and the columns. Raises `InvalidValue`."""
        texts = {name.lower(): value for name, value in options.items()}
        if unknown := sorted(texts.keys() - _OPTIONS):
            raise InvalidValue(f"unknown option {unknown[0]!r} for writing: expected url and stream")
        texts = with_context(texts)
        url, stream = texts.get("url", ""), texts.get("stream", "")
        if not (url and stream):
            raise InvalidValue("missing option for writing: expected url and stream")
        if overwrite:
            raise InvalidValue("invalid mode: a stream is only appended to; write with mode('append')")
        fields = to_arrow_schema(schema, timezone="UTC")
        if "subject" not in fields.names:
            raise InvalidValue(f"no column 'subject' among {', '.join(fields.names)}: a message needs one")
        for field in fields:
            _check(field)
        columns = tuple(name for name in fields.names if name not in GIVEN)
        return cls(url, stream, columns, login_of(texts, url))

    def publish(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Publish all rows, and return their number when they are stored."""
        count = 0
        with (
            self.login.connect(self.url, timeout=TIMEOUT_SECONDS, software="malamute-spark") as client,
            client.publisher(self.stream, timeout=TIMEOUT_SECONDS) as publisher,
        ):
            for batch in batches:
                for start in range(0, batch.num_rows, ROWS):
                    columns = {
                        name: batch.column(name).slice(start, ROWS).to_pylist() for name in self.columns
                    }
                    publisher.publish_many(*_messages(columns))
                count += batch.num_rows
        return count


def _check(field: pa.Field) -> None:
    if field.name in GIVEN:
        return
    is_right, wanted = _TYPES.get(field.name, (_is_value, "text, a number or a boolean"))
    if field.name not in _TYPES and not field.name.startswith(PREFIX):
        raise InvalidValue(f"unknown column {field.name!r}: for a header name it {PREFIX}{field.name}")
    if not is_right(field.type):
        raise InvalidValue(f"invalid type {field.type} of column {field.name!r}: expected {wanted}")


def _messages(columns: Mapping[str, list[Any]]) -> tuple[list[str], list[Body], list[Any] | None]:
    """Return subjects, bodies and headers. Raises `InvalidValue` for a message without a subject."""
    subjects = columns["subject"]
    if None in subjects:
        raise InvalidValue("null in the column 'subject': expected text")
    bodies: list[Body] = [_bytes(body) for body in columns.get("body", [b""] * len(subjects))]
    if "frames" in columns:
        bodies = [_framed(body, sizes) for body, sizes in zip(bodies, columns["frames"], strict=True)]
    single = {
        name.removeprefix(PREFIX): column for name, column in columns.items() if name.startswith(PREFIX)
    }
    if not single and "headers" not in columns:
        return subjects, bodies, None
    headers = [_headers(items) for items in columns.get("headers", [None] * len(subjects))]
    for name, column in single.items():
        for row, value in zip(headers, column, strict=True):
            if value is not None:
                row[name] = value
    return subjects, bodies, headers


def _bytes(body: bytes | str | None) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _framed(body: Body, sizes: Sequence[int] | None) -> Body:
    if sizes is None or not isinstance(body, bytes):
        return body
    if sum(sizes) != len(body):
        raise InvalidValue(f"frames of {sum(sizes)} bytes: expected {len(body)}, the size of the body")
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [body[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _headers(items: Sequence[tuple[str, Any]] | None) -> dict[str, Any]:
    return {name: _value(value) if isinstance(value, dict) else value for name, value in items or ()}


def _value(fields: Mapping[str, Any]) -> Any:
    """Return the one value in the fields of a header; an integer stands in two of them."""
    return next((fields[kind] for kind in KINDS if fields[kind] is not None), None)


@dataclass
class Published(WriterCommitMessage):
    """The number of messages that a task has published."""

    messages: int


class FrameWriter(DataSourceArrowWriter):
    """Publishes a frame."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of a task."""
        return Published(self._target.publish(iterator))


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a stream of Spark."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish the rows of a task."""
        return Published(self._target.publish(iterator))
