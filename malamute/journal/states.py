"""The states of streams and their cards: reading both, and rebuilding damaged ones.

The state of a stream changes with every commit, and every access to the stream needs it. All its fields
follow from the keys of the stream's chunks, except the name and the highest sequence that may have been
used. A second record, the *card* of the stream, has these two, far away in the file. A card also has the
values of tables that belong to the stream; only the keys of values that change often, such as cursors. A card
is written when one of these changes. Its `ceiling` is ahead of all reserved sequences, so it changes once in
a thousand million messages.

A damaged state therefore costs no message, only the sequences up to the ceiling, which are skipped. And a
damaged log cannot hide a cursor, since the card has its key.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgpack

from malamute.errors import StoreTooNew
from malamute.journal import format as codec
from malamute.journal.blocks import decode_lsn
from malamute.journal.chunk_cursor import keys_of
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
"""The lead of a ceiling over the reserved sequences."""

REFUSED_MAX = 100
"""Refused ranges that a card remembers."""

LSN_STEP = 1 << 32
"""Log sequence numbers skipped behind the newest one found, if a damaged value may have had newer ones."""

UNKNOWN_STEP = 1 << 40
"""Sequences skipped behind the last message of a stream without a card."""

_CARD = struct.Struct(">B3xQ")
_CRC = struct.Struct(">I")

Setting = PutValue | DeleteValue | NoteRefused | DeleteStream
"""The operations that may change a card."""

Values = Mapping[str, Mapping[Key, Value]]
"""The values of tables."""


class Card(NamedTuple):
    """The second record of a stream. `identifier` is the one of its key, 0 if the card is not stored.

    `values` are by table and key; a value that changes often is None.
    """

    identifier: int
    name: str
    ceiling: int = 0
    values: Mapping[tuple[str, Key], Value] = {}
    refused: tuple[tuple[int, int, int], ...] = ()
    """The newest refused ranges: first, last, and the last sequence sent before the report of the refusal."""

    @property
    def notes(self) -> list[NoteRefused]:
        """The refused ranges as operations."""
        return [NoteRefused(self.name, *row) for row in self.refused]


def stream_of(setting: Setting) -> str:
    """Return the stream whose card an operation may change."""
    return str(setting.key[0]) if isinstance(setting, PutValue | DeleteValue) else setting.stream


def noted(known: Sequence[NoteRefused], note: NoteRefused) -> list[NoteRefused]:
    """Return the notes of a stream with one more, which replaces a note of the same range."""
    others = [old for old in known if old[:3] != note[:3]]
    return [*others, note][-REFUSED_MAX:]


def encode_card(card: Card) -> bytes:
    """Return the bytes of a card."""
    rows = [(table, key[1:], value) for (table, key), value in card.values.items()]
    packed: bytes = msgpack.packb((card.name, rows, card.refused))
    body = _CARD.pack(VERSION, card.ceiling) + packed
    return _CRC.pack(crc32(body)) + body


def decode_card(identifier: int, data: bytes | memoryview) -> Card:
    """Return the card in these bytes. Raises `Damaged`."""
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
    """Return a card after an operation; the same object if the operation changes nothing."""
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
    """Return whether a value has this key, or this owner if the key is an owner alone."""
    return place[0] == table and (place[1] == key or (len(key) == 1 and place[1][0] == key[0]))


class ValueRepair(NamedTuple):
    """A damaged value, to be put aside, and its replacement; None deletes the key."""

    place: bytes
    found: bytes | None
    value: bytes | None


class States(NamedTuple):
    """The streams of a store as read. The repairs are left to a caller with a write transaction."""

    streams: list[StreamMeta]
    cards: dict[int, Card]
    repairs: list[ValueRepair]
    defects: list[Defect]
    lsns: list[int]
    """The log sequence numbers in the states."""


def read_states(cursor: Cursor) -> States:
    """Read all states and cards, and rebuild damaged ones. Raises `StoreTooNew`."""
    found = States([], {}, [], [], [])
    damaged: dict[int, bytes | None] = {}
    misplaced: list[StreamMeta] = []
    cards: dict[int, bytes] = {}
    for place in keys_of(cursor, CARD):
        identifier, value = codec.split_key(place)[1], cursor.value()
        try:
            found.cards[identifier] = decode_card(identifier, value)
        except TooNew as error:
            raise StoreTooNew(str(error)) from error
        except Damaged:
            cards[identifier] = bytes(value)
    for place in keys_of(cursor, STREAM):
        identifier, value = codec.split_key(place)[1], cursor.value()
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
    for identifier, raw in damaged.items():
        stream = made_anew(cursor, identifier, found, raw)
        found.streams.append(stream)
        found.repairs.append(ValueRepair(key(STREAM, identifier), raw, codec.encode_stream(stream)))
        outcome = "its state was rebuilt from its chunks"
        found.defects.append(Defect("stream", stream.name, stream.first, stream.last, outcome))
    names = {stream.identifier: stream.name for stream in found.streams}
    for identifier, raw in cards.items():
        found.repairs.append(ValueRepair(key(CARD, identifier), raw, None))
        outcome = "its card is written anew with its next change"
        found.defects.append(Defect("card", names.get(identifier, ""), 0, 0, outcome))
    return found


def _place(misplaced: Sequence[StreamMeta], found: States, damaged: Collection[int]) -> None:
    """Add intact states under damaged keys, unless there is a state under the right key."""
    there = {*damaged, *(stream.identifier for stream in found.streams)}
    for stream in misplaced:
        outcome = "its state was under a damaged key"
        found.defects.append(Defect("stream", stream.name, stream.first, stream.last, outcome))
        if stream.identifier not in there:
            found.streams.append(stream)
            place = key(STREAM, stream.identifier)
            found.repairs.append(ValueRepair(place, None, codec.encode_stream(stream)))


def newest_lsn(cursor: Cursor, known: int, states: States) -> int:
    """Return the log sequence number of the last transaction; the meta record has the `known` one.

    Each transaction writes its number into the states of streams that it changes and into its blocks, or into
    the meta record if it has neither. A damaged one of them may have had a newer number.
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


