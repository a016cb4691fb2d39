"""Where subscriptions begin, cursors, and what an operator changes: see docs/protocol.md."""

from __future__ import annotations

from math import inf, nan

import pytest
from core_bench import Bench, chunks, items, publish, subscribe

from malamute.core.stream.start import SUBJECTS_MAX
from malamute.errors import StorageFull
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    Answer,
    Cancel,
    Change,
    Commit,
    Credit,
    Deliver,
    Error,
    Gap,
    Ok,
    Query,
    Stored,
    Switch,
)
from malamute.store.policies import StreamRetention
from malamute.store.tables import CURSORS


@pytest.fixture
def bench() -> Bench:
    """A stream `s` with sequences 1 to 6, two in each of three chunks that are ten seconds apart."""
    bench = Bench()
    bench.open("alice", "bob")
    for subject in "abc":
        bench.tell("alice", publish(b"1", b"2", subject=subject))
        bench.settle()
        bench.wait(10.0)
        bench.settle()
    bench.sent("bob")
    return bench


def begin(bench: Bench, start: str, **fields) -> tuple[int, list[int]]:
    """Subscribe as bob: the value of OK, and the sequences that come."""
    bench.tell("bob", subscribe(start=start, **fields))
    bench.settle()
    answers = bench.sent("bob")
    values = [message.value for message in answers if isinstance(message, Ok)]
    return values[0], seen(answers)


def seen(messages) -> list[int]:
    """The sequences delivered, having checked that each names the one before it."""
    sequences: list[int] = []
    after = None
    for message in messages:
        if isinstance(message, Deliver):
            got = [item.sequence for item in items(message)]
            assert after in (None, message.after)
            after = got[-1]
            sequences += got
    return sequences


def test_two_questions_of_one_iteration_that_are_equal_but_for_their_types_have_an_answer_each(bench):
    bench.receive("bob", subscribe(1, start=f"time:{SUBJECTS_MAX}"))
    bench.receive("bob", subscribe(2, start="last-per-subject"))
    bench.settle()
    answers = bench.sent("bob")
    assert [m.value for m in answers if isinstance(m, Ok)] == [1, 2]
    assert [seen(m for m in answers if getattr(m, "source", 0) == source) for source in (1, 2)] == [
        [1, 2, 3, 4, 5, 6],
        [2, 4, 6],
    ]


@pytest.mark.parametrize(
    ("start", "value", "sequences"),
    [
        ("new", 7, []),
        ("first", 1, [1, 2, 3, 4, 5, 6]),
        ("last", 6, [6]),
        ("last-per-subject", 2, [2, 4, 6]),
        ("seq:4", 4, [4, 5, 6]),
        ("seq:7", 7, []),
        ("seq:700", 7, []),
        ("time:0", 1, [1, 2, 3, 4, 5, 6]),
        ("since:15", 5, [5, 6]),
        ("since:25s", 3, [3, 4, 5, 6]),
        ("since:1h", 1, [1, 2, 3, 4, 5, 6]),
        ("since:1ms", 7, []),
    ],
)
def test_wp18_a_subscription_begins_at_its_start(bench, start, value, sequences):
    assert begin(bench, start) == (value, sequences)


