"""Quotas in the broker: each limit at it and one past it, and what counts until when."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from core_bench import (
    START,
    Bench,
    ack,
    mail_credit,
    offer,
    peer_id,
    publish,
    reply,
    request,
    send,
    subscribe,
)
from hypothesis import given
from hypothesis import strategies as st

from malamute.access import Account, Accounts, Policy, Quota, Quotas, User
from malamute.core.feed.feed import RETRY_SECONDS
from malamute.core.identity import quotas
from malamute.core.identity.access import Principal
from malamute.core.identity.quotas import QuotaTable, TokenBucket
from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.reports.refusal_log import PERIOD_SECONDS, REFUSALS_MAX
from malamute.core.session.selectors import SUBSCRIPTION_BYTES
from malamute.matching import Criterion, Selector
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import (
    Answer,
    Bye,
    Cancel,
    Change,
    Commit,
    Error,
    Hello,
    Query,
    Stored,
    Welcome,
)

GROUPS = {"ann": ("traders",), "bob": ()}
ACCOUNTS = Accounts([Account("bob", groups=("traders",))])


def policy(each=None, groups=None, **users):
    return Policy(
        groups=dict.fromkeys(groups or {}, ()),
        users={name: User(groups=of) for name, of in GROUPS.items()},
        quotas=Quotas(each or Quota(), users, groups or {}),
    )


def bench_with(each=None, groups=None, **users):
    bench = Bench(lifecycle=True)
    configure(bench, policy(each, groups, **users))
    return bench


def configure(bench, found):
    bench.settings = bench.settings._replace(access=found, accounts=ACCOUNTS)
    bench.core.configure(bench.settings, bench.now)
    bench.settle()


def hello(bench, user, peer="", address=""):
    """Say HELLO as a user. Returns the answer."""
    peer = peer or user
    bench._names[peer_id(peer)] = peer
    bench.core.receive(peer_id(peer), Hello([2], address), bench.now, Principal(user))
    bench.iterate()
    return bench.sent(peer)[-1]


def ask(bench, peer, *commands):
    """The code of each command's answer, or 0 for those that are not refused."""
    codes = []
    for command in commands:
        answers = bench.ask(peer, command)
        bench.settle()
        answers += bench.sent(peer)
        codes.append(next((one.code for one in answers if isinstance(one, Error)), 0))
    return codes


def figures(bench, owner):
    usage = bench.core.quotas.usage_of(owner, bench.now)
    return {name: usage.used_of(name, bench.now) for name in Quota._fields}


# Sessions and connections


def test_so_many_connections_of_a_user_and_no_more():
    bench = bench_with(ann=Quota(connections=2))
    assert isinstance(hello(bench, "ann", "one"), Welcome)
    assert isinstance(hello(bench, "ann", "two"), Welcome)
    refused = hello(bench, "ann", "three")
    assert refused[:3] == (
        430,
        "quota of user 'ann' is used up: connections: 2 used, and 1 more; expected at most 2",
        1,
    )
    assert isinstance(hello(bench, "eve", "four"), Welcome)
    bench.lost("one")
    assert isinstance(hello(bench, "ann", "three"), Welcome)
    assert hello(bench, "ann", "one").code == 430


def test_a_session_that_is_away_counts_as_a_session_and_is_resumed_at_the_limit():
    bench = bench_with(ann=Quota(sessions=1))
    hello(bench, "ann")
    bench.lost("ann")
    assert hello(bench, "ann", "other").code == 430
    assert hello(bench, "ann").resumed
    bench.tell("ann", Bye())
    assert isinstance(hello(bench, "ann", "other"), Welcome)


def test_who_says_hello_again_or_takes_his_address_over_needs_no_second_place():
    bench = bench_with(ann=Quota(connections=1, sessions=1))
    hello(bench, "ann", "one", "post")
    assert isinstance(hello(bench, "ann", "one", "post"), Welcome)
    assert isinstance(hello(bench, "ann", "two", "post"), Welcome)
    assert figures(bench, ("user", "ann"))["sessions"] == 1


