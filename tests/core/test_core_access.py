"""Every command goes through one check, and a session is nobody's but its user's."""

from __future__ import annotations

import gc
from itertools import count

import pytest
from core_bench import Bench, ack, mail_credit, offer, peer_id, publish, request, send, subscribe

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.core.commands import STATES
from malamute.core.identity import access
from malamute.core.identity.access import ANONYMOUS, AccessControl, Principal
from malamute.core.identity.needs import ACCESS, CHANGES
from malamute.errors import AccessRefused
from malamute.protocol import admin
from malamute.protocol.admin.topic import arguments_of
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import Change, Commit, Error, Hello, Ok, Query, Stored, Subscribe, Welcome

ANN, BOB = Principal("ann", frozenset(("staff",)), "password", "tcp://*:1"), Principal("bob")


@pytest.fixture
def bench():
    bench = Bench(lifecycle=True)
    bench.settings = bench.settings._replace(accounts=Accounts([Account("ann"), Account("bob")]))
    bench.restart()
    return bench


def hello(bench, peer, principal, address=""):
    """Say HELLO as somebody. Returns the answer."""
    bench.ask(peer)
    bench._names[peer_id(peer)] = peer
    bench.core.receive(peer_id(peer), Hello([2], address), bench.now, principal)
    bench.iterate()
    return bench.sent(peer)[-1]


def test_every_command_has_a_line_in_the_table_of_access():
    commands = {command for state in STATES.values() for command in state}
    assert commands == set(ACCESS)


def test_every_change_has_a_line_too_and_names_its_own_arguments():
    assert set(admin.CHANGES) == set(CHANGES)
    for topic, kind in admin.CHANGES.items():
        taken = arguments_of(kind).rules.keys()
        for line in CHANGES[topic]:
            assert line.field in taken
            assert line.kind or "kind" in taken


def test_the_lines_name_fields_that_the_commands_have():
    for command, lines in ACCESS.items():
        for line in lines:
            assert line.field in command._fields
            assert line.kind or "kind" in command._fields


def test_every_argument_that_holds_a_name_is_in_the_line_of_its_change():
    of_things = {"stream", "service", "cursor", "name", "id", "source", "target"}
    for topic, kind in admin.CHANGES.items():
        named = of_things & arguments_of(kind).rules.keys()
        assert named == {line.field for line in CHANGES[topic]}, topic


def test_the_place_of_a_name_is_where_the_field_is():
    may = AccessControl().of(ANONYMOUS)
    may.check(publish(b"1", stream="s"))
    place, allowed = may.fast[type(publish(b"1"))]
    assert publish(b"1", stream="s")[place] == "s"
    assert "s" in allowed


def test_what_was_allowed_once_is_not_decided_again(bench, monkeypatch):
    bench.open("ann")
    bench.tell("ann", publish(b"1"), send("ann", b"1"), request(b"1"))
    monkeypatch.setattr(AccessControl, "is_reserved", lambda *given: pytest.fail("decided again"))
    bench.tell("ann", publish(b"2"), send("ann", b"2"), request(b"2"), ack(0, (1, 1)), mail_credit(1))
    assert not [m for m in bench.sent("ann") if isinstance(m, Error) and m.code == 401]


def test_decisions_are_bounded_for_all_principals_together(monkeypatch):
    monkeypatch.setattr(access, "DECISIONS_MAX", 10)
    control = AccessControl()
    both = control.of(ANN), control.of(BOB)
    names = count()
    for _ in range(100):
        for may in both:
            may.check(publish(b"1", stream=str(next(names))))
            known = sum(len(names) for each in both for names in each._allowed.values())
            assert 0 < known <= 10


def test_permissions_go_with_the_last_session_of_their_principal(bench):
    hello(bench, "one", ANN)
    hello(bench, "two", ANN)
    hello(bench, "three", BOB)
    assert bench.core.sessions.by_peer[peer_id("one")].may is bench.core.access.of(ANN)
    assert bench.core.sessions.by_peer[peer_id("two")].may is bench.core.access.of(ANN)
    bench.now += 10_000
    bench.lost("one")
    bench.lost("two")
    bench.now += 10_000
    bench.core.tick(bench.now)
    bench.iterate()
    gc.collect()
    assert [*bench.core.access._permissions] == [BOB]


