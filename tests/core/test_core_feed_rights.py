"""A feed acts with the rights of whoever has set it: when they end it stops, until it is set again."""

from __future__ import annotations

from math import inf

import pytest
from core_bench import START, Bench, peer_id, publish
from test_core_accounts import change, hello, made

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.core.access import ANONYMOUS, Principal
from malamute.core.feed.feed import RETRY_SECONDS
from malamute.core.feed.table import STOPPED
from malamute.protocol.batch import pack
from malamute.protocol.messages import Answer, Change, Error, Hello, Ok, Query
from malamute.store.operations import PutValue
from malamute.store.tables import FEEDS

FEEDING = ("admin stream/s", "admin service/w", "subscribe stream/s")
OPERATOR = ("admin user/#", "view broker/#", "publish stream/s")


def policy(*rules: str) -> Policy:
    return Policy(
        map(AccessRule.parse, OPERATOR),
        {"feeders": tuple(map(AccessRule.parse, rules))},
        keys=frozenset({"k"}),
    )


def configure(bench: Bench, *rules: str) -> None:
    bench.settings = bench.settings._replace(access=policy(*rules))
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
    bench.tell(who, Change(0, "feed.set", {"source": "stream/s", "feed": "w", "target": "service/w"}))
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


def test_a_stream_of_which_its_setter_may_see_a_part_feeds_nothing_more():
    bench = fed()
    configure(bench, *FEEDING, "deny subscribe stream/s/secret.#")
    assert row(bench)["state"] == "stopped"
    assert requests(bench) == 0


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
    bench.tell("ann", Change(0, "feed.set", {"source": "stream/s", "feed": "w", "target": "service/w"}))
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
