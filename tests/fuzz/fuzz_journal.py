"""What is read from a disk: keys, values and their parts, with and without the right checksum.

Chance seldom finds a checksum. So it is put on here, where the first letter says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from malamute.errors import Malformed, StoreError
from malamute.journal import blocks, states, subjects
from malamute.journal import format as disk
from malamute.journal.format import Damaged, crc32
from malamute.store import codec as operations

VERSION = bytes([disk.VERSION])
CRC = struct.Struct(">I")


def _meta(data: bytes) -> bytes:
    body = disk.MAGIC + disk.VERSION.to_bytes(4, "big") + data
    return body + CRC.pack(crc32(body))


def _behind_crc(data: bytes) -> bytes:
    body = VERSION + data
    return CRC.pack(crc32(body)) + body


def _chunk(data: bytes) -> bytes:
    head, body = VERSION + data[:31].ljust(31, b"\0"), data[31:]
    head += CRC.pack(crc32(body))
    return head + CRC.pack(crc32(head)) + body


def _block(data: bytes) -> bytes:
    head, body = VERSION + data[:15].ljust(15, b"\0"), data[15:]
    return head + CRC.pack(crc32(body, crc32(head))) + body


def _read_card(value: bytes) -> None:
    card = states.decode_card(7, value)
    assert type(card.name) is str
    assert all(type(table) is str for table, _ in card.values)
    assert all(type(number) is int for row in card.refused for number in row)
    assert repr(states.decode_card(7, states.encode_card(card))) == repr(card)


def _read_meta(value: bytes) -> None:
    meta = disk.decode_meta(value)
    assert disk.decode_meta(disk.encode_meta(meta)) == meta
    assert disk.is_whole_meta(value)


def _read_stream(value: bytes) -> None:
    stream, lsn = disk.decode_stream_and_lsn(value)
    assert disk.decode_stream_and_lsn(disk.encode_stream(stream, lsn)) == (stream, lsn)


def _read_chunk(value: bytes) -> None:
    chunk = disk.decode_chunk(value)
    assert disk.decode_chunk(disk.encode_chunk(chunk)) == chunk
    subjects.subjects_in(chunk)
    subjects.SubjectSearch(9).visit(value, chunk.first)


def _read_block(value: bytes) -> None:
    blocks.decode_lsn(value)
    found = blocks.decode_block(value)
    assert repr(blocks.decode_block(blocks.encode_block(found, 1))) == repr(found)
    assert len(blocks.salvage(value)) <= len(found)
    blocks.undeleted(found)


FORMS: dict[bytes, tuple[int, Callable[[bytes], bytes]]] = {
    b"M": (disk.META, _meta),
    b"S": (disk.STREAM, _behind_crc),
    b"C": (disk.CHUNK, _chunk),
    b"B": (disk.BLOCK, _block),
    b"D": (disk.CARD, _behind_crc),
}
"""The kind of each letter, and what makes a value of it that its checksums find right."""

READERS: Sequence[Callable[[bytes], object]] = (
    disk.split_key,
    _read_meta,
    _read_stream,
    disk.decode_chunk_header,
    _read_chunk,
    disk.decode_index,
    _read_block,
    blocks.decode_records,
    _read_card,
)


def journal(data: bytes) -> None:
    """Any value is what it should be, or damaged; salvaging a block never raises."""
    _, form = FORMS.get(data[:1], (0, bytes))
    value = form(data[1:])
    for read in READERS:
        with suppress(Damaged):
            read(value)
    blocks.salvage(value)
    disk.is_whole_meta(value)


def store_codec(data: bytes) -> None:
    """Operations come back from their bytes; any other bytes are malformed."""
    operations.salvage(data)
    with suppress(Malformed):
        operations.decode_records(data)
    with suppress(Malformed):
        found = operations.decode(data)
        assert repr(operations.decode(operations.encode(found))) == repr(found)
        assert repr(operations.salvage(data)) == repr(found)


class _Cursor:
    """A few values in order, as LMDB's cursor has them."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self._rows, self._place = sorted(values.items()), 0

    def set_range(self, key: bytes) -> bool:
        self._place = sum(place < key for place, _ in self._rows)
        return self._place < len(self._rows)

    def next(self) -> bool:
        self._place += 1
        return self._place < len(self._rows)

    def prev(self) -> bool:
        self._place -= 1
        return self._place >= 0

    def last(self) -> bool:
        self._place = len(self._rows) - 1
        return self._place >= 0

    def key(self) -> bytes:
        return self._rows[self._place][0]

    def value(self) -> bytes:
        return self._rows[self._place][1]


def streams(data: bytes) -> None:
    """Whatever the states and cards of streams are, each stream is made of what is left, and comes back."""
    values: dict[bytes, bytes] = {}
    for entry in data.split(b"\xc1\xc1"):
        kind, form = FORMS.get(entry[:1].upper(), (disk.CHUNK, _chunk))
        identifier, value = entry[1:2] or b"\0", entry[2:]
        values[disk.key(kind, identifier[0], len(values) + 1 if kind in (disk.CHUNK, disk.BLOCK) else 0)] = (
            form(value) if entry[:1].isupper() else value
        )
    with suppress(StoreError):
        found = states.read_states(_Cursor(values))  # type: ignore[arg-type]  # it has what is asked of one
        states.newest_lsn(_Cursor(values), 1, found)  # type: ignore[arg-type]
        for stream in found.streams:
            with suppress(struct.error):  # a number that is too large came from no broker
                disk.encode_stream(stream)
        cards = [card for card in found.cards.values() if card.name]
        states.settle_by_cards({}, cards, is_suspect=True)
