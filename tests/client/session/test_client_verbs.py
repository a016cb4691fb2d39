"""A session and the verbs of delivery, in dialogue: what it says for each, and what a cut leaves of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from malamute import errors
from malamute.client.events import Recalled, Refusal, Slow, Switched
from malamute.client.options import milliseconds, properties_of
from malamute.client.session.message import Rejection
from malamute.client.session.outbox import Command
from malamute.client.session.receipts import OutcomeTracking, SentBase
from malamute.client.session.replies import TAKEN_MAX, UNREAD_MAX
from malamute.client.session.sources import ACKS_MAX, Item
from malamute.protocol import messages as wire
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import RANGES_MAX
from malamute.protocol.messages import (
    Ack,
    Credit,
    Drain,
    Error,
    Nak,
    Ok,
    Progress,
    Recall,
    Reject,
    Release,
    Stored,
    Welcome,
)

RECORD = pack_record(None, b"x")

waits = pytest.fail
"""The wait of a result that no test waits for."""

as_rejected = pytest.mark.parametrize("bounce", [False, True])


@pytest.fixture
def alice(new_dialogue):
    dialogue = new_dialogue("alice")
    dialogue.open()
    return dialogue


@pytest.fixture
def box(alice, mail):
    """A mailbox in whose owner's hands are the messages 1 to 4."""
    box = alice.session.inbox.open_mailbox(10, 1000)
    alice.receives(mail(0, [1, 2, 3, 4]))
    assert [box.hand_out().sequence for _ in range(4)] == [1, 2, 3, 4]
    alice.said()
    return box


def test_each_verb_is_one_command(alice, box):
    session = alice.session
    session.inbox.give_back(box, 1, -1)
    session.inbox.release(box, 2)
    session.inbox.report(box, [3, 4, 5])
    box.finish(3, rejection=Rejection("no paper"))
    box.finish(4)
    session.inbox.acknowledge(box)
    assert alice.said() == [
        Nak(0, [[1, 1]], -1),
        Release(0, [[2, 2]]),
        Progress(0, [[3, 4]]),
        Ack(0, [[4, 4]]),
        Reject(0, [[3, 3]], "no paper"),
    ]


def test_what_is_settled_gives_its_credit_back_in_one_grant(alice, box):
    for sequence in (1, 2, 3):
        alice.session.inbox.give_back(box, sequence, 0)
    assert not any(isinstance(said, Credit) for said in alice.said())
    alice.session.inbox.release(box, 4)
    box.window.consumed(0, 0)
    alice.session.inbox.open_mailbox(20, 2000)
    assert alice.said()[-1] == Credit(0, 10, 1000)


@as_rejected
def test_after_a_cut_what_was_rejected_is_so_when_it_is_redelivered_and_what_was_given_back_is_new(
    alice, box, mail, bounce
):
    session = alice.session
    session.disconnected()
    box.finish(1, rejection=Rejection("no paper", bounce))
    box.finish(2)
    session.inbox.give_back(box, 3, 0)
    session.inbox.report(box, [4])
    session.connected()
    alice.receives(wire.Welcome(2, b"id", b"broker", False, "", {}))
    alice.said()
    alice.receives(mail(0, [1, 2, 3, 4], attempts=2))
    assert [item.sequence for item in box.waiting] == [3]
    assert alice.said() == [Ack(0, [[2, 2]]), Reject(0, [[1, 1]], "no paper", bounce)]


@as_rejected
def test_a_rejection_that_was_not_sent_yet_is_good_for_a_redelivery(alice, box, mail, bounce):
    box.finish(1, rejection=Rejection("no paper", bounce))
    alice.receives(Recall(0, [[1, 1]], "timeout"), mail(0, [1], attempts=2))
    assert not box.waiting
    alice.session.inbox.acknowledge(box)
    assert Reject(0, [[1, 1]], "no paper", bounce) in alice.said()


@as_rejected
def test_a_rejection_that_was_not_sent_yet_outlives_a_cut(alice, box, mail, bounce):
    box.finish(1, rejection=Rejection("no paper", bounce))
    alice.broken()
    alice.receives(wire.Welcome(2, b"id", b"broker", False, "", {}))
    alice.said()
    alice.receives(mail(0, [1], attempts=2))
    assert alice.said() == [Reject(0, [[1, 1]], "no paper", bounce)]