def test_a_subscription_to_an_existing_stream_makes_none(bench):
    bench.tell("bob", subscribe(stream="none", existing=True))
    [error] = bench.sent("bob")
    assert (error.code, error.ref, "none" in bench.core.streams.by_name) == (404, 1, False)
    assert begin(bench, "first", existing=True) == (1, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("start", "before"),
    [
        ("new", []),
        ("first", [1, 2, 3, 4, 5, 6]),
        ("last", [6]),
        ("last-per-subject", [2, 4, 6]),
        ("seq:4", [4, 5, 6]),
        ("since:15", [5, 6]),
    ],
)
@pytest.mark.parametrize("credit", [1, 2, -1])
def test_wp7_from_every_start_it_continues_live_without_gap_or_duplicate(bench, start, before, credit):
    """While it takes so many at a time, others come: one of them before each grant, as long as it replays."""
    bench.tell("bob", subscribe(start=start, credit=credit))
    bench.settle()
    for body in (b"3", b"4", b"5"):
        bench.tell("alice", publish(body))
        bench.tell("bob", Credit(1, credit))
        bench.settle()
    for _ in range(10):
        bench.tell("bob", Credit(1, credit))
        bench.settle()
    bench.tell("alice", publish(b"6"))
    answers = bench.sent("bob")
    assert seen(answers) == [*before, 7, 8, 9, 10]
    assert not [message for message in answers if isinstance(message, Gap)]


@pytest.mark.parametrize("start", ["last", "last-per-subject", "time:0", "since:1h"])
def test_a_start_finds_what_is_not_on_the_disk_yet(bench, start):
    bench.tell("alice", publish(b"x", subject="d"))
    bench.tell("bob", subscribe(start=start))
    while bench.reads:
        bench.read()
    assert bench.appends
    assert seen(bench.sent("bob"))[-1] == 7
    bench.settle()
    assert not bench.bodies("bob")


def test_the_last_of_each_subject_is_only_of_those_that_match(bench):
    assert begin(bench, "last-per-subject", criteria=[["exact", "b"]]) == (4, [4])


def test_single_messages_come_within_credit_and_then_what_is_new(bench):
    assert begin(bench, "last-per-subject", credit=1) == (2, [2])
    bench.tell("alice", publish(b"new"))
    bench.tell("bob", Credit(1, 1))
    bench.settle()
    assert seen(bench.sent("bob")) == [4]
    bench.tell("bob", Credit(1, 10))
    bench.settle()
    assert seen(bench.sent("bob")) == [6, 7]


def test_what_the_ring_dropped_before_the_start_is_not_reported_and_what_it_drops_later_is():
    bench = Bench(retention=StreamRetention(messages_max=2))
    bench.open("alice", "bob")
    for _ in range(3):
        bench.tell("alice", publish(b"1", b"2"))
        bench.settle()
    assert begin(bench, "first", credit=1) == (1, [5])
    for _ in range(2):
        bench.tell("alice", publish(b"1", b"2"))
        bench.settle()
    bench.sent("bob")
    bench.tell("bob", Credit(1, 10))
    bench.settle()
    answers = bench.sent("bob")
    assert [m for m in answers if isinstance(m, Gap)] == [Gap(1, 6, 8, "overwritten")]
    assert seen(answers) == [9, 10]


def test_a_subscription_that_is_cancelled_while_the_store_looks_gets_nothing(bench):
    bench.tell("bob", subscribe(start="time:0"))
    bench.tell("bob", Cancel(1))
    bench.settle()
    assert [type(message) for message in bench.sent("bob")] == [Ok]


def test_an_unjournaled_stream_has_no_past():
    bench = Bench(no_journal=("s",))
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert begin(bench, "since:1h") == (2, [])


# Cursors


def test_wp29_a_cursor_is_where_its_reader_continues_even_after_a_crash(bench):
    assert begin(bench, "first", cursor="c") == (1, [1, 2, 3, 4, 5, 6])
    bench.tell("bob", Commit("s", 1, "c", 4))
    assert bench.sent("bob") == []
    bench.commit()
    assert bench.sent("bob") == [Stored([[1, 1, 0]])]
    bench.crash()
    bench.open("bob")
    assert begin(bench, "new", cursor="c") == (5, [5, 6])


def test_a_cursor_that_was_not_stored_is_not_confirmed(bench):
    bench.tell("bob", Commit("s", 1, "c", 4))
    bench.fail(StorageFull("full"))
    assert bench.sent("bob") == [Error(507, "full", 14, 1)]


