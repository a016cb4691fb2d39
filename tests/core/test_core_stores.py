"""Several stores: each stream is in one of them, and what one does not take concerns no other."""

from __future__ import annotations

import random

import pytest
from core_bench import chunks, peer_id, publish, subscribe
from stores_bench import ARCHIVE, StoresBench, answers

from malamute.core.broker import Core
from malamute.core.iteration.health import PROBE_SECONDS
from malamute.core.session.session import Numbers
from malamute.core.session.spread import NUMBERS_MAX, numbers_of
from malamute.core.stores import HUNG_SECONDS, MEASURE_SECONDS
from malamute.errors import Malformed, StorageFull, StoreError, StoreLost
from malamute.protocol.admin import CursorSet, StreamCreate, StreamDelete, StreamPurge
from malamute.protocol.batch import unpack
from malamute.protocol.limits import CHANGES_MAX
from malamute.protocol.messages import VERSION, Bye, Change, Commit, Error, Hello, Message, Ok
from malamute.protocol.names import AUDIT
from malamute.store.operations import FLOOR, Defect, DeleteValue, Stranded
from malamute.store.tables import NUMBERS, SESSIONS


@pytest.fixture
def bench() -> StoresBench:
    bench = StoresBench()
    bench.open("alice", "bob")
    bench.settle()
    bench.sent("alice")
    return bench


def to_x(*bodies: bytes, number: int = 0):
    return publish(*bodies, number=number, stream="x.s")


def change(number: int, topic: str, **arguments: object) -> Change:
    return Change(number, topic, arguments)


def test_a_stream_is_in_the_store_that_its_rule_names_and_is_found_there_again(bench):
    bench.tell("alice", to_x(b"1", number=1), publish(b"2", number=2))
    bench.settle()
    assert answers(bench.sent("alice")) == {1: "stored", 2: "stored"}
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"1"]
    assert [body for _, body in chunks(bench.store, "s")] == [b"2"]
    assert "x.s" not in bench.store.recover().streams
    bench.crash()
    bench.open("carol")
    bench.tell("carol", subscribe(start="first", stream="x.s"))
    bench.settle()
    assert bench.bodies("carol") == [b"1"]


def test_what_one_store_refuses_is_refused_alone_and_the_rest_of_the_iteration_is_confirmed(bench):
    bench.full[ARCHIVE] = True
    bench.tell("alice", to_x(b"1", number=1), publish(b"2", number=2), to_x(b"3", number=3))
    bench.settle()
    assert answers(bench.sent("alice")) == {1: "507", 2: "stored", 3: "507"}
    assert bench.core.health.error == ""


def test_a_store_that_is_slow_holds_up_no_confirmation_of_another(bench):
    bench.tell("alice", to_x(b"1", number=1), publish(b"2", number=2))
    bench.store_in("")
    assert answers(bench.sent("alice")) == {2: "stored"}
    bench.store_in(ARCHIVE)
    assert answers(bench.sent("alice")) == {1: "stored"}


def test_a_full_backlog_of_one_store_refuses_what_is_for_that_store_alone():
    bench = StoresBench(backlog_bytes=10_000)
    bench.open("alice", "bob")
    bench.settle()
    bench.sent("alice")
    for number in range(1, 6):
        bench.tell("alice", to_x(b"x" * 3_000, number=number))
    refused = answers(bench.sent("alice"))
    assert {*refused.values()} == {"503"}
    bench.tell("alice", publish(b"y" * 3_000, number=6))
    bench.store_in("")
    assert answers(bench.sent("alice")) == {6: "stored"}
    # Whoever has nothing there yet may send one command, as in the broker's own.
    bench.store_in(ARCHIVE)
    bench.sent("alice")
    bench.tell("alice", to_x(b"z", number=7))
    bench.settle()
    assert answers(bench.sent("alice")) == {7: "stored"}


def test_a_session_that_uses_one_store_has_the_record_that_it_had_before_there_were_several(bench):
    bench.tell("alice", publish(b"1", number=1), publish(b"2", number=2))
    bench.settle()
    value = bench.store.recover().table(SESSIONS)[peer_id("alice"), NUMBERS]
    assert [*unpack(value)] == [3, 1]
    assert bench.core.sessions.by_peer[peer_id("alice")].numbers.spread is None


