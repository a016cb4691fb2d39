"""A user who may act as another one has that one's rights and things, and both are known of what it does."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import START, Bench, peer_id, publish
from test_core_accounts import change, hello, made
from test_core_events import read

from malamute.access import AccessRule, Account, Accounts, Policy, User
from malamute.core.identity.access import Principal
from malamute.core.reports.events import EVENTS
from malamute.protocol.messages import Answer, Change, Error, Hello, Ok, Query, Subscribe, Welcome
from malamute.protocol.names import AUDIT, signature

OPERATOR = ("admin user/#", "view broker/#", "view client/#")


def policy(*of_proxy: str, everybody: tuple[str, ...] = OPERATOR) -> Policy:
    """The proxy may act as others as these rules say; bob and carl publish to a stream of their name."""
    parsed = tuple(map(AccessRule.parse, of_proxy))
    rules = tuple(map(AccessRule.parse, (*everybody, "publish stream/{user}", "receive mailbox/{user}")))
    return Policy(rules, users={"proxy": User(rules=parsed)}, keys=frozenset({"k"}))


def world(*of_proxy: str) -> Bench:
    bench = made(*OPERATOR, accounts=(Account("proxy"), Account("bob"), Account("carl")), audit=True)
    configure(bench, policy(*(of_proxy or ("impersonate user/bob",))))
    return bench


def configure(bench: Bench, access: Policy, *accounts: Account) -> None:
    bench.settings = bench.settings._replace(access=access)
    if accounts:
        bench.settings = bench.settings._replace(accounts=Accounts(accounts))
    bench.core.configure(bench.settings, bench.now)
    bench.settle()


def act(
    bench: Bench,
    other: str = "bob",
    *,
    peer: str = "p",
    address: str = "",
    signed: bool = False,
    **proved: Any,
) -> Any:
    """The proxy says HELLO as another user. Returns the answer."""
    principal = Principal(**{"user": "proxy", "method": "curve", **proved})
    bench._names[peer_id(peer)] = peer
    greeting = Hello([2], address, act_as=other, signed=signed)
    bench.core.receive(peer_id(peer), greeting, bench.now, principal, "192.0.2.7")
    bench.settle()
    return bench.sent(peer)[-1]


def refusal(answer: Any) -> str:
    assert isinstance(answer, Error)
    assert (answer.code, answer.about) == (401, 1)
    return answer.text


def codes(bench: Bench, peer: str, *commands: Any) -> list[int]:
    bench.sent(peer)
    bench.tell(peer, *commands)
    bench.settle()
    return [m.code for m in bench.sent(peer) if isinstance(m, Error)]


def test_it_has_the_rights_and_the_mailbox_of_the_other_and_none_of_its_own():
    bench = world("impersonate user/bob", "publish stream/secret")
    assert isinstance(act(bench, address="bob"), Welcome)
    assert codes(bench, "p", publish(b"1", stream="bob")) == [401]  # to make it is a right of its own
    configure(bench, policy("impersonate user/bob", everybody=(*OPERATOR, "create stream/#")))
    assert codes(bench, "p", publish(b"1", stream="bob")) == []
    for stream in ("proxy", "secret"):
        assert codes(bench, "p", publish(b"1", stream=stream)) == [401]
    assert bench.core.owner_of(peer_id("p")) == "proxy"


@pytest.mark.parametrize(
    ("rules", "user", "words"),
    [
        (("publish stream/x",), "bob", "'impersonate user/bob' is not allowed: no rule allows it"),
        (("impersonate user/bob",), "carl", "'impersonate user/carl' is not allowed: no rule allows it"),
        (
            ("impersonate user/#", "deny impersonate user/bob"),
            "bob",
            "by 'deny impersonate user/bob'",
        ),
        (("impersonate user/#",), "eve", "there is no user 'eve' to act as"),
    ],
)
def test_it_takes_a_rule_and_a_user_who_is_there(rules, user, words):
    bench = world(*rules)
    assert words in refusal(act(bench, user))
    assert peer_id("p") not in bench.core.sessions.by_peer
    found = [e.headers for e in read_all(bench, EVENTS) if e.subject.startswith("access.refused")]
    (told,) = found
    assert (told["user"], told["by"], told["origin"]) == ("proxy", "", "192.0.2.7")
    assert (told["action"], told["target"]) == ("impersonate", f"user/{user}")


def read_all(bench: Bench, stream: str) -> list[Any]:
    bench.settle()
    return [e for chunk in bench.store.read(stream, 1, bytes_max=1 << 30).found for e in read(chunk)]


def test_without_rules_and_without_a_proof_nobody_acts_as_others():
    bench = made(accounts=(Account("proxy"), Account("bob")))
    assert "there are no rules" in refusal(act(bench))
    bench = world("impersonate user/#")
    assert "proves nobody" in refusal(act(bench, **{"user": "", "method": ""}))


def test_as_itself_it_is_itself():
    bench = world()
    assert isinstance(act(bench, "proxy"), Welcome)
    assert bench.core.sessions.by_peer[peer_id("p")].may.principal == Principal("proxy", method="curve")


def test_the_scope_of_its_token_stays_a_limit_in_its_own_name():
    bench = world("impersonate user/bob")
    configure(bench, policy("impersonate user/bob", everybody=(*OPERATOR, "create stream/#")))
    scope = tuple(map(AccessRule.parse, ("impersonate user/#", "publish stream/{user}", "create stream/#")))
    token = {"method": "token", "key": "k", "expires_at": START + 50}
    assert isinstance(act(bench, **token, scope=scope), Welcome)
    # {user} of the scope is the proxy, whose token it is.
    assert codes(bench, "p", publish(b"1", stream="bob")) == [401]
    wider = (*scope, AccessRule.parse("publish stream/bob"))
    assert isinstance(act(bench, peer="q", **token, scope=wider), Welcome)
    assert codes(bench, "q", publish(b"1", stream="bob")) == []
    assert "impersonate user/bob" in refusal(act(bench, peer="r", **token, scope=scope[1:]))
    bench.sent("q")
    bench.wait(60)
    bench.settle()
    assert "the token of 'proxy' has expired" in refusal(bench.sent("q")[-1])


LOST = {
    "the rule": lambda bench: configure(bench, policy("publish stream/x")),
    "a deny": lambda bench: configure(bench, policy("impersonate user/#", "deny impersonate user/bob")),
    "the other": lambda bench: configure(
        bench, bench.settings.access, Account("op"), Account("proxy"), Account("bob", disabled=True)
    ),
    "the other is gone": lambda bench: configure(
        bench, bench.settings.access, Account("op"), Account("proxy")
    ),
    "itself": lambda bench: configure(bench, bench.settings.access, Account("op"), Account("bob")),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_the_session_ends_with_each_thing_that_it_takes(lost):
    bench = world()
    act(bench, address="bob")
    bench.sent("p")
    lost(bench)
    refusal(bench.sent("p")[-1])
    assert peer_id("p") not in bench.core.sessions.by_peer


@pytest.mark.parametrize("name", ["proxy", "bob"])
def test_the_session_ends_with_the_stored_account_of_either(name):
    bench = made(*OPERATOR)
    configure(bench, policy("impersonate user/bob"))
    for stored in ("proxy", "bob"):
        assert isinstance(change(bench, "user.add", name=stored, uid=ord(stored[0])), Ok)
    assert isinstance(act(bench), Welcome)
    bench.sent("p")
    change(bench, "user.set", name=name, disabled=True)
    bench.settle()
    refusal(bench.sent("p")[-1])
    assert peer_id("p") not in bench.core.sessions.by_peer
    assert "disabled" in refusal(act(bench))


def test_a_session_is_that_of_both_over_a_crash_too():
    bench = world()
    configure(bench, policy("impersonate user/#", everybody=(*OPERATOR, "create stream/#")))
    act(bench)
    assert codes(bench, "p", publish(b"1", stream="bob", number=1)) == []
    for _ in range(2):
        for user, acting in (("bob", ""), ("proxy", ""), ("proxy", "carl"), ("carl", "bob")):
            bench.core.receive(
                peer_id("p"), Hello([2], "", act_as=acting), bench.now, Principal(user, method="x")
            )
            bench.settle()
            assert refusal(bench.sent("p")[-1])
        answer = act(bench)
        assert (type(answer), answer.resumed) == (Welcome, True)
        bench.crash()
    assert codes(bench, "p", publish(b"1", stream="bob", number=1)) != []
    act(bench)
    assert codes(bench, "p", publish(b"1", stream="bob", number=1)) == []
    assert len(bench.store.read("bob", 1, bytes_max=1 << 30).found) == 1


def test_it_takes_the_address_of_the_other_over_and_gives_it_back():
    bench = world()
    assert isinstance(hello(bench, "bob"), Welcome)
    bench.core.receive(peer_id("bob"), Hello([2], "bob"), bench.now, Principal("bob", method="plain"))
    assert isinstance(act(bench, address="bob"), Welcome)
    assert any(isinstance(m, Error) and m.code == 409 for m in bench.sent("bob"))


def test_audit_and_lists_have_both():
    bench = world("impersonate user/op")
    assert isinstance(act(bench, "op"), Welcome)
    bench.tell("p", Change(0, "user.add", {"name": "new", "uid": 77}))
    bench.settle()
    (record,) = [e for e in read_all(bench, AUDIT) if e.subject == "user.add"]
    assert {name: record.headers[name] for name in ("user", "by", "method", "origin")} == {
        "user": "op",
        "by": "proxy",
        "method": "curve",
        "origin": "192.0.2.7",
    }
    bench.sent("p")
    bench.tell("p", Query(1, "clients", {}))
    ((*rows,),) = [m.value for m in bench.sent("p") if isinstance(m, Answer)]
    assert {(row["user"], row.get("by", "")) for row in rows} == {("op", ""), ("op", "proxy")}


def test_a_feed_that_it_has_set_ends_with_the_right_to_act():
    bench = world()
    rights = (
        "admin stream/s",
        "admin service/w",
        "subscribe stream/s",
        "create stream/#",
        "publish stream/s",
    )
    configure(bench, policy("impersonate user/bob", everybody=(*OPERATOR, *rights)))
    act(bench)
    ends = {"source": "stream/s", "feed": "w", "target": "service/w"}
    assert codes(bench, "p", Change(0, "feed.set", ends)) == []
    bench.crash()
    (feed,) = bench.core.feeds.by_name.values()
    assert (feed.rule.setter.user, feed.rule.setter.by_user, feed.rule.stopped) == ("bob", "proxy", "")
    configure(bench, policy(everybody=(*OPERATOR, *rights)))
    (feed,) = bench.core.feeds.by_name.values()
    assert "'impersonate user/bob' is not allowed" in feed.rule.stopped


def test_explain_says_who_may_act_as_whom():
    bench = world()
    explain = bench.core.access.explain
    assert explain("proxy", "impersonate", "user/bob").decision.allowed
    assert not explain("proxy", "impersonate", "user/carl").decision.allowed
    assert not made().core.access.explain("proxy", "impersonate", "user/bob").decision.allowed


def test_a_signed_session_publishes_as_the_user_whom_the_broker_has_proved():
    long = "x" * 255
    bench = world()
    rules = policy("impersonate user/bob", everybody=("create,publish,subscribe stream/#",))
    configure(bench, rules, *map(Account, ("proxy", "bob", long)))
    senders = []
    for number, (user, other) in enumerate([("proxy", ""), ("proxy", "bob"), (long, ""), ("", "")]):
        method = "curve" if user else ""
        welcome = act(bench, other, peer=f"p{number}", signed=True, user=user, method=method)
        assert isinstance(welcome, Welcome), welcome
        senders.append(signature(welcome.user))
        bench.tell(f"p{number}", publish(b"x", stream="s"))
    act(bench, "", peer="plain")
    bench.tell("plain", publish(b"x", stream="s"))
    bench.settle()
    assert senders == ["$user.proxy", "$user.bob", f"$user.{long}", "$user."]
    bench.tell("plain", Subscribe(1, "s", [["all", ""]], start="first", credit=10))
    bench.settle()
    assert [item.sender for item in bench.got("plain")] == [*senders, ""]


@pytest.mark.parametrize("address", ["$user.bob", "$user."])
def test_nobody_has_the_signature_of_another_user_as_an_address(address: str):
    bench = world()
    assert refusal(act(bench, address=address, signed=True))
