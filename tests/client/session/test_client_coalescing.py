"""A message published while a publish to the same stream waits goes with it, and its caller cannot tell."""

from collections.abc import Iterator

import pytest
from depth import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.client.events import Refusal
from malamute.client.session.outbox import COALESCED_BYTES, COALESCED_MESSAGES, Command
from malamute.client.session.session import ClientSession
from malamute.errors import Closed
from malamute.protocol import messages as wire
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Error, Hello, Publish, Stored, Welcome

WELCOME = Welcome(2, b"id", b"broker", True, "", {})
RECORD = pack_record(None, b"x")


def shapes(said):
    return [(m.stream, m.number, len(m.records)) for m in said if isinstance(m, Publish)]


def test_publishes_that_wait_go_as_one_command_and_each_gets_its_own_sequence(dialogue):
    first, second, third = (
        dialogue.publish_single(b"1"),
        dialogue.publish_single(b"2"),
        dialogue.publish_single(b"3"),
    )
    assert dialogue.said() == [Publish("s", 1, ["a"] * 3, [pack_record(None, b"%d" % n) for n in (1, 2, 3)])]
    dialogue.receives(Stored([[1, 1, 7]]))
    assert [(c.done, c.sequence, c.number) for c in (first, second, third)] == [
        (True, 7, 1),
        (True, 8, 1),
        (True, 9, 1),
    ]


def test_unconfirmed_publishes_that_wait_go_as_one_command(dialogue):
    for body in (b"1", b"2", b"3"):
        dialogue.publish_single(body, confirmed=False)
    assert shapes(dialogue.said()) == [("s", 0, 3)]


def test_the_first_goes_at_once_and_what_comes_behind_it_is_another_command(dialogue):
    dialogue.publish_single(b"1")
    assert dialogue.session.outbox.next_to_send(), "it is offered to the socket"
    dialogue.publish_single(b"2")
    dialogue.publish_single(b"3")
    assert shapes(dialogue.said()) == [("s", 1, 1), ("s", 2, 2)]


def test_only_what_follows_each_other_to_one_stream_and_in_one_way_is_coalesced(dialogue):
    dialogue.publish_single(b"1")
    dialogue.publish_single(b"2", stream="t")
    dialogue.publish_single(b"3")
    dialogue.publish_single(b"4", confirmed=False)
    dialogue.publish_single(b"5", confirmed=False)
    dialogue.session.sending.send("bob", ["a"], [RECORD])
    dialogue.publish_single(b"7", confirmed=False)
    dialogue.session.questions.ping()
    dialogue.publish_single(b"8", confirmed=False)
    said = dialogue.said()
    assert shapes(said) == [("s", 1, 1), ("t", 2, 1), ("s", 3, 1), ("s", 0, 2), ("s", 0, 1), ("s", 0, 1)]
    assert [type(m) for m in said[-4:]] == [wire.Send, Publish, wire.Ping, Publish]


def test_what_is_published_as_a_batch_stays_a_command_of_its_own(dialogue):
    dialogue.publish_single(b"1")
    dialogue.publish(b"2", b"3")
    dialogue.publish_single(b"4")
    assert shapes(dialogue.said()) == [("s", 1, 1), ("s", 2, 2), ("s", 3, 1)]


def test_so_many_messages_are_coalesced_and_no_more(dialogue):
    for _ in range(COALESCED_MESSAGES + 1):
        dialogue.publish_single(b"x")
    assert shapes(dialogue.said()) == [("s", 1, COALESCED_MESSAGES), ("s", 2, 1)]


def test_so_many_bytes_are_coalesced_and_no_more(dialogue):
    most = COALESCED_BYTES - len(RECORD)
    big = b"x" * (most - len(pack_record(None, b"x" * 1000)) + 1000)
    assert len(pack_record(None, big)) == most
    dialogue.publish_single(big)
    dialogue.publish_single(b"x")
    dialogue.publish_single(big)
    dialogue.publish_single(b"xx")
    assert shapes(dialogue.said()) == [("s", 1, 2), ("s", 2, 1), ("s", 3, 1)]