def made_anew(cursor: Cursor, identifier: int, known: States, damaged: bytes | None) -> StreamMeta:
    """Return the state of a stream by its card and by the keys of its chunks, without reading payloads."""
    card = known.cards.get(identifier)
    name = card.name if card else _name_in(identifier, known, damaged or b"")
    first = last = size = chunks = 0
    oldest = newest = None
    for place in keys_of(cursor, CHUNK, identifier):
        if codec.split_key(place)[1] != identifier:
            break
        last = codec.split_key(place)[2]
        bytes_here, head = size_and_head(cursor)
        size, chunks = size + bytes_here, chunks + 1
        if header := codec.header_of(head):
            last = max(last, header.last)
            oldest, newest = oldest or header, header
        first = first or codec.split_key(place)[2]
    ceiling = card.ceiling if card else min(last + UNKNOWN_STEP, NUMBER_MAX)
    if not chunks:
        return StreamMeta(identifier, name, ceiling + 1, ceiling, ceiling)
    count = last - first + 1
    ends = (oldest.time_ns, newest.time_ns, oldest.era, newest.era) if oldest and newest else ()
    return StreamMeta(identifier, name, first, last, max(last, ceiling), size, count, chunks, *ends)


def _name_in(identifier: int, known: States, damaged: bytes) -> str:
    """Return the name in a damaged state if it is valid and free, or else a new one.

    The name of a deleted stream is empty.
    """
    raw = damaged[codec.STREAM_NAME_PLACE :]
    taken = {stream.name for stream in known.streams} | {card.name for card in known.cards.values()}
    name = raw.decode(errors="replace")
    if damaged and not raw and len(damaged) == codec.STREAM_NAME_PLACE:
        return ""
    return name if is_name(name) and "\ufffd" not in name and name not in taken else f"lost.{identifier}"


def settle_by_cards(
    found: Values, cards: Collection[Card], *, is_suspect: bool
) -> tuple[Values, frozenset[tuple[str, Key]]]:
    """Return the values of the log as corrected by the cards, and the keys that the log has lost.

    If the log is suspect, the values of a stream are those of its card.
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
    """Return the known cards, and new cards of the other streams that have values."""
    cards = dict(known)
    for table in OF_STREAMS:
        for place, value in found.get(table, {}).items():
            name = str(place[0])
            if name not in known:
                cards[name] = changed(cards.get(name) or Card(0, name), PutValue(table, place, value))
    return cards
