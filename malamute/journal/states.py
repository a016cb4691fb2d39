"""The states of streams and their cards: reading them, and making anew what is damaged.

The state of a stream changes with every commit, and everything hangs on it. What it says follows from the
keys of the stream's chunks, but for two things: the name, and which sequences may have been used. These are
on the stream's *card* once more, far away in the file, with what is set of a stream and seldom changes: its
feeds, its retention, and the names of its cursors. A card is written when one of these changes. Its `ceiling`
is ahead of all reserved sequences, so it changes once in a thousand million messages.

So a damaged state costs nothing but the numbers up to the ceiling, which are left out. And cards tell which
cursors there must be, whatever has become of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import lmdb
import msgpack

from malamute.errors import StoreTooNew
from malamute.journal import format as codec
from malamute.journal.format import CARD, CHUNK, STREAM, VERSION, Damaged, Stream, TooNew, crc32, key
from malamute.protocol.names import is_name
from malamute.store.operations import (
    Defect,
    DeleteCursor,
    DeleteFeed,
    DeleteStream,
    NoteRefused,
    PutCursor,
    PutFeed,
    PutRetention,
)

CEILING_STEP = 1 << 30
"""How far a ceiling is ahead of what is reserved."""

REFUSED_MAX = 100
"""Refused ranges that are remembered of a stream."""

UNKNOWN_STEP = 1 << 40
"""How far a stream without a card goes on behind its last message."""

_CARD = struct.Struct(">B3xQ")
_CRC = struct.Struct(">I")

Setting = PutCursor | DeleteCursor | PutFeed | DeleteFeed | PutRetention | NoteRefused | DeleteStream
"""The operations that may change a card."""

SETTINGS: frozenset[type[Any]] = frozenset(
    (PutCursor, DeleteCursor, PutFeed, DeleteFeed, PutRetention, NoteRefused, DeleteStream)
)


class Card(NamedTuple):
    """What is told of a stream once more. `identifier` is that of its key, 0 if it is not stored."""

    identifier: int
    name: str
    ceiling: int = 0
    cursors: frozenset[str] = frozenset()
    feeds: Mapping[str, bytes] = {}
    retention: tuple[int, int, float] | None = None
    refused: tuple[tuple[int, int, int], ...] = ()
    """The newest ranges that the disk has refused, each with the last sequence sent before that was told."""

    @property
    def notes(self) -> list[NoteRefused]:
        """The same as operations."""
        return [NoteRefused(self.name, *row) for row in self.refused]


def noted(known: Sequence[NoteRefused], note: NoteRefused) -> list[NoteRefused]:
    """The notes of a stream with one more, or with another one of the same range."""
    others = [old for old in known if old[:3] != note[:3]]
    return [*others, note][-REFUSED_MAX:]


def encode_card(card: Card) -> bytes:
    """The bytes of a card."""
    fields = card.name, sorted(card.cursors), card.feeds, card.retention, card.refused
    packed: bytes = msgpack.packb(fields)
    body = _CARD.pack(VERSION, card.ceiling) + packed
    return _CRC.pack(crc32(body)) + body


def decode_card(identifier: int, data: bytes | memoryview) -> Card:
    """A card. Raises `Damaged`."""
    body = memoryview(data)[_CRC.size :]
    if len(body) < _CARD.size or _CRC.unpack_from(data)[0] != crc32(body):
        raise Damaged("wrong CRC of a card")
    codec.check_version(body[0])
    _, ceiling = _CARD.unpack_from(body)
    try:
        name, cursors, feeds, retention, refused = msgpack.unpackb(body[_CARD.size :])
        kept = retention and tuple(retention)
        rows = tuple((first, last, sent) for first, last, sent in refused)
        return Card(identifier, name, ceiling, frozenset(cursors), dict(feeds), kept, rows)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"a card holds {error!r}") from error


def changed(card: Card, setting: Setting) -> Card:
    """A card after an operation; the same one if it says nothing new."""
    match setting:
        case PutCursor(cursor=name) if name not in card.cursors:
            return card._replace(cursors=card.cursors | {name})
        case DeleteCursor(cursor=name) if name in card.cursors:
            return card._replace(cursors=card.cursors - {name})
        case PutFeed(service, _, value):
            return card._replace(feeds={**card.feeds, service: value})
        case DeleteFeed(service=service):
            return card._replace(feeds={s: value for s, value in card.feeds.items() if s != service})
        case PutRetention():
            return card._replace(retention=(setting.bytes, setting.count, setting.age))
        case NoteRefused():
            notes = noted(card.notes, setting)
            return card._replace(refused=tuple((note.first, note.last, note.sent) for note in notes))
        case DeleteStream():
            return Card(card.identifier, card.name, card.ceiling)
    return card


class Mend(NamedTuple):
    """A damaged value, to be put aside, and what takes its place, if anything does."""

    place: bytes
    found: bytes | None
    value: bytes | None


class States(NamedTuple):
    """What a store says of its streams. The mends are for whoever may write."""

    streams: list[Stream]
    cards: dict[int, Card]
    mends: list[Mend]
    defects: list[Defect]


def read_states(cursor: lmdb.Cursor) -> States:
    """Read all states and cards. What is damaged is made anew from the rest. Raises `StoreTooNew`."""
    found = States([], {}, [], [])
    damaged: dict[int, bytes | None] = {}
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
            found.streams.append(codec.decode_stream(value))
        except TooNew as error:
            raise StoreTooNew(str(error)) from error
        except Damaged:
            damaged[identifier] = bytes(value)
    there = {stream.identifier for stream in found.streams}
    damaged |= dict.fromkeys(found.cards.keys() - there - damaged.keys())
    for identifier, value in damaged.items():
        stream = made_anew(cursor, identifier, found, value)
        found.streams.append(stream)
        found.mends.append(Mend(key(STREAM, identifier), value, codec.encode_stream(stream)))
        outcome = "its state was made anew from its chunks"
        found.defects.append(Defect("stream", stream.name, stream.first, stream.last, outcome))
    names = {stream.identifier: stream.name for stream in found.streams}
    for identifier, value in cards.items():
        found.mends.append(Mend(key(CARD, identifier), value, None))
        outcome = "its card is written anew with its next change"
        found.defects.append(Defect("card", names.get(identifier, ""), 0, 0, outcome))
    return found


def _values(cursor: lmdb.Cursor, kind: int, identifier: int = 0) -> Iterator[tuple[bytes, Any]]:
    found = cursor.set_range(key(kind, identifier))
    while found and cursor.key()[0] == kind:
        yield bytes(cursor.key()), cursor.value()
        found = cursor.next()


def made_anew(cursor: lmdb.Cursor, identifier: int, known: States, damaged: bytes | None) -> Stream:
    """The state of a stream by its card and by the keys of its chunks, whose payloads are not read."""
    card = known.cards.get(identifier)
    name = card.name if card else _name_in(identifier, known, damaged or b"")
    first = last = size = chunks = first_time = last_time = 0
    for place, value in _values(cursor, CHUNK, identifier):
        if codec.split_key(place)[1] != identifier:
            break
        last = codec.split_key(place)[2]
        size, chunks = size + len(value), chunks + 1
        try:
            header = codec.decode_chunk_header(value)
            last, last_time = max(last, header.last), header.time
        except Damaged:
            pass
        first, first_time = first or codec.split_key(place)[2], first_time or last_time
    ceiling = card.ceiling if card else last + UNKNOWN_STEP
    if not chunks:
        return Stream(identifier, name, ceiling + 1, ceiling, ceiling)
    count = last - first + 1
    times = first_time, last_time
    return Stream(identifier, name, first, last, max(last, ceiling), size, count, chunks, *times)


def _name_in(identifier: int, known: States, damaged: bytes) -> str:
    """What a damaged state says of the name, if that can be; empty for one of a deleted stream."""
    raw = damaged[codec.STREAM_NAME_PLACE :]
    taken = {stream.name for stream in known.streams} | {card.name for card in known.cards.values()}
    name = raw.decode(errors="replace")
    if damaged and not raw and len(damaged) == codec.STREAM_NAME_PLACE:
        return ""
    return name if is_name(name) and "\ufffd" not in name and name not in taken else f"lost.{identifier}"


class Settings(NamedTuple):
    """What is set of streams, as the log has it: cursors by stream and name, feeds by service and stream."""

    cursors: dict[tuple[str, str], int]
    feeds: dict[tuple[str, str], bytes]
    retentions: dict[str, PutRetention]

    def by_cards(
        self, cards: Mapping[str, Card], *, is_doubtful: bool
    ) -> tuple[Settings, frozenset[tuple[str, str]]]:
        """What is true of it by the cards, if the log is doubtful; and the cursors that the log has lost."""
        lost = {(c.name, cursor) for c in cards.values() for cursor in c.cursors} - self.cursors.keys()
        if not is_doubtful:
            return self, frozenset(lost)
        cursors = {
            (stream, cursor): sequence
            for (stream, cursor), sequence in self.cursors.items()
            if stream not in cards or cursor in cards[stream].cursors
        }
        feeds = {place: value for place, value in self.feeds.items() if place[1] not in cards}
        feeds |= {(f, card.name): value for card in cards.values() for f, value in card.feeds.items()}
        kept = {name: put for name, put in self.retentions.items() if name not in cards}
        kept |= {c.name: PutRetention(c.name, *c.retention) for c in cards.values() if c.retention}
        return Settings(cursors, feeds, kept), frozenset(lost)

    def cards(self, known: Mapping[str, Card]) -> dict[str, Card]:
        """The cards that are known, and those of other streams that have something set."""
        operations: list[Setting] = [PutCursor(*place, 0) for place in self.cursors]
        operations += [PutFeed(*place, value) for place, value in self.feeds.items()]
        operations += self.retentions.values()
        cards = dict(known)
        for operation in operations:
            if operation.stream not in known:
                card = cards.get(operation.stream) or Card(0, operation.stream)
                cards[operation.stream] = changed(card, operation)
        return cards
