"""A new data file of the readable values of a damaged one: the part of a repair without LMDB.

Values below a damaged page are found if their leaves are intact, and are not free pages. The page above
a damaged one has its range of keys, so the losses are known as ranges. In place of a run of lost chunks, or
of lost blocks of the log, a damaged value is stored: readers get a gap, and the broker treats queues,
sessions and cursors as with any damaged block. The state of a stream with lost chunks is left out, and
rebuilt from its card and its other chunks.

If the newest root is damaged, the root before it is used: its pages still exist, and the last transaction is
lost. The sequences used in the lost values are unknown. So the new file counts as a copy: a broker begins
another incarnation on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from malamute.errors import StoreCorrupt
from malamute.journal import format as codec
from malamute.journal.backup import SLACK_BYTES
from malamute.journal.directory import put_meta, read_meta
from malamute.journal.format import BLOCK, CHUNK, STREAM, Damaged, StreamMeta, key
from malamute.journal.lmdb_pages.pages import PageFault, PageRoot, Pages

BATCH_BYTES = 16 << 20
"""The bytes that one transaction copies."""

LOST = b""
"""The value in place of lost ones; decoding it fails."""


def salvage(data: Path, new: Path) -> list[PageFault]:
    """Copy the readable values of `data` into the file `new`, durably; return the lost pages.

    Raises StoreCorrupt if neither root can be read.
    """
    descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pages = Pages(descriptor)
        root = pages.best_root()
        if root is None:
            raise StoreCorrupt(f"neither root of {data} can be read: {pages.faults[0].reason}")
        new.unlink(missing_ok=True)
        size = 2 * data.stat().st_size + SLACK_BYTES
        with lmdb.open(str(new), subdir=False, lock=False, map_size=size, mode=0o640) as environment:
            for batch in _batches(pages, root):
                with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                    cursor.putmulti(batch, append=True)
            with environment.begin(write=True) as transaction:
                for page, node in pages.orphans(root) if pages.faults else ():
                    with suppress(OSError, ValueError):
                        transaction.put(node.key, pages.read(page, node), overwrite=False)
                _finish(transaction, pages.faults)
        return pages.faults
    finally:
        os.close(descriptor)


def _batches(pages: Pages, root: PageRoot) -> Iterator[list[tuple[bytes, bytes]]]:
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for page, node in pages.values(root):
        if fault := pages.fault_of(node):
            pages.faults.append(fault)
            continue
        try:
            value = pages.read(page, node)
        except (OSError, ValueError) as error:
            end = node.key + b"\0"
            pages.faults.append(PageFault(node.own, str(error), node.key, end))
            continue
        batch.append((node.key, value))
        size += len(value)
        if size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _finish(transaction: lmdb.Transaction, faults: Sequence[PageFault]) -> None:
    """Store a damaged value in place of lost ones, and mark the file as a copy."""
    lost = [(fault.first, fault.end) for fault in faults if fault.end != b""]
    for identifier, stream in _streams(transaction):
        if places := _missing(transaction, lost, CHUNK, identifier, stream):
            transaction.delete(key(STREAM, identifier))
        for sequence in places:
            transaction.put(key(CHUNK, identifier, sequence), LOST)
    for number in _missing(transaction, lost, BLOCK, 0, None):
        transaction.put(key(BLOCK, 0, number), LOST)
    with suppress(StoreCorrupt):  # the repair writes a new meta record
        put_meta(transaction, read_meta(transaction)._replace(copied=True))


def _streams(transaction: lmdb.Transaction) -> list[tuple[int, StreamMeta | None]]:
    """Return the identifiers of all streams, with their states; None without a state."""
    streams: dict[int, StreamMeta | None] = {}
    with transaction.cursor() as cursor:
        for place, value in _of_kind(cursor, STREAM):
            with suppress(Damaged):
                streams[codec.split_key(place)[1]] = codec.decode_stream(value)
        found = cursor.set_range(key(CHUNK))
        while found and cursor.key()[0] == CHUNK:
            identifier = codec.split_key(cursor.key())[1]
            streams.setdefault(identifier, None)
            found = cursor.set_range(key(CHUNK, identifier + 1))
    return [*streams.items()]


def _of_kind(cursor: lmdb.Cursor, kind: int, identifier: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    prefix = key(kind, identifier or 0)[: 1 if identifier is None else 5]
    found = cursor.set_range(key(kind, identifier or 0))
    while found and bytes(cursor.key()).startswith(prefix):
        place, value = cursor.item()
        yield bytes(place), bytes(value)
        found = cursor.next()


def _missing(
    transaction: lmdb.Transaction,
    lost: Sequence[tuple[bytes, bytes | None]],
    kind: int,
    identifier: int,
    stream: StreamMeta | None,
) -> list[int]:
    """Return the sequences of missing chunks or blocks in lost ranges."""
    places = []
    expected = stream.first if stream else _first_lost(lost, kind, identifier)
    with transaction.cursor() as cursor:
        for place, value in _of_kind(cursor, kind, identifier):
            first = codec.split_key(place)[2]
            expected = expected or first
            if expected < first and _is_lost(lost, key(kind, identifier, expected), place):
                places.append(expected)
            expected = (_chunk_last(first, value) if kind == CHUNK else first) + 1
    newest = stream.last if stream else expected
    if expected <= newest and _is_lost(lost, key(kind, identifier, expected), key(kind, identifier + 1)):
        places += sorted({expected, newest})
    return places


def _first_lost(lost: Sequence[tuple[bytes, bytes | None]], kind: int, identifier: int) -> int:
    """Return the first lost sequence of a stream, or of the log; 0 if no lost range begins in it."""
    prefix = key(kind, identifier)[:5]
    return min((codec.split_key(begin)[2] for begin, _ in lost if begin.startswith(prefix)), default=0)


def _is_lost(lost: Sequence[tuple[bytes, bytes | None]], first: bytes, end: bytes) -> bool:
    return any(begin < end and (stop is None or stop > first) for begin, stop in lost)


def _chunk_last(sequence: int, value: bytes) -> int:
    header = codec.header_of(value)
    return header.last if header else sequence
