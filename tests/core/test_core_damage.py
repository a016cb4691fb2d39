"""A damaged store: what is known here is stored again, what is lost is reported, and nothing begins anew."""

from __future__ import annotations

import pytest
from core_bench import Bench, mail_credit, offer, peer_id, publish, reply, request, send, subscribe

from malamute.core.broker import Core
from malamute.core.iteration.health import PROBE_SECONDS
from malamute.core.queue.dead_letters import UNREADABLE
from malamute.core.queue.state import DELAYED
from malamute.errors import CursorLost, StorageFull, StoreError
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import (
    Change,
    Commit,
    Error,
    Gap,
    Hello,
    Nak,
    Ok,
    Ping,
    Reject,
    Request,
    Welcome,
)
from malamute.store.operations import Defect, PutMessages, PutValue, Stranded
from malamute.store.tables import CURSORS, NUMBERS, SESSIONS


def served(bench: Bench) -> Bench:
    """A mailbox with two messages of a session, and a stream with a cursor."""
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", number=1), send("bob", b"2", number=2), publish(b"x"))
    bench.settle()
    bench.tell("alice", Commit("s", 3, "c", 1))
    bench.settle()
    return bench


def again(bench: Bench, **changes) -> None:
    """The next broker on what the store gives, with changes to that."""
    bench.core = Core(bench.now, bench.settings, bench.store.recover()._replace(**changes))
    bench.appends.clear()


def test_what_was_in_a_block_that_cannot_be_read_is_stored_again_from_memory():
    bench = served(Bench())
    values = [(SESSIONS, (peer_id("alice"), NUMBERS)), (SESSIONS, (b"nobody", NUMBERS))]
    values += [(CURSORS, ("s", "c")), (CURSORS, ("s", "d"))]
    stranded = Stranded({("mailbox", "bob"): [1, 7]}, values)
    bench.core.damaged([Defect("block", "", 3, 3, "told", stranded)], bench.now)
    operations = [o for append in bench.core.ready().appends for o in append.operations]
    puts = [(o.first, o.last) for o in operations if type(o) is PutMessages and o.queue == "bob"]
    assert puts == [(1, 1)]
    assert PutValue(CURSORS, ("s", "c"), 1) in operations
    assert {o.key[0] for o in operations if type(o) is PutValue and o.table == SESSIONS} == {peer_id("alice")}
    assert bench.core.health.damages == 1


def found_damaged(bench: Bench, stranded: Stranded) -> None:
    bench.core.damaged([Defect("block", "", 3, 3, "told", stranded)], bench.now)
    bench.settle()


def test_identities_in_a_block_that_cannot_be_read_are_known_after_a_restart():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", number=1, id="i1"))
    bench.settle()
    name = "mailbox", "bob"
    bench.store._queues[name].identities.clear()
    found_damaged(bench, Stranded({}, (), {name: ["i1", "i2"], ("mailbox", "nobody"): ["i1"]}))
    bench.restart()
    bench.open("carol")
    bench.tell("carol", send("bob", b"2", number=1, id="i1"))
    bench.settle()
    assert [*bench.core.mailboxes.by_name["bob"].entries] == [1]


def test_a_delayed_message_in_a_block_that_cannot_be_read_is_delayed_after_a_restart():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", send("bob", b"1", number=1))
    bench.settle()
    bench.tell("bob", mail_credit())
    bench.settle()
    bench.tell("bob", Nak(0, [[1, 1]], 60_000))
    bench.settle()
    found_damaged(bench, Stranded({("mailbox", "bob"): [1]}))
    bench.restart()
    assert bench.core.mailboxes.by_name["bob"].entries[1].state == DELAYED


def feed_cursors(change: Change) -> dict[tuple[str, str], int]:
    """What the store has when a feed at 4 is changed while the position it had is found damaged."""
    bench = Bench()
    bench.open("alice")
    bench.tell("alice", publish(b"1", b"2", b"3", b"4"))
    bench.settle()
    bench.tell(
        "alice",
        Change(
            0,
            "feed.set",
            {"source": "stream/s", "feed": "w", "target": "service/w", "criteria": [["topic", "z"]]},
        ),
    )
    bench.settle()
    assert bench.store.recover().table(CURSORS) == {("s", "$feed/w"): 4}
    bench.core.receive(peer_id("alice"), change, bench.now)
    found_damaged(bench, Stranded({}, [(CURSORS, ("s", "$feed/w"))]))
    return dict(bench.store.recover().table(CURSORS))


