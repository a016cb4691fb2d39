"""Sessions: numbers and their outcomes, addresses, expiry, probes."""

from __future__ import annotations

from math import inf

import pytest
from core_bench import Bench, items, mail_credit, offer, peer_id, publish, reply, request, send, subscribe

from malamute.core.broker import Core
from malamute.core.session.numbers import Numbers
from malamute.core.session.refusals import RUNS_MAX, TEXT
from malamute.protocol.messages import (
    Bye,
    Change,
    Deliver,
    Error,
    Hello,
    Offer,
    Ok,
    Ping,
    Stored,
    Welcome,
)
from malamute.store.operations import PutValue
from malamute.store.tables import NUMBERS, REFUSALS, SESSIONS


def refusal(number, code=503, text="full"):
    return Error(code, text, 3, number)


def answers(messages):
    return [m for m in messages if isinstance(m, Stored | Error)]


# Numbers


def test_refusals_alike_in_a_row_take_one_place():
    numbers = Numbers()
    for number in range(1, 1_000):
        numbers.refuse(number, refusal(number, text=f"{number} bytes are too many"))
    assert len(numbers.refused) == 1
    assert numbers.refused.answer(500) == refusal(500, text=TEXT)
    assert numbers.refused.answer(1_000) is None


def test_refusals_out_of_order_are_found():
    numbers = Numbers()
    for number, code in ((7, 413), (3, 503), (5, 404), (4, 503)):
        numbers.refuse(number, refusal(number, code=code))
    found = [numbers.refused.answer(number) for number in range(3, 9)]
    assert [answer and (answer.ref, answer.code) for answer in found] == [
        (3, 503),
        (4, 503),
        (5, 404),
        None,
        (7, 413),
        None,
    ]
    assert len(numbers.refused) == 3


def test_numbers_are_read_back_as_they_were_stored():
    numbers = Numbers(5)
    numbers.refuse(5, refusal(5))
    numbers.refuse(8, refusal(8, code=404))
    numbers.next = 9
    read = Numbers.unpack(numbers.pack(), numbers.refused.pack())
    assert (read.next, read.stored, read.floor) == (9, 8, numbers.floor)
    assert list(read.refused) == list(numbers.refused)
    assert read.refused.answer(5) == refusal(5, text=TEXT)


def test_what_is_settled_is_forgotten():
    numbers = Numbers()
    for number in (1, 2, 4):
        numbers.refuse(number, refusal(number))
    numbers.forget_before(2)
    assert numbers.refused.answer(2)
    numbers.forget_before(3)
    assert numbers.refused.answer(2) is None
    assert numbers.refused.answer(4)


def test_refusals_have_a_limit_and_the_oldest_go():
    numbers = Numbers()
    for place in range(RUNS_MAX):
        numbers.refuse(2 * place + 1, refusal(2 * place + 1, text="x" * 4096))
    assert (len(numbers.refused), numbers.floor) == (RUNS_MAX, 1)
    numbers.refuse(2 * RUNS_MAX + 1, refusal(2 * RUNS_MAX + 1))
    assert (len(numbers.refused), numbers.floor) == (RUNS_MAX, 2)
    assert len(numbers.refused.pack()) <= 2048


def stored_parts(bench):
    return [
        (operation.key[1], len(operation.value))
        for append in bench.appends
        for operation in append.operations
        if isinstance(operation, PutValue) and operation.table == SESSIONS
    ]


def test_refusals_are_stored_once_and_not_with_each_command(bench):
    bench.open("ann")
    bench.settle()
    for number in range(1, 60, 2):
        bench.receive("ann", send("$nobody", b"", number=number), publish(b"", number=number + 1))
    bench.iterate()
    assert [part for part, _ in stored_parts(bench)] == [NUMBERS, REFUSALS]
    bench.settle()
    bench.tell("ann", publish(b"", number=61))
    [(part, size)] = stored_parts(bench)
    assert part == NUMBERS
    assert size <= 16