def test_a_group_has_the_sum_of_its_users_and_the_tighter_quota_wins():
    bench = bench_with(groups={"traders": Quota(connections=3)}, ann=Quota(connections=2))
    assert [type(hello(bench, "ann", peer)) for peer in ("one", "two", "three")] == [Welcome, Welcome, Error]
    assert isinstance(hello(bench, "bob", "four"), Welcome)
    assert "group 'traders'" in hello(bench, "bob", "five").text
    assert isinstance(hello(bench, "eve"), Welcome)


def test_each_user_without_a_quota_of_his_own_has_the_common_one_for_himself():
    bench = bench_with(Quota(connections=1), ann=Quota(connections=2))
    for user in ("eve", "bob"):
        assert isinstance(hello(bench, user), Welcome)
        assert hello(bench, user, f"{user}2").code == 430
    assert [type(hello(bench, "ann", peer)) for peer in ("one", "two", "three")] == [Welcome, Welcome, Error]
    assert isinstance(hello(bench, "", "nobody"), Welcome)
    assert "clients without a user's name" in hello(bench, "", "nobody2").text


# Sources


def test_so_many_sources_and_no_more():
    bench = bench_with(ann=Quota(sources=2))
    hello(bench, "ann")
    assert ask(bench, "ann", subscribe(1), offer(2), subscribe(3), mail_credit()) == [0, 0, 430, 0]
    assert ask(bench, "ann", Cancel(1), subscribe(3), offer(4)) == [0, 0, 430]
    bench.lost("ann")
    assert figures(bench, ("user", "ann"))["sources"] == 0
    hello(bench, "ann")
    assert ask(bench, "ann", subscribe(1), subscribe(2), subscribe(3)) == [0, 0, 430]


LATER = {
    "leaves": lambda bench: bench.receive("ann", Bye()),
    "returns": lambda bench: bench.core.receive(peer_id("ann"), Hello([2], ""), bench.now, Principal("ann")),
    "joins a group": lambda bench: bench.core.configure(
        bench.settings._replace(access=policy(groups={"traders": Quota(sources=3)})), bench.now
    ),
}


@pytest.mark.parametrize("what", LATER)
def test_a_subscription_that_ends_counts_no_more_whatever_its_session_does_meanwhile(what):
    bench = bench_with(ann=Quota(sources=3))
    hello(bench, "ann"), hello(bench, "bob")
    assert ask(bench, "ann", publish(b"1"), subscribe(1)) == [0, 0]
    bench.tell("bob", Change(0, "stream.delete", {"stream": "s", "cascade": True}))
    deletion = bench.appends.popleft()
    bench.store.write(deletion.operations)
    bench.core.stored(deletion.token, bench.now)
    LATER[what](bench)
    bench.settle()
    assert Error in map(type, bench.sent("ann"))
    for owner in [("user", "ann"), ("group", "traders")]:
        assert figures(bench, owner)["sources"] == figures(bench, owner)["selector_bytes"] == 0


@pytest.mark.parametrize(("short", "codes"), [(0, [0, 0]), (1, [0, 430])])
def test_so_many_bytes_of_selectors_and_no_more(short, codes):
    cost = Selector((Criterion("all", ""),)).cost_bytes + SUBSCRIPTION_BYTES
    bench = bench_with(ann=Quota(selector_bytes=2 * cost - short))
    hello(bench, "ann")
    assert ask(bench, "ann", subscribe(1), subscribe(2)) == codes
    assert figures(bench, ("user", "ann"))["selector_bytes"] == (2 - bool(short)) * cost


# Rates


