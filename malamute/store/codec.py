"""Operations as bytes: one codec for all kinds, on the disk and elsewhere.

Theory. Operations are tuples, and msgpack takes a list of tuples in one step. So the encoding of a run of
operations is the msgpack of a pair: a string of bytes, one for the kind of each, and the list of operations.
Decoding any bytes gives operations or raises `Malformed`, and nothing else. A kind keeps its byte for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, get_args

import msgpack

from malamute.errors import Malformed
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    DeleteMessages,
    DeleteQueue,
    DeleteStream,
    DeleteStreamMessages,
    DeleteValue,
    ForgetIdentities,
    ForgetStream,
    Key,
    MarkDelivered,
    NoteRefused,
    Operation,
    PutIdentity,
    PutMessages,
    PutValue,
    QueueKind,
    Reserve,
    Retain,
    SetAttempts,
    SetCounters,
    TrimByAge,
)
from malamute.store.policies import StreamRetention

CODES: Mapping[type[Any], int] = {
    AppendChunk: 1,
    Reserve: 2,
    PutMessages: 3,
    DeleteMessages: 4,
    MarkDelivered: 5,
    SetAttempts: 6,
    PutIdentity: 7,
    ForgetIdentities: 8,
    DeleteQueue: 9,
    NoteRefused: 10,
    DeleteStream: 11,
    ForgetStream: 12,
    PutValue: 13,
    DeleteValue: 14,
    SetCounters: 15,
    Retain: 16,
    TrimByAge: 17,
    DeleteStreamMessages: 18,
}
"""The byte of each kind of operation."""

VALUE_DEPTH_MAX = 8
"""The most levels of nested tuples in a value."""

_PUT_MESSAGES = CODES[PutMessages]
_FAULTS = (ValueError, TypeError, LookupError, OverflowError, RecursionError)

RecordsByQueue = Mapping[tuple[QueueKind, str], Mapping[int, bytes]]


def encode(operations: Sequence[Operation]) -> bytes:
    """Return the bytes of operations, in their order."""
    codes = bytes(map(CODES.__getitem__, map(type, operations)))
    packed: bytes = msgpack.packb((codes, operations))
    return packed


def decode(data: bytes | memoryview) -> list[Operation]:
    """Return the operations, in their order. Raises: Malformed."""
    codes, rows = _unpack(data)
    try:
        return [_DECODERS[code](row) for code, row in zip(codes, rows, strict=True)]
    except _FAULTS as error:
        raise _malformed(error) from error


def salvage(data: bytes | memoryview) -> list[Operation]:
    """Return the separable operations of damaged bytes; their fields may be wrong.

    msgpack allocates the declared size of a list before it reads the items. So each operation is skipped
    over first: a truncated one fails there, before any allocation.
    """
    found: list[Operation] = []
    size = max(1, len(data))
    ahead, unpacker = (msgpack.Unpacker(strict_map_key=False, max_buffer_size=size) for _ in range(2))
    try:
        for each in (ahead, unpacker):
            each.feed(data)
            each.read_array_header()
            codes = each.unpack()
            _expect(bytes, codes)
            each.read_array_header()
        for code in codes:
            ahead.skip()
            row = unpacker.unpack()
            with suppress(*_FAULTS):
                found.append(_DECODERS[code](row))
    except (*_FAULTS, msgpack.UnpackException):
        pass  # further operations are not separable
    return found


def decode_records(data: bytes | memoryview) -> RecordsByQueue:
    """Return the newest record of each message, by queue and sequence. Raises: Malformed."""
    codes, rows = _unpack(data)
    records: dict[tuple[QueueKind, str], dict[int, bytes]] = {}
    try:
        for code, row in zip(codes, rows, strict=True):
            if code == _PUT_MESSAGES:
                kind, queue, first, _, _, _, found, _ = row
                records.setdefault((kind, queue), {}).update(zip(count(first), found))
        for held in records.values():
            if not {bytes}.issuperset(map(type, held.values())):
                raise TypeError("invalid record of a message: expected bytes")
    except _FAULTS as error:
        raise _malformed(error) from error
    return records


def _unpack(data: bytes | memoryview) -> tuple[bytes, list[Any]]:
    """Return the codes and the fields of operations, unchecked."""
    try:
        codes, rows = msgpack.unpackb(data, strict_map_key=False)
        _expect(bytes, codes)
        _expect(list, rows)
    except (*_FAULTS, msgpack.UnpackException) as error:
        raise _malformed(error) from error
    return codes, rows


def _malformed(error: Exception) -> Malformed:
    return Malformed(f"invalid operations: {error!r}")


def _append_chunk(row: Sequence[Any]) -> AppendChunk:
    stream, (first, number, time, payload, large), reserved, subjects, retention = row
    _expect(int, first, number, time, reserved)
    _expect(bytes, payload, *large)
    _expect(list, large)
    _expect(list, subjects)
    _expect(str, *subjects)
    chunk = Chunk(first, number, time, payload, tuple(large))
    return AppendChunk(_name(stream), chunk, reserved, subjects, _retention(retention))


def _retain(row: Sequence[Any]) -> Retain:
    stream, retention = row
    return Retain(_name(stream), _retention(retention))


def _trim_by_age(row: Sequence[Any]) -> TrimByAge:
    (time,) = row
    _expect(int, time)
    return TrimByAge(time)


def _retention(row: Sequence[Any]) -> StreamRetention:
    size, number, age = row
    _expect(int, size, number)
    if type(age) is not int:
        _expect(float, age)
    return StreamRetention(size, number, age)


def _put_messages(row: Sequence[Any]) -> PutMessages:
    kind, queue, first, time, sender, subjects, records, properties = row
    _expect(int, first, time)
    _expect_column({str}, subjects, records)
    _expect_column({bytes}, records, subjects)
    if properties is not None:
        _expect_column({dict, type(None)}, properties, records)
    return PutMessages(_kind(kind), _name(queue), first, time, _name(sender), subjects, records, properties)


def _expect_column(kinds: set[type], column: Any, other: Any) -> None:
    _expect(list, column)
    if not kinds.issuperset(map(type, column)) or not 0 < len(column) == len(other):
        raise TypeError("invalid column of messages")


def _delete_messages(row: Sequence[Any]) -> DeleteMessages:
    kind, queue, ranges = row
    return DeleteMessages(_kind(kind), _name(queue), _ranges(ranges))


def _delete_stream_messages(row: Sequence[Any]) -> DeleteStreamMessages:
    stream, ranges = row
    return DeleteStreamMessages(_name(stream), _ranges(ranges))


def _ranges(ranges: Any) -> list[tuple[int, int]]:
    _expect(list, ranges)
    pairs = [(first, last) for first, last in ranges]
    for pair in pairs:
        _expect(int, *pair)
    return pairs


def _put_identity(row: Sequence[Any]) -> PutIdentity:
    kind, queue, identity, sequence, until = row
    _expect(int, sequence, until)
    return PutIdentity(_kind(kind), _name(queue), _name(identity), sequence, until)


def _of_queue(make: Callable[..., Operation], numbers: int) -> Callable[[Sequence[Any]], Operation]:
    """Return a decoder of an operation on a queue with so many numbers."""

    def decoder(row: Sequence[Any]) -> Operation:
        kind, queue, *rest = row
        return make(_kind(kind), _name(queue), *_numbers(rest, numbers))

    return decoder


def _of_stream(make: Callable[..., Operation], numbers: int) -> Callable[[Sequence[Any]], Operation]:
    """Return a decoder of an operation on a stream with so many numbers."""

    def decoder(row: Sequence[Any]) -> Operation:
        stream, *rest = row
        return make(_name(stream), *_numbers(rest, numbers))

    return decoder


def _numbers(values: Sequence[Any], number: int) -> Sequence[int]:
    if len(values) != number:
        raise ValueError(f"{len(values)} numbers: expected {number}")
    _expect(int, *values)
    return values


def _put_value(row: Sequence[Any]) -> PutValue:
    table, key, value = row
    return PutValue(_name(table), key_of(key), plain(value))


def _delete_value(row: Sequence[Any]) -> DeleteValue:
    table, key = row
    return DeleteValue(_name(table), key_of(key))


def key_of(value: Any) -> Key:
    """Return the key of a table that was encoded so. Raises: TypeError."""
    _expect(list, value)
    if not value or not {str, bytes, int}.issuperset(map(type, value)):
        raise TypeError("invalid key of a table: expected text, bytes and integers")
    return tuple(value)


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value of a table that was encoded so, with tuples. Raises: TypeError for other values."""
    if type(value) is list and depth < VALUE_DEPTH_MAX:
        return tuple([plain(item, depth + 1) for item in value])
    if value is not None and type(value) not in (bool, int, float, str, bytes):
        raise TypeError(
            f"{type(value).__name__} in a value: expected None, bool, int, float, str, bytes or a list"
        )
    return value


