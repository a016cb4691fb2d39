"""The helpers that tests of a pair's stores share."""

from __future__ import annotations

from contextlib import closing

import lmdb

from malamute.journal import pair_record
from malamute.journal.disk import DiskStore
from malamute.journal.pair_record import PairRecord

PAIR, FIRST, SECOND = (bytes([n]) * 16 for n in (7, 1, 2))


def values(environment):
    """All values but the record of the pair, by their keys."""
    with environment.begin() as transaction, transaction.cursor() as cursor:
        return {place: value for place, value in cursor if place != pair_record.PLACE}


def set_record(directory, record):
    with lmdb.open(str(directory), map_size=1 << 30) as environment, environment.begin(write=True) as found:
        pair_record.put(found, record)


def record_in(directory):
    with lmdb.open(str(directory), map_size=1 << 30) as environment, environment.begin() as found:
        return pair_record.read(found)


def make_member(directory, *, size, replica=FIRST, timelines=((1, 1),)):
    """A new directory of a pair's first primary."""
    with closing(DiskStore.open(directory, size=size)):
        pass
    set_record(directory, PairRecord(PAIR, replica, timelines, whole=True))
