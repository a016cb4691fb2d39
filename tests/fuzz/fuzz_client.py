"""What a client hears, in any order, beside what its program does.

A step is a letter, a digit, and what the letter needs:

    R frames   the broker says this         N frames   the same, about a command or source that is there
    P publish  S subscribe  O offer  M take mail  Q request  T send with an outcome  K ask  V change
    H take what has come    A acknowledge it  B give it back  J reject it  Y reply  C cancel  E drain
    D the connection breaks  U it stands    L time passes  G close
    X a call that is refused, after which the connection is made anew
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgpack
from fuzz_dialogue import mutate_steps
from fuzz_frames import FRAME, STEP, Change

from malamute.client.session.message import Rejection
from malamute.client.session.outbox import Command
from malamute.client.session.replies import PendingRequest
from malamute.client.session.session import ClientSession, State
from malamute.client.session.sources import ConsumerSource, Source, StreamSource
from malamute.errors import Closed, MalamuteError
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    VERSION,
    Bye,
    Deliver,
    Drain,
    Error,
    Gap,
    Hello,
    Message,
    Ok,
    Publish,
    Recall,
    Stored,
    Switch,
    Welcome,
)

ALL = [("all", "")]
RECORD = pack_record({"n": 1}, b"body")
STEPS_MAX = 60
SAID_MAX = 10_000

SOURCE, COLUMN = 1, -1
REFERRING = {
    BY_TYPE[kind].opcode: place
    for kind, place in (
        (Stored, COLUMN),
        (Ok, 2),
        (Error, 4),
        *((kind, SOURCE) for kind in (Deliver, Gap, Switch, Recall)),
    )
}
"""Where a message of the broker says what it is about, by its opcode."""

ODD: Sequence[Any] = ("\ud800", object(), 2**64, {1: 2}, [[]], -(2**64), 1.5j, "x\0\udfff")
"""Values that nothing has room for."""

REFUSED: Sequence[Callable[[ClientSession, Any], object]] = (
    lambda session, odd: session.inbox.subscribe("s", ALL, where=odd, start="new", credit=1, credit_bytes=1),
    lambda session, odd: session.inbox.subscribe(
        "s", [("all", [odd, {"a": odd}])], where="", start="new", credit=1, credit_bytes=odd
    ),
    lambda session, odd: session.inbox.offer("s", ALL, credit=odd, credit_bytes=1),
    lambda session, odd: session.inbox.open_mailbox(odd, 1),
    lambda session, odd: session.sending.send("bob", ["a"], [RECORD], Command(), {"n": {"m": [odd, 1j]}}),
    lambda session, odd: session.sending.send_tracked("bob", "a", RECORD, Command(), {"n": [odd, 1j]}),
    lambda session, odd: session.sending.request(
        "s", "a", RECORD, numbered=True, tracked=True, options={"n": [odd, 1j]}
    ),
    lambda session, odd: session.sending.commit("s", "c", odd, Command()),
    lambda session, odd: session.questions.query("status", {"n": [odd, 1j]}),
    lambda session, odd: session.questions.change("user.add", {"n": [odd, 1j]}),
    lambda session, odd: session.questions.withdraw("mailbox", odd, 1),
)
"""Calls that refuse each of them."""

LIMITS = {"unconfirmed": 8, "message_bytes": 1_000}


class Program:
    """A session, and a program that uses it."""

    def __init__(self) -> None:
        self.session = ClientSession(b"\1client", address="ann", software="fuzz", heartbeat=10.0)
        self.sources: list[Source] = []
        self.requests: list[PendingRequest] = []
        self.held: list[tuple[ConsumerSource, int]] = []
        self.now = 1.0
        self.said: list[Message] = []

    # What comes in

    def receive(self, frames: list[bytes]) -> None:
        """The broker says something."""
        self.session.receive(frames)

    def receive_about(self, number: int, frames: list[bytes]) -> None:
        """The same, about a source or a command that is there."""
        with suppress(ValueError, TypeError, LookupError, msgpack.UnpackException):
            fields = msgpack.unpackb(frames[0], strict_map_key=False)
            place = REFERRING[fields[0]]
            sources = [source.number for source in self.sources] or [MAILBOX]
            commands = [command.number for command in self.session.outbox.kept()] or [0]
            if place == COLUMN:
                one = commands[number % len(commands)]
                fields[1] = [[one, one, 7]]
            else:
                known = sources if place == SOURCE else commands + sources
                fields[place] = known[number % len(known)]
            frames = [msgpack.packb(fields), *frames[1:]]
        self.receive(frames)

    # What the program does

    def publish(self, number: int) -> Command:
        """Publish a message, confirmed."""
        command = Command()
        self.session.sending.publish_single("s", "a", RECORD, command if number % 2 else None)
        return command

    def subscribe(self, number: int) -> None:
        self.sources.append(
            self.session.inbox.subscribe(
                "s",
                ALL,
                where="",
                start="new",
                credit=1 + number,
                credit_bytes=1000,
                cursor="c" * (number % 2),
            )
        )

    def offer(self, number: int) -> None:
        kind = "mailbox" if number % 2 else "service"
        self.sources.append(
            self.session.inbox.offer("s", ALL, credit=1 + number, credit_bytes=1000, kind=kind)  # type: ignore[arg-type]  # it is a literal
        )

    def take_mail(self, number: int) -> None:
        if number % 3:
            mailbox = self.session.inbox.open_mailbox(1 + number, 1000)
            if mailbox not in self.sources:
                self.sources.append(mailbox)
        else:
            self.session.inbox.close_mailbox()

    def request(self, number: int) -> None:
        sending = self.session.sending
        self.requests.append(
            sending.request("s", "a", RECORD, numbered=number != 1, tracked=number not in (0, 1))
        )

    def track(self, number: int) -> None:
        self.session.sending.send_tracked("bob", "a", RECORD, Command(), {"ttl": number} if number else {})

    def ask(self, number: int) -> None:
        questions = self.session.questions
        match number % 3:
            case 0:
                questions.query("status", {})
            case 1:
                questions.withdraw("mailbox", "ann", number)
            case _:
                questions.ping()

    def change(self, number: int) -> None:
        if self.session.questions.may_change:
            self.session.questions.change("user.add", {"name": "ann"})

    def take(self, number: int) -> None:
        """Take what has come to any source, and every reply."""
        for source in self.sources:
            if isinstance(source, StreamSource):
                list(source.pop_messages()) if number % 2 or not source.waiting else source.pop_columns()
                self.session.inbox.refill(source)
            elif isinstance(source, ConsumerSource):
                while source.has_one:
                    self.held.append((source, source.hand_out().sequence))
        for pending in self.requests:
            while pending.waiting:
                self.session.sending.pop_reply(pending)
        if number > 5 and self.requests:
            self.session.sending.forget(self.requests.pop())

    def acknowledge(self, number: int) -> None:
        for source, sequence in self._let_go(number):
            source.finish(sequence)
        self.session.inbox.acknowledge_all()

    def give_back(self, number: int) -> None:
        for source, sequence in self._let_go(number):
            if number % 2:
                self.session.inbox.give_back(source, sequence, number)
            else:
                self.session.inbox.release(source, sequence)

    def reject(self, number: int) -> None:
        for source, sequence in self._let_go(number):
            source.finish(sequence, rejection=Rejection("no", bool(number % 2)))

    def reply(self, number: int) -> None:
        for source, sequence in self._let_go(number):
            if source._offer is None or source._offer.kind != "service":
                continue
            command = Command() if number % 2 else None
            self.session.sending.reply(source, sequence, RECORD, command, final=number < 6)

    def _let_go(self, number: int) -> list[tuple[ConsumerSource, int]]:
        gone, self.held = self.held[: number + 1], self.held[number + 1 :]
        return gone

    def cancel(self, number: int) -> None:
        if self.sources:
            source = self.sources[number % len(self.sources)]
            if source.number != MAILBOX:
                self.session.inbox.cancel(source)
                self.sources.remove(source)

    def refused(self, number: int) -> None:
        """A call with a value that cannot be sent leaves nothing that is said when the client comes back."""
        session, odd = self.session, ODD[number % len(ODD)]
        if session.outbox.refusal is not None:
            return
        for call in REFUSED:
            try:
                call(session, odd)
            except MalamuteError:
                continue
            raise AssertionError(f"{odd!r} is taken")
        session.disconnected()
        session.connected()

    def drain(self, number: int) -> None:
        self.session.inbox.drain()

    def wait(self, number: int) -> None:
        self.now += 0.1 + number
        self.session.look_at_clock(self.now)

    # What goes out

    def send(self) -> None:
        """The socket takes all there is: each is a message that a broker takes."""
        outbox = self.session.outbox
        for _ in range(SAID_MAX):
            frames = outbox.next_to_send()
            if frames is None:
                return
            self.said.append(decode([bytes(frame) for frame in frames]))
            outbox.sent()
        raise AssertionError("the session has no end of what it says")


DO: Mapping[bytes, Callable[[Program, int], object]] = {
    b"P": Program.publish,
    b"S": Program.subscribe,
    b"O": Program.offer,
    b"M": Program.take_mail,
    b"Q": Program.request,
    b"T": Program.track,
    b"K": Program.ask,
    b"V": Program.change,
    b"H": Program.take,
    b"A": Program.acknowledge,
    b"B": Program.give_back,
    b"J": Program.reject,
    b"Y": Program.reply,
    b"C": Program.cancel,
    b"E": Program.drain,
    b"D": lambda program, _: program.session.disconnected(),
    b"U": lambda program, _: program.session.connected(),
    b"L": Program.wait,
    b"G": lambda program, _: program.session.close(),
    b"X": Program.refused,
}


def client(data: bytes) -> None:
    """Nothing that a broker says raises anything; with a good one the session goes on, and ends as asked."""
    program = Program()
    session = program.session
    session.connected()
    for step in data.split(STEP)[:STEPS_MAX]:
        _do(program, step[:1], step[1:2], step[2:])
        program.send()
        for event in session.pop_events():
            assert str(event)
    if session.error is None:
        _go_on(program)
    assert session.error is not None
    assert not program.session.inbox._all() or session.state is State.ENDED
    for pending in program.requests:
        assert pending.command.done or pending.command.number == 0


def _do(program: Program, kind: bytes, choice: bytes, rest: bytes) -> None:
    number = choice[0] % 8 if choice else 0
    if kind == b"R":
        program.receive(rest.split(FRAME))
    elif kind == b"N":
        program.receive_about(number, rest.split(FRAME))
    elif kind in DO:
        try:
            DO[kind](program, number)
        except MalamuteError:
            # A session that is over says so, and a broker may have said that nothing fits.
            if not program.session.outbox.refusal and program.session.sending.limits.message_bytes >= 1_000:
                raise


def _go_on(program: Program) -> None:
    """A connection to a broker that knows its trade: a command is confirmed, and BYE ends the session."""
    session = program.session
    session.disconnected()
    session.connected()
    program.send()
    hello = program.said[-1]
    assert type(hello) is Hello
    _say(program, Welcome(VERSION, b"\1" * 16, b"broker", False, "fuzz", LIMITS, hello.attempt))
    assert session.state is State.READY
    if not session.closing:
        command = program.publish(1)
        program.send()
        published = [message for message in program.said if type(message) is Publish]
        assert published[-1].number == command.number
        _say(program, Stored([[command.number, command.number, NUMBER_MAX // 2]]))
        assert command.sequence == NUMBER_MAX // 2
        session.close()
    for _ in range(3):
        program.send()
        said, program.said = program.said, []
        for message in said:
            if type(message) is Drain:
                _say(program, Ok(BY_TYPE[Drain].opcode, message.source))
            elif type(message) is Bye:
                _say(program, Ok(BY_TYPE[Bye].opcode, 0))
    assert type(session.error) is Closed


def mutate(data: bytes, size_max: int, seed: int, change: Change) -> bytes:
    """A conversation with a step or a few changed, moved, doubled or left out."""
    return mutate_steps(data, size_max, seed, change, b"RNN", b"PPSOMQTKVHHAABJYCEDULGX")


def _say(program: Program, message: Message) -> None:
    program.session.receive([bytes(frame) for frame in encode(message)])
