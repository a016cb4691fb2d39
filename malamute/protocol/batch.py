"""Records and columns: the encoding of many messages as a few lists.

A *record* is one message's headers and body, packed once by the publisher and never opened on the way:
the msgpack array `[headers or nil, frame, …]`. A *payload* holds the columns of a run of messages, each
column a list, or one value where all messages share it:

    stream:  [sequences, time, senders, subjects, records]
             [sequences, time, senders, subjects, records, ttls]
    queue:   [sequences, times, senders, subjects, records, attempts, properties]

`sequences` as one number is the first of a run without gaps. `ttls` is present if any message expires:
in milliseconds after its time, and 0 for never. In `records` nil stands for a record of
64 KiB or more, which follows as a frame of its own. Lists of plain strings and bytes keep the garbage
collector out of the way: it visits containers, not strings, which makes columns about three times as
fast as an object for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Annotated, Any, NamedTuple

import msgpack
import msgspec

from malamute.errors import InvalidValue, Malformed, TooLarge
from malamute.protocol.limits import (
    DEPTH_MAX,
    DURATION_MS_MAX,
    ITEMS_MAX,
    NUMBER_MAX,
    RECORD_LARGE_BYTES,
    VALUES_MAX,
)
from malamute.protocol.scan import has_too_many_values

Headers = Mapping[str, str | int | float | bool | None]
Buffer = bytes | bytearray | memoryview
Body = Buffer | str | Sequence[Buffer]
Frame = bytes | memoryview

pack = msgpack.Packer(autoreset=True).pack
pack_plain = msgspec.msgpack.Encoder().encode
"""Packs plain values twice as fast; a value of another type may become a different one."""
_HEADER_TYPES = frozenset({str, int, float, bool, type(None)})
_UNPACK_ERRORS = (ValueError, TypeError, RecursionError, msgpack.UnpackException)
_PLAIN_TYPES = _HEADER_TYPES | {bytes}


def unpack(data: Frame, items_max: int = ITEMS_MAX) -> Any:
    """Unpack one msgpack value. Raises `Malformed` for anything else, `TooLarge` for too much.

    A list gets the room that it declares before its items are read, up to a thousand lists deep: `items_max`
    keeps a frame from costing far more than its size. Keys are text or bytes, whose hash no peer can choose.
    """
    try:
        if len(data) <= UNCHECKED_BYTES:
            return msgpack.unpackb(data, strict_map_key=True, max_array_len=UNCHECKED_BYTES)
        return _load(data, items_max)
    except _UNPACK_ERRORS as error:
        raise Malformed(f"not msgpack: {str(error) or type(error).__name__}") from error


SCANNED_BYTES = 1024 * 1024
"""Bytes of a frame past which its values are counted before they are unpacked, for their memory."""

UNCHECKED_BYTES = 512
"""Bytes of a frame whose announced, missing lists cannot take much memory."""


def _load(data: Frame, items_max: int = ITEMS_MAX) -> Any:
    """Return one msgpack value. First the whole is checked to be there, without making any value.

    A list gets memory for the items that it announces. So lists in lists that announce items and have none
    could take thousands of times their bytes.
    """
    if len(data) > SCANNED_BYTES and items_max < len(data):
        if has_too_many_values(data):
            raise TooLarge(f"too many values in one frame: expected at most {VALUES_MAX}")
    else:
        unpacker = msgpack.Unpacker(max_buffer_size=len(data))
        unpacker.feed(data)
        unpacker.skip()
    return msgpack.unpackb(data, strict_map_key=True, max_array_len=items_max)


def is_plain(value: Any) -> bool:
    """Return whether a value consists of nil, booleans, numbers, text, bytes, lists and maps with text keys.

    Msgpack has more types: timestamps, and extensions of a program. No value
    may lie inside more than `DEPTH_MAX` lists and maps.
    """
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        below: list[Any] = []
        for item in level:
            if type(item) is list:
                below += item
            elif type(item) is dict and {str}.issuperset(map(type, item)):
                below += item.values()
            elif type(item) not in _PLAIN_TYPES:
                return False
        if not below:
            return True
        level = below
    return False


def is_properties(value: Any) -> bool:
    """Return whether a value is a column of properties, each nil or a map of text to single values."""
    return type(value) is list and all(
        item is None
        or (
            type(item) is dict
            and {str}.issuperset(map(type, item))
            and _PLAIN_TYPES.issuperset(map(type, item.values()))
        )
        for item in value
    )


def pack_record(headers: Headers | None, body: Body) -> bytes:
    """Pack headers and body into a record. Raises `InvalidValue` for a header of another type."""
    try:
        if headers:
            headers = headers if type(headers) is dict else dict(headers)
            if not are_headers(headers):
                raise InvalidValue(
                    "invalid header: expected text with a value of str, int, float, bool or None"
                )
        if isinstance(body, _FRAME_TYPES):
            record: bytes = pack_plain((headers or None, body))
        else:
            frames = tuple(body)
            if not all(isinstance(frame, _FRAME_TYPES) for frame in frames):
                raise InvalidValue("invalid body: expected bytes, or a sequence of bytes")
            record = pack_plain((headers or None, *frames))
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidValue(f"invalid headers or body: {error}") from error
    return record


_FRAME_TYPES = (bytes, bytearray, memoryview)


def are_headers(headers: Mapping[Any, Any]) -> bool:
    """Return whether each key is text, and each value is valid in a header."""
    # A loop: for the few headers that messages have it is twice as fast as checking sets of types.
    for name, value in headers.items():
        if type(name) is not str or type(value) not in _HEADER_TYPES:
            return False
    return True


def unpack_record(record: Frame) -> tuple[dict[str, Any], list[bytes]]:
    """Return the headers and the body frames of a record. Raises `Malformed` for any other bytes."""
    try:
        if len(record) <= SCANNED_BYTES:
            headers, frame = _plain_record(record)
            return headers or {}, [frame]
    except (ValueError, RecursionError):
        pass  # an unusual record: a body of several frames, or malformed
    body = unpack(record)
    if type(body) is not list or not body:
        raise Malformed("invalid record: expected an array of headers and body frames")
    headers = body.pop(0)
    if not _BODY.issuperset(map(type, body)) or not (headers is None or type(headers) is dict):
        raise Malformed("invalid record: expected an array of headers and body frames")
    if headers and not are_headers(headers):
        raise Malformed("invalid header: expected text with a value of str, int, float, bool or nil")
    return headers or {}, body


_BODY: frozenset[type] = frozenset((bytes,))


class _Pairs(list[tuple[Any, Any]]):
    """The pairs of a map: its keys may have any type, and none is hashed."""


def readable_record(record: Frame) -> tuple[dict[str, Any], list[bytes]]:
    """Return the headers and the body frames of a record, without its invalid headers.

    For programs that show messages of others: a header with a name that is no text, or with a value that is a
    list, does not hide the body. Raises `Malformed` if the body cannot be found.
    """
    try:
        return unpack_record(record)
    except (Malformed, TooLarge) as error:
        refused = Malformed(error.text)
    if len(record) > SCANNED_BYTES:
        raise refused
    try:
        body = msgpack.unpackb(
            record,
            strict_map_key=False,
            object_pairs_hook=_Pairs,
            max_array_len=ITEMS_MAX,
            unicode_errors="replace",
        )
    except _UNPACK_ERRORS:
        raise refused from None
    if type(body) is not list or not body or not _BODY.issuperset(map(type, body[1:])):
        raise refused
    pairs = body[0] if isinstance(body[0], _Pairs) else ()
    return {name: value for name, value in pairs if type(name) is str and type(value) in _HEADER_TYPES}, body[
        1:
    ]


def headers_of(records: Sequence[Frame]) -> list[dict[str, Any]]:
    """Return the headers of each record, for matching; a malformed record has none."""
    if records and max(map(len, records)) > SCANNED_BYTES:
        # The values of a large record are counted before it is unpacked, which takes a look at each.
        left = iter([record if len(record) <= SCANNED_BYTES else b"" for record in records])
    else:
        left = iter(records)
    rows: list[_PlainRecord] = []
    while len(rows) < len(records):
        try:
            rows.extend(map(_plain_record, left))
        except (ValueError, RecursionError):
            # The record is unusual: a body of several frames, or malformed.
            rows.append((_headers_of_one(records[len(rows)]), b""))
    return [headers or {} for headers, _ in rows]


_PlainRecord = tuple[dict[str, str | int | float | bool | None] | None, bytes]
_plain_record = msgspec.msgpack.Decoder(_PlainRecord).decode
"""Reads a record with one frame and checks its types, all in C. Raises `ValueError` for any other."""


def _headers_of_one(record: Frame) -> dict[str, Any]:
    try:
        return unpack_record(record)[0]
    except (Malformed, TooLarge):
        return {}


def split_large(records: Sequence[Frame]) -> tuple[list[Frame | None], tuple[Frame, ...]]:
    """Split the records that travel as frames of their own from a column."""
    if not records or max(map(len, records)) < RECORD_LARGE_BYTES:
        return list(records), ()
    inline = [None if len(record) >= RECORD_LARGE_BYTES else record for record in records]
    return inline, tuple(record for record in records if len(record) >= RECORD_LARGE_BYTES)


def join_large(records: Sequence[Frame | None], large: Sequence[Frame]) -> Sequence[Frame]:
    """Join large records into their column. Raises `Malformed` for another number of frames than places."""
    if not large and None not in records:
        return records  # type: ignore[return-value]  # none of them is None
    frames = iter(large)
    try:
        whole = [next(frames) if record is None else record for record in records]
    except StopIteration:
        raise Malformed("missing frame: expected one for each large record") from None
    if next(frames, None) is not None:
        raise Malformed("too many frames: expected one for each large record")
    return whole


class Columns(NamedTuple):
    """A run of messages by columns. `records` are whole: the large ones are in their places.

    Its length is the number of messages, not of columns, which is why `_replace` does not work on it.
    """

    sequences: int | Sequence[int]
    times: int | Sequence[int]
    senders: str | Sequence[str]
    subjects: Sequence[str]
    records: Sequence[Frame]
    attempts: int | Sequence[int] = 1
    properties: Sequence[Mapping[str, Any] | None] | None = None
    ttls: int | Sequence[int] = 0

    def __len__(self) -> int:
        return len(self.subjects)

    def each_sequence(self) -> Sequence[int]:
        """Return the sequence of each message."""
        if isinstance(self.sequences, int):
            return range(self.sequences, self.sequences + len(self.subjects))
        return self.sequences

    def each_time(self) -> Iterable[int]:
        """Return the broker's time of each message, in nanoseconds UTC; endless for one common time."""
        return repeat(self.times) if isinstance(self.times, int) else self.times

    def each_sender(self) -> Iterable[str]:
        """Return the sender of each message; endless for one common sender."""
        return repeat(self.senders) if isinstance(self.senders, str) else self.senders

    def all_senders(self) -> Sequence[str]:
        """Return the sender of each message, as a column."""
        senders = self.senders
        return [senders] * len(self.subjects) if isinstance(senders, str) else senders

    def rows(self) -> Iterable[tuple[Any, ...]]:
        """Return all columns of each message."""
        sequences, times, senders, subjects, records, attempts, properties = self[:7]
        return zip(
            range(sequences, sequences + len(subjects)) if isinstance(sequences, int) else sequences,
            repeat(times) if isinstance(times, int) else times,
            repeat(senders) if isinstance(senders, str) else senders,
            subjects,
            records,
            repeat(attempts) if isinstance(attempts, int) else attempts,
            repeat(None) if properties is None else properties,
            strict=False,
        )

    def each_ttl(self) -> Iterable[int]:
        """Return the time to live of each message in milliseconds, 0 for never; endless for a common one."""
        return repeat(self.ttls) if isinstance(self.ttls, int) else self.ttls

    def take(self, places: Sequence[int]) -> Columns:
        """Return the messages at these places alone."""

        def taken(column: Any) -> Any:
            return [column[i] for i in places] if isinstance(column, list | tuple) else column

        sequences = self.each_sequence()
        columns = Columns([sequences[i] for i in places], *map(taken, self[1:7]))
        return Columns(*columns[:7], taken(self.ttls)) if self.ttls else columns