def test_the_position_that_is_set_of_a_feed_is_not_overwritten_by_the_one_that_is_stored_again():
    arguments = {
        "source": "stream/s",
        "feed": "w",
        "target": "service/w",
        "criteria": [["topic", "z"]],
        "start": "seq:2",
    }
    assert feed_cursors(Change(0, "feed.set", arguments)) == {("s", "$feed/w"): 1}


def test_the_position_of_a_feed_that_is_deleted_is_not_stored_again():
    assert feed_cursors(Change(0, "feed.delete", {"source": "stream/s", "feed": "w"})) == {}


def test_messages_that_cannot_be_read_are_dead_letters_when_the_broker_starts():
    bench = served(Bench())
    recovered = bench.store.recover()
    name = "mailbox", "bob"
    queues = {**recovered.queues, name: recovered.queues[name]._replace(damaged=(1,))}
    again(bench, queues=queues)
    queue = bench.core.mailboxes.by_name["bob"]
    assert [message.properties["dead"]["reason"] for message in queue.dead_letters.entries.values()] == [
        "corrupt"
    ]
    bench.settle()
    assert [*queue.entries] == [2]


def with_damaged_mail() -> Bench:
    """The first message to bob cannot be read when the broker starts, and neither can the store fetch it."""
    bench = served(Bench())
    recovered, name = bench.store.recover(), ("mailbox", "bob")
    again(bench, queues={**recovered.queues, name: recovered.queues[name]._replace(damaged=(1,))})
    fetch = bench.store.fetch
    bench.store.fetch = lambda kind, *asked: (
        {} if kind == "mailbox" and asked[1] == (1,) else fetch(kind, *asked)
    )
    return bench


def test_a_message_that_cannot_be_read_is_not_delivered_if_the_disk_refuses_its_dead_letter():
    bench = with_damaged_mail()
    bench.iterate()
    bench.fail(StorageFull("full"))
    bench.open("bob")
    bench.tell("bob", mail_credit())
    bench.settle()
    queue = bench.core.mailboxes.by_name["bob"]
    assert [item.body for item in bench.got("bob")] == [b"2"]
    assert [dead.properties["dead"]["reason"] for dead in queue.dead_letters.entries.values()] == ["corrupt"]


def test_a_dead_letter_that_could_not_be_read_is_not_sent_again():
    bench = with_damaged_mail()
    bench.settle()
    bench.open("bob")
    bench.tell("bob", Change(0, "queue.redrive", {"kind": "mailbox", "name": "bob"}))
    bench.settle()
    [told] = [message for message in bench.sent("bob") if isinstance(message, Ok)]
    assert told.value["messages"] == 0
    queue = bench.core.mailboxes.by_name["bob"]
    [dead] = queue.dead_letters.entries.values()
    assert (dead.properties["dead"]["reason"], dead.properties["dead"]["damaged"]) == ("corrupt", True)
    assert [*queue.entries] == [2]


def redriven(bench: Bench, name: str = "w") -> int:
    """How many dead letters of a service are sent again."""
    bench.sent("bob")
    bench.tell("bob", Change(0, "queue.redrive", {"kind": "service", "name": name}))
    bench.settle()
    [told] = [message for message in bench.sent("bob") if isinstance(message, Ok)]
    return told.value["messages"]


@pytest.mark.parametrize("record", [UNREADABLE, pack_record(None, b""), pack_record(None, b"1")])
@pytest.mark.parametrize("reason", ["corrupt", "no"])
def test_a_reason_that_a_worker_gives_is_no_sign_of_damage(record, reason):
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", Request("w", 1, ["a"], [record], [{"correlation": "c1"}]), mail_credit())
    bench.settle()
    bench.tell("bob", Reject(1, [[1, 1]], reason))
    bench.settle()
    # Who waits for replies is not told that the disk has lost the request.
    assert bench.got("alice") == []
    [dead] = bench.core.services.by_name["w"].dead_letters.entries.values()
    assert {*dead.properties["dead"]} == {"reason", "attempts", "sequence", "time", "died"}
    assert dead.properties["dead"]["reason"] == reason
    bench.crash()
    bench.open("alice", "bob")
    assert redriven(bench) == 1
    bench.tell("bob", offer())
    bench.settle()
    (again,) = (item.sequence for item in bench.got("bob"))
    bench.tell("bob", Reject(1, [[again, again]], reason))
    bench.settle()
    assert redriven(bench) == 1


