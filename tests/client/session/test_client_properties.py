"""Under any fault of the connection each message is seen once and in order, each publish is stored once."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from malamute.client.session.outbox import Command
from malamute.client.session.session import RESYNCS_MAX, ClientSession
from malamute.errors import MalamuteError
from malamute.protocol import messages as wire
from malamute.protocol.batch import Columns, pack_record, pack_stream_payload
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Credit, Deliver, Error, Hello, Ok, Publish, Stored, Subscribe, Welcome

WELCOME = Welcome(2, b"id", b"broker", True, "", {})
RECORD = pack_record(None, b"0123456789")
SIZE = len("a") + len(RECORD)


def said(session):
    while (frames := session.outbox.next_to_send()) is not None:
        session.outbox.sent()
        yield decode([bytes(frame) for frame in frames])


class StreamBroker:
    """A broker with one endless stream and one subscriber."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.credit = self.credit_bytes = 0
        self.after = self.next = None

    def listen(self) -> None:
        for message in said(self.session):
            match message:
                case Hello():
                    self.next = None
                    self.session.receive(encode(WELCOME))
                case Subscribe():
                    self.next = int(message.start.removeprefix("seq:"))
                    self.after = self.next - 1
                    self.credit, self.credit_bytes = message.credit, message.credit_bytes
                    self.session.receive(encode(Ok(6, 1, self.next)))
                case Credit():
                    self.credit += message.messages
                    self.credit_bytes += message.bytes

    def deliver(self, most: int, *, lost: bool) -> None:
        count = 0
        while self.next is not None and count < most and self.credit > 0 and self.credit_bytes > 0:
            count += 1
            self.credit -= 1
            self.credit_bytes -= SIZE
        if count:
            columns = Columns(self.next, 1, "", ["a"] * count, [RECORD] * count)
            deliver = Deliver(1, self.after, *pack_stream_payload(columns))
            self.next += count
            self.after = self.next - 1
            if not lost:
                self.session.receive(encode(deliver))


ACTIONS = st.one_of(
    st.tuples(st.just("deliver"), st.integers(1, 30)),
    st.tuples(st.just("lose"), st.integers(1, 30)),
    st.tuples(st.just("take"), st.just(0)),
    st.tuples(st.just("break"), st.just(0)),
)


@settings(deadline=None)
@given(st.lists(ACTIONS, max_size=60), st.integers(1, 40), st.integers(1, 40 * SIZE))
def test_a_subscriber_sees_each_message_once_in_order_and_never_more_than_its_window(actions, credit, size):
    session = ClientSession(b"\x01id")
    session.connected()
    source = session.inbox.subscribe(
        "s", [("all", "")], where="", start="seq:1", credit=credit, credit_bytes=size
    )
    broker = StreamBroker(session)
    broker.listen()
    seen, held = [], 0
    for action, count in actions:
        if action in ("deliver", "lose"):
            broker.deliver(count, lost=action == "lose")
        elif action == "break":
            session.disconnected()
            session.connected()
        else:
            source.consume()
            chunk = [message.sequence for message in source.pop_messages()]
            held = len(chunk)
            seen += chunk
            session.inbox.refill(source)
        broker.listen()
        if session.error is not None:
            break
        assert held + source.waiting + max(0, broker.credit) <= credit
        assert (held + source.waiting) * SIZE + broker.credit_bytes <= max(size, credit * SIZE)
    # Losses on a connection that stands, one after another and nothing between, are given up on.
    assert session.error is None or sum(action == "lose" for action, _ in actions) > RESYNCS_MAX
    assert seen == list(range(1, len(seen) + 1))


