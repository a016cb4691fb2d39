"""The log on the disk: blocks of entries. Pure; `docs/journal-format.md` is the specification.

Theory. An entry is an operation as it came, so a block is the msgpack of a list of them with a byte for
the kind of each: operations are tuples, which msgpack takes all in one step. `log` says what they mean.

Decoding any bytes gives entries or raises `Damaged`, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, get_args

import msgpack

from malamute.journal.format import VERSION, Damaged, check_version, crc32
from malamute.store.operations import (
    NUMBERS,
    SESSION_PARTS,
    DeleteCursor,
    DeleteFeed,
    DeleteMessages,
    DeleteQueue,
    DeleteSession,
    DeleteStream,
    ForgetIdentities,
    MarkDelivered,
    PutCursor,
    PutFeed,
    PutIdentity,
    PutMessages,
    PutRetention,
    PutSession,
    QueueKind,
    SetAttempts,
)

_BLOCK = struct.Struct(">B3xI")
_CRC = struct.Struct(">I")

BLOCK_HEADER_SIZE = _BLOCK.size + _CRC.size


class QueueCounters(NamedTuple):
    """What a queue remembers besides its messages; written when the log is compacted."""

    kind: QueueKind
    queue: str
    next: int
    delivered: int


Entry = (
    PutMessages
    | DeleteMessages
    | MarkDelivered
    | DeleteQueue
    | PutSession
    | DeleteSession
    | QueueCounters
    | PutCursor
    | DeleteCursor
    | PutRetention
    | DeleteStream
    | SetAttempts
    | PutIdentity
    | ForgetIdentities
    | PutFeed
    | DeleteFeed
)
"""What a block holds: the operations as they came, and the counters of queues."""

_ENTRY_CODES: dict[type[Any], int] = {
    DeleteMessages: 2,
    MarkDelivered: 3,
    DeleteQueue: 4,
    PutSession: 5,
    DeleteSession: 6,
    QueueCounters: 7,
    PutCursor: 8,
    DeleteCursor: 9,
    PutRetention: 10,
    DeleteStream: 11,
    SetAttempts: 12,
    PutIdentity: 13,
    ForgetIdentities: 14,
    PutFeed: 15,
    DeleteFeed: 16,
    PutMessages: 17,
}

_PUT_MESSAGE = 1
"""What put one message before version 4."""


def encode_block(entries: Sequence[Entry]) -> bytes:
    """The value of a block. Operations are tuples, so msgpack takes them all in one step."""
    codes = bytes(map(_ENTRY_CODES.__getitem__, map(type, entries)))
    header = _BLOCK.pack(VERSION, len(entries))
    body: bytes = msgpack.packb((codes, entries))
    return b"".join((header, _CRC.pack(crc32(body, crc32(header))), body))


def decode_block(data: bytes | memoryview) -> list[Entry]:
    """The entries of a block, in order."""
    codes, entries = _unpack(data)
    try:
        return [_DECODERS[code](entry) for code, entry in zip(codes, entries, strict=True)]
    except _UNPACK_ERRORS as error:
        raise _damage(error) from error


def salvage(data: bytes | memoryview) -> list[Entry]:
    """The entries of a damaged block that can still be told apart. What is in them may be wrong."""
    found: list[Entry] = []
    body = memoryview(data)[BLOCK_HEADER_SIZE:]
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=max(1, len(body)))
    try:
        unpacker.feed(body)
        unpacker.read_array_header()
        codes = unpacker.unpack()
        _expect(bytes, codes)
        unpacker.read_array_header()
        for code in codes:
            entry = unpacker.unpack()
            with suppress(*_UNPACK_ERRORS):
                found.append(_DECODERS[code](entry))
    except (*_UNPACK_ERRORS, msgpack.UnpackException):
        pass  # from here on nothing can be told apart
    return found


def undeleted(entries: Iterable[Entry]) -> list[PutMessages]:
    """The messages that are put and not deleted among these entries, one by one."""
    there: dict[tuple[QueueKind, str], dict[int, PutMessages]] = {}
    for entry in entries:
        if type(entry) is PutMessages:
            queue = there.setdefault((entry.kind, entry.queue), {})
            queue |= {entry.first + i: entry.part(i, i + 1) for i in range(len(entry.records))}
        elif type(entry) is DeleteMessages:
            queue = there.get((entry.kind, entry.queue), {})
            for sequence in [s for s in queue if any(a <= s <= b for a, b in entry.ranges)]:
                del queue[sequence]
        elif type(entry) is DeleteQueue:
            there.pop((entry.kind, entry.queue), None)
    return [put for queue in there.values() for put in queue.values()]


BlockRecords = Mapping[tuple[QueueKind, str], Mapping[int, bytes]]


def decode_records(data: bytes | memoryview) -> BlockRecords:
    """The records in a block by queue and sequence, of each message the last one. Raises `Damaged`."""
    codes, entries = _unpack(data)
    records: dict[tuple[QueueKind, str], dict[int, bytes]] = {}
    try:
        for code, entry in zip(codes, entries, strict=True):
            if code == _ENTRY_CODES[PutMessages]:
                kind, queue, first, _, _, _, found, _ = entry
                records.setdefault((kind, queue), {}).update(zip(count(first), found))
            elif code == _PUT_MESSAGE:
                records.setdefault((entry[0], entry[1]), {})[entry[2][0]] = entry[2][4]
        for held in records.values():
            if not {bytes}.issuperset(map(type, held.values())):
                raise TypeError("a record of a message")
    except _UNPACK_ERRORS as error:
        raise _damage(error) from error
    return records


def _unpack(data: bytes | memoryview) -> tuple[bytes, list[Any]]:
    """The codes and the fields of a block's entries, with nothing checked but that they are such."""
    if len(data) < BLOCK_HEADER_SIZE:
        raise Damaged(f"a block of {len(data)} bytes")
    check_version(data[0])
    view = memoryview(data)
    header, body = view[: _BLOCK.size], view[BLOCK_HEADER_SIZE:]
    if _CRC.unpack_from(data, _BLOCK.size)[0] != crc32(body, crc32(header)):
        raise Damaged("wrong CRC of a block")
    try:
        codes, entries = msgpack.unpackb(body, strict_map_key=False)
        _expect(bytes, codes)
        _expect(list, entries)
    except _UNPACK_ERRORS as error:
        raise _damage(error) from error
    return codes, entries


