"""A cursor that reads pages with calls stands where LMDB's stands, and fails in words."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import lmdb
import pytest

from malamute.errors import StoreCorrupt
from malamute.journal.format import BLOCK, CHUNK, STREAM, key
from malamute.journal.lmdb_pages.cursor import PageCursor, size_and_head

SIZE = 64 << 20
PAGE = os.sysconf("SC_PAGESIZE")
SIZES = [0, 1, 40, 900, 2000, 2030, 2040, 5000, 30_000]


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory / "data.mdb", os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def change(environment: lmdb.Environment, chance: Random, count: int) -> None:
    with environment.begin(write=True) as transaction:
        for _ in range(count):
            kind, stream = chance.choice([(STREAM, 0), (CHUNK, 1), (CHUNK, 2), (BLOCK, 0)])
            place = key(kind, stream, chance.randrange(2000))
            if chance.random() < 0.3:
                transaction.delete(place)
            else:
                transaction.put(place, chance.randbytes(chance.choice(SIZES)))


@pytest.mark.parametrize("count", [0, 1, 30, 6000])
def test_it_goes_where_a_cursor_of_lmdb_goes_while_others_commit(tmp_path: Path, count: int) -> None:
    chance = Random(count)
    with lmdb.open(str(tmp_path), map_size=SIZE, sync=False) as environment, opened(tmp_path) as descriptor:
        change(environment, chance, count)
        with environment.begin() as transaction, transaction.cursor() as expected:
            cursor = PageCursor(descriptor, tmp_path)
            assert cursor.find_root(transaction.id())
            for _ in range(20):
                change(environment, chance, 200)
            keys = [*expected.iternext(values=False)]
            assert (len(keys) > count // 4) == (count > 0)
            for _ in range(300):
                wanted = key(
                    chance.choice([STREAM, CHUNK, BLOCK]), chance.randrange(4), chance.randrange(2000)
                )
                assert cursor.set_range(wanted) == expected.set_range(wanted)
                assert cursor.key() == expected.key()
                assert cursor.get(wanted) == transaction.get(wanted)
                cursor.set_range(wanted)
                for _ in range(chance.randrange(60) if keys else 0):
                    place = bisect_left(keys, cursor.key()) if cursor.key() else len(keys)
                    if place == len(keys) or (place and chance.random() < 0.5):
                        assert cursor.prev() == (place > 0)
                        place -= 1
                    else:
                        assert cursor.next() == (place + 1 < len(keys))
                        place += 1
                    assert cursor.key() == (keys[place] if place < len(keys) else b"")
            assert cursor.last() == bool(keys)
            assert cursor.key() == (keys[-1] if keys else b"")
            found = cursor.set_range(b"")
            for place, value in expected.iternext() if expected.first() else ():
                assert found
                assert (cursor.key(), cursor.value()) == (place, value)
                size, head = size_and_head(cursor)
                assert (size, head) == (len(value), value[: len(head)])
                assert len(head) >= min(len(value), 100)
                found = cursor.next()
            assert not found
            assert not cursor.key()


def test_a_root_that_is_overwritten_is_no_more_found(tmp_path: Path) -> None:
    chance = Random(1)
    with lmdb.open(str(tmp_path), map_size=SIZE) as environment, opened(tmp_path) as descriptor:
        change(environment, chance, 10)
        with environment.begin() as transaction:
            number = transaction.id()
            assert PageCursor(descriptor, tmp_path).find_root(number)
            change(environment, chance, 10)
            assert PageCursor(descriptor, tmp_path).find_root(number)
            change(environment, chance, 10)
            assert not PageCursor(descriptor, tmp_path).find_root(number)


@pytest.mark.parametrize("what", ["value", "leaf", "root"])
def test_a_page_that_cannot_be_read_is_an_error_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with lmdb.open(str(tmp_path), map_size=SIZE) as environment, opened(tmp_path) as descriptor:
        with environment.begin(write=True) as transaction:
            for number in range(300):
                transaction.put(key(CHUNK, 1, number), b"%05d" % number * 2000)
        image = (tmp_path / "data.mdb").read_bytes()
        places = {"value": b"%05d" % 200 * 2000, "leaf": key(CHUNK, 1, 200)}
        bad = image.index(places[what]) // PAGE if what in places else 0
        real = os.pread

        def pread(file: int, size: int, at: int) -> bytes:
            if at < (bad + 1) * PAGE and bad * PAGE < at + size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(file, size, at)

        with environment.begin() as transaction:
            cursor = PageCursor(descriptor, tmp_path / "data.mdb")
            monkeypatch.setattr("os.pread", pread)
            reason = rf"data\.mdb .*cannot be read; page {bad}: .*Input/output"
            with pytest.raises(StoreCorrupt, match=reason):
                read(cursor, transaction.id(), 0, 200)
            if what != "root":
                read(cursor, transaction.id(), 0, 100)


def read(cursor: PageCursor, transaction: int, *numbers: int) -> None:
    assert cursor.find_root(transaction)
    for number in numbers:
        assert cursor.get(key(CHUNK, 1, number)) == b"%05d" % number * 2000