def test_refusals_that_the_disk_did_not_take_are_stored_with_the_next_command(bench):
    bench.open("ann")
    bench.settle()
    bench.tell("ann", send("$nobody", b"", number=1), publish(b"", number=2))
    bench.fail()
    bench.tell("ann", publish(b"", number=3))
    bench.settle()
    bench.crash()
    bench.open("ann")
    [error] = bench.ask("ann", send("$nobody", b"", number=1))
    assert (error.ref, error.text) == (1, TEXT)


# Answers


def test_a_number_is_answered_once_for_each_time_it_is_sent(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1), publish(b"1", number=1))
    bench.settle()
    bench.tell("alice", publish(b"1", number=1))
    assert bench.sent("alice") == [Stored([[1, 1, 1]]), Stored([[1, 1, 0]])]


def test_numbers_are_shared_by_all_commands(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1), send("bob", b"2", number=2), request(b"3", number=3))
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 1], [2, 2, 0], [3, 3, 0]])]


def test_a_failed_number_is_noted_on_the_disk_at_once(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1))
    bench.tell("alice", publish(b"2", number=2))
    bench.fail()
    bench.settle()
    bench.crash()
    bench.tell("alice", Hello([2], "alice"), publish(b"1", number=1), publish(b"2", number=2))
    assert [m.code for m in bench.sent("alice") if isinstance(m, Error)] == [507, 507]


def test_a_refusal_that_a_killed_broker_had_sent_and_not_stored_leaves_no_gap(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1))
    changes = [Change(number, "queue.purge", {"kind": "mailbox", "name": "x"}) for number in (2, 4)]
    bench.tell("alice", changes[0], publish(b"3", number=3), changes[1])
    assert [m.ref for m in bench.sent("alice") if isinstance(m, Error)] == [2, 4]
    bench.crash()
    bench.tell("alice", Hello([2], "alice", unsettled=1, settled=[[2, 2], [4, 4]]))
    bench.tell("alice", publish(b"1", number=1), publish(b"3", number=3), publish(b"5", number=5))
    bench.settle()
    assert answers(bench.sent("alice")) == [Stored([[1, 1, 1], [3, 3, 2], [5, 5, 3]])]


def test_a_command_behind_what_is_settled_is_refused_for_good(bench):
    bench.open("alice")
    bench.tell("alice", Hello([2], "alice", unsettled=1, settled=[[1, 2]]))
    refused = Change(3, "queue.purge", {"kind": "mailbox", "name": "x"})
    bench.tell("alice", refused, publish(b"4", number=4))
    bench.settle()
    assert [m.code for m in bench.ask("alice", refused)] == [404]


def test_a_gap_behind_what_is_settled_is_still_one(bench):
    bench.open("alice")
    bench.tell("alice", Hello([2], "alice", unsettled=1, settled=[[2, 3]]))
    assert [m.code for m in bench.ask("alice", publish(b"4", number=4))] == [421]
    bench.tell("alice", publish(b"1", number=1))
    assert [m.code for m in bench.ask("alice", publish(b"5", number=5)) if isinstance(m, Error)] == [421]


def test_a_number_before_hello_has_no_outcome(bench):
    bench.open("alice")
    bench.lost("alice")
    [error] = bench.ask("alice", publish(b"1", number=1))
    assert error.code == 405
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    assert bench.sent("alice") == [Stored([[1, 1, 1]])]


def test_a_session_that_ended_is_not_notified_of_the_numbers_of_the_one_before(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1), Bye())
    bench.open("alice")
    bench.settle()
    assert bench.sent("alice") == []
    assert [m.code for m in bench.ask("alice", publish(b"1", number=2))] == [421]


def test_one_refusal_an_iteration_for_who_asked_for_no_answer(bench):
    bench.open("alice")
    refused = publish(b"1", stream="$s")
    assert len(bench.ask("alice", refused, refused, refused)) == 1
    assert len(bench.ask("alice", refused)) == 1