@pytest.mark.parametrize(
    ("commit", "code"),
    [(Commit("nothing", 1, "c", 1), 404), (Commit("s", 1, "c", 7), 416)],
)
def test_a_cursor_is_of_a_stream_and_not_beyond_its_head(bench, commit, code):
    bench.tell("bob", commit)
    assert [answer.code for answer in bench.sent("bob")] == [code]
    assert not bench.core.streams.by_name["s"].cursors


def test_a_stream_has_so_many_cursors_and_no_more():
    bench = Bench(Limits(cursors=1))
    bench.open("alice")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("alice", Commit("s", 1, "one", 1), Commit("s", 2, "two", 1), Commit("s", 3, "one", 0))
    bench.settle()
    assert bench.sent("alice") == [
        Error(429, "too many cursors of the stream 's': expected at most 1", 14, 2),
        Stored([[1, 1, 0], [3, 3, 0]]),
    ]


@pytest.mark.parametrize(
    ("asked", "about"),
    [
        (subscribe(source=1, start="time:1", cursor="two"), 6),
        (Change(1, "cursor.set", {"stream": "s", "cursor": "two", "start": "time:1"}), 15),
    ],
)
def test_a_cursor_that_waits_for_its_position_has_no_room_when_others_took_it(asked, about):
    bench = Bench(Limits(cursors=1))
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1"))
    bench.settle()
    bench.tell("alice", asked)
    bench.tell("bob", Commit("s", 1, "one", 1))
    bench.settle()
    (refused,) = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    assert refused == Error(429, "too many cursors of the stream 's': expected at most 1", about, 1)
    assert list(bench.core.streams.by_name["s"].cursors) == ["one"]


# What an operator changes


def change(bench: Bench, topic: str, **arguments):
    """Ask for a change as bob: the value of the answer, or the code of the refusal."""
    return change_as(bench, "bob", topic, **arguments)


def change_as(bench: Bench, name: str, topic: str, **arguments):
    bench.tell(name, Change(0, topic, arguments))
    bench.settle()
    (answer,) = [m for m in bench.sent(name) if isinstance(m, Ok | Error) and m.about == 15]
    return answer.value if isinstance(answer, Ok) else answer.code


def test_a_cursor_is_set_to_a_start_and_a_dry_run_changes_nothing(bench):
    place = {"stream": "s", "cursor": "c"}
    told = {**place, "before": None, "sequence": 4}
    assert change(bench, "cursor.set", **place, start="since:15", dry_run=True) == told
    assert not bench.core.streams.by_name["s"].cursors
    assert change(bench, "cursor.set", **place, start="since:15") == told
    assert change(bench, "cursor.delete", **place) == {**place, "before": 4}
    assert change(bench, "cursor.delete", **place) == 404


def test_a_change_is_answered_when_it_is_stored_or_failed(bench):
    bench.tell("bob", Change(0, "cursor.set", {"stream": "s", "cursor": "c", "start": "first"}))
    assert bench.sent("bob") == []
    bench.fail(StorageFull("full"))
    assert bench.sent("bob") == [Error(507, "full", 15, 0)]


def test_a_stream_that_nobody_reads_is_removed_and_its_sequences_continue(bench):
    assert begin(bench, "new") == (7, [])
    assert change(bench, "stream.delete", stream="s") == 423
    bench.tell("bob", Cancel(1))
    bench.sent("bob")
    assert change(bench, "stream.delete", stream="s")["last"] == 6
    assert begin(bench, "first", source=2) == (1, [])
    bench.tell("alice", publish(b"after"))
    bench.settle()
    assert seen(bench.sent("bob")) == [7]


def test_a_retention_set_at_run_time_drops_what_is_over_it(bench):
    told = {"stream": "s", "bytes": 0, "count": 2, "age": 0.0}
    assert change(bench, "stream.retain", stream="s", count=2) == told
    assert begin(bench, "first")[1] == [5, 6]