def _damage(error: Exception) -> Damaged:
    return Damaged(f"a block holds {error!r}")


_UNPACK_ERRORS = (ValueError, TypeError, LookupError, OverflowError, RecursionError)


def _put_message(entry: Sequence[Any]) -> PutMessages:
    """Before version 4 each message was an entry."""
    kind, queue, (sequence, time, sender, subject, record, properties) = entry
    columns = [subject], [record], properties and [properties]
    return _put_messages((kind, queue, sequence, time, sender, *columns))


def _put_messages(entry: Sequence[Any]) -> PutMessages:
    kind, queue, first, time, sender, subjects, records, properties = entry
    _expect(int, first, time)
    _expect_column({str}, subjects, records)
    _expect_column({bytes}, records, subjects)
    if properties is not None:
        _expect_column({dict, type(None)}, properties, records)
    return PutMessages(_kind(kind), _name(queue), first, time, _name(sender), subjects, records, properties)


def _expect_column(kinds: set[type], column: Any, other: Any) -> None:
    _expect(list, column)
    if not kinds.issuperset(map(type, column)) or not 0 < len(column) == len(other):
        raise TypeError("a column of messages")


def _delete_messages(entry: Sequence[Any]) -> DeleteMessages:
    kind, queue, ranges = entry
    _expect(list, ranges)
    pairs = [(first, last) for first, last in ranges]
    for pair in pairs:
        _expect(int, *pair)
    return DeleteMessages(_kind(kind), _name(queue), pairs)


