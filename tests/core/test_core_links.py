"""Links: messages of another broker come once, and their place in its stream is stored with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from core_bench import Bench, chunks, subscribe
from test_core_feed_rights import configure

from malamute.core.link.table import LOST
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import HOPS_MAX, LINKS_MAX, URLS_MAX, WAYS_MAX
from malamute.protocol.messages import Answer, Change, Error, Forward, Ok, Query, Stored
from malamute.store.operations import DeleteValue, Stranded
from malamute.store.tables import LINK_POSITIONS, LINKS

STORE = "ab" * 16
OTHER = "cd" * 16
LINK = {"link": "edge", "urls": ["tcp://edge:9999"], "remote": "s", "stream": "s"}


def at(sequence: int, store: str = STORE) -> str:
    return f"{sequence}@{store}"


def change(bench: Bench, topic: str, who: str = "alice", **arguments: Any) -> Any:
    """The answer to a change, once it is stored."""
    bench.settle()
    bench.sent(who)
    bench.tell(who, Change(0, topic, {"link": "edge", **arguments}))
    bench.settle()
    (answer,) = [m for m in bench.sent(who) if isinstance(m, Ok | Error)]
    return answer.value if isinstance(answer, Ok) else answer


def ask(bench: Bench, topic: str, who: str = "alice", **arguments: Any) -> Any:
    (answer,) = bench.ask(who, Query(1, topic, arguments))
    return answer.value if isinstance(answer, Answer) else answer


def linked(bench: Bench | None = None, **more: Any) -> tuple[Bench, int]:
    """A broker with a link, and its generation."""
    bench = bench or Bench()
    bench.open("alice", "bob")
    return bench, int(change(bench, "link.set", **{**LINK, **more})["generation"])


def forward(generation: int, number: int, after: str, upto: str, *bodies: bytes, **more: Any) -> Forward:
    bodies = bodies or (b"m",)
    records = [pack_record(None, body) for body in bodies]
    subjects, senders = ["a"] * len(bodies), ["origin"] * len(bodies)
    return Forward("s", number, subjects, records, "edge", generation, after, upto, senders)._replace(**more)


def told(bench: Bench, who: str, *messages: Forward) -> list[Any]:
    """The outcomes of commands: their numbers, or the codes of the errors."""
    bench.sent(who)
    bench.tell(who, *messages)
    bench.settle()
    return outcomes(bench, who)


def outcomes(bench: Bench, who: str) -> list[Any]:
    found: list[Any] = []
    for message in bench.sent(who):
        if isinstance(message, Stored):
            found += [n for first, last, _ in message.ranges for n in range(first, last + 1)]
        elif isinstance(message, Error):
            found.append(message.code)
    return found


def bodies(bench: Bench) -> list[bytes]:
    return [body for _, body in chunks(bench.store)]


def position(bench: Bench) -> str:
    return str(ask(bench, "link", link="edge")["position"])


# --- messages and positions


def test_messages_keep_their_senders_and_move_the_position_in_one_commit() -> None:
    bench, generation = linked()
    bench.tell("bob", subscribe(committed=True))
    bench.settle()
    bench.tell("alice", forward(generation, 1, "", at(7), b"x", b"y"))
    (append,) = bench.appends
    kinds = [getattr(operation, "table", type(operation).__name__) for operation in append.operations]
    assert {"AppendChunk", LINK_POSITIONS} <= {*kinds}
    bench.settle()
    assert outcomes(bench, "alice") == [1]
    assert [(item.body, item.sender) for item in bench.got("bob")] == [(b"x", "origin"), (b"y", "origin")]
    assert position(bench) == at(7)


def test_messages_are_refused_unless_the_link_stands_before_them() -> None:
    bench, generation = linked()
    assert told(bench, "alice", forward(generation, 1, "", at(1))) == [1]
    # As another runner would send it that does not know of the first.
    assert told(bench, "bob", forward(generation, 1, "", at(1))) == [412]
    assert told(bench, "bob", forward(generation, 2, at(1), at(2), b"n")) == [2]
    assert told(bench, "alice", forward(generation, 2, at(1), at(2), b"n")) == [412]
    assert bodies(bench) == [b"m", b"n"]


def test_commands_may_follow_each_other_and_all_fail_with_the_first() -> None:
    bench, generation = linked()
    bench.sent("alice")
    bench.tell("alice", forward(generation, 1, "", at(1), b"1"))
    bench.tell("alice", forward(generation, 2, at(1), at(2), b"2"))
    bench.fail()
    bench.tell("alice", forward(generation, 3, at(2), at(3), b"3"))
    bench.settle()
    assert outcomes(bench, "alice") == [507, 507, 507]
    assert (bodies(bench), position(bench)) == ([], "")
    assert told(bench, "alice", forward(generation, 4, "", at(1), b"1")) == [4]
    assert bodies(bench) == [b"1"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_keeps_both_the_message_and_the_position_or_neither(committed: bool) -> None:
    bench, generation = linked()
    assert told(bench, "alice", forward(generation, 1, "", at(4), b"1")) == [1]
    bench.tell("alice", forward(generation, 2, at(4), at(5), b"2"))
    if committed:
        bench.settle()
    bench.crash()
    bench.open("carol")
    assert bodies(bench) == [b"1", b"2"][: 1 + committed]
    assert ask(bench, "link", "carol", link="edge")["position"] == at(4 + committed)
    again = forward(generation, 1, at(4), at(5), b"2")
    assert told(bench, "carol", again) == [412 if committed else 1]
    assert bodies(bench) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"generation": 1}, 412),
        ({"after": at(9)}, 412),
        ({"link": "none"}, 404),
        ({"stream": "other"}, 404),
        ({"upto": "7"}, 416),
        ({"upto": at(4)}, 416),
        ({"upto": at(3)}, 416),
        ({"upto": at(9, OTHER)}, 416),
    ],
)
def test_a_command_that_does_not_fit_its_link_changes_nothing(wrong: dict[str, Any], code: int) -> None:
    bench, generation = linked()
    assert told(bench, "alice", forward(generation, 1, "", at(4))) == [1]
    assert told(bench, "alice", forward(generation, 2, at(4), at(5))._replace(**wrong)) == [code]
    assert (bodies(bench), position(bench)) == ([b"m"], at(4))


def test_a_restored_source_goes_on_with_lower_sequences() -> None:
    bench, generation = linked()
    assert told(bench, "alice", forward(generation, 1, "", at(9))) == [1]
    restored = f"{STORE}.4"
    assert told(bench, "alice", forward(generation, 2, at(9), at(3, restored))) == [2]
    assert position(bench) == at(3, restored)


# --- settings


def test_another_setting_goes_on_where_the_link_was_and_refuses_the_earlier_runner() -> None:
    bench, generation = linked()
    told(bench, "alice", forward(generation, 1, "", at(4)))
    again = change(bench, "link.set", **{**LINK, "urls": ["tcp://elsewhere:9999", "ipc:///run/x"]})
    assert (again["position"], "created" in again) == (at(4), False)
    assert told(bench, "alice", forward(generation, 2, at(4), at(5))) == [412]
    assert told(bench, "alice", forward(again["generation"], 3, at(4), at(5))) == [3]
    anew = change(bench, "link.set", **LINK, start="first")
    assert anew["position"] == ""


def test_a_link_that_is_removed_and_set_again_is_of_another_generation() -> None:
    bench, generation = linked()
    told(bench, "alice", forward(generation, 1, "", at(4)))
    assert isinstance(change(bench, "link.remove", stream="s"), dict)
    assert told(bench, "alice", forward(generation, 2, at(4), at(5))) == [404]
    bench.wait(0.001)
    assert change(bench, "link.set", **LINK)["position"] == ""
    assert told(bench, "alice", forward(generation, 3, "", at(5))) == [412]
    assert bench.events[-2:] == ["link.removed.edge", "link.created.edge"]


def test_a_paused_link_takes_nothing_over_restarts_and_goes_on_where_it_was() -> None:
    bench, generation = linked()
    told(bench, "alice", forward(generation, 1, "", at(4)))
    assert change(bench, "link.pause", stream="s")["state"] == "paused"
    bench.restart()
    bench.open("carol")
    assert told(bench, "carol", forward(generation, 1, at(4), at(5))) == [412]
    resumed = change(bench, "link.resume", "carol", stream="s")
    assert resumed["generation"] > generation
    assert told(bench, "carol", forward(resumed["generation"], 2, at(4), at(5))) == [2]


def test_a_runner_moves_a_link_to_its_beginning_over_a_gap_and_stops_it() -> None:
    bench, generation = linked()
    move = {"stream": "s", "generation": generation}
    assert change(bench, "link.advance", **move, after="", upto=at(0))["position"] == at(0)
    gap = change(bench, "link.advance", **move, after=at(0), upto=at(8), gap="overwritten")
    assert gap["position"] == at(8)
    assert ask(bench, "link", link="edge")["gaps"] == {"overwritten": 1}
    assert change(bench, "link.advance", **move, after=at(0), upto=at(9)).code == 412
    assert change(bench, "link.stop", **move, reason="another broker")["state"] == "stopped"
    assert told(bench, "alice", forward(generation, 1, at(8), at(9))) == [412]
    assert change(bench, "link.resume", stream="s").code == 416
    assert change(bench, "link.set", **LINK)["state"] == "waiting"


def test_a_refused_setting_leaves_the_link_and_the_stream_as_they_were() -> None:
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", Change(0, "link.set", LINK))
    bench.fail()
    bench.settle()
    assert ask(bench, "link", link="edge").code == 404
    assert "s" not in bench.core.streams.by_name
    linked(bench)
    assert bench.core.streams.by_name["s"].feeds == 1
    bench.tell("alice", Change(0, "link.remove", {"link": "edge", "stream": "s"}))
    bench.fail()
    bench.settle()
    assert ask(bench, "link", link="edge")["state"] == "waiting"
    assert isinstance(change(bench, "link.remove", stream="s"), dict)
    assert "s" not in bench.core.streams.by_name


BAD: list[tuple[dict[str, Any], int]] = [
    ({"urls": []}, 416),
    ({"urls": ["tcp://h:1"] * (URLS_MAX + 1)}, 416),
    ({"urls": ["edge:9999"]}, 416),
    ({"urls": ["tcp://ann:secret@edge:9999"]}, 416),
    ({"urls": ["tcp://h:9999\n"]}, 416),
    ({"remote": ""}, 414),
    ({"stream": "$sys"}, 401),
    ({"stream": "no-journal"}, 416),
    ({"criteria": [["nothing", "x"]]}, 0),
    ({"criteria": []}, 416),
    ({"where": "a >"}, 0),
    ({"start": "last-per-subject"}, 416),
    ({"start": "seq:x"}, 416),
    ({"context": 7}, 416),
]


@pytest.mark.parametrize(("wrong", "code"), BAD)
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, Any], code: int) -> None:
    bench = Bench(no_journal=("no-journal",))
    bench.open("alice")
    refused = change(bench, "link.set", **{**LINK, **wrong})
    assert isinstance(refused, Error)
    assert code in (0, refused.code), refused
    assert ask(bench, "links") == []
    assert "s" not in bench.core.streams.by_name


def test_the_limits_of_a_link_hold_and_so_does_that_of_all() -> None:
    bench, _ = linked(urls=["tcp://h:1"] * URLS_MAX)
    rules = bench.core.links.rules
    for number in range(LINKS_MAX - 1):
        rules[f"more-{number}"] = rules["edge"]
    assert change(bench, "link.set", **{**LINK, "link": "one-more"}).code == 429
    del rules["more-0"]
    assert change(bench, "link.set", **{**LINK, "link": "one-more"})["created"]


def test_another_source_needs_a_start_and_another_target_another_name() -> None:
    bench, _ = linked()
    assert change(bench, "link.set", **{**LINK, "remote": "t"}).code == 416
    assert change(bench, "link.set", **{**LINK, "stream": "t"}).code == 416
    assert change(bench, "link.set", **{**LINK, "remote": "t", "start": "first"})["position"] == ""


def test_a_stream_stays_while_a_link_goes_into_it() -> None:
    bench, generation = linked()
    told(bench, "alice", forward(generation, 1, "", at(4)))
    for cascade in (False, True):
        refused = change_of_stream(bench, cascade=cascade)
        assert refused.code == 423
        assert "1 link: edge" in refused.text
    change(bench, "link.remove", stream="s")
    assert isinstance(change_of_stream(bench, cascade=False), dict)


def change_of_stream(bench: Bench, *, cascade: bool) -> Any:
    bench.sent("alice")
    bench.tell("alice", Change(0, "stream.delete", {"stream": "s", "cascade": cascade}))
    bench.settle()
    (answer,) = [m for m in bench.sent("alice") if isinstance(m, Ok | Error)]
    return answer.value if isinstance(answer, Ok) else answer


# --- damage


def test_a_link_whose_position_is_lost_stops_until_it_is_set_again() -> None:
    bench, generation = linked()
    told(bench, "alice", forward(generation, 1, "", at(4)))
    bench.store.write([DeleteValue(LINK_POSITIONS, ("edge",))])
    bench.crash()
    bench.open("carol")
    row = ask(bench, "link", "carol", link="edge")
    assert (row["state"], row["reason"]) == ("stopped", LOST)
    assert told(bench, "carol", forward(generation, 1, "", at(4))) == [412]
    assert change(bench, "link.set", "carol", **LINK, start="seq:5")["state"] == "waiting"


def test_values_that_the_store_has_lost_are_stored_once_more() -> None:
    bench, generation = linked()
    told(bench, "alice", forward(generation, 1, "", at(4)))
    bench.store.write([DeleteValue(LINK_POSITIONS, ("edge",)), DeleteValue(LINKS, ("edge",))])
    bench.core.links.store_again(Stranded({}, [(LINKS, ("edge",)), (LINK_POSITIONS, ("edge",))]))
    bench.settle()
    bench.crash()
    bench.open("alice")
    assert position(bench) == at(4)


# --- rights

SETTER = ("receive mailbox/#", "admin stream/s", "link stream/s", "view broker/#")


def test_the_right_to_link_is_needed_to_set_a_link_and_to_carry_and_ends_with_it() -> None:
    bench = Bench()
    bench.open("alice")
    bench.settle()
    configure(bench, everybody=("receive mailbox/#", "admin stream/s", "publish stream/s"))
    assert change(bench, "link.set", **LINK).code == 401
    configure(bench, everybody=SETTER)
    generation = change(bench, "link.set", **LINK)["generation"]
    assert told(bench, "alice", forward(generation, 1, "", at(1))) == [1]
    configure(bench, everybody=("receive mailbox/#", "link stream/s/b", "admin stream/s", "view broker/#"))
    assert told(bench, "alice", forward(generation, 2, at(1), at(2))) == [401]
    configure(bench, everybody=("receive mailbox/#", "view broker/#"))
    row = ask(bench, "link", link="edge")
    assert row["state"] == "stopped"
    assert "not allowed" in row["reason"]
    assert told(bench, "alice", forward(generation, 3, at(1), at(2))) == [401]


# --- reports and circles


def report(bench: Bench, generation: int, who: str = "alice", **more: Any) -> Any:
    given = {"link": "edge", "stream": "s", "generation": generation, "broker": STORE, **more}
    return ask(bench, "link.report", who, **given)


def test_the_row_of_a_link_has_its_last_report_while_that_counts() -> None:
    bench, generation = linked()
    assert ask(bench, "link", link="edge")["state"] == "waiting"
    assert report(bench, generation, lag=7, lag_ms=1500)["state"] == "running"
    row = ask(bench, "links")[0]
    assert (row["state"], row["lag"], row["lag_seconds"]) == ("running", 7, 1.5)
    assert report(bench, generation, trouble="refused")["state"] == "running"
    row = ask(bench, "link", link="edge")
    assert (row["state"], row["reason"]) == ("away", "refused")
    bench.lost("alice")
    assert ask(bench, "link", "bob", link="edge")["state"] == "waiting"
    assert [event for event in bench.events if event.startswith("link.")] == [
        "link.created.edge",
        "link.running.edge",
        "link.away.edge",
    ]


def test_a_runner_of_another_generation_learns_the_present_one() -> None:
    bench, generation = linked()
    again = change(bench, "link.set", **LINK)["generation"]
    assert report(bench, generation)["generation"] == again
    assert ask(bench, "link", link="edge")["state"] == "waiting"


def own(bench: Bench) -> str:
    return bench.core.streams.broker


def test_a_link_to_its_own_source_is_stopped_before_its_first_message() -> None:
    bench, generation = linked()
    verdict = report(bench, generation, broker=own(bench))
    assert verdict["state"] == "stopped"
    here = f"s at {own(bench)[:8]}"
    assert verdict["reason"] == f"it would close a circle: {here} > link edge > {here}"
    assert told(bench, "alice", forward(generation, 1, "", at(1))) == [412]


@pytest.mark.parametrize("newest_is_here", [False, True])
def test_of_a_circle_the_newest_link_is_stopped(newest_is_here: bool) -> None:
    bench, generation = linked()
    there = generation + (-1 if newest_is_here else 1)
    way = [[own(bench), "s", "link there", there]]
    verdict = report(bench, generation, ways=[way])
    assert verdict["state"] == ("stopped" if newest_is_here else "running")
    if newest_is_here:
        assert "> link there > s at abababab > link edge >" in verdict["reason"]


def test_the_origin_of_a_stream_goes_over_links_and_feeds() -> None:
    bench, generation = linked()
    report(bench, generation, ways=[[[OTHER, "far", "link far", 5]]])
    bench.tell("alice", Change(0, "feed.set", {"source": "stream/s", "feed": "f", "target": "stream/t"}))
    bench.settle()
    bench.sent("alice")
    origin = ask(bench, "link.origin", stream="t")
    near = [STORE, "s", "link edge", generation]
    fed = [own(bench), "s", "feed f", 0]
    assert origin["broker"] == own(bench)
    assert origin["ways"] == [[fed], [near, fed], [[OTHER, "far", "link far", 5], near, fed]]
    change(bench, "link.pause", stream="s")
    assert ask(bench, "link.origin", stream="t")["ways"] == [[fed]]


@pytest.mark.parametrize(
    "ways",
    [
        [[]],
        [[["x", "s", "link", "1"]]],
        [[["x", "s", "link"]]],
        [[["x", "s", "link", 1]] * (HOPS_MAX + 1)],
        [[["x", "s", "link", 1]]] * (WAYS_MAX + 1),
    ],
)
def test_ways_that_are_none_are_refused(ways: Sequence[Any]) -> None:
    bench, generation = linked()
    assert report(bench, generation, ways=ways).code == 416


@pytest.mark.parametrize("past", [0, 1])
@pytest.mark.parametrize("what", ["hops", "places"])
def test_a_link_whose_ways_have_no_room_in_a_report_is_stopped(what: str, past: int) -> None:
    bench, generation = linked()
    hop = ["x", "s", "link", 1]
    ways = [[hop] * (HOPS_MAX - 1 + past)] if what == "hops" else [[hop]] * (WAYS_MAX - 1 + past)
    verdict = report(bench, generation, ways=ways)
    assert verdict["state"] == ("stopped" if past else "running")
    assert "too far" in verdict["reason"] if past else verdict["reason"] == ""