def test_a_recall_takes_what_waits_and_leaves_what_is_held(alice, box, mail):
    alice.receives(mail(0, [5, 6]))
    alice.receives(Recall(0, [[1, 2], [5, 9]], "timeout"))
    assert alice.session.pop_events() == [Recalled("alice", (1, 2, 5, 6), "timeout")]
    assert not box.waiting
    # 1 is finished meanwhile, and 2 is still held: neither is handed out a second time.
    box.finish(1)
    alice.session.inbox.acknowledge(box)
    assert not any(isinstance(said, Ack) for said in alice.said())
    alice.receives(mail(0, [1, 2, 5], attempts=2))
    assert [item.sequence for item in box.waiting] == [5]
    assert alice.said()[0].ranges == [[1, 1]]


def test_what_is_recalled_for_good_is_held_no_more(alice, box, mail):
    alice.receives(Recall(0, [[1, wire.limits.NUMBER_MAX]], "purged"))
    assert alice.session.pop_events() == [Recalled("alice", (1, 2, 3, 4), "purged")]
    alice.receives(mail(0, [1], attempts=2))
    assert [item.sequence for item in box.waiting] == [1]


def test_a_recall_of_what_is_not_here_is_nothing(alice, box):
    alice.receives(Recall(0, [[7, 9]], "timeout"), Recall(5, [[1, 1]], "timeout"))
    assert alice.session.pop_events() == ()


def test_an_outcome_comes_to_its_tracking_and_to_nobody_else(alice, box, mail):
    session = alice.session
    mine = session.sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": "mine", "ttl": 5})
    made = session.sending.send_tracked("bob", "a", RECORD, Command(), {})
    first, second = alice.said()
    assert first.properties == [{"tracker": "mine", "ttl": 5}]
    assert second.properties == [{"tracker": made.tracker}]
    alice.receives(Stored([[1, 2, 0]]))
    assert not mine.done
    told = {"outcome": "rejected", "tracker": "mine", "reason": "no paper"}
    alice.receives(
        mail(0, [5], properties=told), mail(0, [6], properties={"outcome": "expired", "tracker": "other"})
    )
    assert (mine.outcome, mine.reason, made.done) == ("rejected", "no paper", False)
    assert [item.sequence for item in box.waiting] == [6]
    assert alice.said() == [Ack(0, [[5, 5]])]
    alice.receives(mail(0, [7], properties=told))
    assert [item.sequence for item in box.waiting] == [6, 7]
    assert repr(SentBase(mine.command, mine, waits)) == "<SentBase rejected>"
    assert repr(SentBase(made.command, made, waits)) == "<SentBase stored>"


def test_an_outcome_that_comes_again_is_no_mail(alice, box, mail):
    session = alice.session
    mine = session.sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": "mine"})
    made = session.sending.send_tracked("bob", "a", RECORD, Command(), {})
    trackers = {5: mine.tracker, 6: made.tracker}
    alice.receives(
        *(mail(0, [n], properties={"outcome": "expired", "tracker": t}) for n, t in trackers.items())
    )
    assert (mine.outcome, made.outcome) == ("expired", "expired")
    alice.broken()
    alice.receives(Welcome(2, b"id", b"broker", True, "", {}))
    alice.said()
    again = [mail(0, [n], 2, {"outcome": "expired", "tracker": t}) for n, t in trackers.items()]
    alice.receives(*again, mail(0, [7], 2, {"outcome": "expired", "tracker": "mine"}))
    assert [item.sequence for item in box.waiting] == [7]
    assert [each for message in alice.said() for each in message.ranges] == [[5, 5], [6, 6]]


@pytest.mark.parametrize("tracker", ["mine", ""])
def test_a_redelivered_outcome_is_not_that_of_a_later_message_with_the_same_tracker(
    alice, box, mail, tracker
):
    sending = alice.session.sending
    first = sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": tracker})
    told = {"outcome": "expired", "tracker": first.tracker}
    alice.receives(Stored([[1, 1, 0]]), mail(0, [5], properties=told))
    alice.broken()
    alice.receives(Welcome(2, b"id", b"broker", True, "", {}))
    later = sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": first.tracker})
    alice.said()
    alice.receives(mail(0, [5], attempts=2, properties=told))
    assert alice.said() == [Ack(0, [[5, 5]])]
    assert (first.outcome, later.outcome) == ("expired", "")
    alice.receives(mail(0, [6], attempts=2, properties={**told, "outcome": "acknowledged"}))
    assert (first.outcome, later.outcome) == ("expired", "acknowledged")
    alice.broken()
    alice.receives(Welcome(3, b"id", b"broker", True, "", {}))
    alice.said()
    alice.receives(mail(0, [5, 6], attempts=3, properties=told))
    assert alice.said() == [Ack(0, [[5, 6]])]
    assert not box.waiting