_DECODERS: Mapping[int, Callable[[Sequence[Any]], Operation]] = {
    CODES[AppendChunk]: _append_chunk,
    CODES[Reserve]: _of_stream(Reserve, 1),
    CODES[Retain]: _retain,
    CODES[PutMessages]: _put_messages,
    CODES[DeleteMessages]: _delete_messages,
    CODES[MarkDelivered]: _of_queue(MarkDelivered, 1),
    CODES[SetAttempts]: _of_queue(SetAttempts, 3),
    CODES[PutIdentity]: _put_identity,
    CODES[ForgetIdentities]: _of_queue(ForgetIdentities, 1),
    CODES[DeleteQueue]: _of_queue(DeleteQueue, 0),
    CODES[NoteRefused]: _of_stream(NoteRefused, 3),
    CODES[DeleteStream]: _of_stream(DeleteStream, 0),
    CODES[ForgetStream]: _of_stream(ForgetStream, 0),
    CODES[PutValue]: _put_value,
    CODES[DeleteValue]: _delete_value,
    CODES[SetCounters]: _of_queue(SetCounters, 2),
    CODES[TrimByAge]: _trim_by_age,
    CODES[DeleteStreamMessages]: _delete_stream_messages,
}

_KINDS: Mapping[str, QueueKind] = {kind: kind for kind in get_args(QueueKind)}


def _expect(wanted: type[Any], *values: Any) -> None:
    for value in values:
        if type(value) is not wanted:
            raise TypeError(f"{type(value).__name__}: expected {wanted.__name__}")


def _kind(value: Any) -> QueueKind:
    kind = _KINDS.get(value)
    if kind is None:
        raise ValueError("unknown kind of queue: expected mailbox or service")
    return kind


def _name(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} for a name: expected str")
    return value