def test_so_many_messages_a_second_and_no_more():
    bench = bench_with(ann=Quota(messages_per_second=10))
    hello(bench, "ann")
    assert ask(bench, "ann", publish(*[b""] * 8), send("bob", b""), request(b"")) == [0, 0, 0]
    (refused,) = bench.ask("ann", publish(b"", number=1))
    assert (refused.code, refused.retry_after, refused.ref) == (430, 100, 1)
    bench.now += 0.099
    assert ask(bench, "ann", publish(b"")) == [430]
    bench.now += 0.001
    assert ask(bench, "ann", publish(b""), publish(b"")) == [0, 430]


def test_so_many_bytes_a_second_and_no_more():
    size_bytes = len(pack_record(None, bytes(100)))
    bench = bench_with(ann=Quota(bytes_per_second=2 * size_bytes))
    hello(bench, "ann")
    assert ask(bench, "ann", publish(bytes(100)), publish(bytes(101))) == [0, 430]
    assert ask(bench, "ann", publish(bytes(100)), publish(b"")) == [0, 430]


def test_a_command_that_is_more_than_a_second_brings_takes_a_full_bucket_and_what_comes_next_waits():
    bench = bench_with(ann=Quota(messages_per_second=10))
    hello(bench, "ann")
    assert ask(bench, "ann", publish(*[b""] * 30)) == [0]
    (refused,) = bench.ask("ann", publish(b"", number=1))
    assert refused.retry_after == 2_100
    bench.now += 2.1
    assert ask(bench, "ann", publish(b"")) == [0]


def test_the_users_of_a_group_share_its_rate_and_others_are_not_slowed():
    bench = bench_with(groups={"traders": Quota(messages_per_second=2)})
    for user in ("ann", "bob", "eve"):
        hello(bench, user)
    assert ask(bench, "ann", publish(b"")) == [0]
    assert ask(bench, "bob", publish(b""), publish(b"")) == [0, 430]
    assert ask(bench, "ann", publish(b"")) == [430]
    assert ask(bench, "eve", *[publish(b"")] * 5) == [0] * 5


def test_a_new_session_has_no_new_bucket():
    bench = bench_with(ann=Quota(messages_per_second=2))
    hello(bench, "ann", "one")
    assert ask(bench, "one", publish(b"", b"")) == [0]
    bench.tell("one", Bye())
    hello(bench, "ann", "two")
    assert ask(bench, "two", publish(b"")) == [430]


def test_a_command_that_is_refused_for_another_reason_takes_nothing():
    bench = bench_with(ann=Quota(messages_per_second=1))
    hello(bench, "ann")
    assert ask(bench, "ann", send("$x", b"")) == [404]
    assert ask(bench, "ann", publish(b""), publish(b"")) == [0, 430]


def test_a_refused_command_changes_nothing_and_its_number_is_settled():
    bench = bench_with(ann=Quota(messages_per_second=1))
    hello(bench, "ann")
    answers = bench.ask("ann", publish(b"1", number=1), publish(b"2", number=2), publish(b"3", number=3))
    bench.settle()
    answers += bench.sent("ann")
    assert [answer.ref for answer in answers if isinstance(answer, Error)] == [2, 3]
    assert [answer.ranges for answer in answers if isinstance(answer, Stored)] == [[[1, 1, 1]]]
    assert bench.core.streams.by_name["s"].progress.next == 2
    assert isinstance(bench.ask("ann", publish(b"2", number=2))[0], Error)


def test_replies_are_never_refused():
    bench = bench_with(groups={}, bob=Quota(messages_per_second=1, bytes_per_second=1))
    hello(bench, "ann", address="ann")
    hello(bench, "bob", address="bob")
    bench.tell("bob", offer())
    bench.tell("ann", request(b"1", b"2", b"3"))
    bench.settle()
    assert ask(bench, "bob", *[reply(1, n) for n in (1, 2, 3)]) == [0, 0, 0]


# What waits in queues


