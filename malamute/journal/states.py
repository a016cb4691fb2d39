"""The states of streams and their cards: reading them, and making anew what is damaged.

The state of a stream changes with every commit, and everything hangs on it. What it says follows from the
keys of the stream's chunks, but for two things: the name, and which sequences may have been used. These are
on the stream's *card* once more, far away in the file, with the values of tables that belong to the stream;
of those that change often, as cursors do, with their names alone. A card is written when one of these
changes. Its `ceiling` is ahead of all reserved sequences, so it changes once in a thousand million messages.

So a damaged state costs nothing but the numbers up to the ceiling, which are left out. And cards say which
cursors there must be, whatever has become of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from malamute.errors import StoreTooNew
from malamute.journal import format as codec
from malamute.journal.blocks import decode_lsn
from malamute.journal.format import (
    BLOCK,
    CARD,
    CHUNK,
    STREAM,
    VERSION,
    Damaged,
    StreamMeta,
    TooNew,
    crc32,
    key,
)
from malamute.journal.lmdb_pages.cursor import Cursor, size_and_head
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.names import is_name
from malamute.store.codec import key_of, plain
from malamute.store.operations import (
    Defect,
    DeleteStream,
    DeleteValue,
    Key,
    NoteRefused,
    PutValue,
    Value,
)
from malamute.store.tables import OF_STREAMS, PLAIN, TABLES

CEILING_STEP = 1 << 30
"""How far a ceiling is ahead of what is reserved."""

REFUSED_MAX = 100
"""Refused ranges that are remembered of a stream."""

LSN_STEP = 1 << 32
"""How far log sequence numbers continue behind the newest one found, if a damaged value may have had newer
ones."""

UNKNOWN_STEP = 1 << 40
"""How far a stream without a card continues behind its last message."""

_CARD = struct.Struct(">B3xQ")
_CRC = struct.Struct(">I")

Setting = PutValue | DeleteValue | NoteRefused | DeleteStream
"""The operations that may change a card."""

Values = Mapping[str, Mapping[Key, Value]]
"""The values of tables."""


class Card(NamedTuple):
    """A second record of what is known of a stream. `identifier` is that of its key, 0 if it is not stored.

    `values` are by table and key; None stands for one that changes often.
    """

    identifier: int
    name: str
    ceiling: int = 0
    values: Mapping[tuple[str, Key], Value] = {}
    refused: tuple[tuple[int, int, int], ...] = ()
    """The newest ranges that the disk has refused, each with the last sequence sent before that was
    reported."""

    @property
    def notes(self) -> list[NoteRefused]:
        """The same as operations."""
        return [NoteRefused(self.name, *row) for row in self.refused]


def stream_of(setting: Setting) -> str:
    """The stream whose card an operation may change."""
    return str(setting.key[0]) if isinstance(setting, PutValue | DeleteValue) else setting.stream


def noted(known: Sequence[NoteRefused], note: NoteRefused) -> list[NoteRefused]:
    """The notes of a stream with one more, or with another one of the same range."""
    others = [old for old in known if old[:3] != note[:3]]
    return [*others, note][-REFUSED_MAX:]


def encode_card(card: Card) -> bytes:
    """The bytes of a card."""
    rows = [(table, key[1:], value) for (table, key), value in card.values.items()]
    packed: bytes = msgpack.packb((card.name, rows, card.refused))
    body = _CARD.pack(VERSION, card.ceiling) + packed
    return _CRC.pack(crc32(body)) + body


def decode_card(identifier: int, data: bytes | memoryview) -> Card:
    """A card. Raises `Damaged`."""
    body = memoryview(data)[_CRC.size :]
    if len(body) < _CARD.size or _CRC.unpack_from(data)[0] != crc32(body):
        raise Damaged("wrong CRC of a card")
    codec.check_version(body[0])
    _, ceiling = _CARD.unpack_from(body)
    if ceiling > NUMBER_MAX:
        raise Damaged(f"a card with the ceiling {ceiling}")
    try:
        name, rows, refused = msgpack.unpackb(body[_CARD.size :], strict_map_key=False)
        values = {(table, key_of([name, *key])): plain(value) for table, key, value in rows}
        notes = tuple((first, last, sent) for first, last, sent in refused)
        if not {str}.issuperset(map(type, [name, *(table for table, _ in values)])):
            raise TypeError("invalid name: expected text")
        if not {int}.issuperset(map(type, chain(*notes))):
            raise TypeError("invalid range: expected integers")
        return Card(identifier, name, ceiling, values, notes)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"invalid card: {error!r}") from error


def changed(card: Card, setting: Setting) -> Card:
    """A card after an operation; the same one if it says nothing new."""
    match setting:
        case PutValue(table, key, value):
            value = None if TABLES.get(table, PLAIN).changes_often else value
            if card.values.get((table, key), card) != value:
                return card._replace(values={**card.values, (table, key): value})
        case DeleteValue(table, key):
            left = {place: value for place, value in card.values.items() if not _is_in(place, table, key)}
            if len(left) < len(card.values):
                return card._replace(values=left)
        case NoteRefused():
            notes = noted(card.notes, setting)
            return card._replace(refused=tuple((note.first, note.last, note.sent) for note in notes))
        case DeleteStream():
            return Card(card.identifier, card.name, card.ceiling)
    return card


def _is_in(place: tuple[str, Key], table: str, key: Key) -> bool:
    """Whether a value is the one of this key, or one of those of this owner."""
    return place[0] == table and (place[1] == key or (len(key) == 1 and place[1][0] == key[0]))


class ValueRepair(NamedTuple):
    """A damaged value, to be put aside, and what takes its place, if anything does."""

    place: bytes
    found: bytes | None
    value: bytes | None


class States(NamedTuple):
    """What a store says of its streams. The repairs are for who may write."""

    streams: list[StreamMeta]
    cards: dict[int, Card]
    repairs: list[ValueRepair]
    defects: list[Defect]
    lsns: list[int]
    """The log sequence numbers of those that wrote the states."""


def read_states(cursor: Cursor) -> States:
    """Read all states and cards. What is damaged is rebuilt from the rest. Raises `StoreTooNew`."""
    found = States([], {}, [], [], [])
    damaged: dict[int, bytes | None] = {}
    misplaced: list[StreamMeta] = []
    cards: dict[int, bytes] = {}
    for place, value in _values(cursor, CARD):
        identifier = codec.split_key(place)[1]
        try:
            found.cards[identifier] = decode_card(identifier, value)
        except TooNew as error:
            raise StoreTooNew(str(error)) from error
        except Damaged:
            cards[identifier] = bytes(value)
    for place, value in _values(cursor, STREAM):
        identifier = codec.split_key(place)[1]
        try:
            stream, lsn = codec.decode_stream_and_lsn(value)
            found.lsns.append(lsn)
            if place == key(STREAM, stream.identifier):
                found.streams.append(stream)
            else:
                misplaced.append(stream)
                found.repairs.append(ValueRepair(place, bytes(value), None))
        except TooNew as error:
            raise StoreTooNew(str(error)) from error
        except Damaged:
            damaged[identifier] = bytes(value)
    _place(misplaced, found, damaged)
    there = {stream.identifier for stream in found.streams}
    damaged |= dict.fromkeys(found.cards.keys() - there - damaged.keys())
    for identifier, value in damaged.items():
        stream = made_anew(cursor, identifier, found, value)
        found.streams.append(stream)
        found.repairs.append(ValueRepair(key(STREAM, identifier), value, codec.encode_stream(stream)))
        outcome = "its state was rebuilt from its chunks"
        found.defects.append(Defect("stream", stream.name, stream.first, stream.last, outcome))
    names = {stream.identifier: stream.name for stream in found.streams}
    for identifier, value in cards.items():
        found.repairs.append(ValueRepair(key(CARD, identifier), value, None))
        outcome = "its card is written anew with its next change"
        found.defects.append(Defect("card", names.get(identifier, ""), 0, 0, outcome))
    return found


def _place(misplaced: Sequence[StreamMeta], found: States, damaged: Collection[int]) -> None:
    """Take up whole states that were under a damaged key, unless there is one under the right key."""
    there = {*damaged, *(stream.identifier for stream in found.streams)}
    for stream in misplaced:
        outcome = "its state was under a damaged key"
        found.defects.append(Defect("stream", stream.name, stream.first, stream.last, outcome))
        if stream.identifier not in there:
            found.streams.append(stream)
            place = key(STREAM, stream.identifier)
            found.repairs.append(ValueRepair(place, None, codec.encode_stream(stream)))


def newest_lsn(cursor: Cursor, known: int, states: States) -> int:
    """The log sequence number of the last transaction, where the meta record has a `known` one.

    Each transaction writes it into the states of streams that it changes and into its blocks, or into the
    meta record if there are neither. So the newest is in one of those, or was, if one of them is damaged.
    """
    newest = max([known, *states.lsns])
    is_known = not any(repair.place[0] == STREAM for repair in states.repairs)
    found = cursor.prev() if cursor.set_range(key(BLOCK + 1)) else cursor.last()
    if found and cursor.key()[0] == BLOCK:
        try:
            newest = max(newest, decode_lsn(cursor.value()))
        except Damaged:
            is_known = False
    return newest if is_known else newest + LSN_STEP


def _values(cursor: Cursor, kind: int) -> Iterator[tuple[bytes, Any]]:
    for place in _keys(cursor, kind):
        yield place, cursor.value()


def _keys(cursor: Cursor, kind: int, identifier: int = 0) -> Iterator[bytes]:
    found = cursor.set_range(key(kind, identifier))
    while found and cursor.key()[0] == kind:
        yield bytes(cursor.key())
        found = cursor.next()


def made_anew(cursor: Cursor, identifier: int, known: States, damaged: bytes | None) -> StreamMeta:
    """The state of a stream by its card and by the keys of its chunks, whose payloads are not read."""
    card = known.cards.get(identifier)
    name = card.name if card else _name_in(identifier, known, damaged or b"")
    first = last = size = chunks = 0
    oldest = newest = None
    for place in _keys(cursor, CHUNK, identifier):
        if codec.split_key(place)[1] != identifier:
            break
        last = codec.split_key(place)[2]
        bytes_here, head = size_and_head(cursor)
        size, chunks = size + bytes_here, chunks + 1
        try:
            header = codec.decode_chunk_header(head)
            last = max(last, header.last)
            oldest, newest = oldest or header, header
        except Damaged:
            pass
        first = first or codec.split_key(place)[2]
    ceiling = card.ceiling if card else min(last + UNKNOWN_STEP, NUMBER_MAX)
    if not chunks:
        return StreamMeta(identifier, name, ceiling + 1, ceiling, ceiling)
    count = last - first + 1
    ends = (oldest.time_ns, newest.time_ns, oldest.era, newest.era) if oldest and newest else ()
    return StreamMeta(identifier, name, first, last, max(last, ceiling), size, count, chunks, *ends)


def _name_in(identifier: int, known: States, damaged: bytes) -> str:
    """What a damaged state says of the name, if that can be; empty for one of a deleted stream."""
    raw = damaged[codec.STREAM_NAME_PLACE :]
    taken = {stream.name for stream in known.streams} | {card.name for card in known.cards.values()}
    name = raw.decode(errors="replace")
    if damaged and not raw and len(damaged) == codec.STREAM_NAME_PLACE:
        return ""
    return name if is_name(name) and "\ufffd" not in name and name not in taken else f"lost.{identifier}"


def settle_by_cards(
    found: Values, cards: Collection[Card], *, is_suspect: bool
) -> tuple[Values, frozenset[tuple[str, Key]]]:
    """What is true of the values that the log has, by the cards; and which of them the log has lost.

    Of a doubtful log only the cards know which values of their streams there are.
    """
    carded = {place: value for card in cards for place, value in card.values.items()}
    often = {name for name, table in TABLES.items() if table.changes_often}
    lost = frozenset((table, k) for table, k in carded if table in often and k not in found.get(table, {}))
    if not is_suspect:
        return found, lost
    names = {card.name for card in cards}
    values = {table: dict(rows) for table, rows in found.items()}
    for table in OF_STREAMS & values.keys():
        rows = values[table].items()
        values[table] = {k: value for k, value in rows if k[0] not in names or (table, k) in carded}
    for (table, k), value in carded.items():
        if table not in often:
            values.setdefault(table, {})[k] = value
    return {table: rows for table, rows in values.items() if rows}, lost


def make_cards(found: Values, known: Mapping[str, Card]) -> dict[str, Card]:
    """The cards that are known, and those of other streams that have values."""
    cards = dict(known)
    for table in OF_STREAMS:
        for place, value in found.get(table, {}).items():
            name = str(place[0])
            if name not in known:
                cards[name] = changed(cards.get(name) or Card(0, name), PutValue(table, place, value))
    return cards
