"""Messages that a former primary alone had: the files in `diverged/` that a catch-up writes.

No confirmation was sent for these messages, so their publishers have sent them again to the other node. A
file is named by the timeline of the former primary and the log sequence number at which its history parted.
The file has write sets: states of streams, chunks and blocks as they were, and records of the log as blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from malamute.errors import Malformed, StoreError
from malamute.journal.blocks import decode_block
from malamute.journal.format import CHUNK, STREAM, Damaged, decode_chunk, decode_stream, split_key
from malamute.journal.standby import DIVERGED
from malamute.journal.write_set import decode_all
from malamute.protocol.batch import Frame, unpack_payload, unpack_record
from malamute.store.operations import AppendChunk, Chunk, Operation, PutMessages


class DivergedFile(NamedTuple):
    """A file of messages that were never confirmed."""

    name: str
    timeline: int
    lsn: int
    bytes: int


class DivergedMessage(NamedTuple):
    """A message that was never confirmed; `kind` is that of its queue, or "stream"."""

    kind: str
    name: str
    sequence: int
    time_ns: int
    sender: str
    subject: str
    headers: Mapping[str, Any]
    body: bytes


def diverged_files(directory: Path) -> list[DivergedFile]:
    """Return the files of a data directory, the oldest first."""
    found = []
    for path in (directory / DIVERGED).glob("*-*"):
        timeline, _, lsn = path.name.partition("-")
        if timeline.isdecimal() and lsn.isdecimal():
            found.append(DivergedFile(path.name, int(timeline), int(lsn), path.stat().st_size))
    return sorted(found, key=lambda file: (file.lsn, file.timeline))


def diverged_messages(directory: Path, name: str) -> Iterator[DivergedMessage]:
    """Yield the messages of a file. Raises StoreError without it, StoreCorrupt for a damaged one."""
    if name not in {file.name for file in diverged_files(directory)}:
        raise StoreError(
            f"no file {name} in {directory / DIVERGED}: expected one of `malamute pair diverged`"
        )
    names: dict[int, str] = {}
    for write_set in decode_all((directory / DIVERGED / name).read_bytes()):
        for place, value in write_set.changes.items():
            kind, identifier, _ = split_key(place)
            try:
                if kind == STREAM:
                    names[identifier] = decode_stream(value or b"").name
                elif kind == CHUNK:
                    stream = names.get(identifier, f"lost.{identifier}")
                    yield from _of_chunk(stream, decode_chunk(value or b""))
                else:
                    yield from _of_operations(decode_block(value or b""))
            except (Damaged, Malformed):
                continue  # the others are intact


def _of_operations(operations: list[Operation]) -> Iterator[DivergedMessage]:
    for operation in operations:
        if isinstance(operation, AppendChunk):
            yield from _of_chunk(operation.stream, operation.chunk)
        elif isinstance(operation, PutMessages):
            for sequence, time_ns, sender, subject, record, _ in operation.messages():
                place = operation.kind, operation.queue, sequence
                yield _message(*place, time_ns, sender, subject, record)


def _of_chunk(stream: str, chunk: Chunk) -> Iterator[DivergedMessage]:
    columns = unpack_payload(chunk.payload, chunk.large)
    origins = zip(columns.each_sequence(), columns.each_time(), columns.each_sender(), strict=False)
    for origin, subject, record in zip(origins, columns.subjects, columns.records, strict=True):
        yield _message("stream", stream, *origin, subject, record)


def _message(
    kind: str, name: str, sequence: int, time_ns: int, sender: str, subject: str, record: Frame
) -> DivergedMessage:
    headers, frames = unpack_record(record)
    return DivergedMessage(kind, name, sequence, time_ns, sender, subject, headers, b"".join(frames))
