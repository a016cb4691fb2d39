"""Groups that operators store: in force at once, not if the disk refuses, and closed when damaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from core_bench import Bench, offer, peer_id, publish, subscribe
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from test_core_accounts import change, hello, made

from malamute.access import AccessRule, Account, Policy
from malamute.core.admin.groups import remove_group
from malamute.core.identity.access import Principal
from malamute.core.identity.groups import DOUBTFUL, STORED_GROUPS_MAX
from malamute.protocol.admin import GroupRemove
from malamute.protocol.limits import RULES_MAX
from malamute.protocol.messages import Answer, Change, Error, Hello, Ok, Query
from malamute.store.operations import Defect, Stranded
from malamute.store.tables import GROUPS

OPERATOR = ("admin user/#", "admin group/#", "view broker/#", "publish stream/s", "create stream/#")


def world(*more: str) -> Bench:
    """A broker where ann is in the groups `a` and `b`, and eve in none."""
    bench = made(*OPERATOR, *more, accounts=(Account("ann", groups=("a", "b")), Account("eve")))
    bench.settle()
    return bench


def listed(bench: Bench) -> dict[str, tuple[str, list[str]]]:
    bench.sent("op")
    bench.tell("op", Query(1, "groups", {}))
    (answer,) = [m for m in bench.sent("op") if isinstance(m, Answer)]
    return {row["name"]: (row["source"], row["access_rules"]) for row in answer.value}


def may(bench: Bench, action: str, target: str, user: str = "ann") -> bool:
    return bench.core.access.explain(user, action, target).decision.allowed


def group(bench: Bench, what: str, name: str = "a", **given_values: Any) -> Any:
    return change(bench, f"group.{what}", name=name, **given_values)


def test_a_group_is_added_changed_and_removed_and_is_there_after_a_crash():
    bench = world()
    rules = ["publish stream/x", "receive mailbox/{user}"]
    assert group(bench, "add", access_rules=rules).value == {
        "name": "a",
        "source": "store",
        "access_rules": rules,
    }
    assert may(bench, "publish", "stream/x")
    assert may(bench, "receive", "mailbox/ann")
    assert not may(bench, "receive", "mailbox/eve")
    assert not may(bench, "publish", "stream/x", "eve")
    bench.crash()
    hello(bench, "op")
    assert listed(bench) == {"a": ("store", rules)}
    assert may(bench, "publish", "stream/x")
    set_ = group(bench, "set", added_rules=["publish stream/y"], removed_rules=["publish stream/x"])
    assert set_.value["access_rules"] == [rules[1], "publish stream/y"]
    assert (may(bench, "publish", "stream/x"), may(bench, "publish", "stream/y")) == (False, True)
    assert group(bench, "set", access_rules=[]).value == {"name": "a", "source": "store", "access_rules": []}
    assert group(bench, "remove").value == {"name": "a"}
    bench.crash()
    hello(bench, "op")
    assert listed(bench) == {}


def test_rules_that_are_added_by_two_operators_are_both_there():
    bench = world()
    group(bench, "add")
    bench.tell("op", *(change_of(f"publish stream/{name}") for name in "xy"))
    bench.settle()
    assert listed(bench)["a"][1] == ["publish stream/x", "publish stream/y"]


def change_of(rule: str) -> Change:
    return Change(0, "group.set", {"name": "a", "added_rules": [rule]})


def test_sessions_of_its_users_gain_and_lose_and_nobody_else_is_disturbed():
    bench = world("subscribe stream/s/open.#")
    group(bench, "add", access_rules=["subscribe stream/s", "offer service/w", "create service/w"])
    hello(bench, "ann")
    hello(bench, "eve")
    # A token may name a group that no account has.
    token = Principal("tom", frozenset({"a"}))
    bench._names[peer_id("tom")] = "tom"
    bench.core.receive(peer_id("tom"), Hello([2], ""), bench.now, token)
    for name in ("ann", "tom"):
        bench.tell(name, subscribe(1, credit=10), offer(2, service="w", credit=1))
    bench.tell("eve", subscribe(1, credit=10, criteria=[["topic", "open.#"]]))
    bench.settle()
    for name in ("ann", "eve", "tom"):
        bench.sent(name)
    group(bench, "set", access_rules=["publish stream/x"])
    bench.settle()
    for name in ("ann", "tom"):
        ended = {m.ref for m in bench.sent(name) if isinstance(m, Error) and m.code == 401}
        assert ended == {1, 2}, name
    assert bench.sent("eve") == []
    bench.tell("op", publish(b"1", subject="open.x"))
    bench.settle()
    assert len(bench.got("eve")) == 1
    assert bench.got("ann") == []


@pytest.mark.parametrize(
    ("what", "given_values", "code"),
    [
        ("add", {"name": "a"}, 416),
        ("add", {"name": "f"}, 416),
        ("add", {"name": "$a"}, 401),
        ("add", {"name": "n", "access_rules": ["publish"]}, 417),
        ("set", {"name": "none", "access_rules": []}, 404),
        ("set", {"name": "f", "access_rules": []}, 416),
        ("set", {"name": "a", "removed_rules": ["publish stream/none"]}, 416),
        ("set", {"name": "a", "added_rules": ["nonsense"]}, 417),
        ("remove", {"name": "none"}, 404),
        ("remove", {"name": "f"}, 416),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(what, given_values, code):
    bench = world()
    access = Policy(map(AccessRule.parse, OPERATOR), {"f": (AccessRule.parse("publish stream/f"),)})
    bench.settings = bench.settings._replace(access=access)
    bench.core.configure(bench.settings, bench.now)
    group(bench, "add", access_rules=["publish stream/x"])
    before = listed(bench)
    assert before.keys() == {"a", "f"}
    answer = change(bench, f"group.{what}", **given_values)
    assert isinstance(answer, Error)
    assert answer.code == code
    assert listed(bench) == before


def without_configured_rules(bench: Bench, groups: Any = None) -> None:
    bench.settings = bench.settings._replace(access=Policy((), groups))
    bench.core.configure(bench.settings, bench.now)
    bench.settle()


@pytest.mark.parametrize(("what", "given_values"), [("remove", {}), ("set", {"access_rules": []})])
def test_the_last_rules_of_all_are_not_taken_away(what, given_values):
    bench = world()
    change(bench, "user.add", name="boss", access_rules=[*OPERATOR])
    group(bench, "add", access_rules=["publish stream/x"])
    without_configured_rules(bench)
    hello(bench, "boss")

    def answer(topic: str, name: str, **given: Any) -> Any:
        bench.tell("boss", Change(0, topic, {"name": name, **given}))
        bench.settle()
        return bench.sent("boss")[-1]

    # Beside those of the account they are not the last.
    assert isinstance(answer(f"group.{what}", "a", **given_values), Ok)
    for topic, more in (("user.remove", {}), ("user.set", {"access_rules": []})):
        refused = answer(topic, "boss", **more)
        assert isinstance(refused, Error)
        assert refused.code == 416
        assert "the last rules" in refused.text
    assert not may(bench, "publish", "stream/q", "eve")


@pytest.mark.parametrize(("what", "given_values"), [("remove", {}), ("set", {"access_rules": []})])
def test_a_group_with_the_last_rules_of_all_keeps_them(what, given_values):
    bench = world()
    group(bench, "add", access_rules=["admin group/#"])
    without_configured_rules(bench)
    hello(bench, "ann")
    bench.tell("ann", Change(0, f"group.{what}", {"name": "a", **given_values}))
    bench.settle()
    refused = bench.sent("ann")[-1]
    assert isinstance(refused, Error)
    assert refused.code == 416
    assert not may(bench, "publish", "stream/q", "eve")


def test_the_audit_of_a_removed_group_has_what_was_stored_of_it():
    bench = world()
    group(bench, "add", access_rules=["publish stream/stored"])
    rules = (*map(AccessRule.parse, OPERATOR),)
    access = Policy(rules, {"a": (AccessRule.parse("publish stream/configured"),)})
    bench.settings = bench.settings._replace(access=access)
    bench.core.configure(bench.settings, bench.now)
    bench.settle()
    found: list[Any] = []
    core, wanted = bench.core, GroupRemove(name="a")
    outcome: Any = SimpleNamespace(answered=lambda _, before: found.append(before))
    remove_group(core.effects, core.access, core.groups, core.recovery, wanted, outcome)
    assert [(row.source, row.access_rules) for row in found] == [("store", ["publish stream/stored"])]


def test_removed_groups_leave_nothing_behind():
    bench = world()
    for number in range(1_100):
        name = f"t{number}"
        group(bench, "add", name, access_rules=["publish stream/x"])
        tom = Principal("tom", frozenset({name}))
        assert bench.core.access.of(tom).scope("publish", "stream", "x").decide().allowed
        group(bench, "remove", name)
    assert len(bench.core.access.policy._tables) <= STORED_GROUPS_MAX + 1


def test_what_is_tried_is_not_done():
    bench = world()
    assert group(bench, "add", access_rules=["publish stream/x"], dry_run=True).value["source"] == "store"
    assert listed(bench) == {}
    group(bench, "add")
    for what in ("set", "remove"):
        more = {"access_rules": ["publish stream/x"]} if what == "set" else {}
        assert isinstance(group(bench, what, dry_run=True, **more), Ok)
    assert listed(bench) == {"a": ("store", [])}


def test_the_first_rule_of_all_is_not_that_of_a_group():
    bench = made()
    assert "no rules in the configuration" in group(bench, "add", access_rules=["publish stream/x"]).text
    assert isinstance(group(bench, "add"), Ok)


def test_as_many_as_may_be_and_one_more():
    bench = world()
    for number in range(STORED_GROUPS_MAX):
        bench.core.groups.put(f"g{number}", ())
    bench.settle()
    assert group(bench, "add", "one-more").code == 429
    assert isinstance(group(bench, "set", "g1", access_rules=["publish stream/x"]), Ok)
    rules = [f"publish stream/x{number}" for number in range(RULES_MAX)]
    assert isinstance(group(bench, "set", "g1", access_rules=rules), Ok)
    assert group(bench, "set", "g1", added_rules=["publish stream/y"]).code == 429


@pytest.mark.parametrize("what", ["add", "set", "remove"])
def test_what_the_disk_refuses_is_not_in_force(what):
    bench = world()
    before = ["publish stream/x"]
    if what != "add":
        group(bench, "add", access_rules=before)
    hello(bench, "ann")
    bench.sent("op")
    given_values = {} if what == "remove" else {"access_rules": ["publish stream/y"]}
    bench.tell("op", Change(0, f"group.{what}", {"name": "a", **given_values}))
    while bench.appends:
        bench.fail()
    bench.settle()
    assert [m.code for m in bench.sent("op") if isinstance(m, Error)] == [507]
    assert listed(bench) == ({} if what == "add" else {"a": ("store", before)})
    assert (may(bench, "publish", "stream/x"), may(bench, "publish", "stream/y")) == (what != "add", False)


def recovered_as(bench: Bench, **changes: Any) -> None:
    """Start on what the store has, but for these."""
    found = bench.store.recover()
    bench.store.recover = lambda **given_values: found._replace(**changes)
    bench.restart()
    hello(bench, "op")


@pytest.mark.parametrize("value", [b"damaged", ("nonsense",), (7,), 5])
def test_the_users_of_a_group_that_cannot_be_read_are_allowed_nothing_until_it_is_set(value):
    bench = world("publish stream/all")
    group(bench, "add", "b", access_rules=["publish stream/b"])
    recovered_as(bench, values={GROUPS: {("a",): value, ("b",): ("publish stream/b",)}})
    assert listed(bench)["a"] == ("unreadable", [])
    for target in ("stream/all", "stream/b", "stream/x"):
        assert not may(bench, "publish", target)
    # Nobody else is concerned.
    assert may(bench, "publish", "stream/all", "eve")
    hello(bench, "ann")
    assert bench.ask("ann", publish(b"1", stream="all"))[-1].code == 401
    refused = group(bench, "set", added_rules=["publish stream/x"])
    assert (refused.code, "cannot be read" in refused.text) == (404, True)
    del bench.store.recover
    assert isinstance(group(bench, "set", access_rules=["publish stream/x"]), Ok)
    assert listed(bench)["a"] == ("store", ["publish stream/x"])
    for target in ("stream/all", "stream/b", "stream/x"):
        assert may(bench, "publish", target)


def test_a_group_that_cannot_be_read_may_be_removed():
    bench = world("publish stream/all")
    recovered_as(bench, values={GROUPS: {("a",): b"damaged"}})
    del bench.store.recover
    assert not may(bench, "publish", "stream/all")
    assert isinstance(group(bench, "remove"), Ok)
    assert may(bench, "publish", "stream/all")
    assert bench.core.recovery.skipped == 0


def test_a_group_that_may_be_outdated_counts_as_one_that_cannot_be_read():
    bench = world("publish stream/all")
    doubtful = frozenset({(GROUPS, ("a",))})
    recovered_as(bench, values={GROUPS: {("a",): ("publish stream/x",)}}, doubtful=doubtful)
    assert DOUBTFUL in [notice.event for notice in bench.notices]
    assert listed(bench)["a"] == ("unreadable", ["publish stream/x"])
    assert not may(bench, "publish", "stream/all")


def test_groups_that_may_have_been_in_a_damaged_block_are_closed_and_known_ones_are_not():
    bench = world("publish stream/all")
    block = Defect("block", "", 3, 3, "wrong CRC")
    recovered_as(bench, values={GROUPS: {("b",): ("publish stream/b",)}}, defects=(block,))
    # Nobody knows what `a` denied.
    assert not may(bench, "publish", "stream/all")
    assert may(bench, "publish", "stream/all", "eve")
    del bench.store.recover
    assert isinstance(group(bench, "add", "a", access_rules=["publish stream/a"]), Ok)
    assert may(bench, "publish", "stream/all")
    assert may(bench, "publish", "stream/b")


def test_a_group_that_a_damaged_block_held_is_stored_again():
    bench = world()
    group(bench, "add", access_rules=["publish stream/x"])
    stranded = Stranded({}, [(GROUPS, ("a",)), (GROUPS, ("gone",))])
    bench.core.damaged([Defect("block", "", 1, 1, "lost", stranded)], bench.now)
    bench.iterate()
    stored = [o for append in bench.appends for o in append.operations if getattr(o, "table", "") == GROUPS]
    assert [(o.key, o.value) for o in stored] == [(("a",), ("publish stream/x",))]


RULE = st.tuples(st.booleans(), st.sampled_from("xyz")).map(
    lambda rule: f"{'deny ' * rule[0]}publish stream/{rule[1]}"
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "set", "remove", "crash"]), st.sampled_from("ab"), st.lists(RULE)),
        max_size=8,
    )
)
@settings(max_examples=30 * DEPTH, deadline=None)
def test_what_is_allowed_is_what_the_rules_of_all_groups_say_after_any_changes(steps):
    bench = world()
    model: dict[str, list[str]] = {}
    for what, name, rules in steps:
        if what == "crash":
            bench.crash()
            hello(bench, "op")
            continue
        answer = group(bench, what, name, **({} if what == "remove" else {"access_rules": rules}))
        assert isinstance(answer, Ok) is ((name in model) is (what != "add"))
        if isinstance(answer, Ok):
            model.pop(name, None)
            if what != "remove":
                model[name] = rules
        all_rules = [rule for one in model.values() for rule in one]
        for stream in "xyz":
            allowed = f"publish stream/{stream}" in all_rules
            denied = f"deny publish stream/{stream}" in all_rules
            assert may(bench, "publish", f"stream/{stream}") is (allowed and not denied)
            assert not may(bench, "publish", f"stream/{stream}", "eve")
