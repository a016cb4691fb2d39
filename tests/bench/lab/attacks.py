"""What one client can send that costs the broker most, by name.

The benchmark measures what others notice of each, and a test of them all has others lose nothing by it. An
attacker first prepares what has to be there, and then does its worst. What it is refused is its own affair.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from select import select
from typing import Any, NamedTuple

import zmq

from lab.raw_peer import RawPeer
from malamute.bench.processes import Measured
from malamute.errors import MalamuteError, TimedOut, UnexpectedCommand
from malamute.protocol.batch import pack, pack_record, unpack_payload
from malamute.protocol.messages import (
    BY_TYPE,
    Cancel,
    Change,
    Deliver,
    Drain,
    Error,
    Message,
    Nak,
    Offer,
    Ping,
    Pong,
    Publish,
    Query,
    Release,
    Request,
    Stored,
    Subscribe,
)

BATCH = 5_000

HELD = 20_000
"""Deliveries that an attacker holds."""

READERS = 5
"""Clients that read nothing."""

LARGE = 100_000
"""Bytes of each message that is sent to them."""

EMPTY = pack_record(None, b"")

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
LARGE_FRAME = b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
EMPTY_FRAMES = b"\x01\x00" * 10_000
CLAUSES = " and ".join(f"(a{n}=1 or b{n}=1)" for n in range(16))
PATIENCE_SECONDS = 60.0
"""How long an answer may take: nothing is measured with it, and many of them may attack at the same time."""

NICENESS = 19
"""The lowest priority."""


class Attacker:
    """A client that means harm, and whatever else it has: more clients, and connections that are none.

    `name` is that of the service, the stream and the client that it uses, so that several do not meet.
    """

    def __init__(self, url: str, name: str, depth: int) -> None:
        self.url = url
        self.name = name
        self.depth = depth
        self._stack = ExitStack()
        self.peer = self.another("", {})

    def another(self, suffix: str, options: dict[int, int]) -> RawPeer:
        """One more client."""
        patience: dict[int, int] = {zmq.RCVTIMEO: int(PATIENCE_SECONDS * 1000)}
        return self._stack.enter_context(RawPeer(self.url, self.name + suffix, {**patience, **options}))

    def connection(self) -> socket.socket:
        """A connection of bare bytes."""
        host, _, port = self.url.removeprefix("tcp://").rpartition(":")
        made = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self._stack.enter_context(made)
        return made

    def stranger(self) -> socket.socket:
        """A connection of bare bytes that libzmq takes for a client, and that never says HELLO."""
        made = self.connection()
        made.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
        received = 0
        while received < len(GREETING) + 2:
            received += len(made.recv(4096)) or LARGE
        return made

    def send(self, *messages: Message) -> None:
        """Send messages."""
        for message in messages:
            self.peer.send(message)

    def settle(self, peer: RawPeer | None = None) -> None:
        """Wait until all that was sent has its answer, or the connection was lost with it."""
        peer = peer or self.peer
        peer.send(Ping())
        with suppress(TimedOut):
            while not isinstance(answer := peer.receive(), Pong):
                if isinstance(answer, Error) and answer.code == UnexpectedCommand.code:
                    return

    def close(self) -> None:
        """End all of it."""
        self._stack.close()


class Attack(NamedTuple):
    """What is there before, what is done, and which limits of the broker it may use up."""

    prepare: Callable[[Attacker], None]
    strike: Callable[[Attacker], None]
    limits: tuple[str, ...] = ()


def attack(begin: Callable[[], None], url: str, what: str, depth: int) -> Measured:
    """Prepare an attack, and begin it when all are ready.

    An attacker has a machine of its own. Here it gets what processor time the broker and the others leave.
    """
    os.nice(NICENESS)
    chosen = ATTACKS[what]
    attacker = Attacker(url, f"attacker-{[*ATTACKS].index(what)}", depth)
    try:
        chosen.prepare(attacker)
        begin()
        start = time.monotonic()
        chosen.strike(attacker)
        return {"seconds": time.monotonic() - start}
    finally:
        attacker.close()


# What is there before.


def nothing(attacker: Attacker) -> None:
    """Nothing."""


def deep_queue(attacker: Attacker, depth: int = 0) -> None:
    """A service with so many requests that nobody works for."""
    depth = depth or attacker.depth
    batches = -(-depth // BATCH)
    for first in range(0, depth, BATCH):
        count = min(BATCH, depth - first)
        subjects = [f"job.{first + n}" for n in range(count)]
        attacker.send(Request(attacker.name, first // BATCH + 1, subjects, [EMPTY] * count))
    stored = 0
    while stored < batches:
        stored = attacker.peer.next(Stored).ranges[-1][1]


def holding(attacker: Attacker) -> None:
    """The same, and very much of it is held."""
    depth = min(attacker.depth, HELD)
    deep_queue(attacker, depth)
    attacker.send(Offer(1, attacker.name, [["all", ""]], credit=-1))
    held = 0
    while held < depth:
        delivery = attacker.peer.next(Deliver)
        held += len(unpack_payload(delivery.payload, delivery.large).subjects)


def streams(attacker: Attacker) -> None:
    """Many streams."""
    attacker.send(*[Publish(f"{attacker.name}-{number}", 0, ["a"], [EMPTY]) for number in range(2_000)])
    attacker.settle()


def subscribed(attacker: Attacker, subscriptions: Iterable[tuple[list[Any], str]]) -> None:
    """Subscriptions with these criteria and expressions."""
    for number, (criteria, where) in enumerate(subscriptions, 1):
        attacker.send(Subscribe(number, attacker.name, [criteria], where, credit=-1))
    attacker.settle()


def negated(attacker: Attacker) -> None:
    """A hundred subscriptions that no term of a message decides."""
    subscribed(attacker, [(["all", ""], f"not x = {number}") for number in range(100)])


def plain(attacker: Attacker) -> None:
    """As many plain subscriptions as one session may have."""
    subscribed(attacker, [(["topic", f"*.{number}"], "") for number in range(1_000)])


def patterns(attacker: Attacker) -> None:
    """More regular expressions than a process might keep compiled."""
    for number in range(10):
        peer = attacker.another(f"-{number}", {})
        for source in range(1, 111):
            expression = f"^a{number}.*{source}z$"
            peer.send(Subscribe(source, attacker.name, [["regex", expression]], credit=-1))
        attacker.settle(peer)


# What is done.


def sending(*messages: Message) -> Callable[[Attacker], None]:
    """Say this, and wait for the answers."""

    def strike(attacker: Attacker) -> None:
        attacker.send(*messages)
        attacker.settle()

    return strike


def growing(attacker: Attacker) -> None:
    """Selectors of some hundred bytes whose normal form has 65,536 terms."""
    where = " and ".join(f"(a{n} = 'x' or b{n} = 'y')" for n in range(8))
    where += " and " + " and ".join(f"c{n} in (2, 3)" for n in range(8))
    subscribed(attacker, [(["all", ""], f"{where} and d = {number}") for number in range(200)])


def clauses(attacker: Attacker) -> None:
    """One selector of less than 479 bytes that has 256 times 256 clauses."""
    attacker.send(Subscribe(1, attacker.name, [["all", ""]], CLAUSES, credit=-1))
    attacker.settle()


def batch(attacker: Attacker) -> None:
    """One batch with as many new subjects."""
    subjects = [f"a{n}.{n % 1_000}" for n in range(10_000)]
    sending(Publish(attacker.name, 0, subjects, [EMPTY] * len(subjects)))(attacker)


def lists(attacker: Attacker) -> None:
    """Questions for all there is."""
    sending(*[Query(n, "streams", {}) for n in range(1, 251)])(attacker)


def unread_lists(attacker: Attacker) -> None:
    """The same of one who does not read the answers."""
    greedy = attacker.another("-greedy", {zmq.RCVHWM: 1})
    for number in range(1, 251):
        greedy.send(Query(number, "streams", {}))
    attacker.settle()


def never_reading(attacker: Attacker) -> None:
    """Subscribers that read nothing, and very much for them to read."""
    for number in range(READERS):
        reader = attacker.another(f"-{number}", {zmq.RCVHWM: 1})
        reader.send(Subscribe(1, attacker.name, [["all", ""]], credit=-1, credit_bytes=-1))
    record = pack_record(None, bytes(LARGE))
    for number in range(1, 601, 10):
        # Confirmed: what the disk has not got yet is for all to share, and not what this is about.
        attacker.send(*[Publish(attacker.name, number + n, ["a"], [record]) for n in range(10)])
        while attacker.peer.next(Stored).ranges[-1][1] < number + 9:
            pass


def idle_offers(attacker: Attacker) -> None:
    """Offers without credit."""
    sending(*[Offer(n, attacker.name, [["exact", f"none.{n}"]]) for n in range(1, 301)])(attacker)


def searching_offers(attacker: Attacker) -> None:
    """Offers that match nothing."""
    sending(*[Offer(n, attacker.name, [["exact", f"none.{n}"]], credit=10) for n in range(1, 11)])(attacker)


def purge(attacker: Attacker) -> None:
    """All of the queue."""
    sending(Change(0, "queue.purge", {"kind": "service", "name": attacker.name}))(attacker)


def strangers_names(attacker: Attacker) -> None:
    """Questions about subjects and headers that nobody has, and messages with such subjects."""
    for number in range(500):
        name = f"{number:0>200}"
        about = {"stream": attacker.name, "subject": name, "headers": {name: "x"}}
        attacker.send(Query(number + 1, "explain", about))
        attacker.send(Publish(attacker.name, 0, [f"{name}.{n}" for n in range(20)], [EMPTY] * 20))
    attacker.settle()


def small_frames(attacker: Attacker) -> None:
    """Small records, each of them a frame of its own, that the broker has to keep."""
    for number in range(1, 11):
        command = pack((BY_TYPE[Request].opcode, attacker.name, number, ["a"] * 1_000, [None] * 1_000))
        attacker.peer.send_frames(command, *[b"\x92\xc0\xc4\x01x"] * 1_000)
    attacker.settle()


def nested(attacker: Attacker) -> None:
    """Lists in lists that announce very much and hold nothing."""
    for head in (b"\x91", b"\xdd\x00\x01\x86\xa0", b"\xdc\xff\xff", b"\x81\xc0"):
        for _ in range(50):
            attacker.peer.send_frames(head * (5_000 // len(head)))
            attacker.peer.send_frames(b"\x95" + head * (5_000 // len(head)))
    attacker.settle()


def streams_of_a_moment(attacker: Attacker) -> None:
    """Streams that are made and removed."""
    for number in range(2_000):
        named = {"stream": f"{attacker.name}-{number}"}
        attacker.send(Change(0, "stream.create", named), Change(0, "stream.delete", named))
    attacker.settle()


def comings_and_goings(attacker: Attacker) -> None:
    """A thousand subscriptions that come and go."""
    for source in range(1, 1_001):
        attacker.send(Subscribe(source, attacker.name, [["topic", f"{source}.*"]], credit=-1))
    attacker.send(*[Cancel(source) for source in range(1, 1_001)])
    attacker.settle()


def large_frames(attacker: Attacker) -> None:
    """A command before HELLO that has no end."""
    if not is_cut_off(attacker.stranger(), LARGE_FRAME, 400):
        raise MalamuteError(
            "connection that sends without end is still open: expected the broker to close it"
        )


def empty_frames(attacker: Attacker) -> None:
    """A command before HELLO of a million frames."""
    is_cut_off(attacker.stranger(), EMPTY_FRAMES, 100)


def is_cut_off(stranger: socket.socket, data: bytes, times: int) -> bool:
    """Send data so many times over. Returns whether the broker closed the connection before the end of that.

    If its window was full by then, the system tells a sender of the end a minute later; a reader sees it at
    once.
    """
    stranger.setblocking(False)
    left = memoryview(data)
    while times:
        readable, writable, _ = select([stranger], [stranger], [], PATIENCE_SECONDS)
        if not (readable or writable):
            return False
        try:
            if readable and not stranger.recv(4096):
                return True
            if writable:
                left = left[stranger.send(left) :]
        except ConnectionError:
            return True
        if not left:
            times, left = times - 1, memoryview(data)
    return False


def silent(attacker: Attacker) -> None:
    """Connections that never say HELLO."""
    for _ in range(300):
        with suppress(OSError):  # refused
            attacker.connection()
    attacker.settle()


ATTACKS: dict[str, Attack] = {
    "frames without end before HELLO": Attack(nothing, large_frames),
    "a million empty frames before HELLO": Attack(nothing, empty_frames),
    "300 connections without HELLO": Attack(nothing, silent),
    "clients that never read": Attack(nothing, never_reading, ("send",)),
    "250 lists of 2,000 streams": Attack(streams, lists, ("answers",)),
    "250 lists that nobody reads": Attack(streams, unread_lists, ("answers", "send")),
    "300 offers without credit": Attack(deep_queue, idle_offers),
    "10 offers that match nothing": Attack(deep_queue, searching_offers),
    "a NAK of 1,000 ranges": Attack(
        holding, sending(Nak(1, [[1, HELD + n] for n in range(1_000)], 3_600_000))
    ),
    "a RELEASE of very much": Attack(holding, sending(Release(1, [[1, HELD]]))),
    "a DRAIN of very much": Attack(holding, sending(Drain(1, []))),
    "a purge of the queue": Attack(deep_queue, purge),
    "200 selectors that grow": Attack(nothing, growing, ("selectors",)),
    "a selector of 256 by 256 clauses": Attack(nothing, clauses, ("selectors",)),
    "1,000 subscriptions that come and go": Attack(nothing, comings_and_goings, ("selectors",)),
    "100 selectors with not, one batch": Attack(negated, batch, ("caches",)),
    "1,100 regexes, 10,000 new subjects": Attack(patterns, batch, ("caches",)),
    "1,000 selectors, 10,000 new subjects": Attack(plain, batch, ("caches",)),
    "names of strangers": Attack(nothing, strangers_names, ("caches",)),
    "small records as frames": Attack(nothing, small_frames),
    "msgpack in msgpack": Attack(nothing, nested),
    "streams that are made and deleted": Attack(nothing, streams_of_a_moment),
}
"""Each attack."""