def test_a_retention_set_at_run_time_outlives_a_purge_and_a_restart(bench):
    change(bench, "stream.retain", stream="s", count=2)
    change(bench, "stream.purge", stream="s")
    bench.restart()
    bench.open("alice", "bob")
    bench.sent("bob")
    change(bench, "stream.purge", stream="s")
    for _ in range(3):
        bench.tell("alice", publish(b"1", b"2"))
        bench.settle()
    assert [sequence for sequence, _ in chunks(bench.store)] == [11, 12]


def test_a_purge_takes_the_history_and_nothing_else(bench):
    change(bench, "cursor.set", stream="s", cursor="c", start="seq:3")
    assert begin(bench, "new") == (7, [])
    told = {"stream": "s", "first": 1, "last": 6}
    assert change(bench, "stream.purge", stream="s", dry_run=True) == told
    assert len([*chunks(bench.store)]) == 6
    assert change(bench, "stream.purge", stream="s") == told
    assert [*chunks(bench.store)] == []
    assert bench.core.streams.by_name["s"].cursors == {"c": 2}
    assert bench.store.recover().table(CURSORS) == {("s", "c"): 2}
    bench.tell("alice", publish(b"after"))
    bench.settle()
    assert seen(bench.sent("bob")) == [7]
    assert begin(bench, "first", source=2)[1] == [7]


def test_who_is_behind_when_a_stream_is_purged_is_notified(bench):
    assert begin(bench, "first", credit=2)[1] == [1, 2]
    change_as(bench, "alice", "stream.purge", stream="s")
    bench.tell("bob", Credit(1, 10, -1))
    bench.settle()
    assert [m for m in bench.sent("bob") if isinstance(m, Gap)] == [Gap(1, 3, 6, "overwritten")]


def test_a_purge_that_could_not_be_stored_has_purged_nothing(bench):
    bench.tell("bob", Change(0, "stream.purge", {"stream": "s"}))
    bench.fail(StorageFull("full"))
    assert bench.sent("bob") == [Error(507, "full", 15, 0)]
    assert bench.core.streams.by_name["s"].progress.first_kept == 1
    assert begin(bench, "first")[1] == [1, 2, 3, 4, 5, 6]


def test_a_stream_is_made_with_its_retention_and_survives_a_restart(bench):
    told = {"stream": "new", "bytes": 0, "count": 2, "age": 0.0}
    assert change(bench, "stream.create", stream="new", count=2, dry_run=True) == told
    assert "new" not in bench.core.streams.by_name
    assert change(bench, "stream.create", stream="plain") == {"stream": "plain"}
    assert change(bench, "stream.create", stream="new", count=2) == told
    bench.crash()
    assert {"new", "plain"} <= bench.core.streams.by_name.keys()
    assert bench.store.retention("new") == StreamRetention(messages_max=2)


def test_a_stream_is_made_without_a_journal_and_survives_restarts_without_one(bench):
    assert change(bench, "stream.create", stream="live", journal=False) == {"stream": "live"}
    assert change(bench, "stream.create", stream="s", journal=False) == 423
    used: set[int] = set()
    for end in (bench.restart, bench.crash, bench.crash):
        stream = bench.core.streams.by_name["live"]
        assert (stream.journaled, stream.lasting) == (False, True)
        bench.tell("alice", publish(b"now", stream="live"))
        bench.settle()
        assert stream.progress.last not in used, "a sequence was used twice"
        used.add(stream.progress.last)
        assert bench.store.read("live", 0, bytes_max=1 << 20).found == []
        end()
        bench.open("alice", "bob")
    assert change(bench, "stream.create", stream="live", journal=True) == {"stream": "live"}