def test_a_mailbox_that_counts_anew_delivers_no_outcome_of_before(alice, box, mail):
    sending = alice.session.sending
    told = {"outcome": "expired", "tracker": "mine"}
    sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": "mine"})
    alice.receives(mail(0, [5], properties=told))
    tracking = sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": "mine"})
    alice.receives(mail(0, [5], properties=told))
    assert tracking.done
    alice.receives(mail(0, [6], properties=told))
    assert [item.sequence for item in box.waiting] == [6]


@pytest.mark.parametrize(("since", "taken_for_mail"), [(TAKEN_MAX - 1, []), (TAKEN_MAX, [5])])
def test_so_many_outcomes_are_remembered(alice, mail, since, taken_for_mail):
    replies, told = alice.session.pending_replies, {"outcome": "expired", "tracker": "mine"}
    alice.session.sending.send_tracked("bob", "a", RECORD, Command(), {"tracker": "mine"})
    alice.receives(mail(0, [5], properties=told))
    box = alice.session.inbox.open_mailbox(10, 1000)
    for sequence in range(6, 6 + since):
        replies.track(OutcomeTracking("mine", Command()))
        assert replies.accept(box, Item(sequence, 1, "", "a", RECORD, 1, told))
    alice.receives(mail(0, [5], attempts=2, properties=told))
    assert [item.sequence for item in box.waiting] == taken_for_mail


def test_the_outcome_of_a_request_is_no_reply_to_it(alice, mail):
    sending = alice.session.sending
    pending = sending.request(
        "printer", "a", RECORD, numbered=True, tracked=True, options={"tracker": "mine", "ttl": 5}
    )
    (asked, _) = alice.said()
    about = {"correlation": pending.correlation, "tracker": "mine"}
    assert asked.properties == [{**about, "ttl": 5}]
    made = sending.request("printer", "a", RECORD, numbered=True, tracked=True)
    (asked,) = alice.said()
    assert asked.properties == [{"correlation": made.correlation, "tracker": made.tracking.tracker}]
    alice.receives(
        mail(0, [1], properties={"correlation": pending.correlation, "service": "printer", "final": True}),
        mail(0, [2], properties={**about, "outcome": "acknowledged", "kind": "service", "name": "printer"}),
    )
    assert [item.sequence for item in pending.waiting] == [1]
    assert (pending.tracking.outcome, made.tracking.done) == ("acknowledged", False)


def test_an_outcome_comes_past_mail_that_nobody_takes_while_somebody_waits_for_it(alice, mail):
    tracking = alice.session.sending.send_tracked("bob", "a", RECORD, Command(), {})
    box = alice.session.inbox.mailbox
    count = box.window.messages
    alice.said()
    alice.receives(mail(0, list(range(1, count + 1))))
    assert not any(isinstance(said, Credit) for said in alice.said())
    with alice.session.sending.expecting():
        assert [said.messages for said in alice.said() if isinstance(said, Credit)] == [count]
    alice.receives(mail(0, [count + 1], properties={"outcome": "expired", "tracker": tracking.tracker}))
    assert tracking.outcome == "expired"


def test_a_refused_message_has_no_outcome_and_its_tracker_is_free(alice):
    command = Command()
    tracking = alice.session.sending.send_tracked("bob", "a", RECORD, command, {"tracker": "mine"})
    alice.receives(Error(503, "full", 3, 1))
    assert isinstance(command.error, errors.TryLater)
    delivery = SentBase(command, tracking, waits)
    assert delivery.done
    with pytest.raises(errors.TryLater):
        _ = delivery.outcome
    assert not alice.session.pending_replies._trackings


def test_the_end_of_the_session_ends_what_is_tracked(alice):
    tracking = alice.session.sending.send_tracked("bob", "a", RECORD, Command(), {})
    alice.receives(Stored([[1, 1, 0]]), Error(409, "a newer session", 1))
    assert isinstance(tracking.command.error, errors.AddressTaken)
    assert tracking.done


def test_nobody_without_an_address_can_learn_an_outcome(dialogue):
    with pytest.raises(errors.InvalidValue):
        dialogue.session.sending.send_tracked("bob", "a", RECORD, Command(), {})
    with pytest.raises(errors.InvalidValue):
        dialogue.session.sending.request("printer", "a", RECORD, numbered=True, tracked=True)


