"""The catch-up of a standby by comparison: one way for a new, a returning and a former primary.

Theory. The standby asks, and the primary answers from short read transactions, while it goes on writing:

1. A round compares all keys, in their order, with a fingerprint of each value: the heads of chunks and blocks
   have CRCs, so one page of each is read. The standby deletes what the primary has not, and fetches what
   differs. So each value is of the transaction at which the round began, or of a later one.
2. The write sets since the beginning of the round follow from the memory of the primary (`Tail`). A set puts
   and deletes values, so it does no harm to repeat one: the last of them makes each value that of its moment.
   After the write sets up to the end of the round, the stores are equal, byte for byte.
3. If the tail has lost the beginning of the round, another round follows; it fetches only the changes since,
   so it is shorter. From the round `ROUNDS` on the tail loses nothing: the writer waits (`Tail.wait`).

The standby is marked as not whole before its first change, and as whole after the last one. A failure
between begins it again. Before that, a former primary puts its own records aside: blocks written after its
history parted from that of the primary, and chunks of the streams changed since.

Requests and answers are msgpack in pieces of `PIECE_BYTES`; an empty request asks for the next piece. Neither
side holds more than one page of keys, and one step of values or one large value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import lmdb
import msgpack

from malamute.errors import StoreError
from malamute.journal.blocks import BLOCK_HEADER_SIZE, decode_lsn
from malamute.journal.directory import translated
from malamute.journal.format import (
    BLOCK,
    CHUNK,
    CHUNK_HEADER_SIZE,
    STREAM,
    Damaged,
    decode_stream_and_lsn,
    key,
    split_key,
)
from malamute.journal.opened import OpenedStore
from malamute.journal.pair_record import PLACE, Timelines, parting, refuse_half
from malamute.journal.standby import Standby
from malamute.journal.tail import Tail
from malamute.journal.write_set import WriteSet, decode, encode
from malamute.protocol.batch import pack_plain

PIECE_BYTES = 1024 * 1024
"""The most bytes of a message."""

KEYS_MAX = 8192
"""Keys that one step compares."""

VALUES_MAX = 512
"""Values that one request asks for."""

STEP_BYTES = 8 * 1024 * 1024
"""Bytes of values that one transaction of the standby puts."""

ROUNDS = 5
"""The round from which on the writer of the primary waits for the standby."""

TRIES = 20
"""Attempts of `compare` to see a value that is written all the time at one moment."""

DIFFERENCES_MAX = 1000
"""Differing keys that `compare` names."""

HELLO, KEYS, VALUES, WRITE_SETS, END, DONE, CHANGED, FINGERPRINTS = range(8)

_DIGEST = 16
_HEADS = {CHUNK: CHUNK_HEADER_SIZE, BLOCK: BLOCK_HEADER_SIZE}
_LAST, _MORE = b"\0", b"\1"

Asking: TypeAlias = Generator[bytes, bytes, Any]
"""The standby's side: it yields messages to the primary, and is sent the answers."""

Page: TypeAlias = Mapping[bytes, bytes]
"""Fingerprints by key."""


def fingerprint(place: bytes, value: bytes | memoryview) -> bytes:
    """Return 16 bytes that two different values of a key do not share."""
    head = value[: _HEADS.get(place[0], len(value))]
    return blake2b(head, digest_size=_DIGEST, salt=len(value).to_bytes(8, "big")).digest()


def page_after(
    transaction: lmdb.Transaction, after: bytes, until: bytes | None = None
) -> tuple[dict[bytes, bytes], bool]:
    """Return the fingerprints of the next keys, up to `until`, and whether these are the last."""
    page: dict[bytes, bytes] = {}
    with transaction.cursor() as cursor:
        found = cursor.set_range(after) if after else cursor.first()
        while found:
            place, value = cursor.item()
            place = bytes(place)
            if until is not None and place > until:
                break
            if place not in (after, PLACE) and len(place) == len(PLACE):
                if len(page) == KEYS_MAX:
                    return page, False
                page[place] = fingerprint(place, value)
            found = cursor.next()
    return page, True


