"""The ring by itself: a transaction that fails leaves it as it was."""

from __future__ import annotations

from stores import append

from malamute.journal.ring import HEAP_SLACK, Dropped, Ring
from malamute.store.operations import DeleteStream, ForgetStream
from malamute.store.policies import StreamRetention


class ChunkDeleter:
    """Chunks as lists of (first, time), all of size 10 and of one message."""

    def __init__(self):
        self.chunks = {}

    def drop(self, stream):
        kept = self.chunks[stream.name]
        kept.pop(0)
        return Dropped(1, 10, *(kept[0] if kept else (None, 0)), 0)


def transaction(ring, shelf, *appends):
    """One transaction up to its commit; each append is (stream, first and time)."""
    changes = ring.begin()
    for stream, first in appends:
        changes.append(append(first, stream=stream), 10)
        shelf.chunks.setdefault(stream, []).append((first, first))
    changes.trim(shelf)
    return changes


def kept(shelf):
    return {name: [first for first, _ in chunks] for name, chunks in shelf.chunks.items()}


def test_a_failed_iteration_changes_no_later_decision():
    ring, shelf = Ring((), 30), ChunkDeleter()
    ring.commit(transaction(ring, shelf, ("silent", 1), ("a", 2), ("b", 3)))
    before = {name: list(chunks) for name, chunks in shelf.chunks.items()}
    transaction(ring, shelf, ("a", 4), ("a", 5), ("b", 6), ("b", 7))
    assert kept(shelf) == {"silent": [], "a": [4, 5], "b": [6, 7]}
    shelf.chunks = before
    ring.abandon()
    assert ring.bytes == 30
    ring.commit(transaction(ring, shelf, ("a", 4)))
    assert kept(shelf) == {"silent": [], "a": [2, 4], "b": [3]}
    ring.commit(transaction(ring, shelf, ("a", 5)))
    assert kept(shelf) == {"silent": [], "a": [4, 5], "b": [3]}
    assert ring.bytes == 30


def test_a_stream_that_was_spared_once_leaves_later():
    ring, shelf = Ring((), 10), ChunkDeleter()
    ring.commit(transaction(ring, shelf, ("a", 1)))
    ring.commit(transaction(ring, shelf, ("a", 2), ("a", 3)))
    assert kept(shelf) == {"a": [2, 3]}
    ring.commit(transaction(ring, shelf, ("b", 4)))
    assert kept(shelf) == {"a": [], "b": [4]}


def test_an_emptied_stream_comes_back():
    ring, shelf = Ring((), 10), ChunkDeleter()
    for stream, first in (("a", 1), ("b", 2), ("a", 3), ("b", 4)):
        ring.commit(transaction(ring, shelf, (stream, first)))
    assert kept(shelf) == {"a": [], "b": [4]}
    assert ring.streams["a"][2:4] == (4, 3)
    assert (ring.bytes, ring.streams["a"].chunks, ring.streams["b"].chunks) == (10, 0, 1)


def test_what_was_there_at_the_start_leaves_before_what_came_since_with_a_clock_that_was_set_back():
    before, shelf = Ring((), 40), ChunkDeleter()
    before.commit(transaction(before, shelf, ("a", 101), ("b", 102), ("a", 103)))
    ring = Ring(before.streams.values(), 40)
    ring.commit(transaction(ring, shelf, ("new", 1)))
    ring.commit(transaction(ring, shelf, ("new", 2), ("b", 104)))
    assert kept(shelf) == {"a": [103], "b": [104], "new": [1, 2]}
    ring.commit(transaction(ring, shelf, ("new", 3)))
    assert kept(shelf) == {"a": [], "b": [104], "new": [1, 2, 3]}
    # Among what has come since the start, the clock is all that there is to go by.
    ring.commit(transaction(ring, shelf, ("b", 105)))
    assert kept(shelf) == {"a": [], "b": [104, 105], "new": [2, 3]}


def test_the_audit_loses_nothing_to_others_while_it_is_a_small_part_of_all():
    ring, shelf = Ring((), 160), ChunkDeleter()
    ring.commit(transaction(ring, shelf, ("$audit", 1), ("$audit", 2)))
    for first in range(3, 60):
        ring.commit(transaction(ring, shelf, ("a", first)))
    assert kept(shelf)["$audit"] == [1, 2]
    assert ring.bytes == 160


def test_an_audit_that_is_larger_than_its_part_gives_way_down_to_it():
    ring, shelf = Ring((), 160), ChunkDeleter()
    for first in range(1, 8):
        ring.commit(transaction(ring, shelf, ("$audit", first)))
    for first in range(8, 80):
        ring.commit(transaction(ring, shelf, ("a", first)))
    assert kept(shelf)["$audit"] == [6, 7]
    ring.commit(transaction(ring, shelf, ("$audit", 100)))
    ring.commit(transaction(ring, shelf, ("a", 101)))
    assert kept(shelf)["$audit"] == [7, 100]


def test_streams_that_come_and_go_leave_nothing_behind():
    ring, shelf = Ring((), 10**9, counted=lambda: 0.0), ChunkDeleter()
    for number in range(1, 3 * HEAP_SLACK):
        name = f"s{number}"
        changes = ring.begin()
        changes.append(append(number, stream=name)._replace(retention=StreamRetention(age_seconds=60.0)), 10)
        shelf.chunks[name] = [(number, number)]
        changes.trim(shelf)
        ring.commit(changes)
        changes = ring.begin()
        changes.apply(DeleteStream(name))
        shelf.chunks[""] = shelf.chunks.pop(name)
        changes.trim(shelf)
        changes.apply(ForgetStream(name))
        ring.commit(changes)
    assert not ring.streams
    assert not ring.leaving
    assert not ring.passed
    assert not ring.given
    assert len(ring.heap) <= HEAP_SLACK
    assert len(ring.in_heap) <= HEAP_SLACK
