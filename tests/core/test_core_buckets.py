"""Buckets: the newest and the durable state of keys, expiry, limits, watching, and acknowledging."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, ack, check_accounts, mail_credit, peer_id, send
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.access import AccessRule, Account, Accounts, Policy, Quota
from malamute.access.quota import Quotas
from malamute.core.bucket.entry import KEY_BYTES
from malamute.core.identity.access import Principal
from malamute.core.iteration.grace_period import GRACE_SECONDS
from malamute.errors import BY_CODE, StorageFull
from malamute.protocol.limits import NUMBER_MAX, VALUE_BYTES_MAX, Limits
from malamute.protocol.messages import (
    Add,
    Answer,
    Cancel,
    Changed,
    Credit,
    Delete,
    Drain,
    Error,
    Get,
    Hello,
    Ok,
    Put,
    Watch,
    Welcome,
)
from malamute.store.operations import Stranded
from malamute.store.policies import MEMORY
from malamute.store.tables import BUCKETS

B = "results"


class Client:
    """A session that numbers its commands."""

    def __init__(self, bench: Bench, name: str, *, user: str = "") -> None:
        self.bench, self.name, self.number = bench, name, 0
        if user:
            bench._names[peer_id(name)] = name
            principal = Principal(user, method="plain")
            bench.core.receive(peer_id(name), Hello([2], ""), bench.now, principal)
            bench.iterate()
            assert isinstance(bench.sent(name)[-1], Welcome)
        else:
            bench.open(name)

    def tell(self, kind: type[Any], *fields: Any, **more: Any) -> list[Any]:
        """Send a change, and return what comes at once."""
        self.number += 1
        return self.bench.ask(self.name, kind(self.number, *fields, **more))

    def do(self, kind: type[Any], *fields: Any, **more: Any) -> Any:
        """Send a change, store all, and return its outcome or error."""
        answers = self.tell(kind, *fields, **more)
        self.bench.settle()
        [answer] = [*answers, *self.bench.sent(self.name)]
        assert answer.ref == self.number
        return answer.value if isinstance(answer, Ok) else BY_CODE[answer.code].__name__

    def put(self, key: str, value: bytes = b"v", **more: Any) -> Any:
        return self.do(Put, B, key, value, **more)

    def get(self, *keys: str) -> list[Any]:
        [answer] = self.bench.ask(self.name, Get(7, B, keys))
        assert isinstance(answer, Answer)
        assert answer.ref == 7
        return [row and row[1] for row in answer.value]

    def row(self, key: str) -> Any:
        [answer] = self.bench.ask(self.name, Get(7, B, [key]))
        return answer.value[0]

    def changed(self) -> dict[str, Any]:
        """The states of watched keys that have come."""
        rows = [row for m in self.bench.sent(self.name) if isinstance(m, Changed) for row in m.rows]
        return {key: value for key, _, value, _ in rows}


@pytest.fixture
def ann(bench: Bench) -> Client:
    return Client(bench, "ann")


def in_memory(bench: Bench) -> None:
    bench.settings = bench.settings._replace(buckets=lambda name: MEMORY)
    bench.restart()


def test_a_key_has_its_value_until_it_is_deleted_and_a_missing_one_is_no_row(ann):
    assert ann.get("a") == [None]
    first = ann.put("a", b"1")
    assert ann.get("a", "b") == [b"1", None]
    assert ann.put("a", b"") > first
    assert ann.get("a") == [b""]
    assert ann.do(Delete, B, "a") is True
    assert ann.do(Delete, B, "a") is False
    assert ann.do(Delete, "none", "a") is False
    assert ann.get("a") == [None]
    assert not ann.bench.core.buckets.by_name


def test_a_change_with_another_revision_than_expected_changes_nothing(ann):
    first = ann.put("a", b"1", expect=0)
    assert ann.put("a", b"2", expect=0) == "NotAsExpected"
    second = ann.put("a", b"2", expect=first)
    assert ann.put("a", b"3", expect=first) == "NotAsExpected"
    assert ann.do(Delete, B, "a", expect=first) == "NotAsExpected"
    assert ann.get("a") == [b"2"]
    assert ann.do(Delete, B, "a", expect=second) is True
    assert ann.put("a", b"4", expect=second) == "NotAsExpected"
    assert ann.do(Delete, B, "a", expect=0) is False


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_no_revision_is_given_twice_over_an_end_of_the_broker(ann, end):
    revisions = [ann.put("a", b"1")]
    for _ in range(3):
        ann.do(Delete, B, "a")
        getattr(ann.bench, end)()
        ann = Client(ann.bench, "ann")
        ann.number = 100 * len(revisions)
        ann.bench.ask("ann", Hello([2], "ann", unsettled=ann.number + 1))
        revisions.append(ann.put("a"))
    assert revisions == sorted({*revisions})


def test_readers_get_durable_values_while_changes_are_compared_with_the_newest(ann):
    first = ann.put("a", b"1")
    assert ann.tell(Put, B, "a", b"2", expect=first) == []
    assert ann.get("a") == [b"1"]
    [refused] = ann.tell(Put, B, "a", b"3", expect=first)
    assert isinstance(refused, Error)
    assert ann.tell(Add, B, "a", 5) == []
    ann.bench.settle()
    assert [m.value for m in ann.bench.sent("ann")][1][0] == 7
    assert ann.get("a") == [b"7"]


def test_a_change_behind_one_that_the_disk_refuses_is_refused_with_it(ann):
    ann.put("a", b"1")
    ann.tell(Put, B, "a", b"2")
    ann.tell(Add, B, "a", 1)
    ann.tell(Put, B, "b", b"3")
    ann.bench.fail()
    ann.bench.settle()
    assert [*map(type, ann.bench.sent("ann"))] == [Error, Error, Ok]
    assert ann.get("a", "b") == [b"1", b"3"]
    ann.bench.crash()
    assert Client(ann.bench, "eve").get("a", "b") == [b"1", b"3"]


def test_a_repeated_change_is_answered_with_its_outcome_and_not_made_again(ann):
    ann.put("a", b"1")
    total = ann.do(Add, B, "a", 1)
    for again in range(3):
        if again == 1:
            ann.bench.crash()
        ann.bench.ask("ann", Hello([2], "ann", unsettled=1))
        [answer] = ann.bench.ask("ann", Add(2, B, "a", 1))
        assert (answer.value, answer.about) == (total, 26)
    assert ann.get("a") == [b"2"]
    assert ann.bench.ask("ann", Put(2, B, "a", b"x"))[0].value == total


def test_a_number_is_added_to_within_its_bounds(ann):
    assert ann.do(Add, B, "n", NUMBER_MAX)[0] == NUMBER_MAX
    assert ann.do(Add, B, "n", 1) == "InvalidValue"
    assert ann.do(Add, B, "n", -NUMBER_MAX)[0] == 0
    assert ann.do(Add, B, "n", -NUMBER_MAX)[0] == -NUMBER_MAX
    assert ann.do(Add, B, "n", -1) == "InvalidValue"
    for value in (b"", b"x", b" 1", b"1.0", b"9" * 20, b"%d" % (NUMBER_MAX + 1)):
        ann.put("n", value)
        assert ann.do(Add, B, "n", 1) == "InvalidValue"
    ann.put("n", b"-007")
    assert ann.do(Add, B, "n", 1)[0] == -6


# Expiry


def test_a_key_expires_after_its_time_and_each_change_sets_that_anew(ann):
    ann.put("a", ttl=1000)
    ann.put("b", ttl=1000)
    ann.put("n", b"1", ttl=1000)
    ann.bench.wait(0.9)
    assert ann.row("a")[2] == 100
    ann.put("b")
    ann.do(Add, B, "n", 1)
    ann.bench.wait(0.1)
    assert ann.get("a", "b", "n") == [None, b"v", None]
    ann.bench.settle()
    assert ann.do(Add, B, "n", 1, ttl=500)[0] == 1
    assert ann.row("n")[2] == 500
    ann.bench.crash()
    assert Client(ann.bench, "eve").get("a", "b") == [None, b"v"]
    assert ann.bench.store.recover(records_bytes=0, now=0).table(BUCKETS).keys() == {(B, "b"), (B, "n")}


def test_an_expired_key_is_gone_before_its_timer_runs_and_over_a_start(ann):
    first = ann.put("a", ttl=1)
    ann.bench.now += 5
    assert ann.get("a") == [None]
    assert ann.put("a", b"2", expect=first) == "NotAsExpected"
    assert ann.put("a", b"2", expect=0, ttl=1000) > first
    ann.bench.crash()
    ann.bench.now += 0.999
    eve = Client(ann.bench, "eve")
    assert eve.get("a") == [b"2"]
    ann.bench.wait(0.002)
    assert eve.get("a") == [None]
    ann.bench.settle()
    assert not ann.bench.core.buckets.by_name


def test_overwritten_keys_leave_no_timers(ann):
    for _ in range(300):
        ann.put("a", ttl=86_400_000)
    assert len(ann.bench.core.timers._heap) < 250


def test_the_removal_of_an_expired_key_that_the_disk_refuses_is_tried_again_after_a_while(ann):
    ann.put("a", ttl=10)
    ann.bench.wait(1)
    ann.bench.faulty = True
    # The whole append is refused, with what gives room.
    ann.bench.appends.popleft()
    token = ann.bench.core.effects.stage._token
    ann.bench.core.store_failed(token, StorageFull("full"), ann.bench.now)
    ann.bench.iterate()
    assert not ann.bench.appends
    assert ann.get("a") == [None]
    ann.bench.wait(1.5)
    assert ann.bench.appends
    ann.bench.settle()
    assert not ann.bench.core.buckets.by_name


def test_no_key_of_before_expires_while_the_clock_of_the_start_may_be_wrong(ann):
    ann.put("a", ttl=60_000)
    ann.bench.restart_at(86_400)
    eve = Client(ann.bench, "eve")
    assert eve.get("a") == [b"v"]
    ann.bench.wait(GRACE_SECONDS + 1)
    assert eve.get("a") == [None]


def test_a_step_of_the_clock_while_the_broker_runs_ends_no_key(ann):
    ann.bench.core.effects.ahead = 86_400.0
    ann.put("a", ttl=60_000)
    assert ann.row("a")[2] == 60_000
    ann.bench.wait(59)
    assert ann.get("a") == [b"v"]
    # The next start goes by the wall clock, which was ahead.
    ann.bench.now += 86_400
    ann.bench.crash()
    assert Client(ann.bench, "eve").get("a") == [b"v"]


# Memory


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_bucket_in_memory_stores_nothing_and_is_gone_with_the_broker(bench, end):
    in_memory(bench)
    ann = Client(bench, "ann")
    [answer] = ann.tell(Put, B, "a", b"1", ttl=60_000)
    assert isinstance(answer, Ok)
    assert not bench.appends
    assert ann.get("a") == [b"1"]
    assert ann.do(Add, B, "a", 1) == [2, answer.value + 1]
    assert not bench.appends
    assert [*map(type, ann.tell(Delete, B, "a"))] == [Ok]
    ann.tell(Put, B, "a", b"1")
    getattr(bench, end)()
    assert Client(bench, "eve").get("a") == [None]


def test_a_revision_in_memory_waits_until_it_is_reserved(bench):
    bench = Bench(reserved=False)
    in_memory(bench)
    bench.core.queue_limits.sequences.reserved = 0
    ann = Client(bench, "ann")
    assert ann.tell(Put, B, "a", b"1") == []
    assert ann.get("a") == [None]
    bench.settle()
    assert [*map(type, bench.sent("ann"))] == [Ok]
    assert [*map(type, ann.tell(Put, B, "a", b"2"))] == [Ok]


def test_a_bucket_keeps_its_persistence_while_it_has_a_key(ann):
    ann.put("a")
    in_memory(ann.bench)
    ann = Client(ann.bench, "eve")
    ann.put("b")
    ann.bench.crash()
    ann = Client(ann.bench, "eve2")
    assert ann.get("a", "b") == [b"v", b"v"]


# Limits, rights and quotas


def test_a_value_of_the_limit_is_taken_and_one_past_it_is_refused(ann):
    assert ann.put("a", b"x" * VALUE_BYTES_MAX) > 0
    assert ann.put("a", b"x" * (VALUE_BYTES_MAX + 1)) == "TooLarge"
    assert ann.put("k" * 255) > 0
    assert ann.put("k" * 256) == "TooLarge"
    assert ann.do(Put, "b" * 256, "k", b"") == "TooLarge"
    assert ann.put("\n") == "Malformed"
    assert ann.put("a", ttl=-1) == "Malformed"
    assert ann.put("a", expect=-2) == "Malformed"
    assert ann.do(Add, B, "a", NUMBER_MAX + 1) == "Malformed"


def test_an_answer_has_as_many_values_as_one_may_have(ann):
    keys = [f"k{place}" for place in range(5)]
    for key in keys:
        ann.put(key, b"x" * VALUE_BYTES_MAX)
    assert len(ann.get(*keys[:3])) == 3
    [error] = ann.bench.ask("ann", Get(7, B, keys))
    assert (error.code, error.about, error.ref) == (413, 23, 7)


def test_all_keys_have_the_memory_of_the_limit_and_no_more():
    each = KEY_BYTES + len("k0") + 17 + 1
    bench = Bench(Limits(buckets_bytes=3 * each))
    ann = Client(bench, "ann")
    assert [type(ann.put(f"k{place}")) for place in range(4)] == [int, int, int, str]
    assert ann.put("k0", b"w") > 0
    assert ann.put("k0", b"ww") == "TryLater"
    assert ann.do(Delete, B, "k0") is True
    assert ann.put("k3") > 0
    assert bench.core.buckets.usage.bytes == 3 * each
    assert bench.core.buckets.usage.keys == 3


def test_there_are_as_many_buckets_as_may_be():
    bench = Bench(Limits(buckets=2))
    ann = Client(bench, "ann")
    assert [ann.do(Put, name, "k", b"") > 0 for name in "ab"] == [True, True]
    assert ann.do(Put, "c", "k", b"") == "TooMany"
    [error] = bench.ask("ann", Watch(1, "c", ["k"]))
    assert error.code == 429
    ann.do(Delete, "a", "k")
    assert ann.do(Put, "c", "k", b"") > 0


def rules(*texts: str) -> tuple[AccessRule, ...]:
    return tuple(map(AccessRule.parse, texts))


def with_users(bench: Bench, *texts: str, quotas: Quotas | None = None) -> None:
    accounts = Accounts([Account(name) for name in ("ann", "eve")])
    policy = Policy(rules(*texts), quotas=quotas or Quotas())
    bench.settings = bench.settings._replace(access=policy, accounts=accounts)


def test_who_has_no_right_to_a_bucket_neither_reads_nor_writes_it(bench):
    with_users(bench, "read bucket/results", "write bucket/mine")
    bench.restart()
    ann = Client(bench, "ann", user="ann")
    assert ann.get("a") == [None]
    assert ann.put("a") == ann.do(Add, B, "a", 1) == ann.do(Delete, B, "a") == "AccessRefused"
    assert ann.do(Put, "mine", "a", b"1") > 0
    assert [m.code for m in bench.ask("ann", Get(1, "mine", ["a"]))] == [401]
    assert [m.code for m in bench.ask("ann", Watch(1, "mine", ["a"]))] == [401]
    assert ann.do(Put, "$x", "a", b"") == "AccessRefused"
    # The number of a refused change is used up, and the refusal is its outcome.
    assert bench.ask("ann", Put(1, B, "a", b"v"))[0].code == 401


def test_who_loses_the_right_to_a_watched_bucket_is_notified(bench):
    with_users(bench, "read,write bucket/#")
    bench.restart()
    ann = Client(bench, "ann", user="ann")
    bench.ask("ann", Watch(1, B, ["a"]))
    with_users(bench, "write bucket/#")
    bench.core.configure(bench.settings, bench.now)
    bench.settle()
    error = bench.sent("ann")[-1]
    assert (error.code, error.about, error.ref) == (401, 27, 1)
    ann.put("a")
    assert ann.changed() == {}


def test_the_quotas_of_a_user_count_the_keys_that_the_user_was_the_last_to_put(bench):
    each = KEY_BYTES + 1 + 17 + 3 + 1
    quotas = Quotas(Quota(bucket_keys=2, bucket_bytes=2 * each + 1))
    with_users(bench, "read,write bucket/#", quotas=quotas)
    bench.restart()
    ann, eve = (Client(bench, name, user=name) for name in ("ann", "eve"))
    assert ann.put("a") > 0
    assert ann.put("b") > 0
    assert ann.put("c") == "QuotaExceeded"
    assert ann.put("a", b"vv") > 0
    assert ann.put("a", b"vvv") == "QuotaExceeded"
    # A restart changes nothing.
    bench.restart()
    ann, eve = (Client(bench, f"{name}2", user=name) for name in ("ann", "eve"))
    assert ann.put("c") == "QuotaExceeded"
    assert eve.put("a") > 0
    assert ann.put("c") > 0
    assert ann.do(Delete, B, "b") is True
    assert ann.do(Delete, B, "c") is True
    assert ann.do(Delete, B, "a") is True
    usage = bench.core.buckets.usage
    assert (usage.keys, usage.bytes, usage.keys_held.costs, usage.bytes_held.costs) == (0, 0, {}, {})


def test_a_user_has_as_much_as_is_left_to_all_others():
    bench = Bench(Limits(buckets_bytes=10_000))
    with_users(bench)
    bench.restart()
    ann, eve = (Client(bench, name, user=name) for name in ("ann", "eve"))
    assert ann.put("a", b"x" * 2_000) > 0
    assert ann.put("b", b"x" * 2_000) == "QuotaExceeded"
    assert eve.put("c", b"x" * 2_000) > 0


# Watching


def test_who_watches_has_the_present_states_and_each_newer_one_when_it_is_durable(ann):
    ann.put("a", b"1")
    eve = Client(ann.bench, "eve")
    ok, changed = ann.bench.ask("eve", Watch(1, B, ["a", "b"]))
    assert ok == Ok(27, 1)
    assert changed.rows == [["a", ann.row("a")[0], b"1", 0], ["b", 0, None, 0]]
    ann.tell(Put, B, "a", b"2")
    assert eve.changed() == {}
    ann.bench.settle()
    assert eve.changed() == {"a": b"2"}
    ann.put("c")
    ann.put("b", ttl=1000)
    assert eve.changed() == {"b": b"v"}
    ann.bench.wait(1)
    ann.bench.settle()
    assert eve.changed() == {"b": None}
    ann.do(Delete, B, "a")
    assert eve.changed() == {"a": None}
    assert ann.bench.ask("eve", Cancel(1)) == [Ok(8, 1)]
    ann.put("a")
    assert eve.changed() == {}
    ann.do(Delete, B, "a")
    ann.do(Delete, B, "c")
    assert not ann.bench.core.buckets.by_name
    assert not ann.bench.core.selectors.used_bytes


def test_who_takes_nothing_has_the_newest_state_later_and_costs_no_more(ann):
    eve = Client(ann.bench, "eve")
    ann.bench.ask("eve", Watch(1, B, ["a", "b"]))
    ann.bench.block("eve")
    for value in range(50):
        ann.put("a", b"%d" % value)
    assert eve.changed() == {}
    ann.bench.unblock("eve")
    ann.bench.settle()
    [changed] = [m for m in ann.bench.sent("eve") if isinstance(m, Changed)]
    assert [row[2] for row in changed.rows] == [b"49"]


def test_many_large_states_come_in_several_commands(ann):
    keys = [f"k{place}" for place in range(3)]
    for key in keys:
        ann.put(key, b"x" * 200_000)
    ann.bench.open("eve")
    ann.bench.ask("eve", Watch(1, B, keys))
    ann.bench.settle()
    # The first came with the answer.
    assert [len(m.rows) for m in ann.bench.sent("eve")] == [1, 1]


def test_a_source_that_watches_takes_no_credit_and_ends_with_its_connection(ann):
    ann.bench.open("eve")
    ann.bench.ask("eve", Watch(1, B, ["a"]))
    for command in (Credit(1, 1), Drain(1, []), ack(1, (1, 1)), Watch(1, B, ["a"])):
        [error] = ann.bench.ask("eve", command)
        assert isinstance(error, Error)
    ann.bench.lost("eve")
    assert not ann.bench.core.buckets.by_name


# Put and acknowledge


@pytest.mark.parametrize("outcome", ["commit", "fail", "crash"])
def test_a_put_and_the_acknowledgement_with_it_are_stored_both_or_not_at_all(ann, outcome):
    ann.bench.open("bob")
    ann.bench.tell("ann", send("bob", b"work"))
    ann.bench.settle()
    ann.bench.tell("bob", mail_credit())
    ann.bench.settle()
    [item] = ann.bench.got("bob")
    bob = Client.__new__(Client)
    bob.bench, bob.name, bob.number = ann.bench, "bob", 0
    assert bob.tell(Put, B, "a", b"done", source=0, ranges=[[item.sequence, item.sequence]]) == []
    getattr(ann.bench, outcome)()
    ann.bench.settle()
    done = outcome == "commit"
    if outcome == "crash":
        ann.bench.open("bob")
        ann.bench.tell("bob", mail_credit())
    again = ann.bench.bodies("bob")
    if not done and outcome == "fail":
        # The message is ready again, for the same consumer.
        assert again == [b"work"]
    assert again == ([] if done else [b"work"])
    ann.bench.open("ann")
    assert ann.get("a") == [b"done" if done else None]
    check_accounts(ann.bench.core)


def test_a_put_with_an_acknowledgement_of_nothing_or_without_room_changes_neither(bench):
    bench = Bench(Limits(buckets_bytes=700))
    ann = Client(bench, "ann")
    bench.open("bob")
    bench.tell("ann", send("bob", b"work"))
    bench.tell("bob", mail_credit())
    bench.settle()
    [item] = bench.got("bob")
    held = [[item.sequence, item.sequence]]
    bob = Client.__new__(Client)
    bob.bench, bob.name, bob.number = bench, "bob", 0
    assert bob.do(Put, B, "a", b"1", source=0, ranges=[[99, 99]]) == "NotOutstanding"
    assert bob.do(Put, B, "a", b"1", source=5, ranges=held) == "NotFound"
    assert bob.do(Put, B, "a", b"x" * 200, source=0, ranges=held) == "TryLater"
    assert bob.do(Put, B, "a", b"x", expect=9, source=0, ranges=held) == "NotAsExpected"
    assert ann.get("a") == [None]
    assert bob.do(Put, B, "a", b"1", source=0, ranges=held) > 0
    assert bob.do(Put, B, "a", b"2", source=0, ranges=held) == "NotOutstanding"
    assert ann.get("a") == [b"1"]


def test_keys_that_the_store_has_lost_are_stored_again(ann):
    ann.put("a", b"1")
    ann.put("b", b"2")
    ann.bench.store._values[BUCKETS].clear()
    ann.bench.core._store_again(Stranded({}, [(BUCKETS, (B, "a")), (BUCKETS, (B, "b")), (BUCKETS, (B, "c"))]))
    ann.bench.settle()
    ann.bench.crash()
    assert Client(ann.bench, "eve").get("a", "b") == [b"1", b"2"]


# A naive model

KEYS = "abc"
EXPECT = st.sampled_from(["any", "absent", "right", "wrong"])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), EXPECT, st.sampled_from([0, 0, 700, 5_000])),
    st.tuples(st.just("delete"), st.sampled_from(KEYS), EXPECT),
    st.tuples(st.just("add"), st.sampled_from(KEYS), st.integers(-3, 3)),
    st.tuples(st.sampled_from(["commit", "fail", "crash", "settle"])),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 4.0])),
    st.tuples(st.just("restart"), st.sampled_from([-40.0, 300.0])),
)


Row = tuple[int, bytes, float]
"""A revision, a value, and when it expires."""
NEVER = 1e18


class Model:
    """A model of a bucket: plain dictionaries, and the changes that are under way, in order."""

    def __init__(self, memory: bool) -> None:
        self.bench = Bench()
        if memory:
            in_memory(self.bench)
        self.memory = memory
        self.durable: dict[str, Row] = {}
        self.newest: dict[str, Row] = {}
        self.under_way: dict[int, tuple[str, Row | None]] = {}
        self.revisions: list[int] = []
        self.starts = 0
        self.client = Client(self.bench, "c0")

    def put(self, key: str, expect: str, ttl: int) -> None:
        due = self.bench.now + ttl / 1000 if ttl else NEVER
        row = 0, b"%d" % self.client.number, due
        self._change(key, row, self._expected(key, expect), Put, row[1], ttl)

    def delete(self, key: str, expect: str) -> None:
        self._change(key, None, self._expected(key, expect), Delete)

    def add(self, key: str, amount: int) -> None:
        _, value, due = self._seen(self.newest).get(key, (0, b"0", NEVER))
        self._change(key, (0, b"%d" % (int(value) + amount), due), None, Add, amount)

    def _expected(self, key: str, expect: str) -> int:
        revision = self._revision(key)
        return {"any": -1, "absent": 0, "right": revision, "wrong": revision + 1}[expect]

    def _revision(self, key: str) -> int:
        return self._seen(self.newest).get(key, (0,))[0]

    def _change(self, key: str, row: Row | None, expect: int | None, kind: type[Any], *fields: Any) -> None:
        refused = expect not in (None, -1, self._revision(key))
        more = () if expect is None else (expect,)
        answers = self.client.tell(kind, B, key, *fields, *more)
        if refused:
            assert [*map(type, answers)] == [Error]
            return
        self.under_way[self.client.number] = key, row
        self.newest.pop(key, None)
        if row is not None:
            self.newest[key] = self.bench.core.buckets.revision, *row[1:]
        self.bench.log += [(self.client.name, message) for message in answers]

    def commit(self) -> None:
        if self.bench.appends:
            self.bench.commit()

    def fail(self) -> None:
        """Which others depend on it is not for a naive model: all is settled before it is compared."""
        if self.bench.appends:
            self.bench.fail()
            self.bench.settle()

    def settle(self) -> None:
        self.bench.settle()

    def wait(self, seconds: float) -> None:
        self.bench.wait(seconds)

    def restart(self, step: float = 0.0) -> None:
        self.bench.core.close()
        self.bench.settle()
        self.hear()
        self.bench.now += step
        self.bench.set_by += step
        self.crash()

    def crash(self) -> None:
        self.bench.crash()
        self.under_way.clear()
        if self.memory:
            self.durable.clear()
        self.newest = dict(self.durable)
        self.starts += 1
        self.client = Client(self.bench, f"c{self.starts}")

    def hear(self) -> None:
        """Take the answers: a change has happened if it was answered so."""
        for answer in self.bench.sent(self.client.name):
            key, row = self.under_way.pop(answer.ref)
            if isinstance(answer, Ok):
                self.durable.pop(key, None)
                if row is not None:
                    self.revisions.append(answer.value[1] if isinstance(answer.value, list) else answer.value)
                    self.durable[key] = self.revisions[-1], *row[1:]
        if not self.under_way:
            self.newest = dict(self.durable)

    def _seen(self, state: dict[str, Row]) -> dict[str, Row]:
        return {key: row for key, row in state.items() if row[2] > self.bench.now}

    def compare(self) -> None:
        self.hear()
        rows = self.bench.ask(self.client.name, Get(1, B, [*KEYS]))[-1].value
        seen = self._seen(self.durable)
        assert [row and tuple(row[:2]) for row in rows] == [
            seen[key][:2] if key in seen else None for key in KEYS
        ]

    def finish(self) -> None:
        self.bench.settle()
        self.hear()
        assert self.revisions == sorted({*self.revisions})
        usage, bucket = self.bench.core.buckets.usage, self.bench.core.buckets.by_name.get(B)
        assert (usage.keys, usage.bytes) == ((len(bucket.keys), bucket.keys.bytes) if bucket else (0, 0))


@settings(max_examples=100 * DEPTH, deadline=None)
@given(st.lists(STEPS, max_size=30), st.booleans())
def test_buckets_hold_what_a_naive_model_holds(steps, memory):
    """Over refusals of the disk, crashes, restarts, expiry, and steps of the clock between two starts."""
    model = Model(memory)
    for step, *values in steps:
        getattr(model, step)(*values)
        model.compare()
    model.finish()
