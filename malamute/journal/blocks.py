"""The blocks of the log on the disk. Pure; `docs/journal-format.md` is the specification.

A block is a run of operations as `store.codec` encodes them, behind a header with the format, their number
and the log sequence number of the transaction that wrote it. `Log.apply` defines their meaning.

Decoding any bytes gives operations or raises `Damaged`, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from malamute.errors import Malformed
from malamute.journal.format import VERSION, Damaged, check_version, crc32
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.names import is_name
from malamute.store import codec
from malamute.store.codec import RecordsByQueue
from malamute.store.operations import (
    DeleteMessages,
    DeleteQueue,
    Operation,
    PutMessages,
    PutValue,
    QueueKind,
)
from malamute.store.tables import CURSORS

_BLOCK = struct.Struct(">B3xIQ")
_CRC = struct.Struct(">I")

BLOCK_HEADER_SIZE = _BLOCK.size + _CRC.size


def encode_block(operations: Sequence[Operation], lsn: int) -> bytes:
    """Return the value of a block, as the transaction with this log sequence number writes it."""
    header = _BLOCK.pack(VERSION, len(operations), lsn)
    body = codec.encode(operations)
    return b"".join((header, _CRC.pack(crc32(body, crc32(header))), body))


def decode_block(data: bytes | memoryview) -> list[Operation]:
    """Return the operations of a block, in order. Raises: Damaged."""
    _check(data)
    try:
        return codec.decode(memoryview(data)[BLOCK_HEADER_SIZE:])
    except Malformed as error:
        raise Damaged(f"invalid block: {error.text}") from error


def decode_lsn(data: bytes | memoryview) -> int:
    """Return the log sequence number of the transaction that wrote a block. Raises: Damaged."""
    _check(data)
    return int(_BLOCK.unpack_from(data)[2])


def decode_records(data: bytes | memoryview) -> RecordsByQueue:
    """Return the newest record of each message in a block, by queue and sequence. Raises: Damaged."""
    _check(data)
    try:
        return codec.decode_records(memoryview(data)[BLOCK_HEADER_SIZE:])
    except Malformed as error:
        raise Damaged(f"invalid block: {error.text}") from error


def salvage(data: bytes | memoryview) -> list[Operation]:
    """Return the separable operations of a damaged block; their fields may be wrong.

    Impossible operations are left out: messages with impossible sequences, and cursors without a reader.
    """
    return [entry for entry in codec.salvage(memoryview(data)[BLOCK_HEADER_SIZE:]) if _can_be(entry)]


def _can_be(entry: Operation) -> bool:
    if type(entry) is PutMessages:
        return is_name(entry.queue) and entry.first > 0 and entry.last <= NUMBER_MAX
    if type(entry) is PutValue and entry.table == CURSORS:
        return [type(part) for part in entry.key] == [str, str]
    return True


def undeleted(operations: Iterable[Operation]) -> list[PutMessages]:
    """Return the messages that these operations put and do not delete again, one by one."""
    there: dict[tuple[QueueKind, str], dict[int, PutMessages]] = {}
    for operation in operations:
        if type(operation) is PutMessages:
            queue = there.setdefault((operation.kind, operation.queue), {})
            queue |= {operation.first + i: operation.part(i, i + 1) for i in range(len(operation.records))}
        elif type(operation) is DeleteMessages:
            queue = there.get((operation.kind, operation.queue), {})
            for sequence in [s for s in queue if any(a <= s <= b for a, b in operation.ranges)]:
                del queue[sequence]
        elif type(operation) is DeleteQueue:
            there.pop((operation.kind, operation.queue), None)
    return [put for queue in there.values() for put in queue.values()]


def _check(data: bytes | memoryview) -> None:
    if len(data) < BLOCK_HEADER_SIZE:
        raise Damaged(f"a block of {len(data)} bytes")
    check_version(data[0])
    view = memoryview(data)
    header, body = view[: _BLOCK.size], view[BLOCK_HEADER_SIZE:]
    if _CRC.unpack_from(data, _BLOCK.size)[0] != crc32(body, crc32(header)):
        raise Damaged("wrong CRC of a block")
