"""The pure session against a scripted broker: given these messages, it says these."""

import pytest

from malamute import errors
from malamute.client.events import Connected, Gap, Limited, Lost, Moved, Refusal, Switched
from malamute.client.session.message import Rejection
from malamute.client.session.outbox import Command
from malamute.client.session.session import RESYNCS_MAX, State
from malamute.client.session.sources import REPORTED_GAPS_MAX
from malamute.protocol import messages as wire
from malamute.protocol.batch import pack_record, unpack_payload
from malamute.protocol.limits import CHANGES_MAX, RANGES_MAX, SETTLED_MAX
from malamute.protocol.messages import Ack, Credit, Error, Hello, Ok, Stored, Welcome

WELCOME = Welcome(2, b"\x01session-identit", b"broker", True, "malamute 0", {"unconfirmed": 3})
STORE = b"broker".hex()
EVERYTHING = [["all", ""]]
RECORD = pack_record(None, b"x")
SIZE = len("a") + len(RECORD)


def subscribe(dialogue, *, credit=10, credit_bytes=1000, start="new", **options):
    return dialogue.session.inbox.subscribe(
        "s", [("all", "")], where="", start=start, credit=credit, credit_bytes=credit_bytes, **options
    )


def numbers(said):
    return [message.number for message in said if hasattr(message, "number")]


# Opening


def test_hello_comes_first_and_the_session_is_ready_after_welcome(new_dialogue):
    dialogue = new_dialogue("alice")
    assert dialogue.said() == []
    dialogue.session.connected()
    assert dialogue.said() == [Hello([2], "alice", "test", 1, 1)]
    assert dialogue.session.state is State.OPENING
    dialogue.receives(WELCOME)
    assert dialogue.session.state is State.READY
    assert dialogue.session.pop_events() == [Connected(b"broker".hex(), True)]
    assert dialogue.said() == []


def test_what_is_given_before_welcome_waits_for_it(new_dialogue):
    dialogue = new_dialogue()
    dialogue.session.connected()
    source = subscribe(dialogue)
    dialogue.session.sending.publish("s", ["a"], [RECORD])
    dialogue.publish(b"1")
    assert dialogue.said() == [Hello([2], "", "test", 1, 1)]
    dialogue.receives(WELCOME)
    assert dialogue.said() == [
        wire.Subscribe(source.number, "s", EVERYTHING, "", "new", 10, 1000),
        wire.Publish("s", 1, ["a"], [pack_record(None, b"1")]),
        wire.Publish("s", 0, ["a"], [RECORD]),
    ]


@pytest.mark.parametrize("error", [errors.AccessRefused, errors.UnsupportedVersion, errors.AddressTaken])
def test_a_refused_hello_ends_the_session(new_dialogue, error):
    dialogue = new_dialogue()
    dialogue.session.connected()
    command = dialogue.publish(b"1")
    dialogue.receives(Error(error.code, "no", 1))
    assert type(dialogue.session.error) is error
    assert type(command.error) is error
    with pytest.raises(error):
        dialogue.session.sending.publish("s", ["a"], [RECORD])


def test_a_taken_address_ends_the_session_and_it_never_says_hello_again(dialogue):
    source = subscribe(dialogue)
    query = dialogue.session.questions.query("status", {})
    dialogue.said()
    dialogue.receives(Error(409, "a newer session", 1))
    assert isinstance(source.error, errors.AddressTaken)
    assert isinstance(query.error, errors.AddressTaken)
    dialogue.broken()
    assert dialogue.said() == []


def test_a_broker_that_is_not_the_primary_ends_no_session_and_all_goes_on_at_the_other(dialogue):
    source = subscribe(dialogue, start="first")
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(6, source.number, 1))
    publish = dialogue.publish(b"1")
    query = dialogue.session.questions.query("status", {})
    dialogue.said()
    dialogue.broken()
    dialogue.session.pop_events()
    [hello] = dialogue.said()
    details = {"urls": ["tcp://b:9999"], "role": "standby", "timeline": 3, "lag": 0, "reason": "follows a"}
    dialogue.receives(Error(509, "standby: follows a", 1, hello.attempt, 0, details))
    session = dialogue.session
    assert session.state is State.LOST
    assert session.error is None
    assert session.moved is not None
    assert session.moved.details == details
    assert session.pop_events() == [Moved("standby: follows a", ["tcp://b:9999"])]
    later = dialogue.publish(b"2")
    assert dialogue.said() == []
    session.connected()
    [hello] = dialogue.said()
    assert hello.unsettled == 1
    dialogue.receives(WELCOME._replace(attempt=hello.attempt, urls=["tcp://a:9999", "tcp://b:9999"]))
    assert session.moved is None
    assert session.urls == ["tcp://a:9999", "tcp://b:9999"]
    said = dialogue.said()
    again = {type(one): one for one in said}
    assert numbers(said) == [1, 2]
    assert again[wire.Subscribe].source == source.number
    assert again[wire.Offer].source == offer.number
    assert wire.Query in again
    assert not any((publish.done, later.done, query.done, source.ended))


def test_a_primary_that_hands_over_loses_its_sessions_by_509(dialogue):
    dialogue.publish(b"1")
    dialogue.receives(Error(509, "hands over", 1))
    assert dialogue.session.pop_events() == [
        Lost("the broker is not the primary of its pair any more"),
        Moved("hands over", []),
    ]
    dialogue.session.connected()
    assert dialogue.session.state is State.OPENING


def test_an_earlier_hello_that_was_refused_by_509_changes_nothing(dialogue):
    dialogue.broken()
    dialogue.receives(Error(509, "standby", 1, 1))
    assert dialogue.session.state is State.OPENING
    assert dialogue.session.moved is None


# Numbers, confirmations, resend


def test_confirmed_commands_share_numbers_without_gaps(dialogue):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.publish(b"1")
    dialogue.session.sending.send("bob", ["a"], [RECORD], Command())
    dialogue.session.sending.publish("s", ["a"], [RECORD])
    dialogue.session.sending.request("svc", "a", RECORD, numbered=True)
    dialogue.session.sending.reply(offer, 1, RECORD, Command(), final=False)
    assert numbers(dialogue.said()) == [1, 2, 0, 3, 4]