def test_an_unused_stream_with_a_journal_is_not_made_without_one(bench):
    change(bench, "stream.create", stream="plain")
    assert change(bench, "stream.create", stream="plain", journal=False, dry_run=True) == 423
    change(bench, "stream.delete", stream="plain")
    assert change(bench, "stream.create", stream="plain", journal=False) == {"stream": "plain"}
    change(bench, "stream.delete", stream="plain")
    # The name is free again, and the configuration decides.
    change(bench, "stream.create", stream="plain")
    bench.crash()
    assert bench.core.streams.by_name["plain"].journaled


def test_a_stream_without_a_journal_that_the_disk_refuses_is_not_made(bench):
    bench.tell("bob", Change(0, "stream.create", {"stream": "live", "journal": False}))
    bench.fail(StorageFull("full"))
    assert bench.sent("bob") == [Error(507, "full", 15, 0)]
    assert "live" not in bench.core.streams.by_name
    change(bench, "stream.create", stream="live")
    assert bench.core.streams.by_name["live"].journaled


def test_a_stream_that_was_deleted_can_be_made_again_and_its_numbers_continue(bench):
    assert change(bench, "stream.create", stream="s") == 423
    change(bench, "stream.delete", stream="s")
    assert change(bench, "stream.create", stream="s") == {"stream": "s"}
    bench.tell("alice", publish(b"after", number=1))
    bench.settle()
    assert bench.core.streams.by_name["s"].progress.last == 7
    bench.crash()
    assert bench.core.streams.by_name["s"].progress.next > 7


