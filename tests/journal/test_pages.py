"""The check of LMDB's pages finds no fault in what LMDB writes, whatever that is."""

from __future__ import annotations

import errno
import os
from random import Random

import lmdb
import pytest

from malamute.errors import StoreCorrupt
from malamute.journal.disk import DiskStore
from malamute.journal.format import BLOCK, CHUNK, STREAM, key
from malamute.journal.lmdb_pages.pages import check_pages, read_root

SIZE = 64 << 20
PAGE = os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("seed", range(2))
def test_what_lmdb_writes_has_no_fault(tmp_path, seed):
    """Deep trees, values of all sizes, many lists of free pages beside readers that hold old ones."""
    chance = Random(seed)
    sizes = [0, 1, 40, 900, 2000, 2030, 2040, 5000, 30_000]
    with lmdb.open(str(tmp_path), map_size=SIZE, sync=False) as environment:
        readers = []
        for number in range(700):
            with environment.begin(write=True) as transaction:
                for _ in range(chance.randrange(1, 30 if number % 50 else 600)):
                    kind, stream = chance.choice([(STREAM, 0), (CHUNK, 1), (CHUNK, 2), (BLOCK, 0)])
                    place = key(kind, stream, chance.randrange(3000))
                    if chance.random() < (0.3 if number % 200 < 120 else 0.8):
                        transaction.delete(place)
                    else:
                        transaction.put(place, bytes(chance.choice(sizes)))
            if number % 40 == 0:
                for reader in readers:
                    reader.abort()
                readers = [environment.begin()]
            if number % 30 == 0:
                assert check_pages(tmp_path / "data.mdb") == []
        assert check_pages(tmp_path / "data.mdb") == []


def test_it_costs_no_byte_of_the_values(tmp_path, monkeypatch):
    with lmdb.open(str(tmp_path), map_size=SIZE) as environment, environment.begin(write=True) as transaction:
        for number in range(100):
            transaction.put(key(CHUNK, 1, number), bytes(100_000))
    read = []
    real = os.pread
    monkeypatch.setattr("os.pread", lambda file, size, at: read.append(size) or real(file, size, at))
    assert check_pages(tmp_path / "data.mdb") == []
    assert sum(read) < 20 * 4096


@pytest.mark.parametrize("place", [16 + 24 + 4, 16 + 24 + 48 + 4])
@pytest.mark.parametrize("bit", [1, 2, 4])
def test_a_root_that_says_that_keys_are_ordered_otherwise_is_none(tmp_path, place, bit):
    with lmdb.open(str(tmp_path), map_size=SIZE) as environment, environment.begin(write=True) as transaction:
        transaction.put(key(CHUNK, 1, 1), b"x")
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    read_root(data, 4096)
    data[place] ^= bit
    with pytest.raises(ValueError, match="its trees have the flags"):
        read_root(data, 4096)


def test_what_the_disk_cannot_read_of_a_value_is_found_if_asked_for(tmp_path, monkeypatch):
    """LMDB maps its file: to look at such a page would end the process."""
    with lmdb.open(str(tmp_path), map_size=SIZE) as environment, environment.begin(write=True) as transaction:
        for number in range(3):
            transaction.put(key(CHUNK, 1, number), bytes([number]) * 20_000)
    data = tmp_path / "data.mdb"
    bad = data.read_bytes().index(bytes([1]) * 20_000) // PAGE + 2
    real = os.pread

    def pread(file, size, at):
        """A disk reads what comes before a page that it cannot read."""
        room = bad * PAGE - at
        if 0 < room < size:
            return real(file, room, at)
        if -PAGE < room <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, size, at)

    monkeypatch.setattr("os.pread", pread)
    assert check_pages(data) == []
    (fault,) = check_pages(data, values=True)
    assert (fault.first, fault.end) == (key(CHUNK, 1, 1), key(CHUNK, 1, 1) + b"\0")
    assert "Input/output error" in fault.reason
    with pytest.raises(StoreCorrupt, match=r"cannot be read, in 1 values.*Input/output error") as refused:
        DiskStore.open_existing(tmp_path, reads_all=True)
    assert "malamute journal repair" in refused.value.hint