def test_a_withdrawal_is_answered_by_ok(alice):
    query = alice.session.questions.withdraw("service", "printer", "job-1")
    assert alice.said() == [wire.Withdraw(1, "service", "printer", "job-1")]
    alice.receives(Ok(20, 1, 2), Ok(20, 7, 2))
    assert (query.done, query.value) == (True, 2)
    missing = alice.session.questions.withdraw("mailbox", "bob", 5)
    alice.receives(Error(404, "nothing", 20, 2))
    assert isinstance(missing.error, errors.NotFound)


def test_a_withdrawal_that_the_broker_may_have_is_not_asked_again(alice):
    lost = alice.session.questions.withdraw("service", "printer", "job-1")
    alice.broken()
    later = alice.session.questions.withdraw("service", "printer", "job-2")
    command = Command()
    alice.session.sending.send("bob", ["a"], [RECORD], command)
    alice.receives(wire.Welcome(2, b"id", b"broker", True, "", {}))
    assert isinstance(lost.error, errors.ConnectionLost)
    *_, sent, asked = alice.said()
    assert (type(sent), asked) == (wire.Send, wire.Withdraw(2, "service", "printer", "job-2"))
    alice.receives(Ok(20, 2, 1))
    assert later.value == 1


def test_an_error_about_a_verb_is_an_event(alice, box):
    alice.receives(Error(420, "not outstanding", 16, 0))
    (event,) = alice.session.pop_events()
    assert isinstance(event, Refusal)


def test_an_offer_names_its_ack_timeout(alice):
    alice.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1, ack_timeout=500)
    assert alice.said()[0].ack_timeout == 500


def test_a_drained_client_takes_nothing_more(alice, box, mail, delivery):
    session = alice.session
    stream = session.inbox.subscribe("s", [("all", "")], where="", start="seq:1", credit=10, credit_bytes=-1)
    offer = session.inbox.offer("svc", [("all", "")], credit=4, credit_bytes=-1)
    alice.receives(Ok(6, 1, 1), Ok(7, 2), delivery(1, 0, [1, 2]), mail(2, [1, 2]), mail(0, [5]))
    held = offer.hand_out()
    alice.said()
    session.inbox.drain()
    assert alice.said() == [wire.Cancel(1), Drain(2, [[1, 1]])]
    assert [message.sequence for message in stream.pop_messages()] == [1, 2]
    # Messages on their way are the broker's again: they are neither taken nor spoken of.
    alice.receives(mail(2, [3]), Ok(21, 2))
    assert alice.said() == []
    assert not offer.waiting
    # A message in hand can be settled, and nothing is granted for it.
    offer.finish(held.sequence)
    session.inbox.acknowledge(offer)
    session.inbox.refill(offer)
    assert alice.said() == [Ack(2, [[1, 1]])]
    assert [item.sequence for item in box.waiting] == [5]


def test_a_cancelled_offer_gives_back_untouched_what_was_not_handed_out(alice, mail):
    offer = alice.session.inbox.offer("svc", [("all", "")], credit=4, credit_bytes=-1)
    alice.receives(Ok(7, 1), mail(1, [1, 2, 3]))
    offer.hand_out()
    done = offer.hand_out()
    offer.finish(done.sequence)
    alice.said()
    alice.session.inbox.cancel(offer)
    assert alice.said() == [Ack(1, [[2, 2]]), Drain(1, [[1, 1]]), wire.Cancel(1)]


def test_bye_is_said_when_the_broker_has_confirmed_that_what_was_not_handed_out_is_back(alice, box, mail):
    alice.receives(mail(0, [8, 9]))
    alice.said()
    alice.session.close()
    (drain,) = [message for message in alice.said() if not isinstance(message, Ack)]
    assert drain == Drain(0, [[1, 4]])
    alice.receives(mail(0, [10]))
    assert alice.said() == []
    alice.receives(Ok(21, 0))
    assert alice.said() == [wire.Bye()]


def test_bye_is_said_too_when_the_disk_refused_to_note_what_went_back(alice, box, mail):
    alice.receives(mail(0, [1]))
    alice.said()
    alice.session.close()
    alice.receives(Error(507, "full", 21, 0))
    assert alice.said()[-1] == wire.Bye()


