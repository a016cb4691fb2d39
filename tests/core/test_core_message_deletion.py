"""The deletion of messages inside a stream: docs/protocol.md, `stream.delete-messages`."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, items, publish, subscribe
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.stream import message_deletion
from malamute.errors import StorageFull, StoreError
from malamute.matching import Selector, reason_of
from malamute.protocol.messages import Answer, Change, Credit, Deliver, Error, Gap, Ok, Query
from malamute.store.operations import Damage
from malamute.store.tables import DELETIONS

SUBJECTS = ("temp.oslo", "temp.rome", "rain.oslo")


@pytest.fixture
def bench() -> Bench:
    """A stream `s` of nine messages in chunks of three, one of each subject."""
    bench = Bench()
    bench.open("op", "bob")
    for _ in range(3):
        for subject in SUBJECTS:
            bench.tell("op", publish(subject.encode(), subject=subject))
        bench.settle()
    return bench


def change(bench: Bench, **arguments: Any) -> Any:
    """The answer of a deletion, or the code and the text of its refusal."""
    bench.sent("op")
    bench.tell("op", Change(0, "stream.delete-messages", {"stream": "s", **arguments}))
    bench.settle()
    [answer] = [m for m in bench.sent("op") if isinstance(m, Ok | Error)]
    return (answer.code, answer.text) if isinstance(answer, Error) else answer.value


def deleted(messages: int, first: int, last: int) -> dict[str, Any]:
    return {"stream": "s", "messages": messages, "first": first, "last": last}


def history(bench: Bench, start: str = "seq:1", **fields: Any) -> list[Any]:
    """The sequences that a new reader gets, and a pair for each gap."""
    source = fields.pop("source", 7)
    bench.open("bob")
    bench.sent("bob")
    bench.tell("bob", subscribe(source, start=start, **fields))
    bench.settle()
    return seen(bench.sent("bob"))


def seen(messages: Any) -> list[Any]:
    found: list[Any] = []
    for message in messages:
        if isinstance(message, Deliver):
            found += [item.sequence for item in items(message)]
        elif isinstance(message, Gap):
            found.append((message.first, message.last, message.reason))
    return found


def details(bench: Bench) -> Any:
    bench.sent("op")
    bench.tell("op", Query(1, "stream", {"name": "s"}))
    bench.settle()
    [answer] = [m for m in bench.sent("op") if isinstance(m, Answer)]
    return answer.value


@pytest.mark.parametrize(
    ("arguments", "answer", "left"),
    [
        ({"sequence": 5}, deleted(1, 5, 5), [1, 2, 3, 4, (5, 5, "deleted"), 6, 7, 8, 9]),
        ({"up_to": 4}, deleted(4, 1, 4), [(1, 4, "deleted"), 5, 6, 7, 8, 9]),
        ({"up_to": 9}, deleted(9, 1, 9), [(1, 9, "deleted")]),
        (
            {"subject": "*.oslo", "up_to": 6},
            deleted(4, 1, 6),
            [(1, 1, "deleted"), 2, (3, 4, "deleted"), 5, (6, 6, "deleted"), 7, 8, 9],
        ),
        ({"subject": "snow.*"}, deleted(0, 0, 0), [*range(1, 10)]),
    ],
)
def test_deleted_messages_are_a_gap_for_readers_and_count_no_more(bench, arguments, answer, left):
    assert change(bench, **arguments, dry_run=True) == answer
    assert history(bench) == [*range(1, 10)]
    assert change(bench, **arguments) == answer
    assert history(bench, source=8) == left
    assert details(bench)["stored"] == len([one for one in left if isinstance(one, int)])
    bench.restart()
    bench.open("op")
    assert history(bench, source=9)[: len(left)] == left
    assert details(bench)["stored"] == len([one for one in left if isinstance(one, int)])
    assert bench.store.recover().table(DELETIONS) == {}
    assert change(bench, **arguments)["messages"] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, 416),
        ({"sequence": 1, "up_to": 2}, 416),
        ({"sequence": 1, "subject": "a"}, 416),
        ({"subject": ""}, 416),
        ({"sequence": 10}, 416),
        ({"sequence": 0}, 416),
        ({"up_to": 10}, 416),
        ({"sequence": 1, "stream": "none"}, 404),
    ],
)
def test_a_refused_deletion_changes_nothing(bench, arguments, code):
    assert change(bench, **arguments)[0] == code
    assert history(bench) == [*range(1, 10)]


def test_a_stream_without_a_journal_has_nothing_to_delete():
    bench = Bench(no_journal=("s",))
    bench.open("op")
    bench.tell("op", publish(b"1"))
    bench.settle()
    assert change(bench, sequence=1)[1].endswith("has no journal: it keeps no messages")


def test_lag_counts_the_messages_that_are_left(bench):
    assert history(bench, credit=2) == [1, 2]
    assert details(bench)["readers"][0]["lag"] == 7
    change(bench, sequence=5)
    change(bench, subject="rain.#")
    assert details(bench)["readers"][0]["lag"] == 3
    bench.sent("bob")
    bench.tell("bob", Credit(7, 100, -1))
    bench.settle()
    found = seen(bench.sent("bob"))
    assert found == [(3, 3, "deleted"), 4, (5, 6, "deleted"), 7, 8, (9, 9, "deleted")]


def test_a_read_from_before_the_deletion_serves_nobody(bench):
    """The answer of a read comes later than the deletion, which was stored meanwhile."""
    bench.tell("bob", subscribe(7, start="first"))
    bench.iterate()
    reads, bench.reads = bench.reads, type(bench.reads)()
    old = [(read, bench.store.read("s", 1, bytes_max=1 << 20)) for read in reads]
    bench.tell("op", Change(0, "stream.delete-messages", {"stream": "s", "sequence": 2}))
    bench.settle()
    for read, result in old:
        bench.core.answered(read, result, bench.now)
    bench.settle()
    assert seen(bench.sent("bob")) == [1, (2, 2, "deleted"), *range(3, 10)]


def test_messages_that_come_in_the_same_iteration_are_deleted_too(bench):
    bench.receive("op", publish(b"x", subject="late"))
    assert change(bench, subject="late") == deleted(1, 10, 10)
    assert history(bench) == [*range(1, 10), (10, 10, "deleted")]


def test_a_deletion_that_could_not_be_begun_has_deleted_nothing(bench):
    bench.sent("op")
    bench.tell("op", Change(0, "stream.delete-messages", {"stream": "s", "up_to": 5}))
    bench.fail(StorageFull("full"))
    assert [m.code for m in bench.sent("op") if isinstance(m, Error)] == [507]
    assert history(bench) == [*range(1, 10)]
    assert change(bench, up_to=5) == deleted(5, 1, 5)


def test_a_step_that_the_disk_refuses_is_repeated_and_counted_once(bench):
    bench.sent("op")
    bench.tell("op", Change(0, "stream.delete-messages", {"stream": "s", "subject": "temp.*"}))
    bench.commit()
    bench.read_all()
    bench.iterate()
    bench.fail(StoreError("no"))
    assert history(bench) == [*range(1, 10)]
    bench.wait(message_deletion.RETRY_SECONDS + 1)
    bench.settle()
    assert [m.value for m in bench.sent("op") if isinstance(m, Ok)] == [deleted(6, 1, 8)]
    assert details(bench)["stored"] == 3


def test_deletions_of_a_stream_follow_each_other_and_there_are_so_many(bench, monkeypatch):
    monkeypatch.setattr(message_deletion, "DELETIONS_MAX", 2)
    bench.sent("op")
    for sequence in (1, 2, 3):
        bench.tell("op", Change(0, "stream.delete-messages", {"stream": "s", "sequence": sequence}))
    bench.settle()
    answers = [m for m in bench.sent("op") if isinstance(m, Ok | Error)]
    assert [getattr(m, "code", 0) for m in answers] == [503, 0, 0]
    assert history(bench) == [(1, 2, "deleted"), *range(3, 10)]


@pytest.mark.parametrize("topic", ["stream.purge", "stream.delete"])
def test_a_stream_that_is_purged_or_deleted_meanwhile_ends_the_deletion(bench, topic):
    bench.sent("op")
    bench.receive("op", Change(0, "stream.delete-messages", {"stream": "s", "up_to": 8}))
    bench.iterate()
    bench.commit()
    bench.receive("op", Change(0, topic, {"stream": "s"}))
    bench.settle()
    answers = [m for m in bench.sent("op") if isinstance(m, Ok | Error)]
    assert len(answers) == 2
    bench.tell("op", publish(b"new"))
    bench.settle()
    assert [one for one in history(bench) if isinstance(one, int)] == [10]
    assert bench.store.recover().table(DELETIONS) == {}


STEPS = st.lists(st.sampled_from(["iterate", "commit", "read"]), max_size=12)


@given(STEPS, st.sampled_from([{"up_to": 7}, {"subject": "temp.#"}, {"subject": "#.oslo", "up_to": 8}]))
def test_a_crash_at_any_step_leaves_it_whole_or_not_begun(steps, wanted):
    """A deletion of many steps: the broker dies after some of them, and the next one completes it."""
    step, message_deletion.STEP_BYTES = message_deletion.STEP_BYTES, 1
    try:
        bench = Bench()
        bench.open("op")
        for number in range(9):
            bench.tell("op", publish(b"x", subject=SUBJECTS[number % 3]))
            bench.settle()
        bench.receive("op", Change(0, "stream.delete-messages", {"stream": "s", **wanted}))
        bench.iterate()
        for one in steps:
            if {"commit": bench.appends, "read": bench.reads}.get(one, True):
                getattr(bench, one)()
        begun = (("s",) in bench.store.recover().table(DELETIONS)) or any(
            isinstance(item, Damage) for item in bench.store.read("s", 1, bytes_max=1 << 20).found
        )
        bench.crash()
        bench.open("op")
        bench.settle()
        selector = Selector.parse([["topic", wanted.get("subject", "#")]])
        doomed = {
            number + 1
            for number in range(9)
            if number < wanted.get("up_to", 9) and not reason_of(selector, SUBJECTS[number % 3], {}, "")
        }
        left = {one for one in history(bench) if isinstance(one, int)}
        assert left == ({*range(1, 10)} - doomed if begun else {*range(1, 10)})
        assert details(bench)["stored"] == len(left)
        assert bench.store.recover().table(DELETIONS) == {}
    finally:
        message_deletion.STEP_BYTES = step
