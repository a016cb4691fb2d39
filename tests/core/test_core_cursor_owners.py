"""Cursors have owners, and streams and cursors count for who has made them: in quotas, and in shares."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, peer_id, publish, subscribe

from malamute.access import AccessRule, Account, Accounts, Policy, Quota
from malamute.access.policy import User
from malamute.access.quota import NO_QUOTAS, Quotas
from malamute.core.identity.access import Principal
from malamute.protocol.limits import Limits
from malamute.protocol.messages import (
    Answer,
    Change,
    Commit,
    Error,
    Hello,
    Ok,
    Query,
    Stored,
    Welcome,
)
from malamute.store.operations import DeleteValue
from malamute.store.tables import CURSORS, OWNERS

READERS = ("create,publish,subscribe stream/#",)
OPERATORS = {"op": User((), tuple(map(AccessRule.parse, ("admin stream/#", "view */#"))))}


def made(
    *rules: str,
    limits: Limits | None = None,
    users: dict[str, User] | None = None,
    quotas: Quotas = NO_QUOTAS,
) -> Bench:
    bench = Bench(limits)
    policy = Policy(map(AccessRule.parse, rules), {}, {**OPERATORS, **(users or {})}, quotas=quotas)
    accounts = Accounts([Account(name) for name in ("ann", "eve", "op")])
    bench.settings = bench.settings._replace(
        access=policy if rules or quotas != NO_QUOTAS else Policy(), accounts=accounts
    )
    bench.restart()
    return bench


def come(bench: Bench, *names: str) -> None:
    for name in names:
        bench._names[peer_id(name)] = name
        user = "" if name.startswith("anybody") else name
        principal = Principal(user, method="plain" if user else "")
        bench.core.receive(peer_id(name), Hello([2], ""), bench.now, principal)
        bench.iterate()
        assert isinstance(bench.sent(name)[-1], Welcome)


def tell(bench: Bench, name: str, message: Any) -> Any:
    """The last answer to a command, once everything is stored."""
    bench.sent(name)
    bench.tell(name, message)
    bench.settle()
    found = [m for m in bench.sent(name) if isinstance(m, Ok | Error | Stored | Answer)]
    return found[-1] if found else None


def refused(answer: Any) -> tuple[int, str]:
    assert isinstance(answer, Error), answer
    return answer.code, answer.text


def commit(number: int, cursor: str = "c", sequence: int = 1) -> Commit:
    return Commit("s", number, cursor, sequence)


def set_to(start: str, **arguments: Any) -> Change:
    return Change(0, "cursor.set", {"stream": "s", "cursor": "c", "start": start, **arguments})


DELETE = Change(0, "cursor.delete", {"stream": "s", "cursor": "c"})


def with_cursor(*rules: str, users: dict[str, User] | None = None, crash: bool = False) -> Bench:
    """A stream with three messages, of which ann has a cursor at the second."""
    bench = made(*READERS, *rules, users=users)
    come(bench, "ann", "eve", "op")
    tell(bench, "ann", publish(b"a", b"b", b"c", number=1))
    assert not isinstance(tell(bench, "ann", commit(2, sequence=2)), Error)
    if crash:
        bench.crash()
        come(bench, "ann", "eve", "op")
    return bench


@pytest.mark.parametrize("crash", [False, True], ids=["running", "after a crash"])
@pytest.mark.parametrize(
    "message",
    [commit(0), set_to("first"), DELETE, set_to("first", owner="eve"), subscribe(7, stream="s", cursor="c")],
    ids=["commit", "set", "delete", "take over", "subscribe"],
)
def test_nobody_but_its_owner_moves_a_cursor(message: Any, crash: bool) -> None:
    bench = with_cursor(crash=crash)
    code, text = refused(tell(bench, "eve", message))
    assert code == 401
    assert "cursor/s/c' is not allowed" in text
    assert bench.core.streams.by_name["s"].cursors == {"c": 2}
    # Its owner may, but for giving it away.
    gives = getattr(message, "arguments", {}).get("owner") is not None
    assert isinstance(tell(bench, "ann", message), Error) == gives
    assert bench.store.recover().table(OWNERS)["s", ""] == "ann"


def test_an_owner_moves_and_deletes_its_own_and_the_owner_goes_with_the_cursor() -> None:
    bench = with_cursor()
    assert isinstance(tell(bench, "ann", set_to("first")), Ok)
    assert bench.store.recover().table(OWNERS) == {("s", ""): "ann", ("s", "c"): "ann"}
    assert isinstance(tell(bench, "ann", DELETE), Ok)
    assert bench.store.recover().table(OWNERS) == {("s", ""): "ann"}
    # The name is free: now it is the one's who comes first.
    assert not isinstance(tell(bench, "eve", commit(1)), Error)
    assert refused(tell(bench, "ann", commit(3)))[0] == 401


def test_who_administers_the_stream_sets_deletes_and_gives_its_cursors() -> None:
    bench = with_cursor()
    assert isinstance(tell(bench, "op", set_to("first")), Ok)
    assert not isinstance(tell(bench, "ann", commit(3)), Error)  # it is ann's still
    assert isinstance(tell(bench, "op", set_to("first", owner="eve")), Ok)
    assert refused(tell(bench, "ann", commit(4)))[0] == 401
    assert not isinstance(tell(bench, "eve", commit(1)), Error)
    rows = tell(bench, "op", Query(1, "cursors", {})).value
    assert [(row["name"], row["owner"]) for row in rows] == [("c", "eve")]
    assert isinstance(tell(bench, "op", DELETE), Ok)


def test_rules_name_cursors_and_a_deny_counts_for_the_owner_too() -> None:
    users = {"eve": User((), (AccessRule.parse("subscribe cursor/s/c.#"),))}
    bench = with_cursor("deny subscribe cursor/#/no.#", users=users)
    assert not isinstance(tell(bench, "eve", commit(1)), Error)
    assert refused(tell(bench, "eve", DELETE))[0] == 401
    code, text = refused(tell(bench, "ann", commit(3, "no.more")))
    assert (code, "refused by 'deny subscribe cursor/#/no.#'" in text) == (401, True)


def test_a_cursor_of_an_earlier_version_is_the_first_users_who_commits_it() -> None:
    bench = with_cursor()
    recovered = bench.store.recover()
    assert recovered.table(CURSORS) == {("s", "c"): 2}
    bench.store.write([DeleteValue(OWNERS, ("s", "c"))])
    bench.crash()
    come(bench, "ann", "eve", "op")
    assert not isinstance(tell(bench, "eve", commit(1, sequence=3)), Error)
    assert refused(tell(bench, "ann", commit(3)))[0] == 401
    assert bench.store.recover().table(OWNERS)["s", "c"] == "eve"


def test_owners_survive_a_purge_and_go_with_their_stream() -> None:
    bench = with_cursor()
    tell(bench, "op", Change(0, "stream.purge", {"stream": "s"}))
    assert bench.store.recover().table(OWNERS) == {("s", ""): "ann", ("s", "c"): "ann"}
    assert refused(tell(bench, "eve", commit(1)))[0] == 401
    answer = tell(bench, "op", Change(0, "stream.delete", {"stream": "s", "cascade": True}))
    assert isinstance(answer, Ok), answer
    assert bench.store.recover().table(OWNERS) == {}
    assert (bench.core.streams.held.costs, bench.core.streams.cursors.held.costs) == ({}, {})


def test_without_rules_anybody_uses_any_cursor() -> None:
    bench = made()
    come(bench, "ann", "eve")
    tell(bench, "ann", publish(b"a", b"b", b"c", number=1))
    for name in ("ann", "eve"):
        assert not isinstance(tell(bench, name, commit(2 if name == "ann" else 1)), Error)


# Shares, and quotas


def create(bench: Bench, name: str, count: int, prefix: str = "") -> int:
    """How many of so many streams a user could make."""
    made = 0
    for n in range(count):
        bench.tell(name, publish(b"a", number=0, stream=f"{prefix or name}{n}"))
        bench.settle()
        made += f"{prefix or name}{n}" in bench.core.streams.by_name
    return made


@pytest.mark.parametrize("crash", [False, True], ids=["running", "after a crash"])
def test_a_user_leaves_as_many_streams_to_others_as_it_has(crash: bool) -> None:
    bench = made(*READERS, limits=Limits(streams=16))
    come(bench, "eve", "ann")
    before = len(bench.core.streams.by_name)
    assert create(bench, "eve", 20) == (16 - before) // 2
    if crash:
        bench.crash()
        come(bench, "eve", "ann")
        assert create(bench, "eve", 20, "again") == 0
    code, text = refused(tell(bench, "eve", publish(b"a", number=1, stream="more")))
    assert (code, "share of user 'eve' is used up: streams" in text) == (430, True)
    assert create(bench, "ann", 20) == (16 - before) // 4


def test_a_user_leaves_as_many_cursors_of_a_stream_to_others_as_it_has() -> None:
    bench = made(*READERS, limits=Limits(cursors=10))
    come(bench, "eve", "ann")
    tell(bench, "ann", publish(b"a", b"b", b"c", number=1))
    codes = [getattr(tell(bench, "eve", commit(n, f"c{n}")), "code", 0) for n in range(1, 8)]
    assert codes == [0] * 5 + [430] * 2
    assert not isinstance(tell(bench, "ann", commit(2)), Error)
    # What there is goes on.
    assert not isinstance(tell(bench, "eve", commit(8, "c1", 2)), Error)


def test_a_broker_without_users_has_no_shares() -> None:
    bench = Bench(Limits(streams=4))
    taken = len(bench.core.streams.by_name)
    come(bench, "anybody")
    assert create(bench, "anybody", 10) == 4 - taken


@pytest.mark.parametrize("crash", [False, True], ids=["running", "after a crash"])
def test_quotas_of_streams_and_cursors_count_over_restarts(crash: bool) -> None:
    quotas = Quotas(users={"eve": Quota(streams=2, cursors=1)})
    bench = made(*READERS, limits=Limits(streams=5), quotas=quotas)
    come(bench, "eve", "ann")
    assert create(bench, "eve", 2) == 2  # a quota of one's own replaces the share
    tell(bench, "ann", publish(b"a", b"b", b"c", number=1))
    assert not isinstance(tell(bench, "eve", commit(1)), Error)
    if crash:
        bench.crash()
        come(bench, "eve", "ann")
    assert refused(tell(bench, "eve", publish(b"a", number=2, stream="third")))[0] == 430
    code, text = refused(tell(bench, "eve", commit(3, "d")))
    assert (code, "quota of user 'eve' is used up: cursors" in text) == (430, True)
    tell(bench, "eve", DELETE)
    assert not isinstance(tell(bench, "eve", commit(4, "d")), Error)
    assert refused(tell(bench, "eve", commit(5, "e")))[0] == 430