def test_a_message_that_is_rejected_when_it_cannot_be_read_any_more_is_not_sent_again_without_its_body():
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", offer())
    bench.tell("alice", request(b"1"))
    bench.settle()
    queue = bench.core.services.by_name["w"]
    bench.core.queue_limits.memory.evict(queue.usage, [*queue.entries.values()])
    fetch = bench.store.fetch
    bench.store.fetch = lambda kind, *asked: {} if kind == "service" else fetch(kind, *asked)
    bench.tell("bob", Reject(1, [[1, 1]], "no"))
    bench.settle()
    [dead] = queue.dead_letters.entries.values()
    assert (dead.properties["dead"]["reason"], dead.properties["dead"]["damaged"]) == ("no", True)
    assert redriven(bench) == 0
    assert [*queue.dead_letters.entries] == [1]


def answered(seconds=0.0, **options):
    """What a session gets of a request that cannot be read when the broker starts; carol is there, too.

    The broker starts so many seconds after the request came.
    """
    bench = Bench()
    bench.open("alice", "carol")
    bench.tell("alice", request(b"what?", number=1, **options))
    bench.settle()
    name = "service", "w"
    recovered = bench.store.recover()
    queues = {**recovered.queues, name: recovered.queues[name]._replace(damaged=(1,))}
    bench.now += seconds
    again(bench, queues=queues)
    bench.open("alice", "carol")
    bench.tell("alice", mail_credit())
    bench.tell("carol", mail_credit())
    bench.settle()
    assert not bench.core.services.by_name["w"].entries
    return bench.got("alice"), bench.got("carol")


def test_who_waits_for_replies_to_a_request_that_cannot_be_read_is_notified():
    [reply], others = answered(correlation="c1")
    assert reply.properties == {"correlation": "c1", "service": "w", "final": True}
    assert reply.headers == {"malamute.error": "corrupt: the request cannot be read, the disk has lost it"}
    assert (reply.sender, reply.body, others) == ("", b"", [])


def test_a_request_that_cannot_be_read_is_lost_even_if_its_time_has_passed_meanwhile():
    [reply], _ = answered(3.0, correlation="c1", ttl=2000)
    assert reply.headers["malamute.error"].startswith("corrupt")
    [outcome], _ = answered(3.0, tracker="t1", ttl=2000)
    assert (outcome.properties["outcome"], outcome.properties["reason"]) == ("dead-lettered", "corrupt")


def test_the_error_of_a_request_that_cannot_be_read_goes_where_its_replies_go():
    others, [reply] = answered(reply_to="carol")
    assert (reply.properties["correlation"], others) == (0, [])


def test_who_tracks_a_request_that_cannot_be_read_has_its_outcome_and_nothing_else():
    [outcome], _ = answered(tracker="t1")
    assert (outcome.properties["outcome"], outcome.properties["reason"]) == ("dead-lettered", "corrupt")


def test_a_reader_of_a_lost_cursor_is_notified_until_it_is_set():
    bench = served(Bench())
    again(bench, values={}, lost=frozenset({(CURSORS, ("s", "c"))}))
    bench.open("bob")
    [told] = [m for m in bench.ask("bob", subscribe(1, cursor="c")) if isinstance(m, Error)]
    assert told.code == CursorLost.code
    bench.tell("bob", Commit("s", 1, "c", 1))
    bench.settle()
    assert not [m for m in bench.ask("bob", subscribe(1, cursor="c")) if isinstance(m, Error)]