# Connections


def test_hello_takes_back_all_that_belongs_to_a_connection(bench):
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"0"), send("bob", b"1"), request(b"2"))
    bench.tell("bob", subscribe(1), Offer(2, "w", [["all", ""]], -1), mail_credit())
    bench.settle()
    bench.open("bob")
    bench.tell("alice", publish(b"3"))
    assert bench.sent("bob") == []
    assert bench.core.services.by_name["w"].states.counts["ready"] == 1
    assert bench.core.mailboxes.by_name["bob"].states.counts["ready"] == 1
    assert bench.core.sessions.by_peer[peer_id("bob")].holding == 0


def test_wp12_a_takeover_ends_the_older_session(bench):
    bench.open("old")
    bench.tell("old", Hello([2], "alice"))
    bench.sent("old")
    bench.tell("new", Hello([2], "alice"))
    assert [(m.code, m.about) for m in bench.sent("old")] == [(409, 1)]
    assert isinstance(bench.sent("new")[0], Welcome)
    assert peer_id("old") not in bench.core.sessions.by_peer


def test_an_operator_ends_a_session_and_its_client_is_notified(bench):
    bench.open("alice", "bob", "carol")
    bench.tell("alice", offer())
    bench.tell("bob", request(b"1"))
    bench.settle()
    assert bench.bodies("alice") == [b"1"]
    ident = bench.core.sessions.by_peer[peer_id("alice")].ident
    told = {"id": ident, "address": "alice", "connected": True, "holding": 1}
    for dry_run in (True, False):
        name = ident if dry_run else "alice"
        bench.tell("carol", Change(0, "client.disconnect", {"id": name, "dry_run": dry_run}))
        bench.settle()
        assert [m.value for m in bench.sent("carol") if isinstance(m, Ok) and m.about == 15] == [told]
        assert (peer_id("alice") in bench.core.sessions.by_peer) is dry_run
    assert [(m.code, m.about) for m in bench.sent("alice")] == [(410, 1)]
    bench.tell("carol", offer())
    assert bench.bodies("carol") == [b"1"]


def test_a_session_that_is_away_is_ended_without_a_word(bench):
    bench.open("alice", "carol")
    ident = bench.core.sessions.by_peer[peer_id("alice")].ident
    bench.lost("alice")
    bench.sent("alice")
    for name, code in ((ident, None), (ident, 404), ("", 414)):
        bench.tell("carol", Change(0, "client.disconnect", {"id": name}))
        bench.settle()
        (answer,) = bench.sent("carol")
        assert code == getattr(answer, "code", None)
    assert bench.sent("alice") == []


def test_an_address_is_free_again_when_its_owner_is_lost(bench):
    bench.open("alice")
    bench.lost("alice")
    bench.tell("other", Hello([2], "alice"))
    assert bench.sent("alice") == []


def test_a_session_that_comes_back_after_a_takeover_takes_over_itself(bench):
    bench.open("alice")
    bench.tell("other", Hello([2], "alice"))
    bench.open("alice")
    assert [type(m) for m in bench.sent("other")] == [Welcome, Error]