def pack_stream_payload(columns: Columns) -> tuple[bytes, tuple[Frame, ...]]:
    """Return the payload frame of stream messages, and the large records that follow it."""
    sequences, times, senders, subjects, records = columns[:5]
    inline, large = split_large(records)
    if columns.ttls:
        return pack_plain((sequences, times, senders, subjects, inline, columns.ttls)), large
    return pack_plain((sequences, times, senders, subjects, inline)), large


def pack_queue_payload(columns: Columns) -> tuple[bytes, tuple[Frame, ...]]:
    """Return the payload frame of mailbox or service messages, and the large records that follow it."""
    inline, large = split_large(columns.records)
    return pack_plain((*columns[:4], inline, *columns[5:7])), large


def unpack_payload(payload: Frame, large: Sequence[Frame] = ()) -> Columns:
    """Read a payload of either kind. Raises `Malformed` for anything else."""
    fields = _plain_columns(payload) or _any_columns(payload)
    if type(fields[0]) is int and fields[0] > NUMBER_MAX - len(fields[3]) + 1:
        raise Malformed(f"invalid payload: expected sequences up to {NUMBER_MAX}")
    if large or None in fields[4]:
        fields[4] = join_large(fields[4], large)
    if len(fields) == _SIX:
        fields[5:] = 1, None, fields[5]
    return _columns((*fields, *_LEFT_OUT[len(fields)]))