def test_so_many_requests_wait_and_no_more():
    bench = bench_with(ann=Quota(requests=2))
    hello(bench, "ann")
    hello(bench, "bob", address="bob")
    assert ask(bench, "ann", request(b"", b""), request(b""), send("bob", b"", b"", b"")) == [0, 430, 0]
    assert ask(bench, "bob", request(b"")) == [0]
    bench.tell("bob", offer())
    bench.settle()
    assert ask(bench, "bob", reply(1, 1)) == [0]
    assert ask(bench, "ann", request(b""), request(b"")) == [0, 430]
    bench.tell("bob", ack(1, (2, 2)))
    bench.settle()
    assert figures(bench, ("user", "ann"))["requests"] == 1


@pytest.mark.parametrize(("short", "codes"), [(0, [0, 0]), (1, [0, 430])])
def test_so_many_queued_bytes_and_no_more(short, codes):
    size_bytes = len(pack_record(None, b"1")) + len("a") + ENTRY_BYTES
    bench = bench_with(ann=Quota(queued_bytes=2 * size_bytes - short))
    hello(bench, "ann")
    hello(bench, "bob", address="bob")
    assert ask(bench, "ann", send("bob", b"1"), send("bob", b"1")) == codes
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", ack(0, (1, 2 - bool(short))))
    bench.settle()
    assert figures(bench, ("user", "ann"))["queued_bytes"] == 0


def feeding(target):
    """Ann may have two requests, and what waits for `w` is moved."""
    bench = bench_with(ann=Quota(requests=2, queued_bytes=10_000))
    hello(bench, "ann"), hello(bench, "bob")
    bench.tell("bob", Change(0, "feed.set", {"source": "service/w", "feed": "f", "target": target}))
    bench.settle()
    return bench


def counted(bench):
    """How many requests count for ann, and how many bytes."""
    found = figures(bench, ("user", "ann"))
    return found["requests"], found["queued_bytes"]


@pytest.mark.parametrize(("target", "requests"), [("service/v", 2), ("mailbox/box", 0), ("stream/t", 0)])
def test_what_a_feed_moves_counts_where_it_is_then(target, requests):
    bench = feeding(target)
    bench.tell("ann", request(b"1", b"2"))
    bench.settle()
    found, size_bytes = counted(bench)
    assert (found, size_bytes > 0) == (requests, not target.startswith("stream"))
    assert ask(bench, "ann", request(b"3")) == [430 if requests else 0]


def test_what_the_disk_does_not_let_a_feed_move_counts_once():
    bench = feeding("service/v")
    bench.tell("ann", request(b"1"))
    while bench.appends:
        assert counted(bench)[0] == 1
        bench.fail()
    bench.wait(RETRY_SECONDS)
    bench.settle()
    assert counted(bench)[0] == 1
    bench.tell("bob", offer(service="v"))
    bench.settle()
    (item,) = bench.got("bob")
    bench.tell("bob", ack(1, (item.sequence, item.sequence)))
    bench.settle()
    assert counted(bench) == (0, 0)


def test_what_the_disk_refuses_or_what_expires_counts_no_more():
    bench = bench_with(ann=Quota(requests=1, queued_bytes=10_000))
    hello(bench, "ann")
    bench.tell("ann", request(b"", number=1))
    while bench.appends:
        bench.fail()
    assert figures(bench, ("user", "ann"))["requests"] == 0
    bench.settle()
    assert ask(bench, "ann", request(b"", ttl=1_000), request(b"")) == [0, 430]
    bench.wait(1.1)
    bench.settle()
    assert figures(bench, ("user", "ann"))["requests"] == 0
    assert figures(bench, ("user", "ann"))["queued_bytes"] == 0


def test_what_a_queue_had_counts_no_more_when_the_queue_goes():
    bench = bench_with(ann=Quota(requests=9, queued_bytes=10_000, queues=3))
    hello(bench, "ann")
    ask(bench, "ann", send("bob", b""), request(b""))
    assert figures(bench, ("user", "ann"))["queues"] == 2
    for table, name in ((bench.core.mailboxes, "bob"), (bench.core.services, "w")):
        table.remove(table.by_name[name])
    bench.settle()
    found = figures(bench, ("user", "ann"))
    assert (found["queues"], found["requests"], found["queued_bytes"]) == (0, 0, 0)