@pytest.mark.parametrize(
    ("topic", "arguments", "code"),
    [
        ("nothing", {}, 416),
        ("cursor.set", {"stream": "s", "cursor": "c"}, 416),
        ("cursor.set", {"stream": "s", "cursor": "c", "start": "never"}, 416),
        ("cursor.set", {"stream": "s", "cursor": "", "start": "new"}, 414),
        ("cursor.set", {"stream": "s", "cursor": "c", "start": "last-per-subject"}, 416),
        ("cursor.set", {"stream": "none", "cursor": "c", "start": "new"}, 404),
        ("stream.retain", {"stream": "s", "count": -1}, 416),
        ("stream.retain", {"stream": "s", "count": "many"}, 416),
        ("stream.retain", {"stream": "s", "age": inf}, 416),
        ("stream.retain", {"stream": "s", "age": nan}, 416),
        ("stream.retain", {"stream": "s", "age": 1e300}, 416),
        ("stream.create", {"stream": "t", "age": inf}, 416),
        ("stream.create", {"stream": "t", "bytes": 2**64 - 1}, 416),
        ("journal.backup", {"directory": "/tmp/a\0b"}, 416),
        ("journal.backup", {"directory": ""}, 416),
        ("journal.backup", {"directory": "../there"}, 401),
        ("journal.backup", {"directory": "/there"}, 401),
        ("journal.backup", {"directory": "/backups"}, 401),
        ("stream.retain", {"stream": "$sys"}, 401),
        ("stream.retain", {"stream": ""}, 414),
        ("stream.create", {"stream": "t", "age": -1.0}, 416),
        ("stream.create", {"stream": "$t"}, 401),
        ("stream.create", {"stream": ""}, 414),
        ("stream.purge", {"stream": "none"}, 404),
        ("stream.purge", {}, 416),
        ("stream.delete", {"stream": "none"}, 404),
        ("stream.delete", {"stream": "s", "force": True}, 416),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_with_a_number(bench, topic, arguments, code):
    assert change(bench, topic, **arguments) == code


# What is reported about a stream


def test_a_stream_reports_its_readers_and_how_far_they_are_behind(bench):
    begin(bench, "first", credit=2)
    bench.tell("bob", Query(1, "stream", {"name": "s"}))
    (answer,) = [m for m in bench.sent("bob") if not isinstance(m, Switch)]
    (reader,) = answer.value["readers"]
    assert (reader["state"], reader["lag"], reader["lag_seconds"]) == ("replay", 4, pytest.approx(20.0))


def test_a_stream_counts_how_often_a_reader_comes_to_its_head_and_falls_behind(bench):
    begin(bench, "new", credit=1)

    def switches():
        (answer,) = [m for m in bench.ask("alice", Query(1, "stream", {"name": "s"})) if type(m) is Answer]
        return answer.value["switches_to_live"], answer.value["switches_to_replay"]

    assert switches() == (0, 0)
    bench.tell("alice", publish(b"x", b"y"))
    bench.settle()
    assert switches() == (0, 1)
    bench.tell("bob", Credit(1, 10, 0))
    bench.settle()
    assert switches() == (1, 1)


def test_explain_says_why_a_selector_does_not_take_a_message(bench):
    begin(bench, "new", criteria=[["topic", "x.*"]])
    bench.tell("bob", Query(1, "explain", {"stream": "s", "subject": "y.z"}))
    (answer,) = bench.sent("bob")
    (row,) = answer.value
    assert not row["matched"]
    assert row["reason"]


OWN, FOREIGN = "00" * 16, "11" * 16


def gaps_of(messages) -> list[tuple[int, int, str]]:
    return [(gap.first, gap.last, gap.reason) for gap in messages if isinstance(gap, Gap)]


@pytest.mark.parametrize("store", [OWN, f"{OWN}.7"])
def test_a_position_in_this_store_goes_on_behind_it_whatever_was_asked_for(bench, store):
    """An incarnation shares its sequences with those before."""
    bench.tell("bob", subscribe(start="first", cursor="red", resume=f"4@{store}"))
    bench.settle()
    answers = bench.sent("bob")
    assert seen(answers) == [5, 6]
    assert gaps_of(answers) == []
    assert "red" not in bench.core.streams.by_name["s"].cursors


@pytest.mark.parametrize(
    "position",
    [
        f"4@{FOREIGN}",
        f"0@{FOREIGN}",
        f"900@{FOREIGN}.5",
        f"7@{OWN}",
        f"893028037238784@{OWN}.893028037238000",
    ],
)
@pytest.mark.parametrize(
    ("asked", "expected", "last"),
    [
        ({"start": "first"}, [1, 2, 3, 4, 5, 6], 0),
        ({"start": "first", "cursor": "new one"}, [1, 2, 3, 4, 5, 6], 0),
        ({"start": "last"}, [6], 5),
        ({"start": "seq:3"}, [3, 4, 5, 6], 2),
        ({"start": "new"}, [], 6),
    ],
)
def test_a_position_of_another_store_begins_at_the_start_asked_for_behind_a_gap(
    bench, position, asked, expected, last
):
    """Each message is delivered, or lies in the gap: also of one that had something (`had`) there."""
    bench.tell("bob", subscribe(resume=position, had=5, **asked))
    bench.settle()
    answers = bench.sent("bob")
    assert seen(answers) == expected
    assert gaps_of(answers) == [(1, last, "another-store")]
    ok = next(place for place, message in enumerate(answers) if isinstance(message, Ok))
    assert isinstance(answers[ok + 1], Gap)


def test_a_position_of_another_store_leaves_a_cursor_of_this_one_alone(bench):
    bench.tell("bob", Commit("s", 1, "red", 2))
    bench.settle()
    bench.sent("bob")
    bench.tell("bob", subscribe(start="first", cursor="red", resume=f"5@{FOREIGN}"))
    bench.settle()
    answers = bench.sent("bob")
    assert seen(answers) == [3, 4, 5, 6]
    assert gaps_of(answers) == [(1, 2, "another-store")]


@pytest.mark.parametrize(
    ("start", "expected", "gaps"),
    [
        (f"after:4@{OWN}", [5, 6], []),
        (f"after:0@{OWN}", [1, 2, 3, 4, 5, 6], []),
        (f"after:6@{OWN}", [], []),
        (f"after:7@{OWN}", [1, 2, 3, 4, 5, 6], [(1, 0, "another-store")]),
        (f"after:4@{FOREIGN}", [1, 2, 3, 4, 5, 6], [(1, 0, "another-store")]),
    ],
)
def test_a_position_that_was_kept_is_a_start(bench, start, expected, gaps):
    bench.tell("bob", subscribe(start=start))
    bench.settle()
    answers = bench.sent("bob")
    assert seen(answers) == expected
    assert gaps_of(answers) == gaps


@pytest.mark.parametrize("resume", ["4", f"x@{OWN}", "4@", f"4@{OWN[:-1]}", f"{2**63}@{OWN}", f"4@{OWN}.0"])
def test_a_position_that_is_none_is_refused(bench, resume):
    bench.tell("bob", subscribe(resume=resume))
    bench.settle()
    assert [error.code for error in bench.sent("bob") if isinstance(error, Error)] == [416]


@pytest.mark.parametrize(
    ("store", "is_taken"), [("", True), (OWN, True), (f"{OWN}.9", True), (FOREIGN, False)]
)
def test_a_commit_of_another_store_changes_nothing(bench, store, is_taken):
    bench.tell("bob", Commit("s", 1, "red", 2, store))
    bench.settle()
    assert [error.code for error in bench.sent("bob") if isinstance(error, Error)] == (
        [] if is_taken else [416]
    )
    assert dict(bench.core.streams.by_name["s"].cursors) == ({"red": 2} if is_taken else {})


@pytest.mark.parametrize(("store", "code"), [(OWN, 0), (FOREIGN, 416)])
def test_an_operator_sets_a_cursor_to_a_position_of_this_store_alone(bench, store, code):
    bench.tell(
        "bob",
        Change(
            1, "cursor.set", {"stream": "s", "cursor": "red", "start": f"after:3@{store}", "dry_run": False}
        ),
    )
    bench.settle()
    assert [error.code for error in bench.sent("bob") if isinstance(error, Error)] == ([code] if code else [])
    assert bench.core.streams.by_name["s"].cursors.get("red") == (None if code else 3)


@pytest.fixture
def crowded(monkeypatch) -> Bench:
    """A stream `s` with a rare subject in front of more subjects than a subscription may begin at."""
    monkeypatch.setattr("malamute.core.stream.start.SUBJECTS_MAX", 5)
    bench = Bench()
    bench.open("alice", "bob")
    for subject in ("rare.1", "rare.2", *(f"newer.{number}" for number in range(6))):
        bench.tell("alice", publish(b"1", subject=subject))
        bench.settle()
    bench.sent("bob")
    return bench


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ([["topic", "rare.*"]], [1, 2]),
        ([["exact", "rare.1"], ["exact", "newer.5"]], [1, 8]),
        ([["prefix", "newer.0"], ["prefix", "rare"]], [1, 2, 3]),
    ],
)
def test_the_subjects_that_a_subscription_takes_are_found_behind_any_number_of_others(
    crowded, criteria, expected
):
    assert begin(crowded, "last-per-subject", criteria=criteria) == (expected[0], expected)


@pytest.mark.parametrize("criteria", [[["all", ""]], [["topic", "newer.*"]], [["regex", "rare.*"]]])
def test_too_many_subjects_are_refused_and_not_left_out(crowded, criteria):
    """A regular expression is not tried in the thread of the store: all subjects count against it."""
    crowded.tell("bob", subscribe(start="last-per-subject", criteria=criteria))
    crowded.settle()
    [error] = [message for message in crowded.sent("bob") if isinstance(message, Error)]
    assert (error.code, "expected at most 5" in error.text) == (416, True)


def test_messages_that_may_expire_and_have_not_are_the_last_of_their_subjects():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", subject="a")._replace(ttl=60_000))
    bench.settle()
    bench.tell("alice", publish(b"2", subject="b"))
    bench.settle()
    bench.sent("bob")
    assert begin(bench, "last-per-subject") == (1, [1, 2])
