"""Queued messages by columns."""

from __future__ import annotations

from malamute.core.queue.entry import Entry, columns_of


def test_messages_by_columns_in_the_order_of_a_payload():
    entries = [Entry((1, 10, "bob", "a", b"x", None)), Entry((3, 11, "eve", "b", b"", {"key": "k"}), 2)]
    assert columns_of(entries) == [
        [1, 3],
        [10, 11],
        ["bob", "eve"],
        ["a", "b"],
        [b"x", b""],
        [0, 2],
        [None, {"key": "k"}],
    ]


def test_a_record_that_is_on_the_disk_only_is_empty_and_not_one_that_follows():
    entries = [
        Entry((1, 10, "bob", "a", b"xyz", None), paged_out_bytes=3),
        Entry((2, 10, "bob", "a", b"x", None)),
    ]
    assert columns_of(entries)[4] == [b"", b"x"]
