"""A feed acts with the rights of who has set it: it takes what that user may see, and stops when they end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

import pytest
from core_bench import START, Bench, peer_id, publish
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from test_core_accounts import change, hello, made

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.core.feed.feed import RETRY_SECONDS
from malamute.core.feed.table import STOPPED
from malamute.core.identity.access import ANONYMOUS, Principal
from malamute.protocol.batch import pack, pack_record
from malamute.protocol.messages import Answer, Change, Error, Hello, Ok, Query
from malamute.store.operations import PutValue
from malamute.store.tables import FEEDS

FEEDING = ("admin stream/s", "admin service/w", "subscribe stream/s")
OPERATOR = ("admin user/#", "view broker/#", "publish stream/s")


GIVEN = {"source": "stream/s", "feed": "w", "target": "service/w"}


def policy(*rules: str, everybody: Sequence[str] = ()) -> Policy:
    return Policy(
        map(AccessRule.parse, (*OPERATOR, *everybody)),
        {"feeders": tuple(map(AccessRule.parse, rules))},
        keys=frozenset({"k"}),
    )


def configure(bench: Bench, *rules: str, everybody: Sequence[str] = ()) -> None:
    bench.settings = bench.settings._replace(access=policy(*rules, everybody=everybody))
    bench.core.configure(bench.settings, bench.now)
    bench.settle()


def fed(*rules: str) -> Bench:
    """A broker with a feed that ann has set, whose account is stored."""
    bench = made(*OPERATOR)
    configure(bench, *(rules or FEEDING))
    assert isinstance(change(bench, "user.add", name="ann", groups=["feeders"], uid=7), Ok)
    hello(bench, "ann")
    assert isinstance(set_feed(bench, "ann"), Ok)
    return bench


def set_feed(bench: Bench, who: str) -> Ok | Error:
    bench.settle()
    bench.sent(who)
    bench.tell(who, Change(0, "feed.set", GIVEN))
    bench.settle()
    (answer,) = [m for m in bench.sent(who) if isinstance(m, Ok | Error) and m.about == 15]
    return answer


def row(bench: Bench) -> dict[str, object]:
    bench.sent("op")
    bench.tell("op", Query(1, "feeds", {}))
    ((found,),) = [m.value for m in bench.sent("op") if isinstance(m, Answer)]
    return {name: found[name] for name in ("state", "user", "reason")}


def requests(bench: Bench) -> int:
    """How many requests there are, with one more message published."""
    bench.tell("op", publish(b"x"))
    bench.settle()
    return len(bench.core.services.by_name["w"].entries)


def test_a_feed_says_who_has_set_it_and_goes_on_while_his_rights_do():
    bench = fed()
    assert row(bench) == {"state": "live", "user": "ann", "reason": ""}
    configure(bench, *FEEDING, "view broker/status")
    assert requests(bench) == 1
    bench.crash()
    hello(bench, "op")
    assert row(bench)["user"] == "ann"
    assert requests(bench) == 2


@pytest.mark.parametrize("missing", FEEDING)
def test_a_feed_stops_with_each_right_that_setting_it_takes_and_where_it_is(missing):
    bench = fed()
    assert requests(bench) == 1
    configure(bench, *(rule for rule in FEEDING if rule != missing))
    reason = f"'{missing}' is not allowed: no rule allows it"
    assert row(bench) == {"state": "stopped", "user": "ann", "reason": reason}
    assert "feed.stopped.w" in bench.events
    assert STOPPED in [notice.event for notice in bench.notices]
    assert requests(bench) == 1
    # Rights that come back start nothing, and neither does a start of the broker.
    configure(bench, *FEEDING)
    assert requests(bench) == 1
    bench.crash()
    hello(bench, "op")
    assert row(bench) == {"state": "stopped", "user": "ann", "reason": reason}
    assert requests(bench) == 1
    # Who may set it does, and it goes on where it was.
    assert set_feed(bench, "op").code == 401
    hello(bench, "ann")
    assert set_feed(bench, "ann").value["created"] is False
    assert row(bench) == {"state": "live", "user": "ann", "reason": ""}
    assert requests(bench) == 5


def taken(bench: Bench, service: str = "w") -> list[str]:
    """The subjects of all requests to a service, in order."""
    bench.settle()
    return [entry.subject for _, entry in sorted(bench.core.services.by_name[service].entries.items())]


def tell_all(bench: Bench, *subjects: str) -> None:
    for subject in subjects:
        bench.tell("op", publish(b"x", subject=subject))
    bench.settle()


def test_a_feed_takes_of_its_stream_what_its_setter_may_see_and_goes_on_behind_it():
    bench = fed()
    tell_all(bench, "open", "secret.a")
    configure(bench, *FEEDING, "view stream/s", "deny subscribe stream/s/secret.#")
    hello(bench, "ann")
    assert "feed.limited.w" in bench.events
    tell_all(bench, "secret.b", "open", "secret.c")
    assert row(bench)["state"] == "live"
    bench.crash()
    hello(bench, "op")
    tell_all(bench, "secret.d", "open")
    # Rights that come back count for what comes then.
    configure(bench, *FEEDING)
    tell_all(bench, "secret.e")
    assert taken(bench) == ["open", "secret.a", "open", "open", "secret.e"]


def test_a_feed_of_which_nothing_is_left_stops():
    bench = fed()
    bench.tell("ann", Change(0, "feed.set", {**GIVEN, "criteria": [["topic", "secret.#"]]}))
    configure(bench, *FEEDING, "deny subscribe stream/s/secret.#")
    reason = "nothing of what it asks for is allowed"
    assert row(bench) == {"state": "stopped", "user": "ann", "reason": reason}
    tell_all(bench, "secret.a")
    assert taken(bench) == []


def test_who_sets_a_feed_learns_that_it_is_limited_and_a_dry_run_says_so_too():
    bench = fed("admin stream/s", "admin service/w", "view stream/s", "subscribe stream/s/open.#")
    for more, wanted in (
        ({"dry_run": True}, True),
        ({}, True),
        ({"criteria": [["topic", "open.x"]]}, False),
        ({"criteria": [["topic", "open.x"], ["topic", "y"]]}, True),
    ):
        bench.sent("ann")
        bench.tell("ann", Change(0, "feed.set", {**GIVEN, **more}))
        bench.settle()
        (answer,) = [m for m in bench.sent("ann") if isinstance(m, Ok) and m.about == 15]
        assert answer.value.get("limited", False) is wanted, more
    tell_all(bench, "y", "open.x", "open.y")
    assert taken(bench) == ["open.x"]
    bench.sent("ann")
    bench.tell("ann", Query(1, "feed", {"source": "stream/s", "feed": "w"}))
    (found,) = [m.value for m in bench.sent("ann") if isinstance(m, Answer)]
    # What was asked for is shown, not what the rules make of it.
    assert (found["limited"], found["criteria"]) == (True, [["topic", "open.x"], ["topic", "y"]])
    bench.tell("ann", Change(0, "feed.set", {**GIVEN, "criteria": [["topic", "y"]]}))
    bench.settle()
    (refused,) = [m for m in bench.sent("ann") if isinstance(m, Error)]
    assert refused.code == 401


def test_a_row_that_a_rule_keeps_back_reaches_no_target():
    bench = fed("admin stream/s", "admin service/w", "subscribe stream/s where ward = '3'")
    for ward in "2343":
        record = pack_record({"ward": ward}, b"x")
        bench.tell("op", publish(b"x", subject=f"ward{ward}")._replace(records=[record]))
    assert taken(bench) == ["ward3", "ward3"]


EVERYBODY = ("admin stream/s", "admin service/d", "subscribe stream/s")


def test_what_a_feed_may_not_see_is_left_to_the_default():
    bench = fed()
    configure(bench, *FEEDING, "deny subscribe stream/s/secret.#", everybody=EVERYBODY)
    rest = {"source": "stream/s", "feed": "d", "target": "service/d", "when": "default"}
    bench.tell("op", Change(0, "feed.set", rest))
    bench.settle()
    tell_all(bench, "open", "secret.a")
    assert taken(bench) == ["open"]
    assert taken(bench, "d") == ["secret.a"]


PATTERNS = {"a.#": r"a(\..*)?", "*.x": r"[^.]+\.x", "b.#": r"b(\..*)?", "a.x": r"a\.x", "": r".*"}
SUBJECTS = ("a", "a.x", "a.y", "b", "b.x", "c.x", "c")

ANY_RULES = st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(PATTERNS))), min_size=1, max_size=3)


def may_see(rules: list[tuple[bool, str]], subject: str) -> bool:
    """The reference: some rule allows it, and none denies it."""
    fitting = [deny for deny, pattern in rules if re.fullmatch(PATTERNS[pattern], subject)]
    return bool(fitting) and not any(fitting)


@given(st.lists(ANY_RULES, min_size=1, max_size=4), st.sampled_from(sorted(PATTERNS)), st.booleans())
@settings(max_examples=40 * DEPTH, deadline=None)
def test_a_feed_has_taken_what_was_asked_for_and_allowed_when_it_came(changes, asked, crashes):
    bench = fed()
    criteria = [["topic", asked]] if asked else [["all", ""]]
    bench.tell("ann", Change(0, "feed.set", {**GIVEN, "criteria": criteria}))
    bench.settle()
    expected: list[str] = []
    for rules in changes:
        texts = [f"{'deny ' * deny}subscribe stream/s{'/' * bool(name)}{name}" for deny, name in rules]
        configure(bench, "admin stream/s", "admin service/w", *texts)
        wanted = [s for s in SUBJECTS if re.fullmatch(PATTERNS[asked], s) and may_see(rules, s)]
        if row(bench)["state"] == "stopped":
            # It stays so; and it is no loss.
            assert not wanted
            tell_all(bench, *SUBJECTS)
            break
        tell_all(bench, *SUBJECTS)
        expected += wanted
        if crashes:
            bench.crash()
            hello(bench, "op")
    assert taken(bench) == expected


@pytest.mark.parametrize(
    ("topic", "given"),
    [("user.remove", {}), ("user.set", {"disabled": True}), ("user.set", {"groups": []})],
    ids=["removed", "disabled", "left the group"],
)
def test_a_feed_stops_with_the_account_of_its_setter(topic, given):
    bench = fed()
    change(bench, topic, name="ann", **given)
    assert row(bench)["state"] == "stopped"
    assert requests(bench) == 0


def test_a_feed_stops_with_the_account_in_the_file():
    bench = made(*OPERATOR, accounts=(Account("ann", groups=("feeders",)),))
    configure(bench, *FEEDING)
    hello(bench, "ann")
    set_feed(bench, "ann")
    bench.settings = bench.settings._replace(accounts=Accounts([Account("op")]))
    bench.core.configure(bench.settings, bench.now)
    assert row(bench) == {"state": "stopped", "user": "ann", "reason": "the account 'ann' is disabled"}


def test_a_feed_outlives_the_token_of_its_setter_and_not_the_key_that_has_signed_it():
    bench = made(*OPERATOR)
    configure(bench, *FEEDING)
    scope = tuple(map(AccessRule.parse, FEEDING))
    token = Principal(
        "eve",
        frozenset({"feeders"}),
        "token",
        claims=(("x", "1"),),
        expires_at=START + 5,
        key="k",
        scope=scope,
    )
    assert Principal.of(list(token.stored())) == token._replace(expires_at=inf)
    bench._names[peer_id("eve")] = "eve"
    bench.core.receive(peer_id("eve"), Hello([2], ""), bench.now, token)
    assert isinstance(set_feed(bench, "eve"), Ok)
    bench.wait(10)
    assert requests(bench) == 1
    bench.crash()
    hello(bench, "op")
    assert requests(bench) == 2
    bench.settings = bench.settings._replace(access=Policy(map(AccessRule.parse, ["* */#"])))
    bench.core.configure(bench.settings, bench.now)
    assert "key that is not trusted" in str(row(bench)["reason"])
    assert requests(bench) == 2


def test_a_feed_that_an_earlier_version_has_stored_is_nobodys():
    bench = made()
    bench.tell("op", publish(b"1"))
    bench.settle()
    assert isinstance(set_feed(bench, "op"), Ok)
    bench.store.write([PutValue(FEEDS, ("s", "w"), pack(([["all", ""]], "")))])
    bench.restart()
    hello(bench, "op")
    assert bench.core.feeds.by_name[("stream", "s"), "w"].rule.setter == ANONYMOUS
    assert row(bench) == {"state": "live", "user": "", "reason": ""}
    assert requests(bench) == 1
    configure(bench, *FEEDING)
    assert row(bench)["state"] == "stopped"


def test_a_feed_that_is_stopped_is_so_after_a_crash_even_if_the_disk_refuses_it_at_first():
    bench = fed()
    bench.settings = bench.settings._replace(access=policy())
    bench.core.configure(bench.settings, bench.now)
    bench.iterate()
    while bench.appends:
        bench.fail()
    assert row(bench)["state"] == "stopped"
    assert requests(bench) == 0
    bench.wait(RETRY_SECONDS)
    bench.settle()
    bench.settings = bench.settings._replace(access=policy(*FEEDING))
    bench.crash()
    hello(bench, "op")
    assert row(bench)["state"] == "stopped"


def test_rights_that_end_while_a_feed_is_being_set_stop_it():
    bench = fed()
    bench.settle()
    bench.tell("ann", Change(0, "feed.set", GIVEN))
    bench.core.configure(bench.settings._replace(access=policy()), bench.now)
    bench.settle()
    assert row(bench)["state"] == "stopped"
    assert requests(bench) == 0


def test_a_stopped_feed_is_deleted_like_any_other():
    bench = fed()
    configure(bench)
    configure(bench, *FEEDING)
    bench.tell("ann", Change(0, "feed.delete", {"source": "stream/s", "feed": "w"}))
    bench.settle()
    assert bench.core.feeds.by_name == {}


def test_without_rules_feeds_go_on():
    bench = made()
    assert isinstance(set_feed(bench, "op"), Ok)
    bench.core.configure(
        bench.settings._replace(accounts=Accounts([Account("op"), Account("eve")])), bench.now
    )
    assert row(bench)["state"] == "live"
    assert requests(bench) == 1