def test_sequences_follow_from_the_ranges_by_counting(dialogue):
    first = dialogue.publish(b"1", b"2", b"3")
    mail = Command()
    dialogue.session.sending.send("bob", ["a"], [RECORD], mail)
    second = dialogue.publish(b"4")
    third = dialogue.publish(b"5")
    dialogue.receives(Stored([[1, 3, 100], [4, 4, 0]]))
    assert [c.sequence for c in (first, mail, second, third)] == [100, 0, 103, 0]
    assert all(c.done for c in (first, mail, second, third))
    assert dialogue.session.outbox.unsettled == 5


def test_one_refused_number_among_many_is_the_only_one_with_an_error(dialogue):
    commands = [dialogue.publish(b"x") for _ in range(5)]
    dialogue.receives(Error(503, "full", 2, 3), Stored([[1, 2, 7], [4, 5, 9]]))
    assert [c.sequence for c in commands] == [7, 8, 0, 9, 10]
    assert [type(c.error).__name__ for c in commands] == [
        "NoneType",
        "NoneType",
        "TryLater",
        "NoneType",
        "NoneType",
    ]
    assert dialogue.session.pop_events() == ()


def test_unsettled_numbers_are_sent_again_in_order_and_settled_ones_are_not(dialogue):
    for body in (b"1", b"2", b"3"):
        dialogue.publish(body)
    dialogue.said()
    dialogue.receives(Stored([[2, 2, 8]]))
    dialogue.broken()
    dialogue.publish(b"4")
    assert dialogue.said() == [Hello([2], "", "test", 1, 2, settled=[[2, 2]])]
    dialogue.receives(WELCOME)
    assert numbers(dialogue.said()) == [1, 3, 4]
    dialogue.receives(Stored([[1, 1, 0], [3, 4, 0]]))
    dialogue.broken()
    assert dialogue.said() == [Hello([2], "", "test", 5, 3)]


def test_hello_names_so_many_ranges_of_settled_numbers_and_no_more(dialogue):
    for number in range(1, 2 * SETTLED_MAX + 4):
        dialogue.publish(b"%d" % number)
    dialogue.receives(Stored([[number, number, 0] for number in range(2, 2 * SETTLED_MAX + 3, 2)]))
    dialogue.receives(Stored([[2 * SETTLED_MAX + 3, 2 * SETTLED_MAX + 3, 0]]))
    dialogue.said()
    dialogue.broken()
    [hello] = dialogue.said()
    assert hello.settled == [[number, number] for number in range(2, 2 * SETTLED_MAX + 1, 2)]


def test_a_confirmation_that_comes_before_welcome_counts(dialogue):
    command = dialogue.publish(b"1")
    dialogue.said()
    dialogue.broken()
    dialogue.receives(Stored([[1, 1, 5]]))
    assert command.done
    dialogue.receives(WELCOME)
    assert numbers(dialogue.said()[1:]) == []


def test_the_window_is_the_brokers_if_that_is_smaller(dialogue):
    dialogue.broken()
    dialogue.receives(WELCOME)
    dialogue.said()
    for _ in range(3):
        assert dialogue.session.outbox.room(numbered=True)
        dialogue.publish(b"x")
        assert dialogue.session.outbox.next_to_send()
        assert not dialogue.session.outbox.room(numbered=True), "the socket has not taken it"
        dialogue.said()
    assert not dialogue.session.outbox.room(numbered=True)
    dialogue.receives(Stored([[2, 3, 1]]))
    assert not dialogue.session.outbox.room(numbered=True)
    dialogue.receives(Stored([[1, 1, 9]]))
    assert dialogue.session.outbox.room(numbered=True)


def test_unconfirmed_publishes_are_parked_while_the_connection_is_away_and_go_in_order(dialogue):
    dialogue.session.sending.publish("s", ["a"], [pack_record(None, b"1")])
    dialogue.session.disconnected()
    dialogue.session.sending.publish("s", ["a"], [pack_record(None, b"2")])
    dialogue.session.connected()
    dialogue.receives(WELCOME)
    said = dialogue.said()
    assert [m.records[0] for m in said if isinstance(m, wire.Publish)] == [
        pack_record(None, b"1"),
        pack_record(None, b"2"),
    ]


def test_what_is_parked_is_bounded_in_bytes(dialogue):
    dialogue.session.disconnected()
    dialogue.session.outbox.window_bytes = 100
    dialogue.session.sending.publish("s", ["a"], [b"x" * 60])
    assert dialogue.session.outbox.room(numbered=False)
    dialogue.session.sending.publish("s", ["a"], [b"x" * 60])
    assert not dialogue.session.outbox.room(numbered=False)


def test_a_welcome_off_the_connection_before_opens_nothing(dialogue):
    dialogue.publish(b"1")
    dialogue.said()
    dialogue.broken()
    (hello,) = dialogue.said()
    dialogue.receives(WELCOME._replace(attempt=hello.attempt - 1))
    assert dialogue.said() == []
    dialogue.receives(WELCOME._replace(attempt=hello.attempt))
    assert numbers(dialogue.said()) == [1]


def test_a_refusal_off_the_connection_before_ends_nothing(dialogue):
    dialogue.broken()
    (hello,) = dialogue.said()
    dialogue.receives(Error(429, "too many", 1, hello.attempt - 1))
    assert dialogue.session.error is None
    dialogue.receives(Error(429, "too many", 1, hello.attempt))
    assert dialogue.session.error.code == 429


@pytest.mark.parametrize("code", [405, 421])
def test_a_broker_that_lost_track_gets_the_change_again_and_the_number_has_no_outcome_yet(dialogue, code):
    command = dialogue.publish(b"1")
    dialogue.said()
    dialogue.receives(Error(code, "hello?", 2, 1), Error(code, "hello?", 2, 1))
    assert dialogue.said() == [Hello([2], "", "test", 1, 2)]
    assert not command.done
    dialogue.receives(WELCOME)
    assert numbers(dialogue.said()) == [1]