@pytest.mark.parametrize(
    "command",
    [
        publish(b"1", stream="$s"),
        publish(b"1", stream="$sys"),
        request(b"1", service="$w"),
        offer(3, service="$w"),
        subscribe(3, stream="$s"),
        subscribe(3, cursor="$c"),
        Commit("$s", 0, "c", 0),
        Commit("$sys", 0, "$c", 0),
        Change(0, "stream.create", {"stream": "$s"}),
        Change(0, "feed.set", {"source": "stream/$sys", "feed": "w", "target": "service/w"}),
        Change(0, "feed.delete", {"source": "service/$w", "feed": "f"}),
        Change(0, "cursor.set", {"stream": "$sys", "cursor": "$c", "start": "new"}),
    ],
    ids=str,
)
def test_reserved_names_are_refused_in_one_place(bench, command, monkeypatch):
    bench.open("ann")
    (refused,) = bench.ask("ann", command)
    assert (refused.code, refused.text) == (401, refused.text)
    assert "reserved for the broker" in refused.text
    monkeypatch.setattr(AccessControl, "is_reserved", lambda *given: False)
    assert not [m for m in bench.ask("ann", command) if isinstance(m, Error) and m.code == 401]


def test_hello_with_a_reserved_address_is_refused_open_or_not(bench):
    assert hello(bench, "ann", ANONYMOUS, "$ann").code == 401
    bench.open("ann")
    assert hello(bench, "ann", ANONYMOUS, "$ann").code == 401
    assert bench.core.sessions.by_peer[peer_id("ann")].address == "ann"


def test_the_stream_of_the_broker_may_be_read(bench):
    bench.open("ann")
    assert isinstance(bench.ask("ann", subscribe(1, stream="$sys"))[0], Ok)


def test_what_is_no_name_is_for_the_command_to_refuse(bench):
    bench.open("ann")
    for arguments in ({}, {"stream": 5}, {"stream": None}, {"stream": ["$s"]}):
        (refused,) = bench.ask("ann", Change(0, "stream.create", arguments))
        assert refused.code in (414, 416)
    (refused,) = bench.ask("ann", Change(0, "$nothing", {"stream": "$s"}))
    assert refused.code == 416
    (refused,) = bench.ask("ann", Query(1, "$nothing", {}))
    assert refused.code == 416
    (refused,) = bench.ask("ann", Change(0, "queue.purge", {"name": "$s", "kind": 7}))
    assert refused.code == 416


def test_a_number_that_was_answered_before_is_answered_so_again(bench, monkeypatch):
    bench.open("ann")
    bench.tell("ann", publish(b"1", number=1))
    bench.settle()
    bench.sent("ann")
    bench.core.access.of(ANONYMOUS).forget()
    monkeypatch.setattr(AccessControl, "is_reserved", lambda *given: True)
    assert bench.ask("ann", publish(b"1", number=1)) == [Stored([[1, 1, 0]])]
    (refused,) = bench.ask("ann", publish(b"1", number=2))
    assert (refused.code, refused.ref) == (401, 2)
    (refused,) = bench.ask("ann", publish(b"1", number=9))
    assert (refused.code, refused.ref) == (421, 9)
    assert bench.core.sessions.by_peer[peer_id("ann")].numbers.next == 3


def test_a_refused_change_has_its_number(bench):
    bench.open("ann")
    for _ in range(2):
        (refused,) = bench.ask("ann", Change(1, "stream.create", {"stream": "$s"}))
        assert (refused.code, refused.ref) == (401, 1)
    (done,) = [*bench.ask("ann", Change(2, "stream.create", {"stream": "s"})), *settled(bench, "ann")]
    assert isinstance(done, Ok)


def settled(bench, name):
    bench.settle()
    return bench.sent(name)


