"""What is refused is an event: who, what and by which rule; of many alike some, and how many there were."""

from __future__ import annotations

import pytest
from core_bench import Bench, offer, peer_id, publish, subscribe
from hypothesis import given
from hypothesis import strategies as st
from test_core_events import read

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.core.identity.access import Principal
from malamute.core.iteration.effects import Effects
from malamute.core.iteration.timers import Timers
from malamute.core.reports.events import EVENTS, EVENTS_MAX
from malamute.core.reports.refusal_log import ADDRESSES_MAX, PERIOD_SECONDS, REFUSALS_MAX, RefusalLog
from malamute.core.reports.refusal_reports import SHOWN_MAX
from malamute.protocol.messages import Change, Hello

RULES = ("publish stream/s", "deny publish stream/s/secret", "subscribe stream/s/a")


@pytest.fixture
def bench():
    bench = Bench(lifecycle=True)
    accounts = Accounts([Account("ann"), Account("eve")])
    bench.settings = bench.settings._replace(access=Policy(map(AccessRule.parse, RULES)), accounts=accounts)
    bench.core.configure(bench.settings, bench.now)
    hello(bench, "ann")
    return bench


def hello(bench, user, address="", peer=""):
    peer = peer_id(peer or user)
    bench._names[peer] = user
    bench.core.receive(peer, Hello([2], address), bench.now, Principal(user, method="curve"), "192.0.2.7")
    bench.iterate()


def refused(bench):
    """The headers of all refusals that are stored."""
    bench.settle()
    found = bench.store.read(EVENTS, 1, bytes_max=1 << 30).found
    return [e.headers for chunk in found for e in read(chunk) if e.subject.startswith("access.refused")]


REFUSED = [
    (publish(b"1", subject="secret"), "publish", "stream/s/secret", "deny publish stream/s/secret"),
    (publish(b"1", stream="t"), "publish", "stream/t/a", "no rule"),
    (publish(b"1", stream="$sys"), "publish", "stream/$sys", "reserved for the broker"),
    (subscribe(criteria=[["exact", "b"]]), "subscribe", "stream/s", "no rule"),
    (offer(), "offer", "service/w", "no rule"),
    (Change(0, "stream.purge", {"stream": "s"}), "admin", "stream/s", "no rule"),
]