def test_a_resync_that_helps_nothing_ends_the_session(dialogue):
    dialogue.publish(b"1")
    for _ in range(RESYNCS_MAX):
        dialogue.receives(Error(421, "a gap", 2, 1), WELCOME)
    assert dialogue.session.error is None
    dialogue.receives(Error(421, "a gap", 2, 1))
    assert isinstance(dialogue.session.error, errors.NumberTooOld)


def test_an_unconfirmed_publish_that_is_refused_is_an_event(dialogue):
    dialogue.session.sending.publish("s", ["a"], [RECORD])
    dialogue.receives(Error(503, "full", 2, 0))
    [event] = dialogue.session.pop_events()
    assert isinstance(event, Refusal)
    assert isinstance(event.error, errors.TryLater)


def test_a_refused_reply_is_reported_by_its_receipt_and_by_an_event(dialogue):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    command = Command()
    dialogue.session.sending.reply(offer, 1, RECORD, command, final=True)
    dialogue.receives(Error(420, "not yours", 5, 1))
    assert isinstance(command.error, errors.NotOutstanding)
    assert len(dialogue.session.pop_events()) == 1


def test_large_records_travel_as_frames_of_their_own(dialogue):
    large = pack_record(None, b"x" * 70_000)
    dialogue.session.sending.publish("s", ["a", "b"], [RECORD, large])
    assert dialogue.said() == [wire.Publish("s", 0, ["a", "b"], [RECORD, large])]


@pytest.mark.parametrize(
    ("stream", "record", "error"),
    [
        ("", RECORD, errors.InvalidName),
        ("a\n", RECORD, errors.InvalidName),
        ("s", b"x" * 11, errors.TooLarge),
    ],
)
def test_what_a_broker_would_refuse_is_refused_here(dialogue, stream, record, error):
    dialogue.session.sending.limits = dialogue.session.sending.limits._replace(message_bytes=10)
    with pytest.raises(error):
        dialogue.session.sending.publish(stream, ["a"], [record], Command())
    assert dialogue.session.outbox.next_number == 1


# Subscriptions


def test_a_subscription_continues_behind_the_last_sequence_with_the_same_source(dialogue, delivery):
    source = subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 5), delivery(1, 4, [5, 7, 8]))
    dialogue.said()
    dialogue.broken()
    dialogue.receives(delivery(1, 8, [9]), WELCOME)
    again = wire.Subscribe(1, "s", EVERYTHING, "", "new", 7, 1000 - 3 * SIZE, had=8, resume=f"8@{STORE}")
    assert dialogue.said()[-1] == again
    dialogue.receives(Ok(6, 1, 9), delivery(1, 8, [9]))
    assert [m.sequence for m in source.pop_messages()] == [5, 7]
    assert source.last == 9


def test_without_a_message_it_continues_at_the_first_sequence_that_was_reported(dialogue):
    subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 42))
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[-1].resume == f"41@{STORE}"


def test_a_subscription_goes_on_as_it_was_asked_for_with_its_position_beside_that(dialogue, delivery):
    """The broker that answers may have another store; from then on the position is one in that."""
    source = subscribe(dialogue, start="first", cursor="red")
    dialogue.receives(Ok(6, 1, 1), delivery(1, 0, [1, 2, 3]))
    dialogue.broken()
    dialogue.receives(WELCOME._replace(broker=b"another", incarnation=7))
    said = dialogue.said()[-1]
    assert (said.start, said.cursor, said.resume, said.had) == ("first", "red", f"3@{STORE}", 3)
    dialogue.session.pop_events()
    dialogue.receives(Ok(6, 1, 1), wire.Gap(1, 1, 0, "another-store"), delivery(1, 0, [1, 2]))
    other = f"{b'another'.hex()}.7"
    assert dialogue.session.pop_events() == [Gap("s", 1, 0, "another-store", other)]
    assert (source.last, source.had, source.gaps) == (2, 2, 1)
    # Two messages are handed out at once with a window of 10; each names its store.
    found = [(m.sequence, m.store, m.position) for _ in range(3) for m in source.pop_messages()]
    assert found == [
        *((number, STORE, f"after:{number}@{STORE}") for number in (1, 2, 3)),
        *((number, other, f"after:{number}@{other}") for number in (1, 2)),
    ]
    dialogue.broken()
    dialogue.receives(WELCOME._replace(broker=b"another", incarnation=7))
    assert dialogue.said()[-1].resume == f"2@{other}"


def test_a_stream_that_was_there_may_be_made_again_when_the_broker_has_lost_it(dialogue):
    subscribe(dialogue, existing=True)
    assert dialogue.said()[-1].existing
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[-1].existing
    dialogue.receives(Ok(6, 1, 42))
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert not dialogue.said()[-1].existing


def test_a_start_at_a_sequence_is_the_position_before_it(dialogue, delivery):
    source = subscribe(dialogue, start="seq:10")
    dialogue.receives(Ok(6, 1, 10), delivery(1, 9, [12]))
    assert source.last == 12


def test_a_gap_resumes_and_the_delivery_behind_it_is_not_taken(dialogue, delivery):
    source = subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 1), delivery(1, 0, [1]))
    dialogue.said()
    dialogue.receives(delivery(1, 3, [4]), delivery(1, 4, [5]))
    assert dialogue.said() == [Hello([2], "", "test", 1, 2)]
    dialogue.receives(WELCOME)
    assert dialogue.said()[-1].resume == f"1@{STORE}"
    dialogue.receives(Ok(6, 1, 2), delivery(1, 1, [3, 4, 5]))
    chunks = [*source.pop_messages()], [*source.pop_messages()]
    assert [message.sequence for chunk in chunks for message in chunk] == [1, 3, 4, 5]
    assert isinstance(dialogue.session.pop_events()[0], Lost)


def test_a_gap_is_an_event_and_moves_the_position(dialogue, delivery):
    source = subscribe(dialogue, start="seq:1")
    dialogue.receives(Ok(6, 1, 1), wire.Gap(1, 1, 99, "overwritten"), delivery(1, 99, [100]))
    assert source.last == 100
    assert source.gaps == 1
    assert dialogue.session.pop_events() == [Gap("s", 1, 99, "overwritten")]


