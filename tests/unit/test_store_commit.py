"""The rules for a commit that fails in part, on a disk that is a list."""

from __future__ import annotations

from malamute.errors import InternalError, StorageFull
from malamute.store.commit import Append, Committer, Written, done_anyway, gives_room
from malamute.store.operations import (
    AppendChunk,
    Chunk,
    DeleteMessages,
    DeleteValue,
    NoteRefused,
    PutValue,
    Reserve,
)
from malamute.store.tables import CURSORS, NUMBERS, SESSIONS

BAD = Reserve("bad", 1)
FULL = StorageFull("full")


class Disk:
    """Stores everything but what has `BAD` in it."""

    def __init__(self):
        self.stored = []
        self.committer = Committer(self.write)

    def write(self, operations):
        if BAD in operations:
            return FULL
        self.stored.append([*operations])
        return None

    def commit(self, *appends):
        return [*self.committer.commit(appends)]


def good(token, **options):
    return Append(token, [Reserve("s", token)], **options)


def session(token, *more, **options):
    return Append(token, [PutValue(SESSIONS, (b"ann", NUMBERS), b"%d" % token), *more], **options)


def chunk(first):
    return AppendChunk("s", Chunk(first, 1, 1, b""), first)


def test_what_waits_is_one_transaction():
    disk = Disk()
    assert disk.commit(good(1), good(2)) == [Written([1, 2])]
    assert disk.stored == [[Reserve("s", 1), Reserve("s", 2)]]


def test_a_group_that_fails_is_tried_one_by_one_and_one_alone_only_once():
    disk = Disk()
    assert disk.commit(good(1), Append(2, [BAD]), good(3)) == [Written([1]), Written([2], FULL), Written([3])]
    tries = []
    committer = Committer(lambda operations: tries.append(operations) or FULL)
    assert [*committer.commit([good(1)])] == [Written([1], FULL)]
    assert tries == [[Reserve("s", 1)], []]


def test_what_gives_room_back_is_done_anyway_unless_it_is_bound():
    free, bound = DeleteMessages("mailbox", "a", [(1, 1)]), DeleteMessages("mailbox", "b", [(1, 1)])
    append = Append(1, [free, bound, DeleteValue(CURSORS, ("s", "c")), BAD], [bound])
    assert done_anyway(append) == [free]
    assert gives_room(DeleteValue(SESSIONS, (b"ann",)))
    assert not gives_room(DeleteValue("unknown", ("a",)))
    disk = Disk()
    assert disk.commit(append) == [Written([1], FULL)]
    assert disk.stored == [[free]]


def test_what_is_bound_is_known_without_comparing_it_with_all_else():
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    bound = [DeleteMessages("service", Name("w"), [(n, n)]) for n in range(100)]
    assert done_anyway(Append(1, bound, bound)) == []
    assert compared == 0


def test_later_numbers_of_a_session_are_refused_until_the_core_knows():
    disk = Disk()
    assert disk.commit(session(1, BAD), session(2), good(3)) == [
        Written([1], FULL),
        Written([2], FULL),
        Written([3]),
    ]
    assert disk.commit(session(4, known=1)) == [Written([4], FULL)]  # made before it knew of the second
    assert disk.commit(session(5, known=4)) == [Written([5])]


def test_what_needs_an_append_is_refused_with_it():
    disk = Disk()
    assert disk.commit(Append(1, [BAD])) == [Written([1], FULL)]
    assert disk.commit(good(2, needs=frozenset((1,)))) == [Written([2], FULL)]
    assert disk.commit(good(3, known=2, needs=frozenset((1,)))) == [Written([3], FULL)]
    assert disk.commit(good(4, known=3)) == [Written([4])]


def test_what_was_refused_of_a_stream_is_noted_with_its_next_chunk():
    disk = Disk()
    disk.commit(Append(1, [chunk(1), BAD]))
    disk.commit(Append(2, [chunk(2), BAD], known=1))
    disk.stored.clear()
    disk.commit(good(3, known=2))
    disk.commit(Append(4, [chunk(3)], known=3))
    disk.commit(Append(5, [chunk(4)], known=4))
    assert disk.stored == [[Reserve("s", 3)], [NoteRefused("s", 1, 2), chunk(3)], [chunk(4)]]


def test_what_was_begun_with_a_fault_is_refused():
    disk, fault = Disk(), InternalError("a fault")
    assert disk.commit(good(1, fault=fault), good(2)) == [Written([1], fault), Written([2])]