def test_a_record_does_not_vouch_for_what_is_on_its_way_to_another_store(bench):
    bench.tell("alice", publish(b"1", number=1), to_x(b"2", number=2), publish(b"3", number=3))
    bench.store_in("")
    found = Numbers.unpack(bench.store.recover().table(SESSIONS)[peer_id("alice"), NUMBERS])
    assert found.next == 4
    assert found.spread is not None
    assert found.spread.lost == {2}
    bench.store_in(ARCHIVE)
    bench.tell("alice", publish(b"4", number=4))
    bench.settle()
    found = Numbers.unpack(bench.store.recover().table(SESSIONS)[peer_id("alice"), NUMBERS])
    assert found.next == 5
    assert found.spread is None


def test_after_a_crash_what_was_lost_on_its_way_to_one_store_is_executed_and_nothing_twice(bench):
    bench.tell("alice", publish(b"1", number=1), to_x(b"2", number=2), publish(b"3", number=3))
    bench.store_in("")
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", publish(b"1", number=1), to_x(b"2", number=2), publish(b"3", number=3))
    bench.settle()
    assert answers(bench.sent("alice")) == {1: "stored", 2: "stored", 3: "stored"}
    assert [body for _, body in chunks(bench.store, "s")] == [b"1", b"3"]
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"2"]


def test_what_one_store_has_done_was_not_refused_whatever_another_one_says(bench):
    bench.full[""] = True
    bench.tell("alice", publish(b"1", number=1))
    bench.store_in("")
    assert answers(bench.sent("alice")) == {1: "507"}
    bench.tell("alice", to_x(b"2", number=2))
    bench.store_in(ARCHIVE)
    # The client has had neither answer. The archive, which has the refusal, is away when it asks again.
    bench.full[""] = False
    bench.put_away()
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    assert answers(bench.sent("alice"))[1] == "stored"
    bench.away = None
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    assert answers(bench.sent("alice"))[1] == "stored"
    assert [body for _, body in chunks(bench.store, "s")] == [b"1"]


def test_the_records_of_a_session_that_ends_leave_every_store(bench):
    bench.tell("alice", publish(b"1", number=1), to_x(b"2", number=2))
    bench.settle()
    bench.tell("alice", Bye())
    bench.settle()
    for store in (bench.store, bench.archive):
        assert not [key for key in store.recover().table(SESSIONS) if key[0] == peer_id("alice")]


def test_a_commit_is_stored_with_its_stream(bench):
    bench.tell("alice", to_x(b"1", b"2"))
    bench.settle()
    bench.tell("alice", Commit("x.s", 1, "me", 1))
    bench.store_in("")
    assert answers(bench.sent("alice")) == {}
    bench.store_in(ARCHIVE)
    assert answers(bench.sent("alice")) == {1: "stored"}
    bench.crash()
    assert bench.core.streams.by_name["x.s"].cursors == {"me": 1}


# A store that is away


def test_what_is_for_a_store_that_is_away_is_refused_by_name_and_nothing_else_is(bench):
    bench.tell("alice", to_x(b"1", number=1))
    bench.settle()
    bench.sent("alice")
    bench.put_away()
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=2))
    bench.tell("alice", to_x(b"2", number=2), publish(b"3", number=3))
    bench.settle()
    sent = bench.sent("alice")
    assert answers(sent) == {2: "508", 3: "stored"}
    (error,) = [message for message in sent if isinstance(message, Error)]
    assert "archive" in error.text
    assert "there is no store" in error.text
    for asked in (subscribe(stream="x.s"), Commit("x.s", 4, "me", 1)):
        (answer,) = bench.ask("alice", asked)
        assert isinstance(answer, Error)
        assert answer.code == 508
    assert "x.s" not in bench.core.streams.by_name
    assert bench.core.stores[ARCHIVE].row().error == "it could not be opened: there is no store"


def test_new_streams_begin_behind_what_a_store_that_is_away_may_have_used():
    bench = StoresBench()
    begin = 1 << 40
    core = Core(bench.now, bench.settings, bench.store.recover(), {}, begin=begin)
    assert core.streams.get("anything").next == begin + 1


def test_a_stream_that_two_stores_have_goes_by_the_first_and_the_other_is_reported(bench):
    bench.tell("alice", publish(b"1"), to_x(b"2"))
    bench.settle()
    bench.store = bench.archive.copy()
    bench.crash()
    assert any("not recovered" in notice.event for notice in bench.core.effects.notices)
    assert bench.core.streams.by_name["x.s"].stage.name == ""