def test_no_more_is_coalesced_than_the_broker_takes_in_a_command(new_dialogue):
    dialogue = new_dialogue()
    dialogue.session.connected()
    dialogue.receives(WELCOME._replace(limits={"message_bytes": 3 * len(RECORD)}))
    for _ in range(5):
        dialogue.publish_single(b"x")
    assert shapes(dialogue.said()) == [("s", 1, 3), ("s", 2, 2)]


def test_a_refusal_is_that_of_each_and_of_no_other(dialogue):
    refused = [dialogue.publish_single(b"1"), dialogue.publish_single(b"2")]
    dialogue.said()
    others = [dialogue.publish_single(b"3"), dialogue.publish_single(b"4")]
    dialogue.said()
    dialogue.receives(Error(503, "full", 2, 1), Stored([[2, 2, 5]]))
    assert [type(c.error).__name__ for c in refused] == ["TryLater", "TryLater"]
    assert [(c.error, c.sequence) for c in others] == [(None, 5), (None, 6)]
    assert dialogue.session.pop_events() == ()


def test_an_unconfirmed_refusal_is_one_event(dialogue):
    dialogue.publish_single(b"1", confirmed=False)
    dialogue.publish_single(b"2", confirmed=False)
    dialogue.said()
    dialogue.receives(Error(503, "full", 2, 0))
    assert [type(event) for event in dialogue.session.pop_events()] == [Refusal]


def test_what_was_sent_is_sent_again_as_it_was_and_what_was_not_may_grow(dialogue):
    first = dialogue.publish_single(b"1")
    dialogue.said()
    second = dialogue.publish_single(b"2")
    dialogue.broken()
    third = dialogue.publish_single(b"3")
    dialogue.receives(WELCOME)
    fourth = dialogue.publish_single(b"4")
    assert shapes(dialogue.said()) == [("s", 1, 1), ("s", 2, 2), ("s", 3, 1)]
    dialogue.receives(Stored([[1, 1, 0], [2, 3, 8]]))
    assert [c.sequence for c in (first, second, third, fourth)] == [0, 8, 9, 10]


def test_a_publish_that_is_offered_to_the_socket_does_not_grow_when_the_connection_breaks(dialogue):
    dialogue.publish_single(b"1")
    offered = [bytes(frame) for frame in dialogue.session.outbox.next_to_send()]
    dialogue.broken()
    dialogue.publish_single(b"2")
    dialogue.receives(WELCOME)
    said = dialogue.said()
    assert shapes(said) == [("s", 1, 1), ("s", 2, 1)]
    assert decode(offered) in said


def test_the_window_counts_the_bytes_of_all_that_are_coalesced(dialogue):
    dialogue.session.outbox.window_bytes = 3 * len(RECORD)
    for _ in range(2):
        dialogue.publish_single(b"x")
        assert dialogue.session.outbox.room(numbered=True)
    dialogue.publish_single(b"x")
    assert not dialogue.session.outbox.room(numbered=True)
    dialogue.said()
    dialogue.receives(Stored([[1, 1, 1]]))
    assert dialogue.session.outbox.room(numbered=True)


def test_the_end_of_the_session_is_the_error_of_each(dialogue):
    commands = [dialogue.publish_single(b"1"), dialogue.publish_single(b"2")]
    dialogue.session.end(Closed("over"))
    assert [type(c.error) for c in commands] == [Closed, Closed]
    with pytest.raises(Closed):
        dialogue.publish_single(b"3")


