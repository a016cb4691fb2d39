"""Clients that mean harm beside the load: the attacks of the benchmark, and good sessions, mutated."""

from __future__ import annotations

import resource
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from random import Random
from threading import Event

import zmq
from bad_machine import SPEED
from lab.attacks import ATTACKS, EMPTY, attack
from rig_process import end, fork

from malamute.protocol.codec import encode
from malamute.protocol.messages import (
    VERSION,
    Cancel,
    Credit,
    Hello,
    Message,
    Offer,
    Ping,
    Publish,
    Query,
    Request,
    Subscribe,
)

DEPTH = 500
ATTACK_SECONDS = 5.0 * SPEED
"""What an attack gets done is up to the machine."""
SESSIONS = 40
ANSWER_MS = 200 * SPEED

DIALOGUE: Sequence[Message] = (
    Hello([VERSION], "mallory"),
    Subscribe(1, "mallory", [["all", ""]], credit=10),
    Publish("mallory", 1, ["a", "b"], [EMPTY, EMPTY]),
    Offer(2, "mallory", [["topic", "a.*"]], credit=1),
    Request("mallory", 2, ["a.b"], [EMPTY]),
    Credit(1, 10, 1000),
    Query(1, "streams", {}),
    Ping(),
    Cancel(1),
)
"""A good session."""


def attack_for_a_while(url: str, chance: Random) -> None:
    """One of the attacks, until it is over or has had its time."""
    process = fork(_attack, url, chance.choice([*ATTACKS]))
    process.join(ATTACK_SECONDS)
    end(process)


def every_attack(url: str) -> None:
    """All of the attacks at once, until each is over or has had its time."""
    processes = [fork(_attack, url, what) for what in ATTACKS]
    deadline = time.monotonic() + ATTACK_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        end(process)


def be_many(url: str, count: int) -> None:
    """So many connections that say nothing, until this process is ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = url.removeprefix("tcp://").partition(":")
    with ExitStack() as stack:
        for _ in range(count):
            with suppress(OSError):
                stack.enter_context(socket.create_connection((host, int(port)), 5))
        Event().wait()


def _attack(url: str, what: str) -> None:
    attack(lambda: None, url, what, DEPTH)


def mutated_sessions(url: str, chance: Random) -> None:
    """Good sessions, each on a connection, whose messages are cut, swapped, repeated and altered."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        for _ in range(SESSIONS):
            _converse(context, url, [*mutated(chance)], chance)
    finally:
        context.destroy(0)


def _converse(
    context: zmq.Context[zmq.Socket[bytes]], url: str, said: Sequence[Sequence[bytes]], chance: Random
) -> None:
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.ROUTING_ID, b"\1" + secrets.token_bytes(15))
        socket.setsockopt(zmq.LINGER, chance.choice([0, 100]))
        socket.setsockopt(zmq.SNDTIMEO, ANSWER_MS)
        socket.connect(url)
        with suppress(zmq.Again):
            for frames in said:
                socket.send_multipart(frames)
        if chance.random() < 0.5 and socket.poll(ANSWER_MS):
            socket.recv_multipart()


def mutated(chance: Random) -> Iterator[Sequence[bytes]]:
    """The dialogue, spoiled in one to three ways."""
    said = [[bytes(frame) for frame in encode(message)] for message in DIALOGUE]
    for _ in range(chance.randint(1, 3)):
        chance.choice(SPOILERS)(said, chance)
    yield from (frames for frames in said if frames)


Dialogue = list[list[bytes]]


def _drop(said: Dialogue, chance: Random) -> None:
    del said[chance.randrange(len(said))]


def _repeat(said: Dialogue, chance: Random) -> None:
    place = chance.randrange(len(said))
    said[place:place] = [said[place]] * chance.randint(1, 50)


def _swap(said: Dialogue, chance: Random) -> None:
    one, two = (chance.randrange(len(said)) for _ in "ab")
    said[one], said[two] = said[two], said[one]


def _join(said: Dialogue, chance: Random) -> None:
    place = chance.randrange(len(said))
    said[place] = said[place] + said[chance.randrange(len(said))]


def _alter(said: Dialogue, chance: Random) -> None:
    frames = chance.choice(said)
    place = chance.randrange(len(frames))
    spoiled = bytearray(frames[place] or b"\0")
    for _ in range(chance.randint(1, 4)):
        spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
    frames[place] = bytes(spoiled)


def _cut(said: Dialogue, chance: Random) -> None:
    frames = chance.choice(said)
    place = chance.randrange(len(frames))
    frames[place] = frames[place][: chance.randrange(len(frames[place]) + 1)]


def _lengthen(said: Dialogue, chance: Random) -> None:
    chance.choice(said).append(chance.randbytes(chance.randrange(5_000)))


SPOILERS: Sequence[Callable[[Dialogue, Random], None]] = (
    _drop,
    _repeat,
    _swap,
    _join,
    _alter,
    _cut,
    _lengthen,
)