def test_so_many_queues_and_no_more():
    bench = bench_with(ann=Quota(queues=2))
    hello(bench, "ann")
    commands = send("bob", b""), request(b""), send("eve", b""), request(b"", service="v"), send("bob", b"")
    # The private mailbox of the session, for replies, is none of them.
    assert ask(bench, "ann", *commands) == [0, 0, 430, 430, 0]
    assert ask(bench, "ann", offer(service="v"), offer()) == [430, 0]
    hello(bench, "bob")
    assert ask(bench, "bob", send("eve", b"")) == [0]


# Changes while it runs


def test_a_lower_quota_cuts_nothing_and_refuses_what_is_new():
    bench = bench_with()
    for peer in ("one", "two"):
        hello(bench, "ann", peer)
        assert ask(bench, peer, subscribe(1)) == [0]
    configure(bench, policy(ann=Quota(connections=1, sources=1)))
    assert figures(bench, ("user", "ann"))["sources"] == 2
    assert ask(bench, "one", publish(b"1"), subscribe(2)) == [0, 430]
    assert bench.bodies("two") == [b"1"]
    assert hello(bench, "ann", "three").code == 430
    # It is there already, and is sent again.
    assert isinstance(hello(bench, "ann", "one"), Welcome)
    configure(bench, policy(ann=Quota(connections=3, sources=9)))
    assert isinstance(hello(bench, "ann", "three"), Welcome)
    configure(bench, policy())
    assert isinstance(hello(bench, "ann", "four"), Welcome)
    assert not bench.core.sessions.by_peer[peer_id("one")].quotas


def test_a_bucket_goes_on_under_another_rate():
    bench = bench_with(ann=Quota(messages_per_second=10))
    hello(bench, "ann")
    assert ask(bench, "ann", publish(*[b""] * 10)) == [0]
    configure(bench, policy(ann=Quota(messages_per_second=20)))
    assert ask(bench, "ann", publish(b"")) == [430]
    bench.now += 0.05
    assert ask(bench, "ann", publish(b""), publish(b"")) == [0, 430]


def test_what_a_user_sent_before_he_left_a_group_stays_with_the_group():
    bench = bench_with(groups={"traders": Quota(requests=1)})
    hello(bench, "ann")
    assert ask(bench, "ann", request(b"")) == [0]
    outside = policy(groups={"traders": Quota(requests=1)})
    outside.users["ann"] = User()
    configure(bench, outside)
    assert ask(bench, "ann", request(b""), request(b"")) == [0, 0]
    hello(bench, "bob")
    assert ask(bench, "bob", request(b"")) == [430]


def test_sessions_that_the_store_kept_count_for_their_users():
    bench = bench_with(ann=Quota(sessions=1))
    hello(bench, "ann")
    bench.tell("ann", publish(b"1", number=1))
    bench.settle()
    bench.crash()
    assert hello(bench, "ann", "other").code == 430
    assert hello(bench, "ann").resumed
    assert figures(bench, ("user", "ann"))["connections"] == 1


# What operators see


def test_a_query_tells_what_is_used_and_what_may_be():
    bench = bench_with(groups={"traders": Quota(connections=5)}, ann=Quota(messages_per_second=3))
    hello(bench, "ann")
    ask(bench, "ann", publish(b"", b""), publish(b"", b""))

    def answer(**arguments):
        (found,) = bench.ask("ann", Query(1, "quotas", arguments))
        assert isinstance(found, Answer)
        return found.value

    ann = {
        "owner": "user ann",
        "quotas": [{"name": "messages_per_second", "used": 2, "limit": 3, "refused": 1}],
    }
    traders = {
        "owner": "group traders",
        "quotas": [{"name": "connections", "used": 1, "limit": 5, "refused": 0}],
    }
    assert answer() == [traders, ann]
    assert answer(user="bob") == [traders]
    assert answer(user="eve") == []
    assert answer(after_name="group traders") == [ann]
    (status,) = bench.ask("ann", Query(2, "status", {}))
    assert status.value["quotas_exceeded"] == 1