def test_each_gap_in_what_has_come_is_an_event_and_the_same_one_comes_once(dialogue, delivery):
    source = subscribe(dialogue, start="seq:1")
    dialogue.receives(Ok(6, 1, 1), delivery(1, 0, [*range(1, 10)]))
    refused, later, between = (wire.Gap(1, *had, "taken-back") for had in ((2, 3), (7, 8), (4, 6)))
    backup, copy = wire.Gap(1, 4, 8, "taken-back"), wire.Gap(1, 1, 3, "restored")
    dialogue.receives(refused, later, refused, between, backup, copy, later, copy)
    assert source.last == 9
    assert source.gaps == 4
    assert [(e.first, e.last) for e in dialogue.session.pop_events()] == [(2, 3), (7, 8), (4, 6), (1, 3)]


def test_a_gap_that_an_older_connection_brings_late_is_known_by_the_larger_one(dialogue, delivery):
    source = subscribe(dialogue, start="seq:1")
    dialogue.receives(Ok(6, 1, 1), wire.Gap(1, 1, 9, "restored"), wire.Gap(1, 3, 4, "not-stored"))
    assert (source.last, source.gaps) == (9, 1)


def test_of_gaps_in_what_has_come_the_newest_are_known_again(dialogue, delivery):
    source = subscribe(dialogue, start="seq:1")
    dialogue.receives(Ok(6, 1, 1), delivery(1, 0, [5 * REPORTED_GAPS_MAX]))
    gaps = [wire.Gap(1, first, first, "taken-back") for first in range(1, 2 * REPORTED_GAPS_MAX + 2, 2)]
    dialogue.receives(*gaps[:REPORTED_GAPS_MAX], *gaps[:REPORTED_GAPS_MAX])
    assert source.gaps == REPORTED_GAPS_MAX
    dialogue.receives(gaps[REPORTED_GAPS_MAX], *gaps[1:])
    assert source.gaps == REPORTED_GAPS_MAX + 1
    dialogue.receives(gaps[0])
    assert source.gaps == REPORTED_GAPS_MAX + 2


def test_a_broker_that_lost_its_store_starts_the_subscription_at_its_head(dialogue, delivery):
    source = subscribe(dialogue, start="seq:500")
    dialogue.receives(Ok(6, 1, 3), delivery(1, 2, [3]))
    assert source.last == 3
    assert dialogue.session.error is None


def test_a_stream_that_was_made_anew_starts_the_subscription_at_its_head(dialogue, delivery):
    source = subscribe(dialogue, start="seq:1")
    dialogue.receives(Ok(6, 1, 21))
    assert source.last == 20
    dialogue.said()
    dialogue.receives(delivery(1, 20, [21]))
    assert source.last == 21
    assert dialogue.said() == []


def test_a_switch_is_an_event(dialogue):
    source = subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 1), wire.Switch(1, "replay", 7))
    assert source.state == "replay"
    assert dialogue.session.pop_events() == [Switched("s", "replay", 7)]


def test_a_switch_before_the_answer_is_the_first_state_and_no_event(dialogue):
    source = subscribe(dialogue)
    dialogue.receives(wire.Switch(1, "live", 7), Ok(6, 1, 7))
    assert source.state == "live"
    assert dialogue.session.pop_events() == ()


def test_a_subscription_of_which_a_part_is_allowed_is_limited_when_it_begins(dialogue):
    source = subscribe(dialogue)
    dialogue.receives(wire.Switch(1, "limited", 7), Ok(6, 1, 7))
    assert source.limited
    assert source.first == 7
    assert dialogue.session.pop_events() == [Limited("s")]


def test_a_subscription_is_limited_as_the_last_answer_says(dialogue):
    source = subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 7))
    assert not source.limited
    for limited, events in ((True, [Limited("s")]), (True, []), (False, []), (True, [Limited("s")])):
        dialogue.receives(*[wire.Switch(1, "limited", 7)] * limited, Ok(6, 1, 7))
        assert source.limited == limited
        assert [*dialogue.session.pop_events()] == events


def test_a_refused_subscription_has_the_error_and_is_not_resumed(dialogue):
    source = subscribe(dialogue)
    dialogue.receives(Error(415, "bad pattern", 6, 1))
    assert isinstance(source.error, errors.InvalidSelector)
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert [type(m) for m in dialogue.said()] == [Hello]


def test_a_cancelled_subscription_is_not_resumed_and_its_deliveries_are_nothing(dialogue, delivery):
    source = subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 1))
    dialogue.said()
    dialogue.session.inbox.cancel(source)
    dialogue.session.inbox.cancel(source)
    assert dialogue.said() == [wire.Cancel(1)]
    dialogue.receives(delivery(1, 0, [1]), Ok(8, 1))
    assert not source.waiting
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert [type(m) for m in dialogue.said()] == [Hello]


def test_credit_is_granted_again_at_half_the_window(dialogue, delivery):
    source = subscribe(dialogue, credit=8, credit_bytes=10_000)
    dialogue.receives(Ok(6, 1, 1), delivery(1, 0, list(range(1, 9))))
    dialogue.said()
    granted = []
    for _ in range(4):
        assert len([*source.pop_messages()]) == 2
        source.consume()
        dialogue.session.inbox.refill(source)
        granted.append(dialogue.said())
    assert granted == [[], [Credit(1, 4, 4 * SIZE)], [], [Credit(1, 4, 4 * SIZE)]]


def test_damaged_payloads_and_foreign_commands_are_events_and_nothing_else(dialogue):
    subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 1))
    for frames in ([b"\xc1"], [b"\x93\x01\x02\x03"], [b"\x93\x45\x01\x00", b"junk"], [b"\x91\x0d"]):
        dialogue.session.receive(frames)
    events = dialogue.session.pop_events()
    assert [type(event) for event in events] == [Refusal] * 4
    assert dialogue.session.error is None


# The mailbox


def open_mailbox(dialogue, credit=10, credit_bytes=1000):
    mailbox = dialogue.session.inbox.open_mailbox(credit, credit_bytes)
    assert dialogue.said() == [Credit(0, credit, credit_bytes)]
    return mailbox