def test_a_closed_mailbox_gives_back_untouched_what_was_not_handed_out_and_takes_no_more(alice, box, mail):
    session = alice.session
    alice.receives(mail(0, [5, 6]))
    box.finish(2)
    session.inbox.close_mailbox()
    assert alice.said() == [Ack(0, [[2, 2]]), Drain(0, [[1, 1], [3, 4]])]
    # Messages on their way are the broker's again, and nothing is granted for a settlement.
    alice.receives(mail(0, [7]), Ok(21, 0))
    for sequence in (1, 3):
        box.finish(sequence)
    session.inbox.acknowledge(box)
    session.inbox.refill(box)
    assert alice.said() == [Ack(0, [[1, 1], [3, 3]])]
    assert not box.waiting
    # On the next connection it stays closed, and 4 is still in its owner's hands.
    alice.broken()
    alice.said()
    alice.receives(wire.Welcome(2, b"id", b"broker", True, "", {}))
    assert alice.said() == []
    session.inbox.open_mailbox(20, 2000)
    assert alice.said() == [Credit(0, 20, 2000)]
    alice.receives(mail(0, [4], attempts=2), mail(0, [5, 6]))
    assert [item.sequence for item in box.waiting] == [5, 6]


def test_a_mailbox_that_is_opened_again_waits_until_its_drain_is_confirmed(alice, box, mail):
    alice.session.inbox.close_mailbox()
    alice.said()
    alice.session.inbox.open_mailbox(10, 1000)
    alice.receives(mail(0, [5]))
    assert not box.waiting
    assert alice.said() == []
    alice.receives(Ok(21, 0))
    assert [(type(said), said.messages) for said in alice.said()] == [(Credit, 6)]
    alice.receives(mail(0, [5]))
    assert [item.sequence for item in box.waiting] == [5]


def test_mail_in_front_of_a_reply_goes_back_when_nobody_waits_for_the_reply_any_more(alice, box, mail):
    session = alice.session
    pending = session.sending.request("svc", "a", RECORD, numbered=False)
    alice.receives(mail(0, [5, 6]))
    alice.said()
    session.inbox.close_mailbox()
    assert not any(isinstance(said, Drain) for said in alice.said())
    reply = {"service": "svc", "correlation": pending.correlation, "final": True}
    alice.receives(mail(0, [7], properties=reply))
    assert session.sending.pop_reply(pending).sequence == 7
    session.sending.forget(pending)
    assert alice.said()[-2:] == [Ack(0, [[7, 7]]), Drain(0, [[1, 4]])]


def test_replies_and_outcomes_have_credit_again_behind_a_closed_mailbox(alice, box):
    session = alice.session
    session.inbox.close_mailbox()
    alice.said()
    pending = session.sending.request("svc", "a", RECORD, numbered=False)
    assert [type(said) for said in alice.said()] == [wire.Request]
    alice.receives(Ok(21, 0))
    assert [type(said) for said in alice.said()] == [Credit]
    session.sending.forget(pending)
    # Mail was not read since: as with any requester, it can come.
    assert alice.said() == []
    session.inbox.open_mailbox(10, 1000)
    session.inbox.close_mailbox()
    alice.receives(Ok(21, 0))
    alice.said()
    with session.sending.expecting():
        assert [type(said) for said in alice.said()] == [Credit]


def test_a_drained_offer_is_made_again_without_credit(alice, mail):
    offer = alice.session.inbox.offer("svc", [("all", "")], credit=4, credit_bytes=-1)
    alice.receives(Ok(7, 1), mail(1, [1]))
    offer.hand_out()
    alice.session.inbox.drain()
    alice.broken()
    alice.said()
    alice.receives(wire.Welcome(2, b"id", b"broker", True, "scripted", {}))
    made = [message for message in alice.said() if isinstance(message, wire.Offer)]
    assert [(message.source, message.credit, message.credit_bytes) for message in made] == [(1, 0, 0)]


def test_what_is_held_with_too_many_gaps_for_one_command_is_held_from_the_last_range_on(alice, mail):
    offer = alice.session.inbox.offer("svc", [("all", "")], credit=-1, credit_bytes=-1)
    count = 2 * RANGES_MAX + 2
    alice.receives(Ok(7, 1), mail(1, list(range(1, count + 1))))
    for item in [offer.hand_out() for _ in range(count)][1::2]:
        offer.finish(item.sequence)
    alice.said()
    alice.session.inbox.cancel(offer)
    (drain,) = [message for message in alice.said() if isinstance(message, Drain)]
    assert len(drain.held) == RANGES_MAX
    assert drain.held[-1] == [2 * RANGES_MAX - 1, count - 1]