def test_a_reader_of_a_lost_cursor_is_notified_of_what_a_purge_has_dropped():
    """The store knows of the cursor by what it had of the stream, which is gone with the purge."""
    bench = served(Bench())
    bench.tell("alice", publish(b"1", b"2"))
    bench.settle()
    again(bench, values={}, lost=frozenset({(CURSORS, ("s", "c"))}))
    bench.open("alice", "bob")
    bench.tell("alice", Change(0, "stream.purge", {"stream": "s"}))
    bench.restart()
    bench.open("bob")
    bench.tell("bob", subscribe(1, cursor="c"))
    bench.settle()
    gaps = [message for message in bench.sent("bob") if isinstance(message, Gap)]
    assert Gap(1, 1, 3, "overwritten") in gaps


@pytest.mark.parametrize("refused", [False, True])
def test_a_lost_cursor_goes_with_its_stream_though_a_purge_follows(refused):
    bench = served(Bench())
    bench.tell("alice", publish(b"1"))
    bench.settle()
    again(bench, values={}, lost=frozenset({(CURSORS, ("s", "c"))}))
    bench.open("alice")
    deletion = Change(0, "stream.delete", {"stream": "s", "cascade": True})
    bench.tell("alice", deletion, Change(0, "stream.purge", {"stream": "s"}))
    while refused and bench.appends:
        bench.fail()
    bench.settle()
    assert bench.store.recover().table(CURSORS) == ({("s", "c"): 1} if refused else {})
    found = bench.core.streams.by_name.get("s")
    assert (set(found.cursors.lost) if found else set()) == ({"c"} if refused else set())


def test_a_session_whose_numbers_may_be_lost_is_another_one_until_its_client_has_heard_of_that():
    """A WELCOME may be lost with its connection: who says HELLO again has not had it."""
    bench = served(Bench())
    again(bench, doubtful=frozenset({(SESSIONS, (peer_id("alice"), NUMBERS))}))
    for commands, resumed in (((), False), ((), False), ((Ping(),), False), ((), True)):
        [welcome] = [m for m in bench.ask("alice", Hello([2], "alice")) if isinstance(m, Welcome)]
        assert welcome.resumed is resumed
        bench.tell("alice", *commands)


def test_a_session_in_doubt_stays_in_doubt_though_more_of_it_is_found_damaged():
    bench = served(Bench())
    key = SESSIONS, (peer_id("alice"), NUMBERS)
    again(bench, doubtful=frozenset({key}))
    bench.core.damaged([Defect("block", "", 3, 3, "told", Stranded({}, [key]))], bench.now)
    operations = [o for append in bench.core.ready().appends for o in append.operations]
    assert not [o for o in operations if type(o) is PutValue and o.table == SESSIONS]


@pytest.mark.parametrize("comes_again", [True, False])
def test_the_private_mailbox_of_a_lost_session_waits_as_long_as_a_session_would(comes_again):
    bench = Bench()
    bench.open("worker")
    bench.tell("worker", offer(1))
    bench.tell("anonymous", Hello([2], ""))
    bench.tell("anonymous", request(b"1", number=1))
    bench.settle()
    bench.tell("worker", reply(1, 1, number=1))
    bench.settle()
    again(bench, values={})
    [private] = bench.core.mailboxes.by_name
    if comes_again:
        bench.tell("anonymous", Hello([2], ""))
    bench.wait(bench.settings.session_expiry - 0.001)
    assert private in bench.core.mailboxes.by_name
    bench.wait(0.001)
    bench.settle()
    assert (private in bench.core.mailboxes.by_name) is comes_again
    assert (("mailbox", private) in bench.store.recover().queues) is comes_again


def test_a_store_that_fails_is_tried_until_it_is_well():
    bench = served(Bench())
    health = bench.core.health
    bench.core.effects.stage.when_stored(lambda error: None)
    [append] = bench.core.ready().appends
    bench.core.store_failed(append.token, StoreError("the disk is ill"), bench.now)
    assert "the disk is ill" in health.error
    bench.core.tick(bench.now + PROBE_SECONDS)
    [append] = bench.core.ready().appends
    assert append.operations == []
    bench.core.stored(append.token, bench.now)
    assert health.error == ""


def test_a_store_that_is_full_is_not_ill():
    bench = served(Bench())
    bench.core.effects.stage.when_stored(lambda error: None)
    [append] = bench.core.ready().appends
    bench.core.store_failed(append.token, StorageFull("no room"), bench.now)
    assert bench.core.health.error == ""