def test_mail_is_acknowledged_by_ranges(dialogue, mail):
    mailbox = open_mailbox(dialogue)
    dialogue.receives(mail(0, [1, 2, 3, 7]))
    for sequence in (3, 1, 2, 7):
        mailbox.hand_out()
        mailbox.finish(sequence)
    dialogue.session.inbox.acknowledge(mailbox)
    assert dialogue.said() == [Ack(0, [[1, 3], [7, 7]])]


def test_mail_counts_for_the_window_until_it_is_acknowledged(dialogue, mail):
    mailbox = open_mailbox(dialogue, credit=2)
    dialogue.receives(mail(0, [1, 2]))
    mailbox.hand_out()
    dialogue.session.inbox.refill(mailbox)
    assert dialogue.said() == []
    mailbox.finish(1)
    dialogue.session.inbox.refill(mailbox)
    assert dialogue.said() == [Credit(0, 1, SIZE)]


def test_after_a_resume_mail_that_waited_is_dropped_and_redelivered(dialogue, mail):
    mailbox = open_mailbox(dialogue)
    dialogue.receives(mail(0, [1, 2]))
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[-1] == Credit(0, 10, 1000)
    dialogue.receives(mail(0, [1, 2], attempts=2))
    assert [mailbox.hand_out().sequence for _ in range(2)] == [1, 2]
    assert not mailbox.waiting


def test_after_a_resume_mail_in_the_users_hands_is_not_handed_out_twice(dialogue, mail):
    mailbox = open_mailbox(dialogue)
    dialogue.receives(mail(0, [1, 2]))
    mailbox.hand_out()
    mailbox.hand_out()
    dialogue.broken()
    mailbox.finish(1)
    dialogue.receives(WELCOME)
    dialogue.session.inbox.acknowledge(mailbox)
    dialogue.said()
    dialogue.receives(mail(0, [1, 2], attempts=2))
    assert not mailbox.waiting
    dialogue.session.inbox.acknowledge(mailbox)
    assert dialogue.said() == [Ack(0, [[1, 1]])]
    mailbox.finish(2)
    dialogue.session.inbox.acknowledge(mailbox)
    assert dialogue.said() == [Ack(0, [[2, 2]])]


def test_a_mailbox_that_was_made_anew_counts_from_one_and_nothing_is_dropped(dialogue, mail):
    mailbox = open_mailbox(dialogue)
    dialogue.receives(mail(0, [1]))
    mailbox.hand_out()
    dialogue.broken()
    mailbox.finish(1)
    dialogue.receives(WELCOME, mail(0, [1], attempts=1))
    assert len(mailbox.waiting) == 1


def test_a_mailbox_that_replies_have_opened_takes_the_window_that_its_user_wants(dialogue):
    dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    dialogue.said()
    sizes = [(1500, 8 * 1024 * 1024), (100, 100), (-1, 200), (5, -1)]
    said = []
    for size in sizes:
        dialogue.session.inbox.open_mailbox(*size)
        said += dialogue.said()
    assert said == [Credit(0, 500, 0), Credit(0, -1, 0), Credit(0, 0, -1)]


def test_many_ranges_take_several_acks(dialogue, mail):
    mailbox = open_mailbox(dialogue, credit=3000, credit_bytes=-1)
    sequences = list(range(1, 4003, 2))
    dialogue.receives(mail(0, sequences))
    for sequence in sequences:
        mailbox.finish(sequence)
    dialogue.session.inbox.acknowledge_all()
    assert [len(ack.ranges) for ack in dialogue.said()] == [1000, 1000, 1]


# Requests and replies


def request(dialogue):
    pending = dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    sent = [m for m in dialogue.said() if isinstance(m, wire.Request)]
    assert sent[0].properties == [{"correlation": pending.correlation}]
    return pending


def reply(pending, *, final=True):
    return {"correlation": pending.correlation, "service": "svc", "final": final}


def test_replies_go_to_the_exchange_that_asked_and_mail_to_the_mailbox(dialogue, mail):
    first, second = request(dialogue), request(dialogue)
    dialogue.receives(
        mail(0, [1], properties=reply(second, final=False)),
        mail(0, [2], properties={"correlation": "mine"}),
        mail(0, [3], properties=reply(first)),
        mail(0, [4], properties=reply(second)),
    )
    assert [len(first.waiting), len(second.waiting)] == [1, 2]
    assert [item.sequence for item in dialogue.session.inbox.mailbox.waiting] == [2]
    assert first.complete
    for pending in (first, second, second):
        dialogue.session.sending.pop_reply(pending)
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1], [3, 4]])]


def answered(dialogue, mail, *sequences):
    """So many requests, whose replies have come with these sequences."""
    pendings = [request(dialogue) for _ in sequences]
    for pending, sequence in zip(pendings, sequences, strict=True):
        dialogue.receives(mail(0, [sequence], properties=reply(pending)))
    return pendings


def take(dialogue, pending):
    dialogue.session.sending.pop_reply(pending)
    dialogue.session.sending.forget(pending)


def ask(dialogue, *, numbered=False):
    """The REQUEST of one more, alone."""
    dialogue.session.sending.request("svc", "a", RECORD, numbered=numbered)
    (asked,) = dialogue.said()
    return asked


@pytest.mark.parametrize("numbered", [True, False])
def test_the_next_request_carries_the_acknowledgement_of_a_reply(dialogue, mail, numbered):
    take(dialogue, *answered(dialogue, mail, 1))
    assert dialogue.said() == []
    assert ask(dialogue, numbered=numbered).acks == [[1, 1]]
    assert ask(dialogue, numbered=numbered).acks == []
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == []


def test_replies_that_came_together_are_acknowledged_together(dialogue, mail):
    pendings = answered(dialogue, mail, 1, 2, 3)
    carried = []
    for pending in pendings:
        take(dialogue, pending)
        carried.append(ask(dialogue).acks)
    assert carried == [[], [], [[1, 3]]]


def test_an_acknowledgement_goes_alone_when_no_request_follows(dialogue, mail):
    take(dialogue, *answered(dialogue, mail, 1))
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1]])]
    assert ask(dialogue).acks == []