def test_a_subscription_that_used_up_its_credit_is_slow_and_one_that_begins_behind_is_not(alice, delivery):
    alice.session.inbox.subscribe("s", [("all", "")], where="", start="new", credit=3, credit_bytes=-1)
    alice.receives(Ok(6, 1, 1), wire.Switch(1, "replay", 1))
    assert alice.session.pop_events() == [Switched("s", "replay", 1)]
    alice.receives(delivery(1, 0, [1, 2, 3]), wire.Switch(1, "replay", 4))
    assert alice.session.pop_events() == [Switched("s", "replay", 4), Slow("s", 3)]


@pytest.mark.parametrize(
    ("span", "wanted"),
    [(1, 1000), (0.0001, 1), (0, 0), (timedelta(microseconds=1500), 2), (timedelta(days=1), 86_400_000)],
)
def test_spans_are_milliseconds_on_the_wire_and_a_part_is_a_whole(span, wanted):
    assert milliseconds("ttl", span) == wanted


@pytest.mark.parametrize(
    "span", [-1, timedelta(seconds=-1), "5", True, None, float("nan"), float("inf"), 1e300]
)
def test_what_is_no_span_is_refused(span):
    with pytest.raises(errors.InvalidValue):
        milliseconds("ttl", span)


def test_options_are_properties():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert properties_of({"ttl": 1.5, "priority": 3, "id": "a", "correlation": None}) == {
        "ttl": 1500,
        "priority": 3,
        "id": "a",
    }
    assert properties_of({"at": moment}) == {"at": 1_767_225_600_000_000_000}
    assert properties_of({"at": moment.replace(tzinfo=None)}) == properties_of({"at": moment})
    for wrong in ({"at": 5}, {"at": moment, "delay": 1}):
        with pytest.raises(errors.InvalidValue):
            properties_of(wrong)


def replies_to(mail, pending, first, count):
    about = {"correlation": pending.correlation, "service": "svc", "final": False}
    return mail(0, [*range(first, first + count)], properties=about)


def test_replies_that_nobody_takes_are_acknowledged_past_a_bound_and_still_there_to_be_taken(alice, mail):
    pending = alice.session.sending.request("svc", "a", pack_record(None, b""), numbered=True)
    alice.said()
    count = UNREAD_MAX + 2 * ACKS_MAX
    alice.receives(replies_to(mail, pending, 1, count))
    acknowledged = [r for message in alice.said() if isinstance(message, wire.Ack) for r in message.ranges]
    assert acknowledged[0][0] == UNREAD_MAX + 1
    assert acknowledged[-1][1] == count
    taken = [alice.session.sending.pop_reply(pending).sequence for _ in range(count)]
    assert taken == [*range(1, count + 1)]
    alice.session.inbox.acknowledge_all()
    assert [message.ranges for message in alice.said() if isinstance(message, wire.Ack)] == [
        [[1, UNREAD_MAX]]
    ]
    assert not alice.session.pending_replies._early


def test_a_reply_whose_early_acknowledgement_was_lost_is_acknowledged_again_and_taken_once(alice, mail):
    pending = alice.session.sending.request("svc", "a", pack_record(None, b""), numbered=True)
    count = UNREAD_MAX + ACKS_MAX
    alice.receives(replies_to(mail, pending, 1, count))
    alice.said()
    alice.broken()
    alice.receives(Welcome(2, b"id", b"broker", True, "", {}))
    alice.said()
    about = {"correlation": pending.correlation, "service": "svc", "final": False}
    alice.receives(mail(0, [*range(1, count + 1)], attempts=2, properties=about))
    alice.session.inbox.acknowledge_all()
    assert [message.ranges for message in alice.said() if isinstance(message, wire.Ack)] == [
        [[UNREAD_MAX + 1, count]]
    ]
    assert [alice.session.sending.pop_reply(pending).sequence for _ in range(count)] == [*range(1, count + 1)]


def test_a_request_whose_replies_were_dropped_is_forgotten_with_what_is_delivered(alice, mail):
    session = alice.session
    dropped = session.sending.request("svc", "a", pack_record(None, b""), numbered=True)
    alice.receives(replies_to(mail, dropped, 1, 3))
    session.pending_replies.abandoned.append(dropped)
    alice.receives(replies_to(mail, dropped, 4, 3))
    session.inbox.acknowledge_all()
    said = [message for message in alice.said() if isinstance(message, wire.Ack)]
    assert [range_ for message in said for range_ in message.ranges] in ([[1, 6]], [[1, 3], [4, 6]])
    assert not session.pending_replies
    assert not session.pending_replies.unread
