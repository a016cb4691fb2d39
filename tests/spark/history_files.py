"""Exported history made directly, without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from malamute.protocol.batch import Columns, pack_record
from malamute.spark.analyze_tables import Tables
from malamute.spark.columns import Gatherer
from malamute.spark.layout import date_of, file_path
from malamute.spark.local import DuckEngine

STARTED = "all before was said when the session started"
"""A line that a session says behind its start."""

EVIL = "<script>alert(1)</script>"
BEGIN = 1_704_067_200 * 10**9  # 2024-01-01


class Sent(NamedTuple):
    """A message of the history; the time is in seconds after `BEGIN`."""

    sequence: int
    subject: str = "a.b"
    body: bytes = b"body"
    headers: Mapping[str, Any] | None = None
    sender: str = "alice"
    seconds: float = 0.0

    @property
    def time_ns(self) -> int:
        return BEGIN + round(self.seconds * 1e9)


def some_messages(count: int) -> list[Sent]:
    """Messages of three senders, 100 subjects and four headers, over some minutes."""
    chance = Random(1)
    seconds, messages = 0.0, []
    for sequence in range(1, count + 1):
        seconds += chance.choice([0, 0.001, 0.5])
        headers: dict[str, Any] = {
            "price": chance.gauss(100, 20),
            "unit": chance.choice("CFK"),
            "n": sequence,
        }
        if chance.random() < 0.1:
            headers |= {"urgent": None, "open": True}
        subject = f"{chance.choice(('temp', 'wind'))}.{chance.randrange(50)}"
        sender = chance.choice(("alice", "bob", ""))
        messages.append(Sent(sequence, subject, bytes(chance.randrange(200)), headers, sender, seconds))
    return messages


class Whole(NamedTuple):
    """A history that was analysed whole: the messages of its stream `s`, and all tables."""

    messages: Sequence[Sent]
    engine: DuckEngine
    tables: Tables


def write(directory: Path, stream: str, messages: Sequence[Sent], *, rows: int = 1000) -> Path:
    """One file with these messages, all of one day, in row groups of so many. Returns its path."""
    gatherer = Gatherer()
    columns = Columns(
        [message.sequence for message in messages],
        [message.time_ns for message in messages],
        [message.sender for message in messages],
        [message.subject for message in messages],
        [pack_record(message.headers, message.body) for message in messages],
    )
    gatherer.add(columns)
    table = pa.Table.from_batches([gatherer.take()])
    numbers = [message.sequence for message in messages]
    path = directory / file_path(stream, date_of(messages[0].time_ns), min(numbers), max(numbers))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table, path, compression="zstd", row_group_size=rows, data_page_size=1 << 16, write_page_checksum=True
    )
    return path


def damage(path: Path, row_group: int, column: str) -> None:
    """Overwrite some bytes of a column of a row group."""
    metadata = pq.ParquetFile(path).metadata.row_group(row_group)
    chunks = [metadata.column(number) for number in range(metadata.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    middle = start + chunk.total_compressed_size // 2
    data[middle : middle + 4] = bytes(byte ^ 0xFF for byte in data[middle : middle + 4])
    path.write_bytes(data)
