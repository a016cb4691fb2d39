"""Feeds where source and target are in different stores: each message is put once, whatever the stores do."""

from __future__ import annotations

import random

import pytest
from core_bench import chunks, offer, publish
from stores_bench import ARCHIVE, StoresBench

from malamute.protocol.admin import FeedDelete, FeedDisable, FeedEnable, FeedSet, StreamDelete
from malamute.protocol.messages import VERSION, Change, Commit, Error, Hello
from malamute.store.operations import Defect, DeleteValue, Stranded
from malamute.store.tables import CURSORS, FEED_POSITIONS, FEEDS

WAYS = [("x.s", "t"), ("s", "x.t"), ("x.s", "x.t"), ("s", "t")]
"""From a stream to a stream; those with `x.` are in the store `archive`."""


def feed(source: str, target: str, number: int = 0, **more: object) -> Change:
    place = target if "/" in target else f"stream/{target}"
    named = {"source": f"stream/{source}", "feed": "f", "target": place}
    return Change(number, FeedSet.topic, {**named, **more})


def asked(topic: str, source: str) -> Change:
    return Change(0, topic, {"source": f"stream/{source}", "feed": "f"})


@pytest.fixture
def bench() -> StoresBench:
    bench = StoresBench()
    bench.open("alice", "bob")
    bench.settle()
    bench.sent("alice")
    return bench


def there(bench: StoresBench, stream: str) -> list[int]:
    store = bench.archive if stream.startswith("x.") else bench.store
    return [int(body) for _, body in chunks(store, stream)]


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_feed_goes_from_any_store_to_any(bench, source, target):
    bench.tell("alice", feed(source, target), publish(b"1", b"2", stream=source))
    bench.settle()
    assert there(bench, target) == [1, 2]
    bench.restart()
    bench.open("alice")
    bench.tell("alice", publish(b"3", stream=source))
    bench.settle()
    assert there(bench, target) == [1, 2, 3]


def test_a_feed_to_a_service_has_its_position_with_the_requests(bench):
    bench.tell("alice", feed("x.s", "service/w"), publish(b"1", b"2", stream="x.s"))
    bench.settle()
    assert bench.store.recover().table(FEED_POSITIONS)["x.s", "f"][1] == 2
    assert ("x.s", "f") in bench.archive.recover().table(FEEDS)
    bench.tell("bob", offer())
    bench.settle()
    assert bench.bodies("bob") == [b"1", b"2"]


def test_what_was_put_is_not_put_again_though_the_store_of_the_source_has_not_learned_of_it(bench):
    bench.tell("alice", feed("x.s", "t"))
    bench.settle()
    bench.tell("alice", publish(b"1", stream="x.s"))
    bench.store_in(ARCHIVE)
    bench.read_all()
    bench.store_in("")
    assert there(bench, "t") == [1]
    assert bench.archive.recover().table(CURSORS)["x.s", "$feed/f"] == 0
    bench.crash()
    bench.settle()
    assert there(bench, "t") == [1]


def test_what_the_store_of_the_target_refuses_is_put_again_when_it_takes_it(bench):
    bench.tell("alice", feed("x.s", "t"))
    bench.settle()
    bench.full[""] = True
    bench.tell("alice", publish(b"1", stream="x.s"), publish(b"2", stream="x.s"))
    bench.settle()
    assert there(bench, "t") == []
    bench.full[""] = False
    bench.wait(1.0)
    bench.settle()
    assert there(bench, "t") == [1, 2]


def test_a_feed_whose_target_is_away_rests_and_goes_on_when_that_is_back(bench):
    bench.tell("alice", feed("s", "x.t"), publish(b"1"))
    bench.settle()
    bench.put_away()
    bench.crash()
    bench.open("alice")
    bench.tell("alice", publish(b"2"))
    bench.settle()
    assert bench.core.recovery.skipped == 1
    bench.away = None
    bench.crash()
    bench.settle()
    assert there(bench, "x.t") == [1, 2]


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_feed_that_is_set_again_from_the_first_puts_all_again_over_a_crash(bench, source, target):
    bench.tell("alice", feed(source, target), publish(b"1", b"2", stream=source))
    bench.settle()
    bench.now += 1.0
    bench.tell("alice", feed(source, target, start="first"))
    bench.store_in(ARCHIVE)
    bench.store_in("")
    bench.crash()
    bench.settle()
    assert there(bench, target) == [1, 2, 1, 2]


def test_one_that_is_deleted_and_made_anew_does_not_go_by_the_position_of_before(bench):
    bench.tell("alice", feed("x.s", "t"), publish(b"1", b"2", stream="x.s"))
    bench.settle()
    bench.tell("alice", asked(FeedDelete.topic, "x.s"))
    bench.store_in(ARCHIVE)
    # The store of the target has not forgotten it.
    bench.crash()
    bench.open("alice")
    bench.now += 1.0
    bench.tell("alice", feed("x.s", "t", start="first"))
    bench.settle()
    assert there(bench, "t") == [1, 2, 1, 2]
    bench.crash()
    bench.settle()
    assert there(bench, "t") == [1, 2, 1, 2]


def test_one_that_is_deleted_leaves_nothing_in_either_store(bench):
    bench.tell("alice", feed("x.s", "t"), publish(b"1", stream="x.s"))
    bench.settle()
    bench.tell("alice", asked(FeedDelete.topic, "x.s"))
    bench.settle()
    assert not bench.store.recover().table(FEED_POSITIONS)
    assert not bench.archive.recover().table(FEEDS)