def test_a_request_that_is_sent_again_acknowledges_nothing(dialogue, mail):
    take(dialogue, *answered(dialogue, mail, 1))
    assert ask(dialogue, numbered=True).acks == [[1, 1]]
    dialogue.broken()
    dialogue.receives(WELCOME)
    again = [said for said in dialogue.said() if isinstance(said, wire.Request)]
    assert [(said.number, said.acks) for said in again] == [(1, [])]


def test_a_request_that_never_left_acknowledges_nothing_later(dialogue, mail):
    take(dialogue, *answered(dialogue, mail, 1))
    dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert [said.acks for said in dialogue.said() if isinstance(said, wire.Request)] == [[]]


def test_a_request_without_a_connection_carries_nothing(dialogue, mail):
    """The redelivery is settled when it comes."""
    take(dialogue, *answered(dialogue, mail, 1))
    dialogue.session.disconnected()
    dialogue.session.sending.request("svc", "a", RECORD, numbered=True)
    dialogue.session.connected()
    dialogue.receives(WELCOME)
    assert [said.acks for said in dialogue.said() if isinstance(said, wire.Request)] == [[]]
    dialogue.receives(mail(0, [1], attempts=2))
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1]])]


def test_more_ranges_than_a_command_may_have_go_alone(dialogue, mail):
    mailbox = open_mailbox(dialogue, credit=3000, credit_bytes=-1)
    sequences = list(range(1, 2 * RANGES_MAX + 2, 2))
    dialogue.receives(mail(0, sequences))
    for sequence in sequences:
        mailbox.finish(sequence)
    dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    assert dialogue.said()[0].acks == []
    dialogue.session.inbox.acknowledge_all()
    assert [len(said.ranges) for said in dialogue.said()] == [RANGES_MAX, 1]


def test_a_late_reply_is_acknowledged_with_what_is_awaited(dialogue, mail):
    late, awaited = request(dialogue), request(dialogue)
    dialogue.session.sending.forget(late)
    dialogue.receives(mail(0, [1], properties=reply(late)))
    assert dialogue.said() == []
    dialogue.receives(mail(0, [2], properties=reply(awaited)))
    take(dialogue, awaited)
    assert ask(dialogue).acks == [[1, 2]]


def test_a_redelivery_of_what_waits_to_be_acknowledged_is_acknowledged_once(dialogue, mail):
    mailbox = open_mailbox(dialogue)
    dialogue.receives(mail(0, [1]))
    mailbox.hand_out()
    mailbox.finish(1)
    dialogue.receives(wire.Recall(0, [[1, 1]], "timeout"), mail(0, [1], attempts=2))
    assert not mailbox.waiting
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1]])]
    assert mailbox.among_outstanding([1]) == []


def test_the_first_request_opens_the_mailbox_for_replies(dialogue):
    dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    assert [type(m) for m in dialogue.said()] == [wire.Request, Credit, wire.Request]


def test_only_the_service_that_was_asked_can_reply(dialogue, mail):
    """A client that knows the correlation may send mail with it, or have another service reply with it."""
    pending = request(dialogue)
    as_mail = {"correlation": pending.correlation}
    of_another = {"correlation": pending.correlation, "service": "other", "final": True}
    dialogue.receives(mail(0, [1], properties=as_mail), mail(0, [2], properties=of_another))
    assert not pending.waiting
    assert not pending.complete
    assert [item.sequence for item in dialogue.session.inbox.mailbox.waiting] == [1, 2]
    dialogue.receives(mail(0, [3], properties=reply(pending)))
    assert [item.sequence for item in pending.waiting] == [3]


def test_a_correlation_reveals_nothing_of_the_routing_id_or_of_what_other_services_are_asked(dialogue):
    identity = dialogue.session.identity
    asked = [
        dialogue.session.sending.request(service, "a", RECORD, numbered=False).correlation
        for service in ("svc", "svc", "other")
    ]
    told = [*asked, dialogue.session.pending_replies.new_tracker()]
    for part in (identity[:8], identity[8:]):
        assert not any(part.hex() in word or part.decode("latin-1") in word for word in told)
    marks = [word.partition("-")[0] for word in told]
    assert marks[0] == marks[1]
    assert len({*marks}) == 3


def test_correlations_of_two_sessions_differ(new_dialogue):
    first, second = new_dialogue(), new_dialogue()
    second.session.__init__(b"\x02another-session-")
    assert request_correlation(first) != request_correlation(second)


def request_correlation(dialogue):
    return dialogue.session.sending.request("svc", "a", RECORD, numbered=False).correlation


def test_late_replies_are_acknowledged_and_dropped(dialogue, mail):
    pending = request(dialogue)
    dialogue.session.sending.forget(pending)
    dialogue.receives(mail(0, [1], properties=reply(pending)))
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1]])]
    assert not dialogue.session.inbox.mailbox.waiting


def test_a_reply_that_was_taken_is_not_taken_again_after_a_resume(dialogue, mail):
    pending = request(dialogue)
    dialogue.receives(mail(0, [1], properties=reply(pending, final=False)))
    dialogue.session.sending.pop_reply(pending)
    dialogue.broken()
    dialogue.receives(WELCOME)
    dialogue.receives(mail(0, [1], attempts=2, properties=reply(pending, final=False)))
    assert not pending.waiting


def test_replies_that_waited_are_redelivered_after_a_resume(dialogue, mail):
    pending = request(dialogue)
    dialogue.receives(mail(0, [1], properties=reply(pending)))
    dialogue.broken()
    dialogue.receives(WELCOME, mail(0, [1], attempts=2, properties=reply(pending)))
    assert [item.sequence for item in pending.waiting] == [1]
    # The program may end before it takes it: then the mailbox has it for the next.
    dialogue.session.inbox.acknowledge_all()
    assert not any(isinstance(message, Ack) for message in dialogue.said())
    dialogue.session.sending.pop_reply(pending)
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1]])]


def test_a_reply_that_was_taken_before_one_that_waits_is_acknowledged_when_it_is_redelivered(dialogue, mail):
    pending = request(dialogue)
    dialogue.receives(mail(0, [1, 2], properties=reply(pending, final=False)))
    dialogue.session.sending.pop_reply(pending)
    dialogue.broken()
    dialogue.receives(WELCOME)
    dialogue.said()
    dialogue.receives(mail(0, [1, 2], attempts=2, properties=reply(pending, final=False)))
    dialogue.session.inbox.acknowledge_all()
    assert dialogue.said() == [Ack(0, [[1, 1]])]
    assert [item.sequence for item in pending.waiting] == [2]


