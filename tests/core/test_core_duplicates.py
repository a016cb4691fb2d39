"""Duplicates: a command with an id is stored once in a window, against a naive model and at each limit."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from core_bench import Bench, peer_id, publish
from hypothesis import given
from hypothesis import strategies as st

from malamute.access import AccessRule, Policy, User
from malamute.core.identity.access import Principal
from malamute.core.iteration.grace_period import GRACE_SECONDS
from malamute.core.stream import duplicates
from malamute.core.stream.duplicates import ID_BYTES, WINDOW_SECONDS
from malamute.errors import AccessRefused, InvalidValue
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Change, Error, Hello, Publish, Stored, Subscribe


def once(identity: str, number: int = 0, stream: str = "s", *bodies: bytes) -> Publish:
    """A command with an id."""
    return publish(*(bodies or (b"x",)), number=number, stream=stream)._replace(id=identity)


class Confirmed(NamedTuple):
    """A range of commands that are confirmed, and whether they are duplicates."""

    first: int
    last: int
    sequence: int
    duplicate: bool


def confirmed(bench: Bench, name: str) -> list[Confirmed]:
    """The confirmations of a peer since the last time."""
    stored = [message for message in bench.sent(name) if isinstance(message, Stored)]
    return [Confirmed(f, last, abs(s), s < 0) for message in stored for f, last, s in message.ranges]


def bench_with(*names: str, **options: object) -> Bench:
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.open(*names)
    bench.settle()
    for name in names:
        bench.sent(name)
    return bench


def log_in(bench: Bench, *users: str) -> None:
    """Open a session of each user, whose peer has the same name."""
    for user in users:
        bench._names[peer_id(user)] = user
        bench.core.receive(peer_id(user), Hello([2], ""), bench.now, Principal(user))
        bench.settle()
        bench.sent(user)


def told(bench: Bench, name: str, *messages: Publish) -> list[bool | int]:
    """Return whether each command was a duplicate, or the number of the error."""
    found: list[bool | int] = []
    for message in messages:
        bench.tell(name, message)
        bench.settle()
        [answer] = [m for m in bench.sent(name) if isinstance(m, Stored | Error)]
        found.append(answer.code if isinstance(answer, Error) else answer.ranges[0][2] < 0)
    return found


def ids(bench: Bench) -> int:
    """The ids that the broker remembers."""
    found = bench.core.streams.duplicates
    windows = [window for user in found._users.values() for window in user.windows.values()]
    assert found.quota.bytes == sum(window.bytes_of(i) for window in windows for i in window.known)
    assert sorted(map(id, windows)) == sorted(id(w) for by in found._streams.values() for w in by.values())
    return sum(len(window.known) for window in windows)


def test_a_duplicate_is_confirmed_as_the_first_and_delivered_to_no_one() -> None:
    bench = bench_with("alice", "bob")
    bench.tell("bob", Subscribe(1, "s", [["all", ""]], credit=100))
    bench.tell("alice", once("i", 1))
    bench.settle()
    [first] = confirmed(bench, "alice")
    assert not first.duplicate
    bench.tell("alice", once("i", 2), once("i", 3))
    bench.settle()
    again = confirmed(bench, "alice")
    sequence = first.sequence
    assert again == [(2, 2, sequence, True), (3, 3, sequence, True)]
    assert len(bench.got("bob")) == 1


def test_first_commands_and_duplicates_in_one_iteration_are_told_apart() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("a", 1), once("b", 2), once("a", 3), once("b", 4), once("c", 5))
    bench.settle()
    found = {
        number: (one.sequence + number - one.first, one.duplicate)
        for one in confirmed(bench, "alice")
        for number in range(one.first, one.last + 1)
    }
    base = found[1][0]
    assert found == {
        1: (base, False),
        2: (base + 1, False),
        3: (base, True),
        4: (base + 1, True),
        5: (base + 2, False),
    }


def test_a_duplicate_waits_for_the_first_and_fails_with_it() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.iterate()
    bench.tell("alice", once("i", 2))
    bench.iterate()
    assert not confirmed(bench, "alice")
    bench.fail()
    bench.settle()
    assert [m.ref for m in bench.sent("alice") if isinstance(m, Error)] == [1, 2]
    bench.tell("alice", once("i", 3))
    bench.settle()
    [stored] = confirmed(bench, "alice")
    assert not stored.duplicate


def test_the_window_ends_after_its_seconds_and_not_before() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.settle()
    bench.wait(WINDOW_SECONDS - 0.001)
    bench.tell("alice", once("i", 2))
    bench.settle()
    assert [one.duplicate for one in confirmed(bench, "alice")] == [False, True]
    bench.wait(0.002)
    bench.tell("alice", once("i", 3))
    bench.settle()
    assert [one.duplicate for one in confirmed(bench, "alice")] == [False]


def test_what_has_ended_is_dropped_in_memory_and_in_the_store() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.settle()
    bench.wait(2 * WINDOW_SECONDS)
    bench.settle()
    assert ids(bench) == bench.core.streams.duplicates.quota.bytes == 0
    bench.crash()
    assert ids(bench) == 0


@pytest.mark.parametrize("end", [Bench.crash, Bench.restart])
def test_the_window_holds_over_a_restart_of_both(end: object) -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.settle()
    [first] = confirmed(bench, "alice")
    end(bench)  # type: ignore[operator]
    bench.open("anew")
    bench.tell("anew", once("i", 1))
    bench.settle()
    [again] = confirmed(bench, "anew")
    assert again.duplicate
    assert again.sequence == first.sequence


def test_what_was_not_stored_before_a_crash_is_no_duplicate_after_it() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.iterate()
    bench.appends.clear()
    bench.crash()
    bench.open("anew")
    bench.tell("anew", once("i", 1))
    bench.settle()
    assert [one.duplicate for one in confirmed(bench, "anew")] == [False]


def test_ids_are_of_a_stream() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1, "s"), once("i", 2, "t"))
    bench.settle()
    assert not any(one.duplicate for one in confirmed(bench, "alice"))


@pytest.mark.parametrize(("over", "duplicate"), [(0, True), (1, False)])
def test_past_the_limit_in_bytes_the_oldest_is_forgotten(over: int, duplicate: bool) -> None:
    two = 2 * (ID_BYTES + len("s") + len("a"))
    bench = bench_with("alice", limits=Limits(published_ids_bytes=two - over))
    bench.tell("alice", once("a", 1), once("b", 2))
    bench.settle()
    confirmed(bench, "alice")
    bench.tell("alice", once("a", 3))
    bench.settle()
    assert [one.duplicate for one in confirmed(bench, "alice")] == [duplicate]


def test_a_deleted_stream_has_no_ids() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.settle()
    bench.tell("alice", Change(2, "stream.delete", {"stream": "s", "cascade": True}))
    bench.settle()
    assert ids(bench) == 0
    bench.crash()
    assert ids(bench) == 0


def test_a_refused_deletion_keeps_the_ids() -> None:
    bench = bench_with("alice")
    bench.tell("alice", once("i", 1))
    bench.settle()
    bench.tell("alice", Change(2, "stream.delete", {"stream": "s", "cascade": True}))
    bench.iterate()
    assert ids(bench) == 0
    bench.fail()
    bench.settle()
    assert ids(bench) == 1


def content(number: int, subject: str = "a", headers: Any = None, body: Any = b"x") -> Publish:
    """A command with the id `i` and this content."""
    return Publish("s", number, [subject], [pack_record(headers, body)], 0, "i")


@pytest.mark.parametrize(
    "other",
    [
        content(2, subject="b"),
        content(2, headers={"unit": "C"}),
        content(2, headers={"unit": "F", "more": 1}),
        content(2, headers={"unit": "F", "traceparent": "1"}, body=b"y"),
        content(2, headers={"unit": "F"}, body=[b"x", b""]),
        Publish("s", 2, ["a", "a"], [pack_record({"unit": "F"}, b"x")] * 2, 0, "i"),
        Publish("s", 2, ["a"], [b"no record"], 0, "i"),
    ],
    ids=["subject", "header", "headers", "body", "frames", "count", "malformed"],
)
def test_an_id_with_another_content_is_refused_and_nothing_is_stored(other: Publish) -> None:
    bench = bench_with("alice")
    assert told(bench, "alice", content(1, headers={"unit": "F"})) == [False]
    before = bench.core.streams.by_name["s"].progress.next
    bench.tell("alice", other)
    bench.settle()
    [refused] = [message for message in bench.sent("alice") if isinstance(message, Error)]
    assert (refused.code, refused.ref) == (InvalidValue.code, 2)
    assert "id 'i' was used for another content: expected a new id" in refused.text
    assert bench.core.streams.by_name["s"].progress.next == before
    bench.crash()
    bench.open("anew")
    assert told(bench, "anew", other._replace(number=1)) == [InvalidValue.code]
    assert told(bench, "anew", content(2, headers={"unit": "F"})) == [True]


def test_headers_of_a_trace_and_the_order_of_headers_are_no_content() -> None:
    bench = bench_with("alice")
    traced = {"traceparent": "1", "tracestate": "2", "baggage": "3"}
    first = content(1, headers={"a": 1, "b": 2, "traceparent": "0"})
    assert told(bench, "alice", first, content(2, headers={"b": 2, "a": 1, **traced})) == [False, True]
    assert told(bench, "alice", content(3, headers={"a": 1, "b": 2})) == [True]


def test_the_same_malformed_record_is_a_duplicate() -> None:
    bench = bench_with("alice")
    malformed = Publish("s", 1, ["a"], [b"no record"], 0, "i")
    assert told(bench, "alice", malformed, malformed._replace(number=2)) == [False, True]


def test_ids_are_of_a_user_over_all_sessions_of_the_user() -> None:
    bench = Bench()
    log_in(bench, "ann", "bob")
    assert told(bench, "ann", once("i", 1)) == [False]
    assert told(bench, "bob", once("i", 1, "s", b"other"), once("i", 2, "s", b"other")) == [False, True]
    bench.restart()
    log_in(bench, "bob")
    assert told(bench, "bob", once("i", 3, "s", b"other")) == [True]


def test_a_user_who_may_not_publish_learns_nothing_of_ids() -> None:
    bench = Bench()
    log_in(bench, "ann")
    assert told(bench, "ann", once("i", 1)) == [False]
    rules = tuple(map(AccessRule.parse, ("subscribe stream/#",)))
    settings = bench.settings._replace(access=Policy(users={"ann": User(rules=rules)}))
    bench.core.configure(settings, bench.now)
    bench.settle()
    assert told(bench, "ann", once("i", 2), once("i", 3, "s", b"y"), once("j", 4)) == [AccessRefused.code] * 3


@pytest.mark.parametrize(("more", "duplicate"), [(2, True), (3, False)])
def test_past_the_limit_of_a_stream_the_oldest_is_forgotten(
    more: int, duplicate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "IDS_MAX", 3)
    bench = bench_with("alice")
    assert not any(told(bench, "alice", once("i", 1), once("i", 2, "t")))
    assert not any(told(bench, "alice", *(once(f"{n}", n) for n in range(3, 3 + more))))
    assert ids(bench) == 4
    bench.crash()
    assert ids(bench) == 4
    bench.open("anew")
    assert told(bench, "anew", once("i", 1), once("i", 2, "t")) == [duplicate, True]


def test_a_user_with_many_ids_makes_nobody_else_forget() -> None:
    size = ID_BYTES + len("s") + len("ann") + 4
    bench = Bench(Limits(published_ids_bytes=10 * size))
    log_in(bench, "ann", "bob")
    assert told(bench, "bob", once("kept", 1)) == [False]
    names = [(f"{number:04}", "st"[number % 2]) for number in range(40)]
    for number, (identity, stream) in enumerate(names, 1):
        assert told(bench, "ann", once(identity, number, stream)) == [False]
        bench.wait(0.1)
    assert bench.core.streams.duplicates.quota.bytes <= 10 * size
    assert told(bench, "bob", once("kept", 2)) == [True]
    windows = bench.core.streams.duplicates._users["ann"].windows.values()
    left = [identity for window in windows for identity in window.known]
    assert sorted(left) == [name for name, _ in names[-len(left) :]] != []
    bench.crash()
    log_in(bench, "bob")
    assert told(bench, "bob", once("kept", 3)) == [True]


@pytest.mark.parametrize("seconds", [WINDOW_SECONDS * 400, -WINDOW_SECONDS * 400])
def test_ids_last_over_a_start_on_a_wrong_clock(seconds: float) -> None:
    bench = bench_with("alice")
    assert told(bench, "alice", once("i", 1)) == [False]
    bench.restart_at(seconds)
    bench.open("anew")
    bench.wait(GRACE_SECONDS - 1)
    assert told(bench, "anew", once("i", 1)) == [True]
    bench.wait(WINDOW_SECONDS)
    bench.settle()
    assert ids(bench) == 0


def test_a_stream_in_memory_has_its_ids_in_memory() -> None:
    bench = bench_with("alice", no_journal=("s",))
    assert told(bench, "alice", once("i", 1), once("i", 2)) == [False, True]
    bench.restart()
    bench.open("anew")
    assert told(bench, "anew", once("i", 1)) == [False]


SECONDS = [1.0, WINDOW_SECONDS / 2, WINDOW_SECONDS - 1, WINDOW_SECONDS + 1]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(["alice", "bob"]), st.sampled_from("abc")),
        st.tuples(
            st.just("wait"),
            st.sampled_from(SECONDS),
        ),
        st.tuples(st.sampled_from(["crash", "fail"])),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_core_agrees_with_a_naive_model(steps: list[tuple[object, ...]]) -> None:
    bench, starts = bench_with("alice", "bob"), 0
    names = {"alice": "alice", "bob": "bob"}
    numbers = dict.fromkeys(names, 0)
    known: dict[object, tuple[int, float]] = {}
    for step in steps:
        match step:
            case ("publish", str(who), str(identity)):
                numbers[who] += 1
                bench.tell(names[who], once(identity, numbers[who]))
                bench.settle()
                [stored] = confirmed(bench, names[who])
                sequence = stored.sequence
                first, since = known.get(identity, (0, 0.0))
                assert stored.duplicate == (first > 0 and bench.now < since + WINDOW_SECONDS)
                if stored.duplicate:
                    assert sequence == first
                else:
                    known[identity] = sequence, bench.now
            case ("wait", float(seconds)):
                bench.wait(seconds)
                bench.settle()
            case ("fail",):
                numbers["alice"] += 1
                bench.tell(names["alice"], once("never", numbers["alice"]))
                bench.iterate()
                bench.fail()
                bench.settle()
                bench.sent(names["alice"])
            case _:
                bench.crash()
                starts += 1
                names = {who: f"{who}{starts}" for who in names}
                numbers = dict.fromkeys(names, 0)
                bench.open(*names.values())
                bench.settle()
                for name in names.values():
                    bench.sent(name)