# Administration


def test_a_change_of_a_stream_is_stored_with_its_outcome_in_the_store_of_the_stream(bench):
    bench.tell("alice", change(1, StreamCreate.topic, stream="x.new"))
    bench.store_in("")
    assert bench.sent("alice") == []
    bench.store_in(ARCHIVE)
    assert [m.ref for m in bench.sent("alice") if isinstance(m, Ok)] == [1]
    assert "x.new" in bench.archive.recover().streams
    # The client has not had its answer, and asks again.
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", change(1, StreamCreate.topic, stream="x.new"))
    assert [m.ref for m in bench.sent("alice") if isinstance(m, Ok)] == [1]


def test_a_change_that_its_store_has_and_the_own_one_has_not_is_not_made_again(bench):
    bench.tell("alice", to_x(b"1"))
    bench.settle()
    bench.tell("alice", change(1, StreamPurge.topic, stream="x.s"))
    bench.store_in("")
    bench.write(ARCHIVE)
    bench.crash()
    bench.open("bob")
    bench.tell("bob", to_x(b"2"))
    bench.settle()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", change(1, StreamPurge.topic, stream="x.s"))
    bench.settle()
    assert [m.ref for m in bench.sent("alice") if isinstance(m, Ok)] == [1]
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"2"]


def test_the_own_store_does_not_say_that_a_change_is_done_whose_store_refuses_it(bench):
    bench.tell("alice", to_x(b"1"))
    bench.settle()
    bench.full[ARCHIVE] = True
    bench.tell("alice", change(1, StreamPurge.topic, stream="x.s"), publish(b"2", number=2))
    bench.store_in("")
    bench.crash()
    bench.full[ARCHIVE] = False
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", change(1, StreamPurge.topic, stream="x.s"))
    bench.settle()
    assert [*chunks(bench.archive, "x.s")] == []


def test_a_deletion_stores_its_floor_in_the_store_of_the_stream(bench):
    bench.tell("alice", to_x(b"1", b"2"))
    bench.settle()
    bench.tell("alice", change(1, StreamDelete.topic, stream="x.s"))
    bench.settle()
    assert bench.archive.recover().streams[FLOOR].reserved == 2
    assert FLOOR not in bench.store.recover().streams
    bench.crash()
    bench.open("carol")
    bench.tell("carol", to_x(b"3"), subscribe(stream="x.s", start="first"))
    bench.settle()
    assert [item.sequence for item in bench.got("carol")] == [3]


def test_that_a_change_begins_is_in_the_audit_before_anything_of_it_is_stored():
    bench = StoresBench(audit=True)
    bench.open("alice")
    bench.settle()
    bench.tell("alice", to_x(b"1"))
    bench.settle()
    bench.tell("alice", change(1, StreamPurge.topic, stream="x.s"))
    bench.store_in(ARCHIVE)
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"1"]
    bench.store_in("")
    assert len([*chunks(bench.store, AUDIT)]) == 1
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"1"]
    bench.settle()
    assert [*chunks(bench.archive, "x.s")] == []
    assert len([*chunks(bench.store, AUDIT)]) == 2


def test_a_change_elsewhere_is_refused_if_the_audit_cannot_be_written():
    bench = StoresBench(audit=True)
    bench.open("alice")
    bench.settle()
    bench.tell("alice", to_x(b"1"))
    bench.settle()
    bench.sent("alice")
    bench.full[""] = True
    bench.tell("alice", change(1, StreamPurge.topic, stream="x.s"))
    bench.store_in("")
    bench.store_in(ARCHIVE)
    assert answers(bench.sent("alice")) == {1: "507"}
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"1"]


def test_a_cursor_is_set_in_the_store_of_its_stream(bench):
    bench.tell("alice", to_x(b"1", b"2"))
    bench.settle()
    bench.tell("alice", change(1, CursorSet.topic, stream="x.s", cursor="c", start="seq:2"))
    bench.settle()
    bench.crash()
    assert bench.core.streams.by_name["x.s"].cursors == {"c": 1}


# The numbers of one session over two stores

SEEDS = 150