@pytest.mark.parametrize(("command", "action", "target", "rule"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_says_who_from_where_what_and_by_which_rule(bench, command, action, target, rule):
    bench.tell("ann", command)
    (found,) = refused(bench)
    assert found == {
        "name": "ann",
        "user": "ann",
        "by": "",
        "method": "curve",
        "origin": "192.0.2.7",
        "client": bench.core.sessions.by_peer[peer_id("ann")].ident,
        "address": "",
        "action": action,
        "target": target,
        "rule": rule,
        "count": 1,
    }


def test_a_hello_that_is_refused_is_told_of_whoever_says_it(bench):
    hello(bench, "eve", "bob")
    hello(bench, "eve", peer="ann")
    address, session = refused(bench)
    assert (address["user"], address["address"], address["target"]) == ("eve", "bob", "mailbox/bob")
    assert (session["user"], session["action"], session["client"]) == ("eve", "hello", "")
    assert session["rule"] == "this session belongs to another user"


def test_no_event_has_a_routing_id(bench):
    bench.tell("ann", publish(b"1", stream="t"))
    assert peer_id("ann").hex() not in str(refused(bench))
    assert "ann." not in str(refused(bench))


def test_of_a_flood_some_are_told_and_all_are_counted(bench):
    flood = 500
    for _ in range(flood):
        bench.receive("ann", publish(b"1", stream="t"))
    bench.receive("ann", publish(b"1", stream="u"))
    assert [found["count"] for found in refused(bench)] == [1] * REFUSALS_MAX
    bench.wait(PERIOD_SECONDS)
    last = refused(bench)[-1]
    assert (last["count"], last["target"]) == (flood + 1 - REFUSALS_MAX, "stream/u/a")
    bench.tell("ann", publish(b"1", stream="t"))
    assert len(refused(bench)) == REFUSALS_MAX + 2


def test_the_flood_of_one_hides_nothing_of_another(bench):
    hello(bench, "eve")
    for _ in range(2 * EVENTS_MAX):
        bench.receive("eve", publish(b"1", stream="t"))
    bench.tell("ann", publish(b"1", stream="t"))
    assert [found["user"] for found in refused(bench)] == ["eve"] * REFUSALS_MAX + ["ann"]


def test_what_was_left_out_is_told_when_the_broker_ends(bench):
    for _ in range(REFUSALS_MAX + 5):
        bench.receive("ann", publish(b"1", stream="t"))
    bench.restart()
    assert refused(bench)[-1]["count"] == 5


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c", "d"]), st.floats(0, 8)), max_size=200))
def test_the_counts_together_are_the_refusals(steps):
    effects = Effects(0.0)
    timers = Timers(lambda error: pytest.fail(str(error)))
    counts = []
    log = RefusalLog(effects, timers, lambda details, count: counts.append(count), principals_max=3)
    for user, seconds in steps:
        log.note(user, {})
        assert len(log._periods) <= 4
        effects.now += seconds
        timers.run(effects.now)
    log.close()
    assert sum(counts) == len(steps)
    effects.now += PERIOD_SECONDS
    timers.run(effects.now)
    assert sum(counts) == len(steps)
    assert not log._periods


# Connections that were refused before a command came on them


def stranger(bench, origin="192.0.2.7", claimed="ann", reason="wrong user or password"):
    bench.core.connection_refused(origin, "PLAIN", claimed, reason, bench.now)
    bench.settle()


def test_a_connection_that_was_refused_is_told_with_where_it_came_from(bench):
    stranger(bench)
    assert refused(bench) == [
        {
            "user": "",
            "by": "",
            "method": "PLAIN",
            "origin": "192.0.2.7",
            "client": "",
            "address": "",
            "action": "connect",
            "target": "user/ann",
            "rule": "wrong user or password",
            "count": 1,
        }
    ]


def test_who_says_nothing_of_himself_has_no_target(bench):
    stranger(bench, claimed="", reason="no HELLO in time")
    assert [(r["target"], r["rule"]) for r in refused(bench)] == [("", "no HELLO in time")]


@pytest.mark.parametrize(
    ("claimed", "shown"),
    [
        ("ann\x1b[2J\r\n", "ann\\x1b[2J\\r\\n"),
        ("\u202egnp", "\\u202egnp"),
        ("a\\nb", "a\\\\nb"),
        ("żółw", "żółw"),
        ("x" * SHOWN_MAX, "x" * SHOWN_MAX),
        ("x" * (SHOWN_MAX + 1), "x" * SHOWN_MAX + "…"),
        ("\x00" * 255, "\\x00" * SHOWN_MAX + "…"),
        ("\ufffd", "\ufffd"),
    ],
)
def test_a_name_that_a_stranger_chose_is_short_and_harms_no_terminal(bench, claimed, shown):
    stranger(bench, claimed=claimed)
    assert [r["target"] for r in refused(bench)] == [f"user/{shown}"]


def test_of_a_flood_of_connections_some_are_told_and_all_are_counted(bench):
    for number in range(REFUSALS_MAX + 1_000):
        bench.core.connection_refused("192.0.2.7", "CURVE", "", f"reason {number}", bench.now)
    bench.settle()
    assert [r["count"] for r in refused(bench)] == [1] * REFUSALS_MAX
    bench.wait(PERIOD_SECONDS)
    bench.settle()
    told = refused(bench)
    assert sum(r["count"] for r in told) == REFUSALS_MAX + 1_000
    assert (told[-1]["count"], told[-1]["rule"]) == (1_000, f"reason {REFUSALS_MAX + 999}")


@pytest.mark.parametrize("more", [0, 1])
def test_many_addresses_share_what_one_has_past_so_many(bench, more):
    for number in range(ADDRESSES_MAX + 20 * more):
        stranger(bench, origin=f"192.0.2.{number}")
    assert len(refused(bench)) == ADDRESSES_MAX + REFUSALS_MAX * more


def test_a_flood_of_connections_hides_no_refusal_of_a_user(bench):
    for number in range(ADDRESSES_MAX + 100):
        stranger(bench, origin=f"10.0.0.{number}")
    hello(bench, "eve")
    before = len(refused(bench))
    bench.ask("eve", publish(b"1", stream="other"))
    bench.settle()
    assert refused(bench)[before:][0]["user"] == "eve"