class ModelBroker:
    """A broker that stores what is published or refuses it, and answers when it is asked to."""

    def __init__(self, *, coalescing: bool) -> None:
        self.session = ClientSession(b"\x01id")
        if not coalescing:
            self.session.outbox.coalesced_bytes = 0
        self.coalescing = coalescing
        self.session.connected()
        self.stored: dict[str, list[bytes]] = {"s": [], "t": []}
        self.next = 1
        self.refused: dict[int, Error] = {}
        self.answers: list[wire.Message] = []
        self.commands: list[Command] = []
        self.refusals: list[bool] = []

    def publish(self, stream: str, body: bytes, *, confirmed: bool) -> None:
        command = Command() if confirmed else None
        if command is not None:
            self.commands.append(command)
        self.session.sending.publish_single(stream, "a", pack_record(None, body), command)

    def take(self, messages: int = 0) -> Iterator[wire.Message]:
        """The capacity of the socket: a command, or as many as have so many messages together."""
        taken = None
        while (taken is None or messages > 0) and (frames := self.session.outbox.next_to_send()) is not None:
            taken = decode([bytes(frame) for frame in frames])
            self.session.outbox.sent()
            messages -= len(taken.records) if isinstance(taken, Publish) else messages
            yield taken

    def receive(self, message: wire.Message, full: bool) -> None:
        match message:
            case Hello():
                self.session.receive(encode(WELCOME))
                if not self.coalescing:
                    self.session.outbox.coalesced_bytes = 0
            case Publish():
                self._receive(message, full)

    def _receive(self, message: Publish, full: bool) -> None:
        number, kept = message.number, self.stored[message.stream]
        if number > self.next:
            self.answers.append(Error(421, "gap", 2, number))
        elif number in self.refused:
            self.answers.append(self.refused[number])
        elif 0 < number < self.next:
            self.answers.append(Stored([[number, number, 0]]))
        else:
            self.next += bool(number)
            error = Error(503, "full", 2, number)
            if full and number:
                self.refused[number] = error
            if full:
                self.answers.append(error)
            else:
                self.answers += [Stored([[number, number, len(kept) + 1]])] if number else []
                kept += message.records

    def answer(self) -> None:
        for answer in self.answers:
            self.session.receive(encode(answer))
        self.answers = []
        self.refusals.append(any(isinstance(event, Refusal) for event in self.session.pop_events()))

    def outcomes(self) -> list[tuple[bool, int, type | None]]:
        return [(c.done, c.sequence, type(c.error) if c.error else None) for c in self.commands]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from("sst"), st.booleans()),
        st.tuples(st.sampled_from(["take", "take-full", "lose"])),
        st.tuples(st.sampled_from(["answer", "lose-answers", "break", "resync"])),
    ),
    max_size=60,
)


def take(alone, together, step):
    """One command goes to the broker; and those that it was made of, where nothing is coalesced."""
    for message in together.take():
        count = len(message.records) if isinstance(message, Publish) else 0
        if step != "lose":
            together.receive(message, step == "take-full")
        for part in alone.take(count):
            if step != "lose":
                alone.receive(part, step == "take-full")


@settings(deadline=None, max_examples=30 * DEPTH)
@given(STEPS)
def test_coalescing_changes_nothing_for_any_caller(steps):
    alone, together = brokers = ModelBroker(coalescing=False), ModelBroker(coalescing=True)
    for number, (step, *where) in enumerate(steps):
        if step.startswith(("take", "lose")) and step != "lose-answers":
            take(alone, together, step)
        for broker in brokers:
            match step:
                case "publish":
                    broker.publish(where[0], b"%d" % number, confirmed=where[1])
                case "answer":
                    broker.answer()
                case "lose" | "lose-answers" | "break":
                    # Frames are lost with their connection alone.
                    broker.answers = []
                    broker.session.disconnected()
                    broker.session.connected()
                case "resync":
                    broker.session.receive(encode(Error(405, "say HELLO", 2, 0)))
        assert together.outcomes() == alone.outcomes()
    for _ in range(200):
        take(alone, together, "take")
        alone.answer()
        together.answer()
    assert together.outcomes() == alone.outcomes()
    assert all(done for done, *_ in together.outcomes())
    assert together.stored == alone.stored
    assert together.refusals == alone.refusals