def _mark_delivered(entry: Sequence[Any]) -> MarkDelivered:
    kind, queue, sequence = entry
    _expect(int, sequence)
    return MarkDelivered(_kind(kind), _name(queue), sequence)


def _delete_queue(entry: Sequence[Any]) -> DeleteQueue:
    kind, queue = entry
    return DeleteQueue(_kind(kind), _name(queue))


def _put_session(entry: Sequence[Any]) -> PutSession:
    session, value, *later = entry
    (part,) = later or (NUMBERS,)  # before version 5 there was one part
    _expect(bytes, session, value)
    if type(part) is not int or part not in SESSION_PARTS:
        raise ValueError("an unknown part of a session")
    return PutSession(session, value, part)


def _delete_session(entry: Sequence[Any]) -> DeleteSession:
    (session,) = entry
    _expect(bytes, session)
    return DeleteSession(session)


def _queue_counters(entry: Sequence[Any]) -> QueueCounters:
    kind, queue, following, delivered = entry
    _expect(int, following, delivered)
    return QueueCounters(_kind(kind), _name(queue), following, delivered)


def _put_cursor(entry: Sequence[Any]) -> PutCursor:
    stream, cursor, sequence = entry
    _expect(int, sequence)
    return PutCursor(_name(stream), _name(cursor), sequence)


def _delete_cursor(entry: Sequence[Any]) -> DeleteCursor:
    stream, cursor = entry
    return DeleteCursor(_name(stream), _name(cursor))


def _put_retention(entry: Sequence[Any]) -> PutRetention:
    stream, size, count, age = entry
    _expect(int, size, count)
    if type(age) is not int:
        _expect(float, age)
    return PutRetention(_name(stream), size, count, age)


def _delete_stream(entry: Sequence[Any]) -> DeleteStream:
    (stream,) = entry
    return DeleteStream(_name(stream))


def _set_attempts(entry: Sequence[Any]) -> SetAttempts:
    kind, queue, sequence, attempts, *later = entry
    (due,) = later or (0,)  # before version 3 there was none
    _expect(int, sequence, attempts, due)
    return SetAttempts(_kind(kind), _name(queue), sequence, attempts, due)


def _put_identity(entry: Sequence[Any]) -> PutIdentity:
    kind, queue, identity, sequence, until = entry
    _expect(int, sequence, until)
    return PutIdentity(_kind(kind), _name(queue), _name(identity), sequence, until)


def _forget_identities(entry: Sequence[Any]) -> ForgetIdentities:
    kind, queue, time = entry
    _expect(int, time)
    return ForgetIdentities(_kind(kind), _name(queue), time)


def _put_feed(entry: Sequence[Any]) -> PutFeed:
    service, stream, value = entry
    _expect(bytes, value)
    return PutFeed(_name(service), _name(stream), value)


def _delete_feed(entry: Sequence[Any]) -> DeleteFeed:
    service, stream = entry
    return DeleteFeed(_name(service), _name(stream))


_DECODERS: Mapping[int, Any] = {
    _PUT_MESSAGE: _put_message,
    2: _delete_messages,
    3: _mark_delivered,
    4: _delete_queue,
    5: _put_session,
    6: _delete_session,
    7: _queue_counters,
    8: _put_cursor,
    9: _delete_cursor,
    10: _put_retention,
    11: _delete_stream,
    12: _set_attempts,
    13: _put_identity,
    14: _forget_identities,
    15: _put_feed,
    16: _delete_feed,
    17: _put_messages,
}

_KINDS: Mapping[str, QueueKind] = {kind: kind for kind in get_args(QueueKind)}


def _expect(wanted: type[Any], *values: Any) -> None:
    for value in values:
        if type(value) is not wanted:
            raise TypeError(f"{type(value).__name__} instead of {wanted.__name__}")


def _kind(value: Any) -> QueueKind:
    kind = _KINDS.get(value)
    if kind is None:
        raise ValueError("an unknown kind of queue")
    return kind


def _name(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} for a name")
    return value