def test_who_meets_a_limit_is_an_event_and_of_many_some_are():
    bench = bench_with(ann=Quota(messages_per_second=1))
    hello(bench, "ann")
    bench.tell("ann", *[publish(b"")] * (REFUSALS_MAX + 6))
    assert bench.events.count("quota.exceeded.ann") == REFUSALS_MAX
    bench.wait(PERIOD_SECONDS)
    assert bench.events.count("quota.exceeded.ann") == REFUSALS_MAX + 1
    assert bench.core.quotas.refused == REFUSALS_MAX + 5


def test_a_broker_without_quotas_counts_nothing():
    bench = Bench()
    hello(bench, "ann")
    ask(bench, "ann", publish(b""), request(b""), subscribe(1))
    session = bench.core.sessions.by_peer[peer_id("ann")]
    assert session.quotas == ()
    assert not any(queue.sent_by.quotas for queue in bench.core.services.by_name.values())


def test_users_that_have_gone_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(quotas, "IDLE_OWNERS", 10)
    table = QuotaTable(policy(Quota(messages_per_second=1)), lambda user: ())
    (waiting,) = table.of("waiting", (), START)
    waiting.buckets["messages_per_second"].consume(1, START)
    for number in range(30):
        table.of(f"user{number}", (), START)
    assert len([*table.owners()]) <= 12
    assert table.of("waiting", (), START) == (waiting,)


# The bucket, beside a model that adds up fractions


@given(
    rate=st.integers(1, 1_000),
    steps=st.lists(st.tuples(st.integers(0, 4_096), st.integers(0, 2_500)), max_size=60),
)
def test_a_bucket_does_as_a_naive_model(rate, steps):
    bucket, now = TokenBucket(rate, START), START
    level = Fraction(rate)
    for ticks, amount in steps:
        now += ticks / 1024
        level = min(Fraction(rate), level + Fraction(ticks, 1024) * rate)
        missing = min(amount, rate) - level
        wait = bucket.wait_seconds(amount, now)
        assert (wait == 0.0) == (missing <= 0)
        assert abs(wait - max(missing, 0) / rate) < 1e-6
        if missing <= 0:
            level -= amount
            bucket.consume(amount, now)
        elif ticks % 2:
            # After that time, in whole milliseconds, it passes.
            later = now + ceil(wait * 1000) / 1000
            assert bucket.wait_seconds(amount, later) == 0.0


@given(
    rate=st.integers(1, 50),
    arrivals=st.lists(st.tuples(st.integers(0, 512), st.integers(1, 5)), max_size=100),
)
def test_no_stretch_of_time_has_more_than_the_rate_and_one_second_of_it(rate, arrivals):
    bucket, now = TokenBucket(rate, START), START
    asked, passed = [], []
    for ticks, amount in arrivals:
        now += ticks / 1024
        asked.append((now, amount))
        if amount <= rate and not bucket.wait_seconds(amount, now):
            bucket.consume(amount, now)
            passed.append((now, amount))
    # What is not more than the rate passes at first: it is full.
    assert passed[:1] == [found for found in asked if found[1] <= rate][:1]
    for first, (begin, _) in enumerate(passed):
        total = 0
        for end, amount in passed[first:]:
            total += amount
            assert total <= rate * (1 + end - begin) + 1e-6


# Whatever happens, the counts are those of what is there