def _plain_columns(payload: Frame) -> list[Any]:
    """Return the columns of a usual payload; an empty list for any other."""
    if not payload or payload[0] not in _TYPED_COLUMNS:
        return []
    try:
        if len(payload) > UNCHECKED_BYTES:
            # No list gets the memory that it announces before the whole value is seen to be there.
            seen(payload)
        fields: list[Any] = [*_TYPED_COLUMNS[payload[0]](payload)]
    except (ValueError, RecursionError):
        return []
    count = len(fields[3])
    for column in fields:
        if type(column) is list and len(column) != count:
            return []
    return fields if count else []


_SIX = 6
_columns: Callable[[Iterable[Any]], Columns] = partial(tuple.__new__, Columns)  # as its class would, in C
_LEFT_OUT = {5: (1, None, 0), 7: (0,), 8: ()}
"""The values of the columns that a payload of so many leaves out."""
seen = msgspec.msgpack.Decoder(msgspec.Raw).decode
"""Scans a value without making it. Raises `ValueError` for one that is cut short."""
_Sequence = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
_Time = Annotated[int, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
_Attempt = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
_Ttl = Annotated[int, msgspec.Meta(ge=0, le=DURATION_MS_MAX)]
_Sequences = _Sequence | list[_Sequence]
_Times = _Time | list[_Time]
_Senders = str | list[str]
_Records = list[bytes | None]
# Properties may be bytes as well, which these types cannot say beside text.
_Properties = list[dict[str, str | int | float | bool | None] | None] | None
_TYPED_COLUMNS: dict[int, Callable[[Frame], Sequence[Any]]] = {
    0x95: msgspec.msgpack.Decoder(tuple[_Sequences, _Times, _Senders, list[str], _Records]).decode,
    0x96: msgspec.msgpack.Decoder(
        tuple[_Sequences, _Times, _Senders, list[str], _Records, _Ttl | list[_Ttl]]
    ).decode,
    0x97: msgspec.msgpack.Decoder(
        tuple[_Sequences, _Times, _Senders, list[str], _Records, _Attempt | list[_Attempt], _Properties]
    ).decode,
}
"""Decoders by the first byte of a list: five or six columns of stream messages, seven of queued ones."""


def _any_columns(payload: Frame) -> list[Any]:
    fields = unpack(payload, items_max=len(payload))
    if not isinstance(fields, list) or len(fields) not in (5, _SIX, 7):
        raise Malformed("invalid payload: expected an array of 5, 6 or 7 columns")
    subjects, records = fields[3:5]
    if not isinstance(subjects, list) or not isinstance(records, list) or not subjects:
        raise Malformed("invalid payload: expected non-empty lists of subjects and records")
    if len(fields) == 7 and not (fields[6] is None or is_properties(fields[6])):
        raise Malformed("invalid payload: expected properties of nil, or a list of nil and maps")
    if not all(map(_is_column, fields, _COLUMN_TYPES, repeat(len(subjects)))):
        raise Malformed("invalid payload: expected columns of the right type and of one length")
    for column, (words, low, high) in zip(fields, _BOUNDS[len(fields)], strict=False):
        if words and not _is_within(column, low, high):
            raise Malformed(f"invalid payload: expected {words} from {low} to {high}")
    return fields


_INT: set[type] = {int}
_TEXT: set[type] = {str}
_RECORD: set[type] = {bytes, type(None)}
_MAP: set[type] = {dict, type(None)}
_COLUMN_TYPES = (_INT, _INT, _TEXT, _TEXT, _RECORD, _INT, _MAP)


_RUN = (("sequences", 1, NUMBER_MAX), ("times", -NUMBER_MAX, NUMBER_MAX), *[("", 0, 0)] * 3)
_BOUNDS: dict[int, Sequence[tuple[str, int, int]]] = {
    5: _RUN,
    _SIX: (*_RUN, ("milliseconds to live", 0, DURATION_MS_MAX)),
    7: (*_RUN, ("attempts", 0, NUMBER_MAX)),
}
"""The range of the numbers of each column, by the number of columns. Other columns have no name here."""


def _is_within(column: int | list[int], low: int, high: int) -> bool:
    if isinstance(column, int):
        return low <= column <= high
    return low <= min(column) <= max(column) <= high


def _is_column(column: object, allowed: set[type], length: int) -> bool:
    if isinstance(column, list):
        return len(column) == length and allowed.issuperset(map(type, column))
    return type(column) in allowed