def test_a_session_away_for_too_long_is_forgotten_on_the_disk_too(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    bench.lost("alice")
    assert bench.core.next_deadline() == bench.now + 600
    bench.wait(599)
    assert bench.store.recover().table(SESSIONS)
    bench.wait(1)
    bench.settle()
    assert bench.store.recover().table(SESSIONS) == {}
    assert bench.core.next_deadline() == inf


def test_a_recovered_session_expires_too(bench):
    bench.open("alice")
    bench.tell("alice", publish(b"1", number=1))
    bench.settle()
    bench.crash()
    bench.wait(600)
    bench.settle()
    assert bench.core.sessions.by_peer == {}


def test_wp27_who_holds_work_is_probed_often_and_others_seldom(bench):
    bench.open("alice", "bob")
    bench.tell("bob", Offer(1, "w", [["all", ""]], 1))
    bench.tell("alice", request(b"1"))
    bench.settle()
    bench.sent("bob")
    bench.wait(0.5)
    assert bench.sent("bob") == [Ping()]
    bench.tell("bob", reply(1, 1))
    bench.wait(0.5)
    bench.sent("bob")
    bench.wait(0.5)
    assert bench.sent("bob") == []
    assert bench.core.next_deadline() == 15 + bench.now - 1.5


def test_bye_ends_a_session_and_what_it_held_goes_back(bench):
    bench.open("alice", "bob")
    bench.tell("alice", request(b"1"))
    bench.tell("bob", Offer(1, "w", [["all", ""]], 1))
    bench.settle()
    assert bench.ask("bob", Bye()) == [Ok(13, 0)]
    assert bench.core.services.by_name["w"].states.counts["ready"] == 1


def test_an_anonymous_session_has_a_mailbox_for_replies_that_goes_with_it(bench):
    bench.open("wendy")
    bench.tell("anon", Hello([2], ""), request(b"1"), mail_credit())
    bench.tell("wendy", Offer(1, "w", [["all", ""]], 1))
    bench.settle()
    bench.tell("wendy", reply(1, 1))
    bench.settle()
    [delivery] = [m for m in bench.sent("anon") if isinstance(m, Deliver)]
    assert [(i.body, i.sender) for i in items(delivery)] == [(b"done", "wendy")]
    bench.tell("anon", Bye())
    bench.settle()
    assert bench.store.recover().queues.keys() == {("service", "w")}
    assert bench.core.queue_limits.bytes == 0


def test_a_private_mailbox_that_goes_while_a_message_for_it_fails_leaves_no_trace(bench):
    bench.open("wendy")
    bench.tell("anon", Hello([2], ""), request(b"1"))
    bench.tell("wendy", Offer(1, "w", [["all", ""]], 1))
    bench.settle()
    bench.tell("wendy", reply(1, 1, number=1, final=False))
    bench.tell("anon", Bye())
    request_bytes = bench.core.services.by_name["w"].usage.bytes
    bench.fail()
    assert bench.core.queue_limits.bytes == request_bytes


def test_the_requester_without_an_address_gets_its_reply_after_a_crash(bench):
    bench.open("wendy")
    bench.tell("anon", Hello([2], ""), request(b"1", number=1))
    bench.settle()
    bench.crash()
    bench.open("wendy")
    bench.tell("wendy", Offer(1, "w", [["all", ""]], 1))
    bench.settle()
    bench.tell("wendy", reply(1, 1))
    bench.settle()
    bench.tell("anon", Hello([2], "", "", 2), mail_credit())
    bench.settle()
    assert bench.bodies("anon") == [b"done"]


def test_a_refused_hello_leaves_the_session_as_it_was(bench):
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    bench.tell("bob", Hello([1], "carl"), Hello([2], "$carl"))
    bench.tell("alice", publish(b"1"))
    bench.settle()
    assert bench.bodies("bob") == [b"1"]
    assert bench.core.sessions.by_address.keys() == {"alice", "bob"}


@pytest.mark.parametrize("event", [Core.lost, lambda core, peer, now: core.blocked(peer), Core.unblocked])
def test_events_of_an_unknown_peer_are_nothing(bench: Bench, event):
    event(bench.core, b"?" * 16, bench.now)
    assert bench.core.ready().sends == []


def test_welcome_and_a_refusal_of_hello_repeat_its_attempt(bench):
    bench.core.receive(peer_id("carol"), Hello([2], "carol", attempt=7), bench.now)
    bench.core.receive(peer_id("dave"), Hello([9], "dave", attempt=8), bench.now)
    answers = {peer: message for peer, message in bench.core.ready().sends}
    assert answers[peer_id("carol")].attempt == 7
    assert (answers[peer_id("dave")].code, answers[peer_id("dave")].ref) == (406, 8)
