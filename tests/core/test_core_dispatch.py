"""A large chunk for many different readers is dispatched in steps, and each gets what it would have got."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from core_bench import Bench, items, publish, request, subscribe

from malamute.core.iteration import effects as effects_module
from malamute.core.stream import audience, chunk, dispatch, live, replay
from malamute.core.stream.chunk import Loaded
from malamute.matching import CompiledSelector, Index
from malamute.protocol import codec
from malamute.protocol.batch import headers_of, pack_record, pack_stream_payload
from malamute.protocol.messages import Cancel, Change, Credit, Deliver, Gap, Publish, Subscribe, Switch

READERS, MESSAGES = 200, 4_000


def batch(number: int = 0, count: int = MESSAGES) -> Publish:
    """Messages with as many new subjects, each for one of the readers."""
    subjects = [f"a{number}-{place}.{place % READERS}" for place in range(count)]
    bodies = [b"%d-%d" % (number, place) for place in range(count)]
    return publish(*bodies)._replace(subjects=subjects)


def wanted(reader: int, number: int = 0, count: int = MESSAGES) -> list[bytes]:
    """What one of them gets of a batch."""
    return [b"%d-%d" % (number, place) for place in range(reader, count, READERS)]


def reading(**options) -> Bench:
    """A stream with so many readers, the first of which has the pattern `*.0`, and some sequences."""
    bench = Bench(**options)
    bench.open("reader", "alice", "other")
    bench.tell("alice", publish(b"so that sequences are reserved"))
    bench.settle()
    plain = [subscribe(n + 1, criteria=[["topic", f"*.{n}"]]) for n in range(READERS)]
    bench.tell("reader", *plain)
    bench.sent("reader")
    return bench


def got(bench: Bench, name: str = "reader") -> dict[int, list[bytes]]:
    """The bodies that each source of a peer was sent."""
    bodies: dict[int, list[bytes]] = {}
    for message in bench.sent(name):
        if isinstance(message, Deliver):
            bodies.setdefault(message.source, []).extend(item.body for item in items(message))
    return bodies


def test_new_subjects_are_looked_up_in_bounded_steps_and_no_reader_notices(monkeypatch):
    looked_up: Counter[str] = Counter()
    match_many = Index.match_many

    def counted(index, subjects, *columns):
        looked_up["now"] += len(subjects)
        return match_many(index, subjects, *columns)

    bench = reading()
    monkeypatch.setattr(Index, "match_many", counted)
    bench.receive("alice", batch(0), batch(1))
    iterations, deliveries = 0, 0
    while bench.core.streams.active:
        looked_up.clear()
        bench.iterate()
        new = sum(isinstance(m, Deliver) for peer, m in bench.log if peer == "reader")
        assert looked_up["now"] <= effects_module.WORK_MAX // 2 + dispatch.STEP_MESSAGES
        assert (new - deliveries) * dispatch.OFFER_WORK <= effects_module.WORK_MAX + dispatch.STEP_READERS
        iterations, deliveries = iterations + 1, new
    assert iterations > 3
    sent = bench.sent("reader")
    # One delivery for each reader, as if it had been done at once.
    assert Counter(type(m).__name__ for m in sent) == {"Deliver": READERS}
    for message in sent:
        reader = message.source - 1
        assert [i.body for i in items(message)] == [*wanted(reader, 0), *wanted(reader, 1)]


def test_who_takes_the_same_of_a_chunk_shares_one_part_of_it():
    bench = reading()
    bench.tell("other", *[subscribe(n + 1, criteria=[["topic", f"*.{n % 2}"]]) for n in range(20)])
    bench.sent("other")
    bench.tell("alice", batch())
    bench.settle()
    deliveries = [m for m in bench.sent("other") if isinstance(m, Deliver)]
    assert len(deliveries) == 20
    assert len({m.payload for m in deliveries}) == 2


@pytest.mark.parametrize("start", ["first", "new"])
def test_who_comes_while_a_chunk_is_dispatched_gets_each_message_once(start):
    bench = reading()
    bench.tell("alice", batch(0))
    assert bench.core.streams.by_name["s"].progress.behind
    bench.tell("other", subscribe(1, criteria=[["topic", "*.7"]], start=start))
    bench.iterate()
    bench.tell("alice", batch(1))
    bench.settle()
    before = wanted(7, 0) if start == "first" else []
    assert got(bench, "other") == {1: [*before, *wanted(7, 1)]}
    assert got(bench)[8] == [*wanted(7, 0), *wanted(7, 1)]


def test_who_was_behind_is_not_live_before_the_chunk_is_dispatched():
    bench = reading()
    bench.tell("other", subscribe(1, credit=0))
    bench.tell("alice", publish(b"one"))
    bench.settle()
    bench.tell("alice", batch(0))
    assert bench.core.streams.by_name["s"].progress.behind
    bench.sent("other")
    bench.receive("other", Credit(1, -1, -1))
    bench.settle()
    bench.tell("alice", publish(b"last"))
    bench.settle()
    sent = bench.sent("other")
    bodies = [i.body for m in sent if isinstance(m, Deliver) for i in items(m)]
    assert bodies == [b"one", *(b"0-%d" % place for place in range(MESSAGES)), b"last"]
    assert [m.state for m in sent if isinstance(m, Switch)] == ["live"]


def test_who_ends_while_a_chunk_is_dispatched_gets_no_more_of_it():
    bench = reading()
    bench.tell("alice", batch(0))
    assert bench.core.streams.by_name["s"].progress.behind
    had = got(bench)
    bench.tell("reader", *[Cancel(source) for source in range(1, READERS + 1)])
    bench.settle()
    assert not (had.keys() & got(bench).keys())
    assert not bench.core.streams.by_name["s"].progress.behind


@pytest.mark.parametrize("stored", [False, True])
def test_who_takes_what_is_on_the_disk_gets_it_whichever_is_done_first(stored):
    bench = reading()
    bench.tell("other", subscribe(1, criteria=[["topic", "*.7"]], committed=True))
    bench.sent("other")
    bench.tell("alice", batch(0))
    assert bench.core.streams.by_name["s"].progress.behind
    while bench.core.streams.active and not stored:
        bench.iterate()
    assert not got(bench, "other")
    bench.settle()
    assert got(bench, "other") == {1: wanted(7, 0)}


def test_what_the_disk_refuses_while_it_is_dispatched_is_reported_to_all_who_were_to_have_it():
    bench = reading()
    bench.tell("alice", batch(0))
    bench.tell("alice", batch(1))
    assert bench.core.streams.by_name["s"].progress.behind
    bench.fail()
    bench.settle()
    gaps, had = Counter(), Counter()
    for message in bench.sent("reader"):
        if isinstance(message, Gap):
            assert message.reason == "taken-back"
            gaps[message.source] += 1
        elif isinstance(message, Deliver):
            assert [i.body for i in items(message)] == wanted(message.source - 1, had[message.source])
            had[message.source] += 1
    assert gaps == dict.fromkeys(range(1, READERS + 1), 1)
    assert had == dict.fromkeys(range(1, READERS + 1), 2)


def test_what_waits_to_be_dispatched_has_a_limit_past_which_each_reader_looks_for_itself(monkeypatch):
    monkeypatch.setattr(live, "BEHIND_BYTES", 200_000)
    bench = reading()
    stream = bench.core.streams.by_name["s"]
    held = []
    for number in range(5):
        bench.receive("alice", batch(number))
        stream.flush()
        held.append(len(stream.live.held))
    assert max(held) < 5
    bench.settle()
    sent = bench.sent("reader")
    bodies: dict[int, list[bytes]] = {}
    for message in sent:
        if isinstance(message, Deliver):
            bodies.setdefault(message.source, []).extend(i.body for i in items(message))
    for reader in range(READERS):
        assert bodies[reader + 1] == [b for number in range(5) for b in wanted(reader, number)]
    assert {m.state for m in sent if isinstance(m, Switch)} == {"replay", "live"}


def test_how_much_waits_is_counted_and_not_summed_up_for_each_chunk_that_comes(monkeypatch):
    asked: Counter[str] = Counter()
    size_bytes, keep = Loaded.size_bytes.__get__, Loaded.size_bytes.__set__

    def counted(loaded):
        asked["now"] += 1
        return size_bytes(loaded)

    bench = reading()
    stream = bench.core.streams.by_name["s"]
    bench.tell("alice", batch())
    assert stream.progress.behind
    bench.core.effects.work = 0
    monkeypatch.setattr(Loaded, "size_bytes", property(counted, keep))
    counts = []
    for number in range(20):
        asked.clear()
        bench.receive("alice", publish(b"%d" % number))
        stream.flush()
        counts.append(asked["now"])
    assert len(stream.live.held) > 20
    assert set(counts) == {counts[0]}
    assert stream.live.held.size_bytes == sum(map(size_bytes, stream.live.held))
    bench.settle()
    assert not stream.progress.behind
    assert stream.live.held.size_bytes == len(stream.live.held) == 0


def test_what_is_kept_of_the_parts_is_counted_and_bounded(monkeypatch):
    kept: list[int] = []

    class Parts(dispatch._Parts):
        def _keep(self, same, part):
            super()._keep(same, part)
            kept.append(self._kept_bytes)
            assert self._kept_bytes == sum(part.size_bytes for part in self._kept.values())

    monkeypatch.setattr(dispatch, "_Parts", Parts)
    monkeypatch.setattr(dispatch, "PARTS_BYTES", 2_000)
    bench = reading()
    bench.tell("alice", batch())
    bench.settle()
    assert len(got(bench)) == READERS
    assert len(kept) == READERS
    assert 2_000 < max(kept) < 2_000 + 1_000


def test_a_feed_that_is_changed_while_a_chunk_is_dispatched_makes_each_request_once():
    bench = reading()
    feed = {"source": "stream/s", "feed": "w", "target": "service/w", "criteria": [["topic", "*.7"]]}
    bench.tell("alice", Change(0, "feed.set", feed))
    bench.settle()
    bench.tell("alice", Change(0, "feed.set", feed | {"criteria": [["topic", "*.8"]]}))
    bench.tell("alice", batch(0))
    assert bench.core.streams.by_name["s"].progress.behind
    bench.settle()
    subjects = [e.subject for e in bench.core.services.by_name["w"].entries.values()]
    assert subjects == [f"a0-{place}.8" for place in range(8, MESSAGES, READERS)]


def test_work_of_others_leaves_some_for_chunks():
    bench = reading()
    for first in range(0, 20_000, 5_000):
        bench.tell("alice", request(*[b"x"] * 5_000, subject=f"job.{first}"))
    bench.settle()
    bench.sent("reader")
    effects = bench.core.effects

    def greedy() -> None:
        effects.work -= 10 * effects_module.WORK_MAX
        effects.later(greedy)

    effects.later(greedy)
    bench.tell("alice", batch(0))
    for _ in range(100):
        bench.iterate()
    assert not bench.core.streams.by_name["s"].progress.behind
    assert sum(map(len, got(bench).values())) == MESSAGES


def test_a_costly_reader_of_what_is_on_the_disk_loses_nothing_when_it_falls_behind():
    bench = Bench()
    bench.open("reader", "alice")
    bench.tell("alice", publish(b"so that sequences are reserved"))
    bench.settle()
    costly = [subscribe(n, where=f"not x = {n}", committed=True) for n in range(1, 21)]
    bench.tell("reader", *costly)
    bench.sent("reader")
    bench.tell("alice", publish(b"first"))
    bench.tell("alice", publish(*[b"%d" % n for n in range(2_000)]))
    bench.settle()
    bodies = [b"first", *(b"%d" % n for n in range(2_000))]
    assert got(bench) == dict.fromkeys(range(1, 21), bodies)


def replaying(readers: int = 30, batches: int = 1) -> Bench:
    """History that so many readers have begun to read, each for messages of its own."""
    bench = Bench()
    bench.open("reader", "alice")
    for number in range(batches):
        bench.tell("alice", batch(number))
    bench.settle()
    own = [subscribe(n + 1, criteria=[["topic", f"*.{n}"]], start="first") for n in range(readers)]
    bench.tell("reader", *own)
    bench.read()
    assert bench.core.effects.replaying == 1
    return bench


def test_plain_readers_of_history_are_served_in_bounded_steps(monkeypatch):
    judged = [0]
    fits = CompiledSelector._fits

    def counted(single, subject):
        judged[0] += 1
        return fits(single, subject)

    monkeypatch.setattr(CompiledSelector, "_fits", counted)
    monkeypatch.setattr(audience, "SHARED_GROUPS", 31)
    bench = replaying()
    iterations = 0
    while bench.core.effects.chores or bench.core.streams.active:
        assert judged[0] <= effects_module.WORK_MAX + MESSAGES
        judged[0] = 0
        bench.iterate()
        iterations += 1
    assert iterations >= 30 * MESSAGES // (effects_module.WORK_MAX + MESSAGES) - 1
    assert got(bench) == {reader + 1: wanted(reader) for reader in range(30)}


def test_many_readers_of_history_have_each_message_looked_up_once_in_bounded_steps(monkeypatch):
    judged = [0]
    compute = Index._compute_groups

    def counted(index, subject):
        judged[0] += 1
        return compute(index, subject)

    monkeypatch.setattr(Index, "_compute_groups", counted)
    bench = replaying()
    total = judged[0]
    while bench.core.effects.chores or bench.core.streams.active:
        judged[0] = 0
        bench.iterate()
        total += judged[0]
        assert judged[0] <= replay.STEP
    assert total == MESSAGES
    assert got(bench) == {reader + 1: wanted(reader) for reader in range(30)}


HEADERS: list[dict[str, Any]] = [
    {"n": n % 40, "odd": "yes"} if n % 2 else {"n": n % 40} for n in range(3_000)
]


def by_header(readers: int) -> list[Subscribe]:
    return [subscribe(n + 1, start="first", **_filter(n)) for n in range(readers)]


def _filter(number: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"where": f"n = {number}"},
        {"criteria": [["fields", {"all": {"n": number, "odd": "yes"}}]]},
        {"where": f"n < {number}"},
        {"where": f"not n = {number}"},
        {},
    ]
    return kinds[number % len(kinds)]


def taken(number: int, headers: dict[str, Any]) -> bool:
    n = headers["n"]
    return (n == number, n == number and n % 2 == 1, n < number, n != number, True)[number % 5]


def test_readers_by_header_get_what_each_takes_whenever_they_come_and_change():
    bench = Bench()
    bench.open("reader", "alice")
    records = [pack_record(headers, b"%d" % n) for n, headers in enumerate(HEADERS)]
    for first in range(0, len(records), 1_000):
        some = records[first : first + 1_000]
        bench.tell("alice", Publish("s", 0, ["a"] * len(some), some))
    bench.settle()
    commands = by_header(40)
    bench.tell("reader", *commands[:30])
    bench.read()
    bench.tell("reader", *commands[30:35])
    bench.iterate()
    # A selector that is gone while others are served, and an equal one that comes later.
    bench.tell("reader", Cancel(16), *commands[35:])
    bench.iterate()
    bench.tell("reader", commands[15]._replace(source=100))
    bench.settle()
    bodies = got(bench)
    bodies.pop(16, None)
    assert bodies.pop(100) == [b"%d" % n for n, of in enumerate(HEADERS) if taken(15, of)]
    assert bodies == {
        reader + 1: expected
        for reader in range(40)
        if reader != 15 and (expected := [b"%d" % n for n, of in enumerate(HEADERS) if taken(reader, of)])
    }


@pytest.mark.parametrize("readers", [5, 30])
def test_records_are_opened_once_for_all_readers_by_header(monkeypatch, readers):
    opened: list[int] = []

    def counted(records):
        opened.append(len(records))
        return headers_of(records)

    monkeypatch.setattr(audience, "headers_of", counted)
    monkeypatch.setattr(chunk, "headers_of", counted)
    bench = Bench()
    bench.open("reader", "alice")
    bench.tell("alice", Publish("s", 0, ["a"] * 500, [pack_record(of, b"") for of in HEADERS[:500]]))
    bench.settle()
    bench.tell("reader", *[subscribe(n + 1, start="first", where=f"n = {n + 2}") for n in range(readers)])
    bench.settle()
    assert sum(opened) == 500
    assert sum(map(len, got(bench).values())) == sum(2 <= of["n"] < readers + 2 for of in HEADERS[:500])


def test_equal_readers_of_history_share_what_is_found_and_encoded(monkeypatch):
    encoded: list[int] = []

    def packed(columns):
        encoded.append(len(columns))
        return pack_stream_payload(columns)

    monkeypatch.setattr(codec, "pack_stream_payload", packed)
    bench = Bench()
    bench.open("reader", "alice")
    bench.tell("alice", batch())
    bench.settle()
    equal = [subscribe(n + 1, criteria=[["topic", "*.7"]], start="first") for n in range(30)]
    bench.tell("reader", *equal)
    bench.settle()
    assert got(bench) == dict.fromkeys(range(1, 31), wanted(7))
    assert encoded == [MESSAGES // READERS]


def test_credit_that_comes_between_two_steps_of_a_replay_loses_nothing():
    bench = replaying(batches=3)
    bench.receive("reader", subscribe(100, criteria=[["topic", "*.9"]], start="first", credit=5))
    bench.iterate()
    while bench.reads:
        bench.read()
    bench.receive("reader", Credit(100, -1, -1))
    bench.settle()
    sent = bench.sent("reader")
    assert not [m for m in sent if isinstance(m, Gap)]
    bodies: dict[int, list[bytes]] = {}
    for message in sent:
        if isinstance(message, Deliver):
            bodies.setdefault(message.source, []).extend(i.body for i in items(message))
    for source, reader in [*((n + 1, n) for n in range(30)), (100, 9)]:
        assert bodies[source] == [b for number in range(3) for b in wanted(reader, number)]


def test_who_ends_between_two_steps_of_a_replay_gets_no_more():
    bench = replaying()
    bench.iterate()
    had = got(bench)
    bench.tell("reader", *[Cancel(source) for source in range(1, 31)])
    bench.settle()
    assert 0 < sum(map(len, had.values())) < 30 * len(wanted(0))
    assert not got(bench)
    assert not bench.core.effects.replaying