class Anything:
    """A broker with quotas, and peers of two users who do anything."""

    USERS = ("ann", "bob")
    LIMITS = Quota(
        connections=2,
        sessions=3,
        sources=3,
        queues=4,
        streams=1,
        cursors=2,
        requests=3,
        queued_bytes=800,
        messages_per_second=50,
    )

    def __init__(self):
        together = Quota(connections=3, sessions=4, sources=5, requests=5)
        self.bench = bench_with(self.LIMITS, groups={"traders": together})

    def do(self, verb, peer, number):
        bench, name = self.bench, f"{self.USERS[peer % 2]}{peer}"
        commands = {
            "subscribe": subscribe(number),
            "publish": publish(b"1", stream=f"s{number}"),
            "commit": Commit("s", 0, f"c{number}", 0),
            "forget": Change(0, "cursor.delete", {"stream": "s", "cursor": f"c{number}"}),
            "delete": Change(0, "stream.delete", {"stream": f"s{number}", "cascade": True}),
            "offer": offer(number, credit=1),
            "cancel": Cancel(number),
            "send": send(f"box{number}", b"1" * number),
            "request": request(b"1" * number, service=f"w{number % 2}"),
            "expiring": request(b"1", service="w", ttl=100),
            "confirmed": request(b"1", b"2", service="w", number=1),
            "ack": ack(number, (1, 3)),
            "reply": reply(number, 1),
            "mail": mail_credit(),
            "bye": Bye(),
        }
        if verb == "hello":
            hello(bench, self.USERS[peer % 2], name, f"box{peer}" if number > 2 else "")
        elif verb == "lost":
            bench.lost(name)
        elif verb == "wait":
            bench.wait(number / 4)
        elif verb == "fail":
            if bench.appends:
                bench.fail()
        elif verb == "remove":
            for table in (bench.core.mailboxes, bench.core.services):
                for queue in [q for q in table.by_name.values() if not q.consumers][:1]:
                    table.remove(queue)
            bench.iterate()
        elif verb == "settle":
            bench.settle()
        else:
            bench.tell(name, commands[verb])

    def check(self):
        core = self.bench.core
        for owner in core.quotas.owners():
            usage = core.quotas.usage_of(owner, self.bench.now)
            mine = [s for s in core.sessions.by_peer.values() if usage in s.quotas]
            tables = (core.mailboxes, core.services)
            waiting = [
                (queue.kind, queue.entries[sequence])
                for table in tables
                for queue in table.by_name.values()
                for sequence, by in queue.sent_by.quotas.items()
                if usage in by
            ]
            made = [q for table in tables for q in table.by_name.values() if usage in q.made_by]
            assert usage.used == {
                "connections": sum(session.open for session in mine),
                "sessions": len(mine),
                "sources": sum(len(s.sources) - (0 in s.sources) for s in mine),
                "selector_bytes": sum(session.selector_bytes for session in mine),
                "queues": len(made),
                "streams": sum(
                    stream.made_by is not None and usage in core.quotas.of(stream.made_by, (), self.bench.now)
                    for stream in core.streams.by_name.values()
                ),
                "cursors": sum(
                    usage in core.quotas.of(user, (), self.bench.now)
                    for stream in core.streams.by_name.values()
                    for user in stream.cursors.owners.values()
                ),
                "bucket_keys": 0,
                "bucket_bytes": 0,
                "requests": sum(kind == "service" for kind, _ in waiting),
                "queued_bytes": sum(entry.size_bytes for _, entry in waiting),
            }
            for name, most in usage.quota._asdict().items():
                if most is not None:
                    assert usage.used_of(name, self.bench.now) <= most, (owner, name)


VERBS = [
    "hello",
    "publish",
    "commit",
    "forget",
    "delete",
    "subscribe",
    "offer",
    "cancel",
    "send",
    "request",
    "expiring",
    "confirmed",
    "ack",
    "reply",
    "mail",
    "bye",
    "lost",
    "wait",
    "fail",
    "remove",
    "settle",
]


@given(st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5), st.integers(1, 4)), max_size=60))
def test_whatever_happens_what_is_counted_is_there_and_within_the_quotas(steps):
    world = Anything()
    for peer in (0, 1, 2):
        world.do("hello", peer, peer + 1)
    for verb, peer, number in steps:
        world.do(verb, peer, number)
        world.check()
    world.bench.settle()
    world.check()
