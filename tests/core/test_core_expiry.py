"""Messages of streams that expire: by their own time to live, or by that of the stream."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from core_bench import Bench, gaps, items, publish, sequences
from hypothesis import given
from hypothesis import strategies as st

from malamute.core.feed.table import KEEP_SECONDS
from malamute.core.iteration.effects import ClockStep
from malamute.core.stream.expiry import NOTES_MAX, BirthTimes, TimesBefore
from malamute.errors import Malformed
from malamute.protocol.batch import Columns, pack_stream_payload, unpack_payload
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import DURATION_MS_MAX
from malamute.protocol.messages import EXPIRED, Change, Credit, Deliver, Gap, Offer, Publish, Subscribe
from malamute.protocol.time_units import to_ns
from malamute.store.policies import StreamPolicy

ALL: Any = [["topic", "#"]]


def expiring(*bodies: bytes, ttl: int, **options: Any) -> Publish:
    return publish(*bodies, **options)._replace(ttl=ttl)


def subscribe(start: str, credit: int = 1000, **options: Any) -> Subscribe:
    return Subscribe(1, "s", ALL, start=start, credit=credit, **options)


def opened(**options: Any) -> Bench:
    bench = Bench(**options)
    bench.open("alice", "bob")
    return bench


def story(bench: Bench, name: str = "bob") -> list[str]:
    """What a reader was sent, in order: the sequences of messages, and its gaps."""
    told: list[str] = []
    for message in bench.sent(name):
        if isinstance(message, Deliver):
            told += [str(item.sequence) for item in items(message)]
        elif isinstance(message, Gap):
            told.append(f"{message.first}-{message.last} {message.reason}")
    return told


def test_a_message_is_delivered_until_it_expires_and_then_a_gap() -> None:
    bench = opened()
    bench.tell("bob", subscribe("new"))
    bench.tell("alice", expiring(b"0", ttl=1000))
    bench.settle()
    assert story(bench) == ["1"]
    bench.wait(0.999)
    bench.open("carol")
    bench.tell("carol", subscribe("seq:1"))
    bench.settle()
    assert story(bench, "carol") == ["1"]
    bench.wait(0.001)
    bench.open("dave")
    bench.tell("dave", subscribe("seq:1"))
    bench.settle()
    assert story(bench, "dave") == [f"1-1 {EXPIRED}"]


def test_what_expired_in_many_chunks_is_one_gap_and_what_is_between_is_delivered() -> None:
    bench = opened()
    for ttl in (500, 500, 0, 500, 500, 500):
        bench.tell("alice", expiring(b"x", ttl=ttl))
        bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    assert story(bench) == [f"1-2 {EXPIRED}", "3", f"4-6 {EXPIRED}"]
    bench.tell("alice", publish(b"y"))
    bench.settle()
    assert story(bench) == ["7"]


def test_a_chunk_of_which_some_have_expired_is_given_in_order() -> None:
    bench = opened()
    bench.receive("alice", publish(b"0"), expiring(b"1", b"2", ttl=500), publish(b"3"))
    bench.receive("alice", expiring(b"4", ttl=5000), expiring(b"5", ttl=500))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    assert story(bench) == ["1", f"2-3 {EXPIRED}", "4", "5", f"6-6 {EXPIRED}"]


def test_a_gap_is_of_the_messages_that_a_reader_would_have_got() -> None:
    bench = opened()
    bench.receive("alice", *(expiring(b"x", ttl=500, subject=s) for s in ("a", "b", "a", "b", "b")))
    bench.tell("alice", publish(b"y", subject="b"))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", Subscribe(1, "s", [["exact", "a"]], start="seq:1", credit=10))
    bench.settle()
    assert story(bench) == [f"1-3 {EXPIRED}"]


def test_who_begins_at_the_oldest_does_not_miss_what_had_expired() -> None:
    bench = opened()
    bench.tell("alice", expiring(b"0", ttl=500))
    bench.tell("alice", expiring(b"1", ttl=500))
    bench.tell("alice", publish(b"2"))
    bench.tell("alice", expiring(b"3", ttl=500))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("first"))
    bench.settle()
    assert story(bench) == ["3", f"4-4 {EXPIRED}"]


def test_what_came_since_a_reader_began_is_told_though_it_has_had_nothing() -> None:
    bench = opened()
    bench.tell("alice", expiring(b"0", ttl=500))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("first", credit=0))
    bench.tell("alice", expiring(b"1", b"2", ttl=500))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", Credit(1, 10))
    bench.settle()
    assert story(bench) == [f"2-3 {EXPIRED}"]


def test_what_expires_while_a_reader_has_no_credit_is_told_when_it_has() -> None:
    bench = opened()
    bench.tell("bob", subscribe("new", credit=1))
    bench.tell("alice", expiring(b"0", b"1", b"2", ttl=500))
    bench.tell("alice", publish(b"3"))
    bench.settle()
    assert story(bench) == ["1"]
    bench.wait(1)
    bench.tell("bob", Credit(1, 1))
    bench.settle()
    assert story(bench) == [f"2-3 {EXPIRED}", "4"]


def test_an_expired_message_takes_no_credit() -> None:
    bench = opened()
    bench.tell("alice", expiring(b"0", b"1", ttl=500))
    bench.tell("alice", publish(b"2"))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("seq:1", credit=1))
    bench.settle()
    assert story(bench) == [f"1-2 {EXPIRED}", "3"]


def test_a_message_that_expires_while_the_disk_is_slow_is_not_delivered_as_committed() -> None:
    bench = opened()
    bench.tell("bob", subscribe("new", committed=True))
    bench.receive("alice", expiring(b"0", ttl=500), publish(b"1"))
    bench.iterate()
    bench.wait(1)
    bench.settle()
    assert story(bench) == [f"1-1 {EXPIRED}", "2"]


def test_a_message_that_expires_before_its_sequences_are_reserved_is_not_delivered() -> None:
    # The first chunk of a stream waits for the disk, whatever its readers ask for.
    bench = opened()
    bench.tell("bob", subscribe("new"))
    bench.receive("alice", expiring(b"0", ttl=500), publish(b"1"))
    bench.iterate()
    assert story(bench) == []
    bench.wait(1)
    bench.settle()
    assert story(bench) == [f"1-1 {EXPIRED}", "2"]


def test_many_runs_in_one_chunk_are_given_in_steps() -> None:
    bench = opened()
    for number in range(200):
        bench.receive("alice", expiring(b"x", ttl=500 if number % 2 else 0))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    expected = [str(n) if n % 2 else f"{n}-{n} {EXPIRED}" for n in range(1, 201)]
    assert story(bench) == expected


def test_a_feed_takes_nothing_that_has_expired_and_says_so() -> None:
    bench = opened(lifecycle=True)
    bench.receive("alice", expiring(b"0", ttl=500), publish(b"1"), expiring(b"2", ttl=500))
    bench.settle()
    bench.wait(1)
    feed = {"source": "stream/s", "feed": "w", "target": "service/w", "start": "seq:1"}
    bench.tell("alice", Change(0, "feed.set", feed))
    bench.settle()
    bench.tell("bob", Offer(1, "w", ALL, credit=10))
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    bench.wait(KEEP_SECONDS)
    bench.settle()
    assert bench.events.count("feed.gap.w") == 2


def test_a_feed_tells_of_what_came_while_it_was_made_and_expired() -> None:
    bench = opened(lifecycle=True)
    bench.tell("alice", expiring(b"0", ttl=500))
    bench.settle()
    bench.wait(1)
    feed = {"source": "stream/s", "feed": "w", "target": "service/w", "start": "first"}
    bench.receive("alice", Change(0, "feed.set", feed))
    bench.receive("alice", expiring(b"1", ttl=500))
    bench.iterate()
    bench.wait(1)
    bench.settle()
    bench.wait(KEEP_SECONDS)
    bench.settle()
    assert bench.events.count("feed.gap.w") == 1


def test_a_stream_gives_a_time_to_live_and_a_message_may_have_less() -> None:
    bench = opened()
    bench.core.streams.configure(lambda name: StreamPolicy(ttl_seconds=2.0), bench.settings.limits)
    bench.receive("alice", publish(b"0"), expiring(b"1", ttl=500), expiring(b"2", ttl=60_000))
    bench.settle()
    bench.wait(1)
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    assert story(bench) == ["1", f"2-2 {EXPIRED}", "3"]
    bench.wait(1)
    bench.open("carol")
    bench.tell("carol", subscribe("seq:1"))
    bench.settle()
    assert story(bench, "carol") == [f"1-3 {EXPIRED}"]


def test_a_stream_without_a_journal_delivers_nothing_that_has_expired() -> None:
    bench = opened(no_journal=("s",))
    bench.tell("bob", subscribe("new"))
    bench.receive("alice", expiring(b"0", ttl=500), publish(b"1"))
    bench.iterate()
    bench.wait(1)
    bench.settle()
    assert story(bench) == [f"1-1 {EXPIRED}", "2"]


def test_it_is_still_expired_after_a_restart_and_after_a_crash() -> None:
    bench = opened()
    bench.tell("alice", expiring(b"0", ttl=500), expiring(b"1", ttl=60_000))
    bench.settle()
    for again in (bench.restart, bench.crash):
        bench.wait(1)
        again()
        bench.open("bob")
        bench.tell("bob", subscribe("seq:1"))
        bench.settle()
        assert story(bench) == [f"1-1 {EXPIRED}", "2"]


@pytest.mark.parametrize("seconds", [86_400.0, -86_400.0])
def test_no_step_of_the_clock_ends_or_keeps_a_message(seconds: float) -> None:
    bench = opened()
    bench.tell("alice", expiring(b"0", ttl=10_000))
    bench.settle()
    bench.wait(1)
    bench.core.clock(ClockStep("followed", seconds, seconds), bench.now)
    bench.tell("alice", expiring(b"1", ttl=10_000))
    bench.settle()
    bench.wait(8.9)
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    assert story(bench) == ["1", "2"]
    bench.wait(0.2)
    bench.open("carol")
    bench.tell("carol", subscribe("seq:1"))
    bench.settle()
    assert story(bench, "carol") == [f"1-1 {EXPIRED}", "2"]
    bench.wait(1)
    bench.open("dave")
    bench.tell("dave", subscribe("seq:1"))
    bench.settle()
    assert story(bench, "dave") == [f"1-2 {EXPIRED}"]


def test_what_lives_for_a_moment_does_so_while_a_stream_waits_for_a_clock_that_was_set_back() -> None:
    bench = opened()
    bench.tell("bob", subscribe("new"))
    bench.tell("alice", expiring(b"0", ttl=20))
    bench.settle()
    bench.core.clock(ClockStep("followed", -3_600, -3_600), bench.now)
    for body in (b"1", b"2", b"3"):
        bench.wait(0.05)
        bench.tell("alice", expiring(body, ttl=20))
        bench.settle()
    bench.tell("bob", subscribe("last")._replace(source=2))
    bench.settle()
    assert story(bench) == ["1", "2", "3", "4", "4"]


def test_one_note_is_enough_while_a_stream_waits_for_a_clock_that_was_set_back() -> None:
    births, count = BirthTimes(1, TimesBefore(0)), 5_000
    for sequence in range(1, count + 1):
        births.note(sequence, 10**18 + sequence * 5_000_000, sequence / 100, waits=True)
    births.note(count + 1, 2 * 10**18, count / 100 + 1, waits=False)
    assert len(births._notes) == 2
    for sequence in range(1, count + 1, 7):
        assert births.counted(sequence, 10**18 + sequence * 5_000_000) == pytest.approx(sequence / 100)
    assert births.counted(count + 2, 2 * 10**18 + 10**9) == pytest.approx(count / 100 + 2)


def test_a_clock_that_was_wrong_at_the_start_gives_the_time_back() -> None:
    bench = opened()
    bench.tell("alice", expiring(b"0", ttl=3_600_000))
    bench.settle()
    bench.restart_at(86_400)
    bench.open("bob")
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    assert story(bench) == [f"1-1 {EXPIRED}"]
    bench.core.clock(ClockStep("followed", -86_400, -86_400), bench.now)
    bench.wait(600)
    bench.open("carol")
    bench.tell("carol", subscribe("seq:1"))
    bench.settle()
    assert story(bench, "carol") == ["1"]


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0, 300, 700, 5000])), min_size=1, max_size=30))
def test_every_message_comes_once_or_is_in_a_gap(batches: list[tuple[int, int]]) -> None:
    bench = opened()
    ttls: list[int] = []
    for count, ttl in batches:
        bench.receive("alice", expiring(*[b"x"] * count, ttl=ttl))
        ttls += [ttl] * count
        if count % 2:
            bench.settle()
    bench.settle()
    bench.wait(0.5)
    bench.tell("bob", subscribe("seq:1"))
    bench.settle()
    sent = bench.sent("bob")
    missing = [n for gap in gaps(sent) for n in range(gap.first, gap.last + 1)]
    assert {gap.reason for gap in gaps(sent)} <= {EXPIRED}
    assert missing == [n for n, ttl in enumerate(ttls, 1) if ttl == 300]
    assert sequences(sent) == [n for n, ttl in enumerate(ttls, 1) if ttl != 300]
    firsts = {gap.first for gap in gaps(sent)}
    assert not any(gap.last + 1 in firsts for gap in gaps(sent)), "two gaps that touch are one"


# The column, and the times


def test_a_message_without_a_time_to_live_takes_no_more_on_the_wire_nor_in_the_store() -> None:
    assert encode(publish(b"x")) == encode(publish(b"x")._replace(ttl=0))
    assert len(encode(publish(b"x"))[0]) < len(encode(expiring(b"x", ttl=1))[0])
    plain = Columns(1, 5, "alice", ["a", "b"], [b"\x91\xc0", b"\x91\xc0"])
    assert unpack_payload(*pack_stream_payload(plain)) == plain
    assert pack_stream_payload(plain)[0][0] == 0x95


@pytest.mark.parametrize("ttls", [7, [0, DURATION_MS_MAX]])
def test_times_to_live_are_a_column(ttls: Any) -> None:
    columns = Columns(1, 5, "alice", ["a", "b"], [b"\x91\xc0", b"\x91\xc0"], ttls=ttls)
    assert unpack_payload(*pack_stream_payload(columns)) == columns
    assert columns.take([1]).ttls == (ttls if isinstance(ttls, int) else [DURATION_MS_MAX])


@pytest.mark.parametrize("ttls", [-1, [0], [0, DURATION_MS_MAX + 1], [0, -1], "x", [0, "x"], [True, 1], None])
def test_a_column_that_is_none_is_refused(ttls: Any) -> None:
    payload, _ = pack_stream_payload(Columns(1, 5, "", ["a", "b"], [b"\x91\xc0", b"\x91\xc0"], ttls=[1, 2]))
    damaged = payload[: -len(b"\x92\x01\x02")]
    with pytest.raises(Malformed):
        unpack_payload(damaged + msgpack.packb(ttls))


def test_a_publish_has_at_most_ten_years_to_live() -> None:
    longest = expiring(b"x", ttl=DURATION_MS_MAX)
    assert decode(encode(longest)) == longest
    for ttl in (-1, DURATION_MS_MAX + 1):
        with pytest.raises(Malformed, match="ttl"):
            decode(encode(longest._replace(ttl=ttl)))


def test_notes_of_times_are_bounded_and_the_oldest_go() -> None:
    births = BirthTimes(1, TimesBefore(to_ns(1000.0)))
    for number in range(2 * NOTES_MAX):
        births.note(number + 1, to_ns(1000.0 + 2 * number), 1000.0 + number, waits=False)
    assert births.counted(2 * NOTES_MAX, to_ns(1000.0 + 2 * (2 * NOTES_MAX - 1))) == pytest.approx(
        1000.0 + 2 * NOTES_MAX - 1
    )
    # Of what is not known any more the oldest that is known counts: never earlier than it came.
    assert births.counted(1, to_ns(1000.0)) <= 1000.0
