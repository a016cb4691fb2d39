"""Rules of a pair, sentence by sentence: events in, actions out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from msgspec.structs import replace

from malamute.errors import InvalidValue
from malamute.pair import state
from malamute.pair.replication import NOBODY, Began, History
from malamute.pair.rules import (
    Action,
    CloseClients,
    Follow,
    Mode,
    OpenClients,
    PairRules,
    PairTimes,
    Read,
    Report,
    Role,
    Say,
    Serve,
    StopIntake,
    StopServing,
    Swap,
    check_times,
)
from malamute.pair.state import Level, Member, PairValue

PAIR = b"p" * 16
LEVEL = Level(7, 17, 1)
MEMBERS = {name: Member(name.encode() * 16, LEVEL, f"tcp://{name}:1") for name in "ab"}
HISTORY = History((Began(1, 1),), 10)
SYNC: PairValue = state.PairValue(
    pair=PAIR, timeline=1, primary="a", in_sync=("a", "b"), members=MEMBERS, change=b"0" * 16
)
ALONE = replace(SYNC, in_sync=("a",))


class Node:
    """The rules of a node, with a register at hand: `value` and `version` are what it has."""

    def __init__(
        self, name: str, value: PairValue | None, *, is_away: bool = False, **options: object
    ) -> None:
        numbers = count(1)
        given = {"pair": PAIR, "history": HISTORY, "mode": Mode.SYNC, "times": PairTimes(), **options}
        self.rules = PairRules(
            name,
            given.pop("member", MEMBERS[name]),
            fresh=lambda: next(numbers).to_bytes(16, "big"),
            **given,
        )
        self.value, self.version, self.now = value, 1, 0.0
        self.answers: Callable[[Swap], str] = lambda swap: "done"
        self.is_away = is_away
        self.log: list[Action] = []
        self.do(self.rules.started(0.0))

    def do(self, actions: list[Action]) -> Node:
        """Carry actions out, at once."""
        self.log += actions
        for action in actions:
            if isinstance(action, Read):
                self.do(
                    self.rules.register_away(self.now)
                    if self.is_away
                    else self.rules.register_read(self.value, self.version, self.now)
                )
            elif isinstance(action, Swap):
                self.do(self._swapped(action))
        return self

    def _swapped(self, swap: Swap) -> list[Action]:
        outcome = "unknown" if self.is_away else self.answers(swap)
        is_current = swap.version == self.version
        if outcome in ("done", "lost answer") and is_current:
            self.value, self.version = swap.value, self.version + 1
        if outcome != "done":
            return self.rules.swap_unknown(self.now)
        if is_current:
            return self.rules.swap_done(self.version, self.now)
        return self.rules.swap_refused(self.now)

    def wait(self, seconds: float, *, answered: bool = False, heard: int = 0) -> Node:
        """Let time pass in steps, with a standby that answers, or a primary that is heard."""
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            if answered:
                self.do(self.rules.peer_answered(self.now, self.now))
            if heard:
                self.do(self.rules.peer_heard(heard, self.now))
            self.do(self.rules.tick(self.now))
        return self

    def greeted(self, name: str, history: History = HISTORY, serves: int = 0, level: Level = LEVEL) -> Node:
        member = MEMBERS[name]
        report = Report(PAIR, name, member.replica, level, history, serves)
        return self.do(self.rules.peer_greeted(report, self.now))

    def took(self, kind: type[Action]) -> list[Action]:
        return [one for one in self.log if isinstance(one, kind)]

    def changed(self, value: PairValue) -> Node:
        """Another one changes the register."""
        self.value, self.version = replace(value, change=b"x" * 16), self.version + 1
        return self


def primary(mode: Mode = Mode.SYNC) -> Node:
    """A primary whose standby is in sync, by its own swap."""
    return Node("a", SYNC, mode=mode).greeted("b")


def followed(node: Node) -> Node:
    """The standby gets all in order."""
    return node.do(node.rules.peer_synced(10, 10, node.now))


def standby(value: PairValue = SYNC, **options: bool) -> Node:
    return Node("b", value, **options)


def test_nobody_serves_before_a_swap_of_its_own_that_begins_a_timeline() -> None:
    node = Node("a", ALONE)
    assert [type(one) for one in node.log] == [Read, Swap, Serve]
    assert node.value is not None
    assert (node.value.timeline, node.value.in_sync) == (2, ("a",))
    assert node.took(Serve) == [Serve(2)]
    refused = Node("a", ALONE, is_away=True).wait(9)
    assert refused.rules.role is Role.WAITING
    assert not refused.took(Serve)


def test_a_primary_counts_each_value_that_may_be_in_force() -> None:
    node = Node("a", ALONE).greeted("b")
    assert node.rules.counts() == {"a"}
    node.is_away = True
    node.do(node.rules.peer_synced(5, 6, node.now))
    assert node.rules.counts() == {"a", "b"}, "from before its adding is sent"
    assert len(node.took(Swap)) == 1, "it has not all that is released"
    node.do(node.rules.peer_synced(6, 6, node.now))
    assert len(node.took(Swap)) == 2
    node.wait(3.5)
    assert node.rules.counts() == {"a", "b"}, "its adding may be done later"
    node.is_away = False
    node.wait(1)
    assert node.rules.counts() == {"a"}
    assert node.value is not None
    assert node.value.in_sync == ("a",)


def test_a_dropped_standby_counts_until_that_is_known() -> None:
    node = primary()
    node.answers = lambda swap: "lost answer"
    node.wait(3.0)
    assert node.rules.counts() == {"a", "b"}
    node.now += 0.25
    node.answers = lambda swap: "lost"
    node.do(node.rules.tick(node.now))
    assert node.rules.counts() == {"a", "b"}
    node.answers = lambda swap: "done"
    node.wait(1)
    assert node.rules.counts() == {"a"}


def test_a_swap_that_was_done_without_an_answer_is_known_by_its_change() -> None:
    node = standby()
    node.answers = lambda swap: "lost answer"
    node.wait(6.5)
    assert node.took(Serve) == [Serve(2)]
    assert len(node.took(Swap)) == 1


def test_after_a_refused_swap_nothing_is_confirmed_before_the_register_is_read() -> None:
    node = primary()
    node.wait(3.0)
    assert node.value is not None
    node.changed(replace(node.value, timeline=3, primary="b", in_sync=("b",)))
    [swap] = node.rules.tick(3.25)
    assert isinstance(swap, Swap)
    assert node.rules.counts() == {"a", "b"}
    assert node.rules.swap_refused(3.25) == [Read()]
    assert node.rules.counts() == {"a", NOBODY}
    node.do(node.rules.register_read(node.value, node.version, 3.25))
    assert [type(one) for one in node.log[-2:]] == [StopServing, Follow]
    assert node.rules.counts() == {"a", NOBODY}


def test_a_primary_goes_on_where_another_change_made_its_swap_refused() -> None:
    node = primary()
    assert node.value is not None
    node.changed(replace(node.value, members={**MEMBERS, "b": replace(MEMBERS["b"], link="tcp://c:1")}))
    node.wait(3.5)
    assert not node.took(StopServing)
    assert node.rules.counts() == {"a"}
    assert node.value.members["b"].link == "tcp://c:1"


@pytest.mark.parametrize(
    ("value", "serves"),
    [
        (SYNC, True),
        (ALONE, False),
        (replace(SYNC, members={**MEMBERS, "a": replace(MEMBERS["a"], level=Level(8, 17, 1))}), False),
    ],
    ids=["in sync", "not in sync", "lower level"],
)
def test_only_a_member_in_sync_takes_over(value: PairValue, serves: bool) -> None:
    node = standby(value).wait(5.0)
    assert not node.took(Swap)
    node.wait(0.5)
    assert bool(node.took(Serve)) is serves
    if serves:
        assert node.value is not None
        assert (node.value.timeline, node.value.primary, node.value.in_sync) == (2, "b", ("b",))


def test_a_standby_waits_shorter_where_its_primary_refuses_the_connection() -> None:
    node = standby()
    node.wait(2, heard=1)
    node.do(node.rules.connection_refused(node.now)).wait(1.0)
    assert not node.took(Serve)
    node.wait(0.25)
    assert node.took(Serve)
    heard = standby().wait(1, heard=1)
    heard.do(heard.rules.connection_refused(heard.now)).wait(5, heard=1)
    assert not heard.took(Swap)


def test_a_primary_that_sent_its_clients_away_is_not_heard() -> None:
    node = standby().wait(6, heard=0)
    assert node.took(Serve)


def test_a_primary_drops_a_silent_standby_and_else_sends_its_clients_away() -> None:
    node = primary().wait(9, answered=True)
    assert len(node.took(Swap)) == 1
    node.is_away = True
    node.wait(4.0)
    assert len(node.took(Swap)) == 2
    assert not node.took(CloseClients)
    node.wait(0.25)
    assert node.took(CloseClients)
    assert node.rules.announces == 0
    node.is_away = False
    node.wait(1.0)
    assert node.took(OpenClients)
    assert (node.rules.counts(), node.rules.announces) == ({"a"}, 2)


def test_a_standby_that_answers_and_does_not_sync_is_dropped() -> None:
    node = primary()
    for _ in range(13):
        node.now += 0.25
        node.do(node.rules.peer_answered(node.now, node.now))
        node.do(node.rules.tick(node.now, unsynced_since=0.0))
    assert node.rules.counts() == {"a"}


def test_a_standby_that_says_goodbye_is_dropped_at_once() -> None:
    node = primary()
    node.do(node.rules.peer_left(node.now))
    assert node.rules.counts() == {"a"}
    node.do(node.rules.peer_synced(99, 0, node.now))
    assert node.rules.counts() == {"a"}, "an answer from before its goodbye"
    node.greeted("b").do(node.rules.peer_synced(99, 99, node.now))
    assert node.value is not None
    assert node.value.in_sync == ("a", "b")


def test_nobody_waits_for_a_standby_that_copies() -> None:
    node = followed(primary())
    node.do(node.rules.peer_catches_up(node.now))
    assert node.rules.counts() == {"a"}
    assert followed(node).rules.counts() == {"a", "b"}


def test_a_standby_whose_disk_was_set_back_is_dropped_at_once() -> None:
    node = followed(primary())
    node.greeted("b", HISTORY._replace(lsn=10))
    assert node.rules.counts() == {"a", "b"}
    node.greeted("b", HISTORY._replace(lsn=9))
    assert node.rules.counts() == {"a"}
    assert followed(node).rules.counts() == {"a", "b"}


@pytest.mark.parametrize("value", [SYNC, replace(SYNC, primary="b")], ids=["standby", "primary"])
def test_half_a_catch_up_never_serves(value: PairValue) -> None:
    node = Node("b", None, is_away=True)
    node.rules.is_whole = node.is_away = False
    node.value = value
    node.wait(9)
    assert not node.took(Serve)
    assert "not whole" in node.rules.reason
    node.rules.is_whole = True
    assert node.wait(9).took(Serve)


def test_strict_is_never_alone_and_async_never_waits() -> None:
    strict = Node("a", replace(ALONE, members={"a": MEMBERS["a"]}), mode=Mode.STRICT)
    assert strict.rules.counts() == {"a", NOBODY}
    strict = primary(mode=Mode.STRICT).wait(9)
    assert strict.rules.counts() == {"a", "b"}
    assert strict.took(CloseClients)
    strict.wait(1, answered=True)
    assert strict.took(OpenClients)
    free = primary(mode=Mode.ASYNC)
    free.do(free.rules.peer_synced(10, 10, free.now)).wait(9)
    assert free.rules.counts() == {"a"}
    assert not free.took(CloseClients)
    assert free.value is not None
    other = standby(replace(free.value, change=b"y" * 16)).wait(9)
    assert not other.took(Swap)
    other.do(other.rules.promote_asked(other.now))
    assert other.took(Serve) == [Serve(3, incarnation=True)]


def test_a_register_that_is_away_stops_nobody_at_work_and_nobody_starts() -> None:
    node = primary()
    node.is_away = True
    node.wait(30, answered=True)
    assert node.rules.counts() == {"a", "b"}
    assert not node.took(StopServing) + node.took(CloseClients)
    assert [one.is_loud for one in node.took(Say) if isinstance(one, Say)] == [True]
    started = Node("a", SYNC, is_away=True).wait(30)
    assert started.rules.role is Role.WAITING
    back = standby(is_away=True).greeted("a", serves=1)
    assert back.took(Follow) == [Follow("a")]


def test_an_emptied_register_ends_the_service_until_it_is_made_again() -> None:
    node = primary().changed(SYNC)
    node.value = None
    node.wait(4, answered=True)
    assert [type(one) for one in node.log if isinstance(one, StopServing)] == [StopServing]
    assert "malamute pair create" in node.rules.reason
    node.changed(replace(SYNC, timeline=7)).wait(4)
    assert node.took(Serve)[-1] == Serve(8)


def test_a_register_with_something_else_ends_the_service_and_no_standby_takes_over() -> None:
    node = primary()
    node.do(node.rules.register_refused("register value of no pair", node.now))
    assert node.took(StopServing) == [StopServing("register value of no pair")]
    assert node.rules.counts() == {"a", NOBODY}
    other = standby().wait(1, heard=1)
    other.do(other.rules.register_refused("register value of no pair", other.now))
    other.value = None
    assert not other.wait(9).took(Swap)


def test_a_start_behind_the_standby_hands_over() -> None:
    node = Node("a", SYNC).greeted("b", History((Began(1, 1),), 11))
    assert node.value is not None
    assert (node.value.primary, node.value.in_sync, node.value.timeline) == ("b", ("b",), 2)
    assert not node.took(Serve)
    assert node.took(Follow) == [Follow("b")]
    lonely = Node("a", SYNC).wait(3.0)
    assert not lonely.took(Swap), "it gives the standby a lease to say how far it has come"
    assert lonely.wait(0.25).took(Serve)


def test_a_disk_that_hangs_hands_over_after_ten_seconds() -> None:
    node = followed(primary().wait(1, answered=True))
    node.do(node.rules.disk_waits(9.9, node.now))
    assert not node.took(StopServing)
    node.do(node.rules.disk_waits(10.0, node.now))
    assert [type(one) for one in node.log[-2:]] == [StopServing, Follow]
    assert node.value is not None
    assert (node.value.primary, node.value.in_sync) == ("b", ("b",))


def test_a_switch_over_leaves_both_in_sync_and_the_other_serves() -> None:
    node = followed(primary().wait(1, answered=True))
    node.do(node.rules.switch_asked(node.now))
    assert node.log[-1] == StopIntake()
    assert len(node.took(Swap)) == 1
    node.do(node.rules.drained(node.now))
    assert [type(one) for one in node.log[-2:]] == [StopServing, Follow]
    assert node.value is not None
    assert (node.value.primary, node.value.in_sync, node.value.timeline) == ("b", ("b", "a"), 3)
    heir = standby(SYNC).wait(1, heard=1)
    heir.changed(node.value).do(heir.rules.handed_over(heir.now)).greeted("a")
    assert heir.took(Serve) == [Serve(4)]
    alone = Node("a", ALONE)
    alone.do(alone.rules.switch_asked(alone.now))
    assert not alone.took(StopIntake)


def test_a_switch_over_whose_standby_dies_ends_in_a_new_start() -> None:
    node = followed(primary().wait(1, answered=True))
    node.do(node.rules.switch_asked(node.now)).wait(11)
    assert len(node.took(StopServing)) == 1
    assert len(node.took(Serve)) == 2
    assert node.rules.counts() == {"a"}


def test_a_primary_stops_when_the_other_one_serves_in_a_later_timeline() -> None:
    node = primary()
    node.do(node.rules.peer_heard(2, node.now))
    assert not node.took(StopServing)
    node.is_away = True
    node.do(node.rules.peer_heard(3, node.now))
    assert node.took(StopServing)


def test_a_newer_primary_drops_a_standby_that_does_not_read_what_it_writes() -> None:
    newer = Level(8, 17, 1)
    node = Node("a", SYNC, member=replace(MEMBERS["a"], level=newer)).greeted("b")
    assert node.rules.counts() == {"a"}
    report = Report(PAIR, "b", MEMBERS["b"].replica, LEVEL, HISTORY)
    assert "expected format 8" in node.rules.refusal(report)
    assert not node.rules.refusal(report._replace(level=newer))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replica": MEMBERS["a"].replica}, "a copy of this directory"),
        ({"name": "a"}, "both nodes are a"),
        ({"pair": b"q" * 16}, "of pair 7171"),
        ({"name": "c"}, "no member"),
        ({"replica": b"z" * 16}, "another directory"),
    ],
)
def test_a_greeting_of_a_stranger_is_refused_in_words(changes: dict[str, object], said: str) -> None:
    report = Report(PAIR, "b", MEMBERS["b"].replica, LEVEL, HISTORY)
    assert not primary().rules.refusal(report)
    assert said in primary().rules.refusal(report._replace(**changes))


def test_two_nodes_created_at_once_are_one_pair() -> None:
    """The register takes one `create`: the other node finds a pair that it is no member of."""
    first = state.created(PAIR, "a", MEMBERS["a"], 1, b"1" * 16)
    second = Node("b", first, pair=b"q" * 16)
    assert not second.took(Swap)
    assert "expected 7171" in second.rules.reason


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (PairTimes(takeover=3.0), "expected at least 1.25 leases and two heartbeats, 4.75 s"),
        (PairTimes(takeover=4.74), "4.75 s"),
        (PairTimes(lease=0.9), "expected at least 1 s"),
        (PairTimes(heartbeat=2.0), "two heartbeats"),
        (PairTimes(refused=0.0), "more than 0"),
    ],
)
def test_a_standby_may_not_take_over_before_the_lease_is_over(times: PairTimes, said: str) -> None:
    check_times(PairTimes(takeover=4.75))
    with pytest.raises(InvalidValue, match=said):
        check_times(times)