class Client:
    """What a client does with its numbers: it sends again what has no answer, and says what has.

    It publishes to two streams, each in a store, and in some stories makes others by changes.
    """

    def __init__(self, total: int, chance: random.Random) -> None:
        targets = chance.choice((("s", "x.s"), ("s", "x.s", "made.", "x.made.")))
        self.target = {n: chance.choice(targets) for n in range(1, total + 1)}
        # More of them may not wait for their answers.
        for number in [n for n, target in self.target.items() if target.endswith(".")][CHANGES_MAX:]:
            self.target[number] = "s"
        self.heard: dict[int, str] = {}
        self.said = 0

    @property
    def low(self) -> int:
        return next((n for n in range(1, self.said + 1) if n not in self.heard), self.said + 1)

    def hello(self) -> Hello:
        settled = [[n, n] for n in sorted(self.heard) if n > self.low]
        return Hello([VERSION], "alice", unsettled=self.low, settled=settled)

    def message(self, number: int) -> Message:
        """The command that has a number."""
        target = self.target[number]
        if target.endswith("."):
            return change(number, StreamCreate.topic, stream=f"{target}{number}")
        return publish(b"%d" % number, number=number, stream=target)

    def unanswered(self) -> list[int]:
        return [n for n in range(self.low, self.said + 1) if n not in self.heard]

    def hear(self, found: dict[int, str]) -> None:
        for number, what in found.items():
            before = self.heard.setdefault(number, what)
            assert "508" in (before, what) or before == what, ("two answers", number, before, what)