class JournalBroker:
    """A broker that stores what is published, and answers when it is asked to."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.stored: list[bytes] = []
        self.next = 1
        self.first: dict[int, int] = {}
        self.refused: dict[int, Error] = {}
        self.answers: list[wire.Message] = []

    def listen(self, *, refuse: bool = False) -> None:
        for message in said(self.session):
            match message:
                case Hello():
                    self.session.receive(encode(WELCOME))
                case Publish():
                    self.publish(message, refuse)

    def publish(self, message: Publish, refuse: bool) -> None:
        number = message.number
        if number > self.next:
            self.answers.append(Error(421, "gap", 2, number))
        elif number in self.refused:
            self.answers.append(self.refused[number])
        elif number < self.next:
            self.answers.append(Stored([[number, number, 0]]))
        elif refuse:
            self.next += 1
            self.refused[number] = Error(503, "full", 2, number)
            self.answers.append(self.refused[number])
        else:
            self.next += 1
            self.first[number] = len(self.stored) + 1
            self.stored += message.records
            self.answers.append(Stored([[number, number, self.first[number]]]))

    def answer(self) -> None:
        for answer in self.answers:
            self.session.receive(encode(answer))
        self.answers = []


STEPS = st.lists(
    st.sampled_from(["publish", "listen", "refuse", "answer", "lose-answers", "lose-command", "break"]),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_each_confirmed_publish_is_stored_once_or_refused(steps):
    session = ClientSession(b"\x01id")
    session.connected()
    broker = JournalBroker(session)
    broker.listen()
    commands: list[tuple[Command, bytes]] = []
    for step in steps:
        match step:
            case "publish":
                record = pack_record(None, b"%d" % len(commands))
                commands.append((Command(), record))
                session.sending.publish("s", ["a"], [record], commands[-1][0])
            case "listen" | "refuse":
                broker.listen(refuse=step == "refuse")
            case "answer":
                broker.answer()
            case "lose-answers" | "lose-command" | "break":
                # Frames are lost with their connection alone.
                if step == "lose-command" and session.outbox.next_to_send() is not None:
                    session.outbox.sent()
                broker.answers = []
                session.disconnected()
                session.connected()
    for _ in range(3):
        broker.listen()
        broker.answer()
    assert session.error is None
    assert all(command.done for command, _ in commands)
    assert broker.stored == [record for command, record in commands if command.error is None]
    for command, record in commands:
        if command.sequence:
            assert broker.stored[command.sequence - 1] == record


ODD = st.sampled_from(["\ud800", object(), 2**64, -(2**64), {1: 2}, [[]], 1.5j, float("nan"), b"\xff", True])
"""Values that hardly anything has room for."""

DOORS = {
    "where": lambda session, odd: session.inbox.subscribe(
        "s", [("all", "")], where=odd, start="new", credit=1, credit_bytes=1
    ),
    "criteria": lambda session, odd: session.inbox.subscribe(
        "s", [("fields", {"a": odd}), odd], where="", start="new", credit=1, credit_bytes=1
    ),
    "window": lambda session, odd: session.inbox.subscribe(
        "s", [("all", "")], where="", start="new", credit=odd, credit_bytes=1
    ),
    "offer": lambda session, odd: session.inbox.offer("s", [("all", "")], credit=1, credit_bytes=odd),
    "mailbox": lambda session, odd: session.inbox.open_mailbox(odd, 1),
    "name": lambda session, odd: session.inbox.offer(odd, [("all", "")], credit=1, credit_bytes=1),
    "send": lambda session, odd: session.sending.send(
        "b", ["a"], [RECORD], Command(), {"n": [odd, object()]}
    ),
    "track": lambda session, odd: session.sending.send_tracked(
        odd, "a", RECORD, Command(), {"n": [odd, object()]}
    ),
    "request": lambda session, odd: session.sending.request(
        odd, "a", RECORD, numbered=True, tracked=True, options={"n": [odd, object()]}
    ),
    "commit": lambda session, odd: session.sending.commit("s", "c", odd, Command()),
    "query": lambda session, odd: session.questions.query("status", {"n": [odd, object()]}),
    "change": lambda session, odd: session.questions.change("user.add", {"n": [odd, object()]}),
    "withdraw": lambda session, odd: session.questions.withdraw("mailbox", odd, 1),
}
"""Each way by which a caller's value comes into a session."""

CALLS = st.lists(st.tuples(st.sampled_from([*DOORS]), ODD), max_size=8)


def come_back(session):
    """The commands of a client that is connected anew."""
    session.disconnected()
    session.connected()
    session.receive(encode(WELCOME))
    return [*said(session)]


@settings(deadline=None)
@given(CALLS, CALLS, st.booleans())
def test_a_refused_call_leaves_nothing_that_is_said_when_the_client_comes_back(before, calls, connected):
    session = ClientSession(b"\x01id", address="ann")
    for door, odd in before:
        with suppress(MalamuteError):
            DOORS[door](session, odd)
    come_back(session)
    if not connected:
        session.disconnected()
    left = come_back(session)[1:] if connected else None
    for door, odd in calls:
        number = session.outbox.next_number
        try:
            DOORS[door](session, odd)
        except MalamuteError:
            assert session.outbox.next_number == number
        else:
            # Some of them are taken as they are; what they leave can be said at least.
            left = None
        again = come_back(session)[1:]
        assert left is None or again == left
        left = again


def test_what_a_caller_changes_after_the_call_is_not_said():
    session = ClientSession(b"\x01id")
    wanted, asked = {"a": 1}, {"n": [1]}
    session.inbox.subscribe("s", [("fields", wanted)], where="", start="new", credit=1, credit_bytes=1)
    session.questions.query("status", asked)
    before = come_back(session)[1:]
    wanted["a"] = object()
    asked["n"].append(object())
    assert come_back(session)[1:] == before