def test_mail_that_nobody_takes_does_not_keep_a_reply_away(dialogue, mail):
    mailbox = open_mailbox(dialogue, credit=2)
    dialogue.receives(mail(0, [1, 2]))
    pending = dialogue.session.sending.request("svc", "a", RECORD, numbered=False)
    assert dialogue.said()[-1] == Credit(0, 2, 2 * SIZE)
    dialogue.receives(mail(0, [3, 4]))
    assert dialogue.said() == [Credit(0, 2, 2 * SIZE)]
    dialogue.receives(mail(0, [5], properties=reply(pending)))
    assert len(pending.waiting) == 1
    assert len(mailbox.waiting) == 4


def test_a_request_that_is_refused_has_the_error_in_its_exchange(dialogue):
    pending = dialogue.session.sending.request("svc", "a", RECORD, numbered=True)
    dialogue.receives(Error(503, "full", 4, 1))
    assert isinstance(pending.command.error, errors.TryLater)


# Work


def test_credit_for_work_comes_back_with_the_final_reply(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("topic", "a.*")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.said()
    dialogue.session.sending.reply(offer, 4, RECORD, Command(), final=False)
    dialogue.session.sending.reply(offer, 4, RECORD, Command(), final=True)
    assert dialogue.said() == [
        wire.Reply(1, 1, [4], [False], [RECORD]),
        wire.Reply(1, 2, [4], [True], [RECORD], 1, 0),
    ]


def test_a_reply_that_is_sent_again_grants_nothing(dialogue, mail):
    """HELLO has taken all credit, and OFFER grants the window."""
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.session.sending.reply(offer, 4, RECORD, Command(), final=True)
    assert dialogue.said()[-1].credit == 1
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[1:] == [
        wire.Offer(1, "svc", EVERYTHING, 1, -1),
        wire.Reply(1, 1, [4], [True], [RECORD]),
    ]


def test_a_reply_that_never_left_is_sent_without_credit_later(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.said()
    dialogue.session.sending.reply(offer, 4, RECORD, final=True)
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[-1] == wire.Reply(1, 0, [4], [True], [RECORD])


def test_a_wide_window_is_not_topped_up_with_each_reply(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=8, credit_bytes=10_000)
    dialogue.receives(Ok(7, 1), mail(1, list(range(1, 9))))
    dialogue.said()
    for sequence in range(1, 9):
        offer.hand_out()
        dialogue.session.sending.reply(offer, sequence, RECORD, final=True)
    granted = [(reply.credit, reply.credit_bytes) for reply in dialogue.said()]
    assert granted == [(0, 0), (0, 0), (0, 0), (4, 4 * SIZE)] * 2


def test_credit_is_piggybacked_on_an_acknowledgement(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    offer.finish(4)
    dialogue.said()
    dialogue.session.inbox.acknowledge(offer)
    dialogue.session.inbox.refill(offer)
    assert dialogue.said() == [Ack(1, [[4, 4]], 1, 0)]


def test_no_credit_is_piggybacked_on_a_rejection(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    offer.finish(4, rejection=Rejection("no paper"))
    dialogue.said()
    dialogue.session.inbox.acknowledge(offer)
    dialogue.session.inbox.refill(offer)
    assert dialogue.said() == [wire.Reject(1, [[4, 4]], "no paper"), Credit(1, 1, 0)]


def test_a_drained_offer_grants_nothing_with_its_last_reply(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.session.inbox.drain()
    dialogue.receives(Ok(21, 1))
    dialogue.said()
    dialogue.session.sending.reply(offer, 4, RECORD, final=True)
    assert dialogue.said() == [wire.Reply(1, 0, [4], [True], [RECORD])]


def test_a_reply_that_is_refused_at_once_leaves_its_request_in_hand(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.said()
    dialogue.session.close()
    with pytest.raises(errors.Closed):
        dialogue.session.sending.reply(offer, 4, RECORD, final=True)
    assert offer.among_outstanding([4]) == [4]


def test_an_offer_is_made_again_with_its_whole_window(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("topic", "a.*")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.said()
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[-1] == wire.Offer(1, "svc", [["topic", "a.*"]], 1, -1)
    dialogue.receives(Ok(7, 1), mail(1, [4], attempts=2))
    assert not offer.waiting, "it is still in the worker's hands"
    dialogue.session.sending.reply(offer, 4, RECORD, Command(), final=True)
    assert dialogue.said()[-1] == wire.Reply(1, 1, [4], [True], [RECORD], 1, 0)


def offer_with_a_request_in_hand(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.broken()
    dialogue.receives(WELCOME, Ok(7, 1))
    dialogue.said()
    return offer


@pytest.mark.parametrize("numbered", [True, False])
def test_a_reply_that_crosses_the_redelivery_of_its_request_is_good(dialogue, mail, numbered):
    offer = offer_with_a_request_in_hand(dialogue, mail)
    dialogue.session.sending.reply(offer, 4, RECORD, Command() if numbered else None, final=True)
    dialogue.said()
    dialogue.receives(mail(1, [4], attempts=2))
    assert not offer.waiting
    assert dialogue.said() == [Credit(1, 1, 0)]


@pytest.mark.parametrize("numbered", [True, False])
def test_a_reply_that_came_before_the_redelivery_is_refused_and_the_request_done_again(
    dialogue, mail, numbered
):
    offer = offer_with_a_request_in_hand(dialogue, mail)
    dialogue.session.sending.reply(offer, 4, RECORD, Command() if numbered else None, final=True)
    dialogue.receives(Error(420, "not outstanding", 5, int(numbered)), mail(1, [4], attempts=2))
    assert [item.sequence for item in offer.waiting] == [4]


def test_a_reply_that_is_sent_again_may_cross_the_redelivery_too(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.session.sending.reply(offer, 4, RECORD, Command(), final=True)
    dialogue.broken()
    dialogue.receives(WELCOME, Ok(7, 1), mail(1, [4], attempts=2))
    assert not offer.waiting


def test_a_reply_that_was_lost_with_its_connection_means_doing_the_request_again(dialogue, mail):
    offer = dialogue.session.inbox.offer("svc", [("all", "")], credit=1, credit_bytes=-1)
    dialogue.receives(Ok(7, 1), mail(1, [4]))
    offer.hand_out()
    dialogue.session.sending.reply(offer, 4, RECORD, final=True)
    dialogue.said()
    dialogue.broken()
    dialogue.receives(WELCOME, Ok(7, 1), mail(1, [4], attempts=2))
    assert len(offer.waiting) == 1


# Questions, and the end


def test_questions_without_answer_are_asked_again(dialogue):
    query = dialogue.session.questions.query("status", {"deep": True})
    ping = dialogue.session.questions.ping()
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[1:] == [wire.Query(1, "status", {"deep": True}), wire.Ping()]
    dialogue.receives(wire.Answer(1, {"ok": 1}), wire.Pong())
    assert query.value == {"ok": 1}
    assert ping.done


def test_a_change_is_a_numbered_command_that_is_sent_again_and_answered_once(dialogue):
    before = dialogue.publish(b"1")
    change = dialogue.session.questions.change("stream.purge", {"stream": "s"})
    said = wire.Change(2, "stream.purge", {"stream": "s"})
    assert dialogue.said()[-1] == said
    dialogue.receives(Stored([[1, 1, 1]]))
    assert before.done
    assert not change.done
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert dialogue.said()[1:] == [said]
    dialogue.receives(Ok(15, 2, {"last": 1}))
    assert change.value == {"last": 1}
    dialogue.receives(Ok(15, 2, {"last": 2}))
    assert change.value == {"last": 1}
    assert not len(dialogue.session.outbox)


def test_the_answer_to_a_change_counts_before_the_session_is_open_again(dialogue):
    change = dialogue.session.questions.change("stream.purge", {"stream": "s"})
    dialogue.broken()
    dialogue.receives(Ok(15, 1, {"last": 1}))
    assert change.value == {"last": 1}


def test_a_refused_change_has_the_error_and_frees_its_number(dialogue):
    change = dialogue.session.questions.change("stream.purge", {"stream": "t"})
    dialogue.receives(Error(404, "no such stream", 15, 1))
    assert isinstance(change.error, errors.NotFound)
    assert dialogue.session.outbox.unsettled == 2


def test_as_many_changes_are_asked_for_at_a_time_as_the_broker_keeps_outcomes(dialogue):
    questions = dialogue.session.questions
    said = []
    while questions.may_change:
        questions.change("stream.purge", {"stream": "s"})
        said += dialogue.said()
    assert len(said) == CHANGES_MAX
    dialogue.receives(Ok(15, 7, {}))
    assert questions.may_change


def test_a_change_whose_caller_has_given_up_is_not_made_by_what_is_sent_later(dialogue):
    dialogue.session.disconnected()
    change = dialogue.session.questions.change("stream.purge", {"stream": "s"})
    dialogue.session.questions.abandon(change)
    after = dialogue.publish(b"1")
    dialogue.session.connected()
    dialogue.receives(WELCOME)
    _, dry, _ = dialogue.said()
    assert dry == wire.Change(1, "stream.purge", {"stream": "s", "dry_run": True})
    dialogue.receives(Ok(15, 1, {}), Stored([[2, 2, 1]]))
    assert after.done
    assert isinstance(change.error, errors.Closed)


def test_a_first_change_is_not_made_again_by_a_broker_that_has_forgotten_the_session(dialogue):
    # The broker may have made it, and have forgotten that with the session: an ADD would count twice.
    change = dialogue.session.questions.change_key(wire.Add(1, "b", "count", 2))
    assert dialogue.said() == [wire.Add(1, "b", "count", 2)]
    dialogue.broken()
    dialogue.receives(WELCOME._replace(resumed=False))
    assert wire.Add(1, "b", "count", 2) not in dialogue.said()
    assert isinstance(change.error, errors.ConnectionLost)


def test_a_change_is_not_made_again_by_a_broker_that_has_forgotten_the_session(dialogue):
    dialogue.publish(b"1")
    dialogue.receives(Stored([[1, 1, 1]]))
    had = dialogue.session.questions.change("stream.purge", {"stream": "s"})
    dialogue.session.disconnected()
    new = dialogue.session.questions.change("stream.purge", {"stream": "t"})
    dialogue.session.connected()
    dialogue.said()
    dialogue.receives(WELCOME._replace(resumed=False))
    assert dialogue.said() == [
        wire.Change(2, "stream.purge", {"stream": "s", "dry_run": True}),
        wire.Change(3, "stream.purge", {"stream": "t"}),
    ]
    assert isinstance(had.error, errors.ConnectionLost)
    assert not new.done


def test_a_refused_question_has_the_error(dialogue):
    query = dialogue.session.questions.query("weather", {})
    dialogue.receives(Error(404, "no such topic", 11, 1))
    assert isinstance(query.error, errors.NotFound)


def test_bye_ends_the_session_when_it_is_answered(dialogue):
    dialogue.session.close()
    assert dialogue.said() == [wire.Bye()]
    with pytest.raises(errors.Closed):
        dialogue.session.questions.query("status", {})
    dialogue.receives(Ok(13, 0))
    assert dialogue.session.state is State.ENDED
    assert isinstance(dialogue.session.error, errors.Closed)


def test_bye_is_said_again_on_the_next_connection(dialogue):
    dialogue.session.close()
    dialogue.said()
    dialogue.broken()
    dialogue.receives(WELCOME)
    assert [type(m) for m in dialogue.said()] == [Hello, wire.Bye]


def test_a_second_welcome_changes_nothing(dialogue, delivery):
    source = subscribe(dialogue)
    dialogue.receives(Ok(6, 1, 1), WELCOME, delivery(1, 0, [1]))
    assert [type(m) for m in dialogue.said()] == [wire.Subscribe]
    assert source.waiting == 1


def test_the_helpers_speak_the_protocol(mail):
    deliver = mail(0, [1, 2], attempts=2)
    assert [*unpack_payload(deliver.payload).each_sequence()] == [1, 2]
