"""Accounts that operators store in a running broker: in force at once, and with nothing secret told."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from core_bench import Bench, peer_id, publish, subscribe

from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.access.account import PROOFS
from malamute.core.admin.users import users
from malamute.core.identity.access import Principal
from malamute.core.identity.accounts import DOUBTFUL
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.protocol.admin import UsersQuery
from malamute.protocol.batch import unpack_payload, unpack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Answer, Change, Error, Hello, Ok, Query, Welcome
from malamute.protocol.names import AUDIT
from malamute.store.operations import PutValue
from malamute.store.tables import ACCOUNTS

KEY, OTHER_KEY = "a" * 40, "b" * 40
RULES = ("* */#", "* user/#", "* mailbox/{user}")


def hashed(cost: int = 1 << 14, blocks: int = 8, lanes: int = 1) -> str:
    salt, secret = (b64encode(part).decode() for part in (b"salt", b"x" * 32))
    return f"scrypt${cost}${blocks}${lanes}${salt}${secret}"


HASH = hashed()


def made(
    *rules: str, accounts: tuple[Account, ...] = (), limits: Limits | None = None, audit: bool = False
) -> Bench:
    """A broker with these rules for everybody, and a file with the operator and these accounts."""
    bench = Bench(limits, lifecycle=True, audit=audit)
    file = Accounts([Account("op"), *accounts])
    bench.settings = bench.settings._replace(access=Policy(map(AccessRule.parse, rules)), accounts=file)
    bench.restart()
    hello(bench, "op")
    return bench


@pytest.fixture
def bench() -> Bench:
    return made()


def hello(bench: Bench, user: str, method: str = "plain", key: str = "", proof: str = "") -> Any:
    """Say HELLO as a user who was proved so. Returns the answer."""
    bench._names[peer_id(user)] = user
    principal = Principal(user, method=method, key=key, proof=proof)
    bench.core.receive(peer_id(user), Hello([2], ""), bench.now, principal)
    bench.iterate()
    return bench.sent(user)[-1]


def change(bench: Bench, topic: str, **arguments: Any) -> Any:
    """What the operator is answered."""
    bench.sent("op")
    bench.tell("op", Change(0, topic, arguments))
    bench.settle()
    (answer,) = [m for m in bench.sent("op") if isinstance(m, Ok | Error)]
    return answer


def listed(bench: Bench) -> dict[str, dict[str, Any]]:
    bench.sent("op")
    bench.tell("op", Query(1, "users", {}))
    (answer,) = [m for m in bench.sent("op") if isinstance(m, Answer)]
    return {row["name"]: row for row in answer.value}


def ended(bench: Bench, name: str) -> list[str]:
    """What a peer learned about the end of its session."""
    return [m.text for m in bench.sent(name) if isinstance(m, Error) and (m.about, m.code) == (1, 401)]


def test_an_account_is_added_changed_and_removed_and_is_there_after_a_crash(bench):
    added = change(bench, "user.add", name="ann", password=HASH, key=KEY, uid=7, groups=["a"])
    row = {"name": "ann", "source": "store", "key": KEY, "password": True, "uid": 7, "groups": ["a"]}
    row |= {"access_rules": [], "disabled": False}
    assert added.value == row
    bench.crash()
    hello(bench, "op")
    assert listed(bench)["ann"] == row
    found = bench.core.accounts
    assert found.with_key(KEY) == found.with_uid(7) == found.named("ann")
    assert found.named("ann") == Account("ann", HASH, KEY, ("a",), uid=7)
    assert change(bench, "user.set", name="ann", key=OTHER_KEY, groups=[], password="").value == {
        **row,
        "key": OTHER_KEY,
        "password": False,
        "groups": [],
    }
    assert bench.core.accounts.with_key(KEY) is None
    assert change(bench, "user.remove", name="ann").value == {"name": "ann"}
    assert bench.core.accounts.with_key(OTHER_KEY) is bench.core.accounts.with_uid(7) is None
    bench.crash()
    hello(bench, "op")
    assert listed(bench).keys() == {"op"}


def test_what_is_tried_is_not_done(bench):
    assert change(bench, "user.add", name="ann", uid=7, dry_run=True).value["uid"] == 7
    assert listed(bench).keys() == {"op"}
    change(bench, "user.add", name="ann", uid=7)
    change(bench, "user.set", name="ann", uid=8, dry_run=True)
    change(bench, "user.remove", name="ann", dry_run=True)
    assert listed(bench)["ann"]["uid"] == 7


@pytest.mark.parametrize("changed", [{"disabled": True}, None], ids=str)
def test_sessions_of_an_account_that_is_disabled_or_removed_end_and_no_others(bench, changed):
    for name in ("ann", "bob"):
        change(bench, "user.add", name=name, password=HASH)
        assert isinstance(hello(bench, name), Welcome)
    if changed:
        change(bench, "user.set", name="ann", **changed)
    else:
        change(bench, "user.remove", name="ann")
    assert ended(bench, "ann") == ["the account 'ann' is disabled"]
    assert ended(bench, "bob") == []
    assert bench.core.sessions.by_peer[peer_id("bob")].open


CHANGED = {"password": hashed(blocks=4), "key": OTHER_KEY, "uid": 8}


@pytest.mark.parametrize("where", ["file", "store"])
@pytest.mark.parametrize("method", PROOFS)
def test_a_session_ends_with_what_has_proved_it_and_with_nothing_else(method, where):
    """A session by a key ends when its account has another key, not when it has another password."""
    account = Account("ann", HASH, KEY, uid=7)
    bench = made(accounts=(account,) if where == "file" else ())
    if where == "store":
        change(bench, "user.add", name="ann", password=HASH, key=KEY, uid=7)

    def become(field: str) -> None:
        nonlocal account
        account = account._replace(**{field: CHANGED[field]})
        if where == "store":
            assert isinstance(change(bench, "user.set", name="ann", **{field: CHANGED[field]}), Ok)
        else:
            settings = bench.settings._replace(accounts=Accounts([Account("op"), account]))
            bench.core.configure(settings, bench.now)
            bench.settle()

    proof, field = account.proof(method), PROOFS[method]
    assert isinstance(hello(bench, "ann", method, proof=proof), Welcome)
    for other in CHANGED.keys() - {field}:
        become(other)
    assert ended(bench, "ann") == []
    become(field)
    words = f"the {field} of 'ann' was changed: log in with the one of now"
    assert ended(bench, "ann") == [words]
    # A connection that was proved before is nobody's now, and says HELLO in vain.
    refused = hello(bench, "ann", method, proof=proof)
    assert (refused.code, refused.text) == (401, words)
    assert isinstance(hello(bench, "ann", method, proof=account.proof(method)), Welcome)


def test_who_acts_as_another_user_does_so_until_its_own_password_is_changed():
    bench = made("impersonate user/#", "* user/#", "* mailbox/#", "* stream/#")
    for name in ("ann", "gate"):
        change(bench, "user.add", name=name, password=HASH)
    proof = Account("gate", HASH).proof("plain")
    for name in ("ann", "gate"):
        change(bench, "user.set", name=name, password=HASH)
    acting = Hello([2], "", act_as="ann")
    bench._names[peer_id("g")] = "g"
    bench.core.receive(peer_id("g"), acting, bench.now, Principal("gate", method="plain", proof=proof))
    bench.iterate()
    change(bench, "user.set", name="ann", password=CHANGED["password"])
    assert ended(bench, "g") == []
    change(bench, "user.set", name="gate", password=CHANGED["password"])
    assert ended(bench, "g") == ["the password of 'gate' was changed: log in with the one of now"]


def test_a_feed_goes_on_when_the_password_of_its_setter_was_changed():
    bench = made("* */#")
    change(bench, "user.add", name="ann", password=HASH)
    bench._names[peer_id("ann")] = "ann"
    principal = Principal("ann", method="plain", proof=Account("ann", HASH).proof("plain"))
    bench.core.receive(peer_id("ann"), Hello([2], ""), bench.now, principal)
    arguments = {"feed": "f", "source": "stream/a", "target": "stream/b"}
    bench.tell("ann", Change(0, "feed.set", arguments))
    bench.settle()
    assert isinstance(bench.sent("ann")[-1], Ok)
    change(bench, "user.set", name="ann", password=CHANGED["password"])
    assert ended(bench, "ann") != []
    (feed,) = bench.core.feeds.by_name.values()
    assert feed.open


def test_a_token_of_a_user_whose_stored_account_is_disabled_counts_no_more(bench):
    bench.settings = bench.settings._replace(access=Policy(keys=frozenset({"k"})))
    bench.core.configure(bench.settings, bench.now)
    hello(bench, "ann", "token", "k")
    change(bench, "user.add", name="ann")
    assert ended(bench, "ann") == []
    change(bench, "user.set", name="ann", disabled=True)
    assert ended(bench, "ann") == ["the account 'ann' is disabled"]
    assert bench.core.accounts.is_disabled("ann")
    change(bench, "user.set", name="ann", disabled=False)
    assert not bench.core.accounts.is_disabled("ann")


def test_groups_and_rules_of_a_stored_account_are_in_force_with_the_answer():
    bench = made("admin user/#", "view broker/users")
    groups = {"staff": (AccessRule.parse("publish stream/s"),)}
    bench.settings = bench.settings._replace(
        access=Policy(map(AccessRule.parse, ("create stream/#", "admin user/#", "view broker/#")), groups)
    )
    bench.core.configure(bench.settings, bench.now)
    change(bench, "user.add", name="ann", password=HASH, access_rules=["subscribe stream/{user}"])
    hello(bench, "ann")
    refused = bench.ask("ann", publish(b"1"), subscribe(1, stream="s"))
    assert [m.code for m in refused] == [401, 401]
    assert isinstance(bench.ask("ann", subscribe(1, stream="ann"))[0], Ok)
    change(bench, "user.set", name="ann", groups=["staff"])
    assert not [m for m in bench.ask("ann", publish(b"1")) if isinstance(m, Error)]
    change(bench, "user.set", name="ann", access_rules=[])
    (lost,) = [m for m in bench.sent("ann") if isinstance(m, Error)]
    assert (lost.code, lost.ref) == (401, 1)
    explained = bench.core.access.explain("ann", "publish", "stream/s")
    assert explained.decision.allowed
    assert not bench.core.access.explain("eve", "publish", "stream/s").decision.allowed


def test_rules_of_an_account_that_are_added_and_taken_away_leave_the_others():
    bench = made("admin user/#", "view broker/users")
    a, b, c = ("publish stream/a", "publish stream/b", "publish stream/c")
    change(bench, "user.add", name="ann", password=HASH, access_rules=[a])

    def rules(**fields: list[str]) -> list[str]:
        return change(bench, "user.set", name="ann", **fields).value["access_rules"]

    assert rules(added_rules=[b]) == [a, b]
    assert rules(added_rules=[b, c], removed_rules=[a]) == [b, c]
    assert rules(groups=["x"]) == [b, c]
    assert rules(access_rules=[], added_rules=[a]) == [a]
    refused = change(bench, "user.set", name="ann", removed_rules=[b])
    assert (refused.code, refused.text) == (
        416,
        f"the account 'ann' has no rule {b!r}: expected one that it has",
    )
    assert change(bench, "user.set", name="ann", added_rules=["nonsense"]).code == 417
    assert listed(bench)["ann"]["access_rules"] == [a]


def test_the_first_rule_of_all_is_not_a_stored_one(bench):
    refused = change(bench, "user.add", name="ann", access_rules=["view broker/#"])
    assert refused.code == 416
    assert "there are no rules in the configuration" in refused.text
    assert listed(bench).keys() == {"op"}
    bench.settings = bench.settings._replace(access=Policy(map(AccessRule.parse, RULES)))
    bench.core.configure(bench.settings, bench.now)
    assert isinstance(change(bench, "user.add", name="ann", access_rules=["view broker/#"]), Ok)
    # Without those of the configuration it goes on to refuse what no rule allows.
    bench.core.configure(bench.settings._replace(access=Policy()), bench.now)
    assert change(bench, "user.remove", name="ann").code == 401


@pytest.mark.parametrize(
    ("who", "proved", "rules", "begins"),
    [
        ("ann", True, ["* */#"], True),
        ("ann", True, ["admin user/ann"], True),
        ("ann", True, ["view broker/#"], False),
        ("ann", True, ["* */#", "deny admin user/#"], False),
        ("ann", False, ["* */#"], False),
        ("op", True, ["* */#"], False),
    ],
)
def test_the_first_rules_are_those_of_who_has_logged_in_and_may_change_them(
    bench, who, proved, rules, begins
):
    assert isinstance(change(bench, "user.add", name="ann", password=HASH), Ok)
    hello(bench, "eve", proof="")
    proof = bench.core.accounts.named(who).proof("plain") if proved else ""
    hello(bench, who, proof=proof)
    bench.tell(who, Change(1, "user.set", {"name": "ann", "added_rules": rules}))
    bench.settle()
    answers = [m for m in bench.sent(who) if isinstance(m, Ok | Error)]
    assert [isinstance(answer, Ok) for answer in answers] == [begins]
    assert bench.core.access.in_force is begins
    bench.restart()
    assert bench.core.access.in_force is begins


def test_the_last_rule_of_all_does_not_go_with_its_account():
    bench = made(*RULES, accounts=(Account("eve"),))
    change(bench, "user.add", name="ann", password=HASH, access_rules=["* broker/#", "* user/#"])
    hello(bench, "ann")
    hello(bench, "eve")
    bench.core.configure(bench.settings._replace(access=Policy()), bench.now)
    assert [m.code for m in bench.ask("eve", subscribe(1, stream="s"))] == [401]
    (refused,) = bench.ask("ann", Change(1, "user.remove", {"name": "ann"}))
    assert refused.code == 416
    assert [m.code for m in bench.ask("eve", subscribe(1, stream="s"))] == [401]


def test_administering_accounts_takes_the_right_to():
    bench = made("admin user/ann", "view broker/users")
    assert isinstance(change(bench, "user.add", name="ann"), Ok)
    for topic in ("user.add", "user.set", "user.remove"):
        refused = change(bench, topic, name="bob")
        assert (refused.code, refused.text) == (401, "'admin user/bob' is not allowed: no rule allows it")
    bench.core.configure(
        bench.settings._replace(access=Policy([AccessRule.parse("admin user/#")])), bench.now
    )
    bench.tell("op", Query(1, "users", {}))
    assert [m.code for m in bench.sent("op")] == [401]


def test_what_the_file_says_of_a_name_a_key_or_a_uid_counts():
    file = (Account("bob", HASH, KEY, uid=7),)
    bench = made(accounts=file)
    for topic in ("user.add", "user.set", "user.remove"):
        refused = change(bench, topic, name="bob")
        assert (refused.code, "in the file of the configuration" in refused.text) == (416, True)
    for given, what in (({"key": KEY}, "key"), ({"uid": 7}, "uid")):
        refused = change(bench, "user.add", name="ann", **given)
        assert refused.text == f"accounts 'bob' and 'ann' have one {what}: expected two"
    # A file that comes later counts, too.
    change(bench, "user.add", name="ann", password=HASH, key=OTHER_KEY, uid=8)
    later = Account("ann", uid=9), Account("eve", key=KEY, uid=8)
    bench.core.configure(bench.settings._replace(accounts=Accounts([Account("op"), *later])), bench.now)
    found = bench.core.accounts
    assert found.named("ann") == later[0]
    assert found.with_key(OTHER_KEY) is None
    assert found.with_uid(8) == later[1]
    assert listed(bench)["ann"]["source"] == "file"
    bench.core.configure(bench.settings, bench.now)
    assert found.with_key(OTHER_KEY) == found.named("ann") == found.with_uid(8)
    assert listed(bench)["ann"]["source"] == "store"


REFUSED = [
    ("user.add", {"name": "ann"}, 416, "already"),
    ("user.set", {"name": "eve"}, 404, "there is no account 'eve'"),
    ("user.remove", {"name": "eve"}, 404, "there is no account 'eve'"),
    ("user.add", {"name": "bob", "key": KEY}, 416, "accounts 'ann' and 'bob' have one key"),
    ("user.add", {"name": "bob", "key": "short"}, 416, "invalid key"),
    ("user.add", {"name": "bob", "uid": -1}, 416, "invalid uid"),
    ("user.add", {"name": "bob", "groups": ["$a"]}, 414, "invalid name '$a'"),
    ("user.add", {"name": "bob", "access_rules": ["nonsense"]}, 417, "invalid rule 'nonsense'"),
    ("user.add", {"name": "$token.1"}, 401, "reserved for the broker"),
    ("user.add", {"name": "bob", "password": "secret"}, 416, "not as `malamute user` makes it"),
    ("user.add", {"name": "bob", "password": hashed(1 << 18)}, 416, "not as"),
    ("user.add", {"name": "bob", "password": hashed(lanes=9)}, 416, "not as"),
    ("user.add", {"name": "bob", "password": "x" * 300}, 416, "invalid password"),
    ("user.add", {"name": "bob", "passwd": "secret"}, 416, "unknown argument 'passwd'"),
]


@pytest.mark.parametrize(("topic", "arguments", "code", "words"), REFUSED, ids=str)
def test_a_change_that_cannot_be_is_refused_by_name_and_changes_nothing(topic, arguments, code, words):
    bench = made(audit=True)
    change(bench, "user.add", name="ann", key=KEY)
    before = bench.store.recover().table(ACCOUNTS)
    refused = change(bench, topic, **arguments)
    assert (refused.code, words in refused.text) == (code, True), refused.text
    assert bench.store.recover().table(ACCOUNTS) == before
    assert listed(bench).keys() == {"ann", "op"}
    for secret in ("secret", HASH[-10:], "xxxxx"):
        assert secret not in refused.text
        assert secret not in audited(bench)


@pytest.mark.parametrize("cost", [1 << 17, 1 << 18])
def test_a_hash_costs_as_much_as_may_be_and_no_more(bench, cost):
    answer = change(bench, "user.add", name="ann", password=hashed(cost))
    assert isinstance(answer, Ok if cost == 1 << 17 else Error)


def audited(bench: Bench) -> str:
    """All that the audit has, and the log."""
    bench.settle()
    text = []
    for chunk in bench.store.read(AUDIT, 1, bytes_max=1 << 30).found:
        for record in unpack_payload(chunk.payload, chunk.large).records:
            headers, body = unpack_record(record)
            text.append(f"{headers} {b''.join(body).decode()}")
    return "\n".join([*text, *(f"{notice}" for notice in bench.notices)])


def test_the_audit_has_each_change_and_no_hash():
    bench = made(audit=True)
    change(bench, "user.add", name="ann", password=HASH, key=KEY)
    change(bench, "user.set", name="ann", password=hashed(2))
    change(bench, "user.remove", name="ann")
    text = audited(bench)
    for topic in ("user.add", "user.set", "user.remove"):
        assert f"'topic': '{topic}'" in text or topic in text
    assert text.count('"password": "…"') == 2
    assert KEY in text
    for secret in ("scrypt", HASH.rpartition("$")[2]):
        assert secret not in text
    rows = json.dumps(listed(bench))
    assert "scrypt" not in rows


def test_no_hash_is_printed_with_an_account_or_a_change():
    from malamute.protocol.admin import UserAdd

    assert HASH not in repr([Account("ann", HASH), UserAdd(name="ann", password=HASH)])


@pytest.mark.parametrize("accounts", [1, 2])
def test_there_are_as_many_stored_accounts_as_may_be(accounts):
    bench = made(limits=Limits(accounts=accounts))
    assert isinstance(change(bench, "user.add", name="ann"), Ok)
    second = change(bench, "user.add", name="bob")
    assert isinstance(second, Ok) == (accounts == 2)
    assert isinstance(change(bench, "user.set", name="ann", uid=1), Ok)
    if accounts == 1:
        assert (second.code, second.text) == (429, "too many accounts: expected at most 1 in the store")


def test_what_the_disk_refuses_is_as_it_was(bench):
    change(bench, "user.add", name="ann", key=KEY)
    hello(bench, "ann")
    bench.settle()
    bench.tell("op", Change(0, "user.remove", {"name": "ann"}))
    # What comes before that is known is found good only if the removal is.
    bench.tell("op", Change(0, "user.add", {"name": "bob", "key": KEY}))
    bench.fail()
    bench.settle()
    assert [m.code for m in bench.sent("op") if isinstance(m, Error)] == [507, 507]
    assert listed(bench).keys() == {"op", "ann"}
    assert bench.core.accounts.with_key(KEY) == bench.core.accounts.named("ann")
    bench.crash()
    assert bench.core.accounts.named("ann") == Account("ann", key=KEY)


def test_two_changes_of_one_iteration_that_fail_leave_the_key_with_whom_it_was(bench):
    change(bench, "user.add", name="ann", key=KEY)
    bench.settle()
    bench.receive("op", Change(0, "user.remove", {"name": "ann"}))
    bench.receive("op", Change(0, "user.add", {"name": "bob", "key": KEY}))
    bench.iterate()
    bench.fail()
    bench.settle()
    assert bench.core.accounts.with_key(KEY) == bench.core.accounts.named("ann")
    assert bench.core.accounts.named("bob") is None


BROKEN = [None, 5, (), ("ann",) * 9, ("bob",), ("ann", "plain"), ("ann", "", "short"), ("ann", "", "", 5)]


@pytest.mark.parametrize("value", BROKEN, ids=str)
def test_a_stored_account_that_is_broken_lets_nobody_in_and_is_reported(bench, value):
    change(bench, "user.add", name="eve", password=HASH)
    bench.store.write([PutValue(ACCOUNTS, ("ann",), value)])
    bench.restart()
    bench.iterate()
    (notice,) = [n for n in bench.notices if n.event == "not recovered, left in the store"]
    assert (notice.details["kind"], notice.details["name"]) == ("account", "ann")
    assert bench.core.recovery.skipped == 1
    assert bench.core.accounts.named("ann") is None
    assert bench.core.accounts.is_disabled("ann")
    assert bench.core.accounts.named("eve") == Account("eve", HASH)
    hello(bench, "op")
    assert (listed(bench)["ann"]["source"], listed(bench)["ann"]["disabled"]) == ("unreadable", True)
    assert "already" in change(bench, "user.add", name="ann").text
    assert "cannot be read" in change(bench, "user.set", name="ann").text
    bench.settle()
    bench.tell("op", Change(0, "user.remove", {"name": "ann"}))
    bench.fail()
    assert bench.core.accounts.is_disabled("ann")
    change(bench, "user.remove", name="ann")
    assert bench.core.recovery.skipped == 0
    assert isinstance(change(bench, "user.add", name="ann"), Ok)


def test_of_two_stored_accounts_with_one_key_the_second_lets_nobody_in(bench):
    rows = [Account(name, key=KEY) for name in ("ann", "bob")]
    bench.store.write([PutValue(ACCOUNTS, (row.name,), row.stored()) for row in rows])
    bench.restart()
    assert bench.core.accounts.with_key(KEY) == rows[0]
    assert bench.core.accounts.is_disabled("bob")


def test_an_account_that_may_be_older_than_what_was_stored_last_is_disabled(bench):
    account = Account("ann", HASH)
    doubtful = bench.store.recover()._replace(
        values={ACCOUNTS: {("ann",): account.stored()}}, doubtful=frozenset({(ACCOUNTS, ("ann",))})
    )
    bench.store.recover = lambda **given: doubtful
    bench.crash()
    bench.iterate()
    assert DOUBTFUL in [notice.event for notice in bench.notices]
    assert bench.core.accounts.named("ann") == account._replace(disabled=True)
    hello(bench, "op")
    change(bench, "user.set", name="ann", disabled=False)
    assert bench.core.accounts.named("ann") == account


def test_an_account_that_the_store_lost_while_it_ran_is_stored_again(bench):
    from malamute.store.operations import Defect, Stranded

    change(bench, "user.add", name="ann", password=HASH)
    stranded = Stranded({}, values=((ACCOUNTS, ("ann",)), (ACCOUNTS, ("gone",))))
    bench.core.damaged([Defect("block", "", 1, 1, "lost", stranded)], bench.now)
    bench.iterate()
    (put,) = [o for append in bench.appends for o in append.operations if isinstance(o, PutValue)]
    assert put == PutValue(ACCOUNTS, ("ann",), Account("ann", HASH).stored())


def test_accounts_of_the_file_and_of_the_store_are_listed_in_order_and_each_once(bench):
    core = bench.core
    configured = [Account(name, uid=number) for number, name in enumerate(("zoe", "ann", "mia"), 1)]
    core.accounts.configure(Accounts(configured))
    for name in ("mia", "bob", "ann2", "zoe2"):
        core.accounts.stored.put(Account(name))
    core.accounts.stored.remove("zoe2")
    core.accounts.unreadable |= {"carl", "bob"}
    names = ["ann", "ann2", "bob", "carl", "mia", "zoe"]
    assert [*core.accounts.names_after("")] == names
    for place, name in enumerate(names, 1):
        assert [*core.accounts.names_after(name)] == names[place:]
    rows = users(core.effects, core.accounts, core.quotas, UsersQuery(after_name="ann2", limit=2))
    assert [row.name for row in rows] == ["bob", "carl"]


@pytest.mark.parametrize("place", ["store", "file"])
def test_a_user_who_is_renamed_while_he_is_connected_has_to_log_in_by_his_new_name(place):
    bench = made(accounts=(Account("ann", key=KEY),) if place == "file" else ())
    if place == "store":
        change(bench, "user.add", name="ann", key=KEY)
    hello(bench, "ann", "curve")
    assert bench.core.accounts.with_key(KEY).name == "ann"
    if place == "store":
        change(bench, "user.remove", name="ann")
        change(bench, "user.add", name="anna", key=KEY)
    else:
        file = Accounts([Account("op"), Account("anna", key=KEY)])
        bench.core.configure(bench.settings._replace(accounts=file), bench.now)
        bench.settle()
    assert ended(bench, "ann") == ["the account 'ann' is disabled"]
    assert bench.core.accounts.with_key(KEY).name == "anna"
    # Neither does his old session become the new user's, nor anybody else's by its HELLO said once more.
    assert bench.core.sessions.of_user("ann") == []
    welcome = hello(bench, "anna", "curve")
    assert isinstance(welcome, Welcome)
    assert not welcome.resumed
    bench.core.receive(peer_id("anna"), Hello([2], ""), bench.now, Principal("eve", method="curve"))
    bench.iterate()
    assert bench.sent("anna")[-1].code == 401
    assert [session.numbers.user for session in bench.core.sessions.of_user("anna")] == ["anna"]
    assert bench.core.sessions.of_user("eve") == []


@pytest.mark.parametrize(
    ("rules", "accounts", "loses"),
    [
        (["* */#"], [Account("op")], False),
        (["admin broker/reload"], [Account("op")], False),
        (["* stream/#"], [Account("op")], True),
        (["* */#", "deny admin broker/#"], [Account("op")], True),
        (["* */#"], [], True),
        (["* */#"], [Account("op", disabled=True)], True),
        ([], [Account("op")], False),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_reload_says_before_it_is_made_that_it_takes_away_the_right_to_reload(
    rules: list[str], accounts: list[Account], loses: bool, dry_run: bool
) -> None:
    bench = made("* */#")
    settings = bench.settings._replace(
        access=Policy(map(AccessRule.parse, rules)), accounts=Accounts(accounts)
    )
    bench.sent("op")
    bench.tell("op", Change(1, "broker.reload", {"dry_run": dry_run}))
    bench.core.answered(bench.reads.pop(), ConfigurationLoaded(settings), bench.now)
    bench.settle()
    found = [m.value.get("loses_right", False) for m in bench.sent("op") if isinstance(m, Ok)]
    assert found == [loses] or (not dry_run and loses and not found)
    assert (bench.core.configuration.settings is settings) is not dry_run
