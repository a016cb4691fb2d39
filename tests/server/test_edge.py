"""The loop knows of an edge what `Edge` says, and nothing more: a second one is a class and a line."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from malamute.core.broker import Core
from malamute.core.identity.access import Principal
from malamute.errors import Malformed
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import (
    Deliver,
    Error,
    Hello,
    Message,
    Ok,
    Publish,
    Stored,
    Subscribe,
    Welcome,
)
from malamute.server.clock import Clock
from malamute.server.edge import Edge
from malamute.server.loop import Loop
from malamute.server.transport import Transport

WAIT = 60.0
ROUTED, NEAR = b"\x01" * 16, b"near" * 4


class Lane:
    """An edge without a socket, for peers in this process: a pipe wakes the loop."""

    def __init__(self) -> None:
        self.endpoints = ["lane"]
        self.drained = True
        self.lost: list[bytes] = []
        self.full = False
        self.forgotten: list[bytes] = []
        self.closed = False
        self._in: deque[tuple[bytes, Message | Exception]] = deque()
        self._read, self._write = os.pipe()
        self._kept: list[Message] = []
        self._sent: deque[Message] = deque()
        self._news = threading.Condition()

    # Acts of its peers

    def say(self, message: Message | Exception) -> None:
        self._in.append((NEAR, message))
        os.write(self._write, b"!")

    def hear(self, *kinds: type) -> Message:
        """The next message of these kinds."""
        with self._news:
            while True:
                assert self._news.wait_for(lambda: self._sent, WAIT), "the broker is silent"
                message = self._sent.popleft()
                if isinstance(message, kinds):
                    return message

    def nudge(self) -> None:
        os.write(self._write, b"!")

    # Questions of the loop

    @property
    def inputs(self) -> tuple[int]:
        return (self._read,)

    def arrivals(self) -> int:
        return -1

    def arrived(self, now: float) -> float:
        raise AssertionError("it never rests")

    def watch(self, now: float, ready: Any) -> None:
        if self._read in ready:
            os.read(self._read, 1_000)

    def next_check(self, now: float) -> float | None:
        return None

    def owns(self, peer: bytes) -> bool:
        return peer == NEAR

    def receive(self) -> Iterator[tuple[bytes, Message | Exception]]:
        while self._in:
            yield self._in.popleft()

    def origin(self, peer: bytes) -> str:
        return ""

    def principal(self, peer: bytes) -> Principal:
        return Principal("nearby", listener="lane")

    def send(self, peer: bytes, message: Message) -> bool:
        assert peer == NEAR
        if self.full:
            self._kept.append(message)
            return len(self._kept) == 1
        self._tell(message)
        return False

    def _tell(self, message: Message) -> None:
        with self._news:
            self._sent.append(message)
            self._news.notify()

    def retry(self) -> list[bytes]:
        if self.full or not self._kept:
            return []
        for message in self._kept:
            self._tell(message)
        self._kept.clear()
        return [NEAR]

    def pop_lost(self) -> list[bytes]:
        lost, self.lost = self.lost, []
        return lost

    def forget(self, peer: bytes) -> None:
        self.forgotten.append(peer)

    def close(self, linger_ms: int) -> None:
        self.closed = True
        os.close(self._read)
        os.close(self._write)


class Both:
    """A broker with two edges, and a client at each."""

    def __init__(self, context: zmq.Context) -> None:
        transport = Transport(context, {})
        self.lane = Lane()
        edges: list[Edge] = [transport, self.lane]
        clock = Clock()
        self.loop = Loop(Core(clock()), MemoryStore(), edges, clock=clock)
        endpoint = transport.bind("tcp://127.0.0.1:*")
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()
        self.far = context.socket(zmq.DEALER)
        self.far.setsockopt(zmq.ROUTING_ID, ROUTED)
        self.far.connect(endpoint)

    def hear_far(self, *kinds: type) -> Message:
        while True:
            assert self.far.poll(WAIT * 1000), "the broker is silent"
            message = decode(self.far.recv_multipart())
            if isinstance(message, kinds):
                return message


@pytest.fixture
def both(context) -> Iterator[Both]:
    both = Both(context)
    yield both
    both.loop.stop()
    both.thread.join(WAIT)
    assert not both.thread.is_alive()
    assert both.lane.closed


def publish(number: int) -> Publish:
    return Publish("s", number, ["a"], [pack_record(None, b"x")])


def until(condition: Callable[[], Any]) -> None:
    ends = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def open_both(both: Both) -> None:
    both.lane.say(Hello([2], "near"))
    assert isinstance(both.lane.hear(Message), Welcome)
    both.far.send_multipart(encode(Hello([2], "far")))
    assert isinstance(both.hear_far(Message), Welcome)


def test_peers_of_two_edges_meet_in_one_broker(both):
    open_both(both)
    assert [*map(str.split, both.loop.endpoints)][1] == ["lane"]
    both.lane.say(Subscribe(1, "s", [["all", ""]], credit=-1))
    both.far.send_multipart(encode(Subscribe(1, "s", [["all", ""]], credit=-1)))
    both.lane.hear(Ok)
    both.hear_far(Ok)
    both.lane.say(publish(1))
    assert isinstance(both.lane.hear(Stored), Stored)
    assert isinstance(both.hear_far(Deliver), Deliver)
    both.far.send_multipart(encode(publish(1)))
    assert isinstance(both.hear_far(Stored), Stored)


def test_a_session_has_the_principal_that_its_edge_gives(both):
    open_both(both)
    sessions = both.loop.core.sessions.by_peer
    assert sessions[NEAR].may.principal == Principal("nearby", listener="lane")
    assert sessions[ROUTED].may.principal == Principal()


def test_what_an_edge_could_not_decode_is_answered_there(both):
    both.lane.say(Malformed("no command"))
    error = both.lane.hear(Error)
    assert error.code == 400


def test_a_full_edge_keeps_and_says_when_it_is_not_full_any_more(both):
    open_both(both)
    both.lane.full = True
    both.lane.say(publish(1))
    until(lambda: both.lane._kept)
    assert both.loop.core.sessions.by_peer[NEAR].open
    both.lane.full = False
    both.lane.nudge()
    assert isinstance(both.lane.hear(Stored), Stored)


def test_who_is_lost_at_one_edge_has_no_open_session(both):
    open_both(both)
    both.lane.lost.append(NEAR)
    both.lane.nudge()
    until(lambda: not both.loop.core.sessions.by_peer[NEAR].open)
    both.lane.say(Hello([2], "near"))
    assert both.lane.hear(Welcome).resumed
    both.far.send_multipart(encode(Subscribe(2, "s", [["all", ""]])))
    assert isinstance(both.hear_far(Ok), Ok)