def test_nobody_else_takes_a_session_over(bench):
    assert isinstance(hello(bench, "one", ANN), Welcome)
    bench.tell("one", subscribe(1, credit=10), publish(b"1", number=1))
    bench.settle()
    bench.sent("one")
    refused = hello(bench, "one", BOB)
    assert (refused.code, refused.about) == (401, 1)
    assert "another user" in refused.text
    # Its routing id is another connection's now: nothing of the session goes there.
    bench.tell("one", publish(b"2", number=2))
    bench.open("eve")
    bench.tell("eve", publish(b"3"))
    assert [m.code for m in bench.sent("one")] == [405]
    # It is there for whom it belongs to, with what it had.
    back = hello(bench, "one", ANN._replace(listener="tcp://*:2", groups=frozenset()))
    assert back.resumed
    assert bench.core.sessions.by_peer[peer_id("one")].numbers.next == 2


RULES = ("create,publish,subscribe stream/s",)


def test_a_hello_of_another_user_that_is_refused_for_any_reason_gets_nothing_of_the_session(bench):
    bench.settings = bench.settings._replace(access=Policy(map(AccessRule.parse, RULES)))
    bench.core.configure(bench.settings, bench.now)
    for name in ("refused address", "acts as others", "disabled"):
        assert isinstance(hello(bench, "one", ANN), Welcome)
        bench.tell("one", publish(b"0"), subscribe(1, credit=10))
        bench.settle()
        told = {"refused address": (BOB, "desk", ""), "acts as others": (BOB, "", "ann")}
        who, address, other = told.get(name, (Principal("eve", method="plain"), "", ""))
        bench.sent("one")
        bench.core.receive(peer_id("one"), Hello([2], address, act_as=other), bench.now, who)
        bench.settle()
        assert [m.code for m in bench.sent("one")] == [401], name
        bench.core.streams.by_name["s"].publish("", ["a"], [pack_record(None, b"1")], 0)
        bench.settle()
        assert bench.sent("one") == [], name


def test_a_user_who_was_disabled_says_hello_in_vain_on_a_connection_that_stands(bench):
    proved = Principal("bob", method="plain")
    assert isinstance(hello(bench, "one", proved), Welcome)
    bench.settings = bench.settings._replace(accounts=Accounts([Account("bob", disabled=True)]))
    bench.core.configure(bench.settings, bench.now)
    bench.settle()
    bench.sent("one")
    refused = hello(bench, "one", proved)
    assert (refused.code, refused.text) == (401, "the account 'bob' is disabled")
    assert peer_id("one") not in bench.core.sessions.by_peer


def test_nobody_else_takes_over_a_session_that_is_away_nor_one_from_before_a_restart(bench):
    hello(bench, "one", ANN)
    bench.tell("one", publish(b"1", number=1))
    bench.settle()
    bench.lost("one")
    assert hello(bench, "one", BOB).code == 401
    bench.restart()
    assert hello(bench, "one", BOB).code == 401
    assert hello(bench, "one", ANONYMOUS).code == 401
    assert hello(bench, "one", ANN).resumed
    bench.tell("one", publish(b"2", number=2))
    bench.settle()
    bench.restart()
    assert hello(bench, "one", ANN).resumed


def test_an_anonymous_session_is_not_for_somebody_with_a_name(bench):
    hello(bench, "one", ANONYMOUS)
    assert hello(bench, "one", ANN).code == 401
    assert hello(bench, "one", ANONYMOUS._replace(listener="ipc://x")).resumed


def test_an_address_in_use_is_taken_over_by_its_own_user_alone(bench):
    hello(bench, "one", ANN, "desk")
    refused = hello(bench, "two", BOB, "desk")
    assert (refused.code, refused.about) == (401, 1)
    assert bench.sent("one") == []
    assert isinstance(hello(bench, "three", ANN, "desk"), Welcome)
    assert [m.code for m in bench.sent("one")] == [409]
    bench.lost("three")
    assert isinstance(hello(bench, "two", BOB, "desk"), Welcome)


def test_a_session_goes_by_the_principal_of_its_last_hello(bench):
    hello(bench, "one", ANN)
    other = ANN._replace(groups=frozenset(("guests",)))
    hello(bench, "one", other)
    assert bench.core.sessions.by_peer[peer_id("one")].may.principal == other


def test_a_check_that_fails_raises():
    with pytest.raises(AccessRefused):
        AccessControl().of(ANN).check(Subscribe(1, "$sys", [["all", ""]]))
    AccessControl(frozenset(("$sys",))).of(ANN).check(Subscribe(1, "$sys", [["all", ""]]))