def test_one_that_goes_elsewhere_goes_on_where_it_is(bench):
    bench.tell("alice", feed("x.s", "t"), publish(b"1", stream="x.s"))
    bench.settle()
    for target, body in (("x.t", b"2"), ("t", b"3"), ("x.t", b"4")):
        bench.now += 1.0
        bench.tell("alice", feed("x.s", target))
        bench.settle()
        bench.crash()
        bench.open("alice")
        bench.tell("alice", publish(body, stream="x.s"))
        bench.settle()
    assert (there(bench, "t"), there(bench, "x.t")) == ([1, 3], [2, 4])


def test_one_that_is_disabled_rests_over_a_restart(bench):
    bench.tell("alice", feed("x.s", "t"))
    bench.settle()
    bench.tell("alice", asked(FeedDisable.topic, "x.s"))
    bench.settle()
    bench.restart()
    bench.open("alice")
    bench.tell("alice", publish(b"1", stream="x.s"))
    bench.settle()
    assert there(bench, "t") == []
    bench.tell("alice", asked(FeedEnable.topic, "x.s"))
    bench.settle()
    assert there(bench, "t") == [1]


def test_a_stream_is_deleted_with_its_own_feeds_and_not_with_those_from_another_store(bench):
    bench.tell("alice", feed("x.s", "t"), publish(b"1", stream="x.s"))
    bench.settle()
    (error,) = bench.ask("alice", Change(0, StreamDelete.topic, {"stream": "t", "cascade": True}))
    assert isinstance(error, Error)
    assert error.code == 423
    assert "in another store" in error.text
    bench.tell("alice", Change(0, StreamDelete.topic, {"stream": "x.s", "cascade": True}))
    bench.settle()
    assert not bench.core.feeds.by_name
    assert "x.s" not in bench.archive.recover().streams


@pytest.mark.parametrize(
    ("store", "values"),
    [
        ("", [(FEED_POSITIONS, ("x.s", "f"))]),
        (ARCHIVE, [(CURSORS, ("x.s", "$feed/f")), (CURSORS, ("x.s", "c"))]),
    ],
)
def test_what_a_damaged_block_of_either_store_held_of_it_is_stored_again(bench, store, values):
    bench.tell("alice", feed("x.s", "t"), publish(b"1", b"2", stream="x.s"), Commit("x.s", 0, "c", 1))
    bench.settle()
    damaged = bench.archive if store else bench.store
    damaged.write([DeleteValue(table, key) for table, key in values])
    bench.core.damaged([Defect("block", "", 1, 1, "told", Stranded({}, values))], bench.now, store)
    bench.settle()
    assert bench.store.recover().table(FEED_POSITIONS)["x.s", "f"][1] == 2
    assert bench.archive.recover().table(CURSORS) == {("x.s", "$feed/f"): 2, ("x.s", "c"): 1}


def test_a_feed_from_a_queue_to_a_store_with_a_name_is_refused_by_name(bench):
    wanted = {"source": "mailbox/m", "feed": "f", "target": "stream/x.s", "operation": "move"}
    (error,) = bench.ask("alice", Change(0, FeedSet.topic, wanted))
    assert isinstance(error, Error)
    assert error.code == 416
    assert "'archive'" in error.text


class Story:
    """Messages through two feeds, while stores refuse, go at their own paces, and the broker is killed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.bench = StoresBench()
        self.ways = chance.sample(WAYS, 2)
        if {way[1] for way in self.ways} != {"t", "x.t"}:
            self.ways = self.ways[:1]
        self.sent = 0
        self.failing = {name: chance.choice((0, 0, 0.3)) for name in ("", ARCHIVE)}
        self.bench.open("alice")
        for source, target in self.ways:
            self.bench.tell("alice", feed(source, target, feed=target))
        self.bench.settle()

    def step(self) -> None:
        chance, bench = self.chance, self.bench
        act, name = chance.random(), chance.choice(("", ARCHIVE))
        if act < 0.25:
            self.sent += 1
            stream = chance.choice([source for source, _ in self.ways])
            bench.receive("alice", publish(b"%d" % self.sent, stream=stream))
        elif act < 0.4:
            bench.iterate()
        elif act < 0.6:
            bench.full[name] = chance.random() < self.failing[name]
            bench.write(name, chance.randint(1, 3))
        elif act < 0.8:
            bench.report(name)
        elif act < 0.9:
            if bench.reads:
                bench.read()
        elif act < 0.94:
            bench.wait(chance.choice((0.1, 1.0, 10.0)))
        elif act < 0.96 and chance.random() < 0.3:
            # It goes on where it is.
            source, target = chance.choice(self.ways)
            bench.receive("alice", feed(source, target, feed=target))
        elif act < 0.98:
            self.kill()

    def kill(self) -> None:
        self.bench.sent("alice")
        away = self.chance.random() < 0.2
        if away:
            self.bench.put_away()
        else:
            self.bench.away = None
        self.bench.crash()
        self.bench.receive("alice", Hello([VERSION], "alice", unsettled=1))

    def check(self) -> None:
        """In the end each target has what its source has, once and in order."""
        bench = self.bench
        bench.full = dict.fromkeys(bench.full, False)
        bench.away = None
        bench.crash()
        bench.settle()
        for _ in range(3):
            bench.wait(10.0)
            bench.settle()
        for source, target in self.ways:
            assert there(bench, target) == there(bench, source), (source, target)


@pytest.mark.parametrize("seed", range(150))
def test_each_message_is_put_once_and_in_order_whatever_the_stores_do(seed: int) -> None:
    story = Story(seed)
    for _ in range(400):
        story.step()
    story.check()