def fingerprints(transaction: lmdb.Transaction, places: list[bytes]) -> list[bytes | None]:
    """Return the fingerprints of keys; None for one that is not there."""
    found = ((place, transaction.get(place)) for place in places)
    return [None if value is None else fingerprint(place, value) for place, value in found]


# --- the side of the primary


class CatchUpSource:
    """The primary's side: answers the requests of one standby."""

    def __init__(self, store: OpenedStore, tail: Tail) -> None:
        self._store, self._tail = store, tail
        self._rest = memoryview(b"")
        self._holds = False  # the tail, so that this catch-up ends
        self._answers: Mapping[int, Callable[..., Any]] = {
            HELLO: self._hello,
            KEYS: self._keys,
            VALUES: self._values,
            WRITE_SETS: self._write_sets,
            END: self._end,
            DONE: self.close,
            CHANGED: self._changed,
            FINGERPRINTS: self._fingerprints,
        }

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request, or its next piece. Raises: StoreError."""
        if request:
            try:
                kind, *arguments = msgpack.unpackb(request)
                found = self._answers[kind](*arguments)
            except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
                raise StoreError(f"invalid request of a catch-up: {error!r}") from error
            self._rest = memoryview(pack_plain(found))
        if self._holds:
            self._tail.hold()
        size = PIECE_BYTES - 1
        piece, self._rest = self._rest[:size], self._rest[size:]
        return (_MORE if self._rest else _LAST) + piece

    def close(self) -> None:
        """Let the writer go on, at the end of a catch-up or when it is given up."""
        self._holds = False
        self._tail.release()

    def _hello(self) -> tuple[bytes, Timelines]:
        record = self._store.pair_record
        return self._store.meta.broker_id, record.timelines if record else ()

    def _keys(self, after: bytes, number: int) -> tuple[int, bytes, bool]:
        # The transaction has at least all up to this number.
        lsn = self._store.lsn
        self._holds = number >= ROUNDS
        with self._store.reading() as transaction:
            page, is_last = page_after(transaction, after)
        return lsn, b"".join(place + found for place, found in page.items()), is_last

    def _values(self, places: list[bytes]) -> list[tuple[bytes, bytes | None]]:
        found: list[tuple[bytes, bytes | None]] = []
        size = 0
        with self._store.reading() as transaction:
            for place in places:
                value = transaction.get(place)
                size += len(value or b"")
                if found and size > PIECE_BYTES // 2:
                    break
                found.append((place, None if value is None else bytes(value)))
        return found

    def _write_sets(self, lsn: int) -> list[bytes] | None:
        items = self._tail.since(lsn)
        if items is None:
            return None
        found: list[bytes] = []
        size = 0
        for item in items:
            if isinstance(item, WriteSet):
                found.append(encode(item))
                size += len(found[-1])
                if size > PIECE_BYTES // 2:
                    break
        return found

    def _end(self) -> int:
        with self._store.settled:
            return self._store.lsn

    def _changed(self, lsn: int) -> list[bytes] | None:
        with self._store.settled:
            items = self._tail.since(lsn)
        if items is None:
            return None
        return [*{place for item in items if isinstance(item, WriteSet) for place in item.changes}]

    def _fingerprints(self, places: list[bytes]) -> tuple[int, list[bytes | None]]:
        lsn = self._store.lsn
        with self._store.reading() as transaction:
            return lsn, fingerprints(transaction, places)


# --- the side of the standby


def catch_up(standby: Standby) -> Asking:
    """Make a standby equal to the primary that answers; it follows the write sets after `lsn` from then on.

    Raises StoreError for the store of another broker, and whatever fails: the standby begins again then.
    """
    broker_id, rows = yield from _ask(HELLO)
    timelines = tuple((number, lsn) for number, lsn in rows)
    _refuse_another(standby, broker_id)
    if standby.record.whole:
        part = parting(standby.record.timelines, timelines)
        if part is not None and part <= standby.synced:
            yield from _put_aside(standby, part)
    standby.begin_catch_up()
    for number in count(1):
        begin = yield from _compare(standby, number, _settle)
        end = yield from _ask(END)
        if (yield from _follow(standby, begin, end)):
            break
    standby.finish(timelines)
    yield from _ask(DONE)


def _ask(*request: Any) -> Asking:
    piece = yield pack_plain(request)
    pieces = [piece[1:]]
    while piece[:1] == _MORE:
        piece = yield b""
        pieces.append(piece[1:])
    try:
        return msgpack.unpackb(b"".join(pieces))
    except (ValueError, msgpack.UnpackException) as error:
        raise StoreError(f"invalid answer of a catch-up: {error!r}") from error


def _refuse_another(standby: Standby, broker_id: bytes) -> None:
    """Refuse a primary of another broker, unless the directory has nothing."""
    if standby.meta.broker_id == broker_id:
        return
    with translated(), standby.reading() as transaction, transaction.cursor() as cursor:
        if cursor.set_range(key(STREAM)):
            raise StoreError(
                f"{standby.path} has the store of broker {standby.meta.broker_id.hex()}, and the primary is "
                f"{broker_id.hex()}: expected the same one, or an empty directory"
            )


class Compared(NamedTuple):
    """The outcome of a comparison: the keys that differ, and how many were never seen at one moment."""

    keys: int
    differing: tuple[bytes, ...]
    undecided: int


def compare(standby: Standby) -> Asking:
    """Compare a whole standby with the primary that answers, while both go on; return `Compared`.

    A key that differs, and that no write set has changed between the moments at which the two were read,
    has two values. Other keys are read again.
    """
    refuse_half(standby.record)
    differing: list[bytes] = []
    keys = undecided = 0

    def settle(standby: Standby, after: bytes, until: bytes | None, page: dict[bytes, bytes]) -> Asking:
        nonlocal keys, undecided
        keys += len(page)
        for own in _own_pages(standby, after, until):
            suspects = [place for place, found in own.items() if page.pop(place, None) != found]
            rest = yield from _doubtful(standby, suspects, differing)
            undecided += len(rest)
        rest = yield from _doubtful(standby, [*page], differing)
        undecided += len(rest)

    yield from _compare(standby, 1, settle)
    return Compared(keys, tuple(differing[:DIFFERENCES_MAX]), undecided)


def _doubtful(standby: Standby, places: list[bytes], differing: list[bytes]) -> Asking:
    """Add the keys that differ at one moment; return those that were never seen at one."""
    for _ in range(TRIES):
        if not places:
            break
        lsn, theirs = yield from _ask(FINGERPRINTS, places)
        own_lsn = standby.lsn
        with translated(), standby.reading() as transaction:
            own = fingerprints(transaction, places)
        places = [place for place, a, b in zip(places, theirs, own, strict=True) if a != b]
        changed = yield from _ask(CHANGED, min(lsn, own_lsn))
        if changed is not None:
            differing += [place for place in places if place not in changed]
            places = [place for place in places if place in changed]
    return places


Settling: TypeAlias = Callable[[Standby, bytes, "bytes | None", dict[bytes, bytes]], Asking]


def _compare(standby: Standby, number: int, settle: Settling) -> Asking:
    """Compare all keys, in pages that `settle` is given; return the number at which that began."""
    begin, after, is_last = None, b"", False
    while not is_last:
        lsn, packed, is_last = yield from _ask(KEYS, after, number)
        begin = lsn if begin is None else begin
        page = _unpacked(packed)
        until = None if is_last else max(page)
        yield from settle(standby, after, until, page)
        after = until or b""
    return begin


def _unpacked(packed: bytes) -> dict[bytes, bytes]:
    size = len(PLACE)
    step = size + _DIGEST
    if len(packed) % step:
        raise StoreError("invalid answer of a catch-up: expected keys with fingerprints")
    return {
        packed[start : start + size]: packed[start + size : start + step]
        for start in range(0, len(packed), step)
    }


def _own_pages(standby: Standby, after: bytes, until: bytes | None) -> Iterator[dict[bytes, bytes]]:
    is_last = False
    while not is_last:
        with translated(), standby.reading() as transaction:
            page, is_last = page_after(transaction, after, until)
        yield page
        after = max(page, default=after)


def _settle(standby: Standby, after: bytes, until: bytes | None, page: dict[bytes, bytes]) -> Asking:
    """Make the values of a page equal to those of the primary."""
    for own in _own_pages(standby, after, until):
        standby.change({place: None for place in own if place not in page})
        for place, found in own.items():
            if page.get(place) == found:
                del page[place]
    places, changes, size = [*page], dict[bytes, bytes | None](), 0
    while places:
        rows = yield from _ask(VALUES, places[:VALUES_MAX])
        changes |= dict(rows)
        size += sum(len(value or b"") for _, value in rows)
        places = places[len(rows) :]
        if size > STEP_BYTES or not places:
            standby.change(changes)
            changes, size = {}, 0


def _follow(standby: Standby, lsn: int, end: int) -> Asking:
    """Apply the write sets up to the end of a round; return False if the primary has lost some."""
    standby.resume(lsn)
    while standby.lsn < end:
        found = yield from _ask(WRITE_SETS, standby.lsn)
        if found is None:
            return False
        standby.apply([decode(one) for one in found])
    return True


# --- records of a former primary alone


def _put_aside(standby: Standby, part: int) -> Asking:
    """Write what this store has alone since its transaction `part` into `diverged/`."""
    records = standby.records_since(part)
    standby.put_diverged(records, part)
    is_first = not records
    with translated(), standby.reading() as transaction:
        firsts = _changed_streams(transaction, part)
    places = [*firsts]
    while places:
        rows = yield from _ask(VALUES, places[:VALUES_MAX])
        firsts |= {place: _first(value) for place, value in rows}
        places = places[len(rows) :]

    def settle(standby: Standby, after: bytes, until: bytes | None, page: dict[bytes, bytes]) -> Asking:
        nonlocal is_first
        for own in _own_pages(standby, after, until):
            differing = [place for place, found in own.items() if page.get(place) != found]
            with translated(), standby.reading() as transaction:
                alone = _alone(transaction, differing, firsts, part)
                for step in alone:
                    standby.put_diverged(step, part, is_first=is_first)
                    is_first = is_first and not step
        yield from ()

    yield from _compare(standby, 1, settle)


def _changed_streams(transaction: lmdb.Transaction, part: int) -> dict[bytes, int]:
    """Return the keys of the states of streams that were changed by the transaction `part` or later."""
    found: dict[bytes, int] = {}
    with transaction.cursor() as cursor:
        place = cursor.set_range(key(STREAM))
        while place and cursor.key()[0] == STREAM:
            if _lsn_of(decode_stream_and_lsn, cursor.value()) >= part:
                found[bytes(cursor.key())] = 0
            place = cursor.next()
    return found


def _first(value: bytes | None) -> int:
    """Return the first sequence of a stream at the primary: the ring has dropped all before it."""
    try:
        return decode_stream_and_lsn(value)[0].first if value else 0
    except Damaged:
        return 0


def _lsn_of(decoder: Callable[[Any], Any], value: Any) -> int:
    """Return the number in a value; that of a damaged one is greater than all others."""
    try:
        found = decoder(value)
        return int(found[1] if isinstance(found, tuple) else found)
    except Damaged:
        return 1 << 64


def _alone(
    transaction: lmdb.Transaction, places: list[bytes], firsts: Mapping[bytes, int], part: int
) -> Iterator[dict[bytes, bytes]]:
    """Yield the values of a former primary that were never confirmed, in steps of a bounded size."""
    step: dict[bytes, bytes] = {}
    size = 0
    for place in places:
        kind, identifier, sequence = split_key(place)
        value = transaction.get(place) or b""
        stream = key(STREAM, identifier)
        is_stream = stream in firsts and (kind == STREAM or (kind == CHUNK and sequence >= firsts[stream]))
        if is_stream or (kind == BLOCK and _lsn_of(decode_lsn, value) >= part):
            step[place] = bytes(value)
            size += len(value)
        if size > STEP_BYTES:
            yield step
            step, size = {}, 0
    yield step