class Story:
    """One session, two stores whose writers have paces of their own, and a broker that may be killed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.bench = StoresBench()
        self.client = Client(chance.randint(5, 40), chance)
        self.failing = {name: chance.choice((0, 0, 0.3, 0.9)) for name in ("", ARCHIVE)}
        self.late = False
        self.start()

    def start(self) -> None:
        self.bench.sent("alice")
        away = self.chance.random() < 0.2 and not self.late
        self.bench.away = StorageFull("away") if away else None
        self.bench.crash()
        self.bench.receive("alice", self.client.hello())
        for number in self.client.unanswered():
            self.say(number)

    def say(self, number: int) -> None:
        self.bench.receive("alice", self.client.message(number))

    def step(self) -> None:
        act, name = self.chance.random(), self.chance.choice(("", ARCHIVE))
        if act < 0.35:
            if self.client.said < len(self.client.target):
                self.client.said += 1
                self.say(self.client.said)
        elif act < 0.5:
            self.bench.iterate()
        elif act < 0.7:
            self.bench.full[name] = not self.late and self.chance.random() < self.failing[name]
            self.bench.write(name, self.chance.randint(1, 3))
        elif act < 0.97:
            self.bench.report(name)
            if self.chance.random() < 0.7:
                self.client.hear(answers(self.bench.sent("alice")))
        elif self.late or self.chance.random() < 0.3:
            self.start()

    def check(self) -> None:
        """Nothing is there twice, and what was answered is so."""
        stores = (("s", self.bench.store), ("x.s", self.bench.archive))
        done = [int(body) for stream, store in stores for _, body in chunks(store, stream)]
        for prefix, store in (("made.", self.bench.store), ("x.made.", self.bench.archive)):
            found = store.recover().streams
            done += [int(name.removeprefix(prefix)) for name in found if name.startswith(prefix)]
        assert len(done) == len(set(done)), sorted(done)
        for number, what in self.client.heard.items():
            if what != "508":
                assert (what == "stored") == (number in done), (number, what)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_number_is_done_twice_or_answered_wrongly_whatever_the_stores_do(seed: int) -> None:
    """Random refusals, paces, crashes and absences; the answers are held against what is stored."""
    story = Story(seed)
    for step in range(1500):
        story.late = step >= 1200
        if len(story.client.heard) == len(story.client.target):
            break
        story.step()
    story.check()


# Trouble


def test_trouble_with_one_store_is_reported_by_its_name_and_hides_no_other():
    bench = StoresBench(lifecycle=True)
    bench.open("alice")
    bench.settle()
    (store,) = bench.core.stores.values()
    bench.tell("alice", to_x(b"1"))
    bench.core.settled_elsewhere(ARCHIVE, bench.waiting[ARCHIVE][0].token, StoreError("it failed"), bench.now)
    bench.waiting[ARCHIVE].clear()
    bench.settle()
    assert "store.failed" in bench.events
    assert store.row().error == "it failed (error 800)"
    # What another store takes does not make it well.
    bench.tell("alice", publish(b"2"))
    bench.settle()
    assert store.row().error
    assert bench.core.health.error == ""
    # Nobody writes there: the broker tries it by itself.
    bench.wait(PROBE_SECONDS)
    bench.settle()
    assert store.row().error == ""


def test_a_store_that_gives_no_answer_is_said_to_hang_after_a_while():
    bench = StoresBench()
    bench.open("alice")
    bench.settle()
    (store,) = bench.core.stores.values()
    bench.tell("alice", to_x(b"1"))
    bench.store_in("")
    bench.wait(HUNG_SECONDS)
    assert store.row().error == ""
    bench.wait(1.0)
    assert store.row().error == "it has not answered for 31 s"
    bench.store_in(ARCHIVE)
    assert store.row().error == ""


def test_what_is_under_way_to_a_store_that_is_lost_has_no_answer_before_the_next_start(bench):
    (store,) = bench.core.stores.values()
    bench.tell("alice", to_x(b"1", number=1), publish(b"2", number=2))
    bench.write(ARCHIVE)
    bench.core.store_lost(ARCHIVE, StoreLost("it is gone"), bench.now)
    bench.store_in("")
    assert answers(bench.sent("alice")) == {2: "stored"}
    assert "it is gone" in store.row().error
    # It was there all the same.
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1))
    bench.tell("alice", to_x(b"1", number=1))
    bench.settle()
    assert answers(bench.sent("alice")) == {1: "stored"}
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"1"]


def test_ranges_of_any_length_that_a_client_names_cost_nothing(bench):
    far = 1 << 52
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1, settled=[[2, far]]))
    bench.tell("alice", publish(b"1", number=1), to_x(b"2", number=far + 1), publish(b"3", number=far + 2))
    bench.store_in("")
    bench.crash()
    bench.receive("alice", Hello([VERSION], "alice", unsettled=1, settled=[[2, far]]))
    bench.tell("alice", to_x(b"2", number=far + 1))
    bench.settle()
    assert answers(bench.sent("alice"))[far + 1] == "stored"
    assert [body for _, body in chunks(bench.archive, "x.s")] == [b"2"]


def test_very_many_refusals_in_a_row_cost_nothing_at_the_start(bench):
    numbers = Numbers(1 << 40)
    numbers.refused.add(1, (1 << 40) - 1, 413, 1)
    numbers.forget_before((1 << 40) - 10)
    other = Numbers(1 << 40)
    merged = Numbers.merged([numbers, other])
    assert merged.refused.answer((1 << 40) - 5) is None
    merged = Numbers.merged([numbers, Numbers(5)])
    assert merged.refused.answer((1 << 40) - 5) is not None


def test_a_session_that_a_damaged_block_of_one_store_held_is_stored_there_again(bench):
    bench.tell("alice", to_x(b"1", number=1), publish(b"2", number=2))
    bench.settle()
    key = (peer_id("alice"), NUMBERS)
    bench.archive.write([DeleteValue(SESSIONS, key[:1])])
    stranded = Stranded({}, [(SESSIONS, key)])
    bench.core.damaged([Defect("block", "", 1, 1, "told", stranded)], bench.now, ARCHIVE)
    bench.settle()
    assert Numbers.unpack(bench.archive.recover().table(SESSIONS)[key]).next == 3
    assert (bench.core.stores[ARCHIVE].row().damages, bench.core.health.damages) == (1, 0)


def test_how_full_a_store_is_is_asked_now_and_then_and_waited_for_by_nobody(bench):
    (store,) = bench.core.stores.values()
    assert store.row().size == 1 << 30
    used = store.row().used
    bench.tell("alice", to_x(b"x" * 10_000))
    bench.settle()
    assert store.row().used == used
    bench.wait(MEASURE_SECONDS)
    bench.settle()
    assert store.row().used > used


def test_a_record_with_gaps_that_none_can_have_is_taken_for_damaged_at_once():
    assert numbers_of([1, 3, 7, 7]) == {1, 2, 3, 7}
    assert len(numbers_of([1, NUMBERS_MAX])) == NUMBERS_MAX
    for runs in ([1, NUMBERS_MAX + 1], [1, 2**53], [1]):
        with pytest.raises((Malformed, ValueError)):
            numbers_of(runs)
