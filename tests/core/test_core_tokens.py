"""Users by bearer tokens in the core: when a session ends, and what a scope leaves of its rights."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from core_bench import START, Bench, offer, peer_id, publish, reply, request, subscribe

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.core.identity.access import Principal
from malamute.protocol.messages import Bye, Error, Hello, Ok, Stored, Welcome


def rules(*texts):
    return tuple(map(AccessRule.parse, texts))


def token_of(user="ann", seconds=60.0, **more):
    return Principal(user, method="token", expires_at=START + seconds, key="k", **more)


@dataclass
class World:
    bench: Bench

    def configure(self, *texts, disabled=(), keys=("k",)):
        found = Policy(rules(*(texts and ("create stream/#", *texts))), keys=frozenset(keys))
        accounts = [Account("bob"), *(Account(name, disabled=True) for name in disabled)]
        self.bench.settings = self.bench.settings._replace(access=found, accounts=Accounts(accounts))
        self.bench.core.configure(self.bench.settings, self.bench.now)
        self.bench.settle()

    def hello(self, principal, peer="ann", **more):
        self.bench.sent(peer)
        self.bench._names[peer_id(peer)] = peer
        self.bench.core.receive(peer_id(peer), Hello([2], "", **more), self.bench.now, principal)
        self.bench.iterate()
        return self.bench.sent(peer)[-1]

    def timers(self):
        return len(self.bench.core.timers)


@pytest.fixture
def world():
    world = World(Bench(lifecycle=True))
    world.configure()
    return world


def test_a_session_ends_when_its_token_expires_and_its_client_is_notified(world):
    assert isinstance(world.hello(token_of()), Welcome)
    assert world.bench.core.next_deadline() <= START + 60
    world.bench.wait(59.9)
    assert not [m for m in world.bench.sent("ann") if isinstance(m, Error)]
    world.bench.wait(0.1)
    (error,) = [m for m in world.bench.sent("ann") if isinstance(m, Error)]
    assert (error.code, error.about) == (401, 1)
    assert error.text == "the token of 'ann' has expired: connect with a new one"
    assert peer_id("ann") not in world.bench.core.sessions.by_peer


def test_another_token_makes_it_last_longer(world):
    world.hello(token_of())
    world.hello(token_of(seconds=120))
    world.bench.wait(60)
    assert world.bench.core.owner_of(peer_id("ann")) == "ann"
    world.bench.wait(60)
    assert world.bench.core.owner_of(peer_id("ann")) is None


def test_a_renewed_token_leaves_what_the_session_holds(world):
    world.hello(token_of())
    world.bench.open("bob")
    assert answers(world, offer(1), subscribe(2)) == [(Ok, 0)] * 2
    world.bench.tell("bob", request(b"1"))
    assert world.bench.sent("ann")
    world.bench.wait(1)  # the request is stored
    timers = world.timers()
    world.bench.wait(30)
    assert world.hello(token_of(seconds=120), renews=True, attempt=3) == Ok(1, 3)
    assert world.timers() == timers
    world.bench.wait(60)
    world.bench.sent("ann")
    world.bench.tell("ann", reply(1, 1, number=1))
    world.bench.settle()
    assert [type(m) for m in world.bench.sent("ann")] == [Stored]
    world.bench.tell("bob", publish(b"1"))
    world.bench.settle()
    assert [m.source for m in world.bench.sent("ann")] == [2]
    world.bench.wait(30)
    assert world.bench.core.owner_of(peer_id("ann")) is None


def test_a_renewal_of_a_session_that_is_not_open_is_refused(world):
    assert world.hello(token_of(), renews=True).code == 405
    world.hello(token_of())
    world.bench.lost("ann")
    assert world.hello(token_of(seconds=120), renews=True).code == 405
    assert world.bench.core.owner_of(peer_id("ann")) is None


def test_a_renewal_as_another_user_is_refused_and_changes_nothing(world):
    world.configure("impersonate user/bob", "subscribe stream/#", disabled=())
    world.hello(token_of())
    assert (Ok, 0) in answers(world, subscribe(1))
    session = world.bench.core.sessions.by_peer[peer_id("ann")]
    expiry = session.expiry
    assert world.hello(token_of(seconds=120), renews=True, act_as="bob").code == 401
    assert (world.bench.core.owner_of(peer_id("ann")), [*session.sources]) == ("ann", [1])
    assert session.expiry is expiry
    world.bench.wait(60)
    assert world.bench.core.owner_of(peer_id("ann")) is None


def test_a_renewal_with_fewer_rights_takes_back_what_they_do_not_allow(world):
    world.configure("subscribe stream/#")
    world.hello(token_of())
    assert (Ok, 0) in answers(world, subscribe(1))
    narrowed = token_of(seconds=120, scope=rules("subscribe stream/other"))
    assert isinstance(world.hello(narrowed, renews=True), Ok)
    assert not world.bench.core.sessions.by_peer[peer_id("ann")].sources


def test_no_timer_is_left_of_a_session_that_is_not_open(world):
    before = world.timers()
    for _ in range(5):
        world.hello(token_of())
        assert world.timers() == before + 1
    world.bench.lost("ann")
    assert world.timers() == before
    world.hello(token_of())
    world.bench.tell("ann", Bye())
    assert world.timers() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keys": ()}, "the token of 'ann' was signed by a key that is not trusted any more"),
        ({"disabled": ("ann",)}, "the account 'ann' is disabled"),
    ],
)
def test_a_token_counts_as_long_as_its_key_and_its_user_do(world, change, words):
    world.hello(token_of())
    world.configure(keys=("k", "other"))
    world.hello(token_of("bob")._replace(key="other"), "bob")
    assert world.bench.core.owner_of(peer_id("ann")) == "ann"
    world.configure(**{"keys": ("k", "other"), **change})
    assert [m.text for m in world.bench.sent("ann") if isinstance(m, Error)] == [words]
    assert world.bench.core.owner_of(peer_id("bob")) == (None if "keys" in change else "bob")


def answers(world, *commands):
    return [(type(m), getattr(m, "code", 0)) for m in world.bench.ask("ann", *commands)]


def test_a_scope_narrows_what_the_rules_allow_and_adds_nothing(world):
    world.configure("publish stream/s", "subscribe stream/s/a.#")
    world.hello(
        token_of(scope=rules("create,subscribe stream/#", "publish stream/s/a.#", "publish stream/t"))
    )
    assert answers(world, publish(b"1", subject="a.x")) == []
    assert answers(world, publish(b"1", subject="b")) == [(Error, 401)]
    assert answers(world, publish(b"1", stream="t", subject="a.x")) == [(Error, 401)]
    assert (Ok, 0) in answers(world, subscribe(1))
    (source,) = world.bench.core.sessions.by_peer[peer_id("ann")].sources.values()
    assert source.group.selector.criteria == (("topic", "a.#"),)
    assert answers(world, offer(2)) == [(Error, 401)]


def test_a_scope_narrows_where_there_are_no_rules_at_all(world):
    world.hello(token_of(scope=rules("create,publish stream/s", "deny publish stream/s/b")))
    assert answers(world, publish(b"1", subject="a")) == []
    assert answers(world, publish(b"1", subject="b")) == [(Error, 401)]
    assert answers(world, subscribe(1)) == [(Error, 401)]


def test_an_empty_scope_allows_nothing(world):
    world.hello(token_of(scope=()))
    assert answers(world, publish(b"1", subject="a")) == [(Error, 401)]


def test_a_claim_of_a_token_is_in_the_rules(world):
    world.configure("publish stream/{claim.tenant}")
    world.hello(token_of(claims=(("tenant", "t"),)))
    assert answers(world, publish(b"1", stream="t")) == []
    assert answers(world, publish(b"1", stream="s")) == [(Error, 401)]
