"""The loop: it ends on a fault of ours, and stores and confirms everything before it ends otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from malamute.core import Core
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import Error, Hello, Ping, Pong, Publish, Stored, Welcome
from malamute.server.clock import Clock
from malamute.server.loop import Loop
from malamute.server.transport import Transport

WAIT_MS = 60_000


class Disk(MemoryStore):
    """A store with a fault of ours in it, for one stream."""

    def write(self, operations):
        assert not any(getattr(operation, "stream", "") == "broken" for operation in operations), "a fault"
        super().write(operations)


class Running:
    """A loop on a thread of its own, and a client of it."""

    def __init__(self, context: zmq.Context) -> None:
        self.store = Disk()
        transport = Transport(context, {})
        clock = Clock()
        self.loop = Loop(Core(clock()), self.store, transport, clock=clock)
        endpoint = transport.bind("tcp://127.0.0.1:*")
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.client = context.socket(zmq.DEALER)
        self.client.setsockopt(zmq.ROUTING_ID, b"\x01" * 16)
        self.client.connect(endpoint)

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:
            self.failure = error

    def say(self, message) -> None:
        self.client.send_multipart(encode(message))

    def hear(self):
        assert self.client.poll(WAIT_MS), "the broker is silent"
        return decode(self.client.recv_multipart())

    def join(self) -> None:
        self.thread.join(WAIT_MS / 1000)
        assert not self.thread.is_alive()


@pytest.fixture
def running(context) -> Iterator[Running]:
    running = Running(context)
    yield running
    running.loop.stop()
    running.join()


def publish(stream: str, number: int = 1) -> Publish:
    return Publish(stream, number, ["a"], [pack_record(None, b"x")])


def test_it_serves(running):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(publish("s"))
    assert running.hear() == Stored([[1, 1, 1]])


def test_what_is_no_command_is_answered_and_the_loop_goes_on(running):
    running.client.send_multipart([b"\xc1"])
    error = running.hear()
    assert isinstance(error, Error)
    assert error.code == 400
    running.say(Hello([2], "alice"))
    running.say(Ping())
    assert isinstance(running.hear(), Welcome)
    assert running.hear() == Pong()


def test_the_crash_of_a_worker_ends_the_loop_with_its_error(running):
    running.say(Hello([2], "alice"))
    assert isinstance(running.hear(), Welcome)
    running.say(publish("broken"))
    running.join()
    assert isinstance(running.failure, AssertionError)
    assert "a fault" in str(running.failure)


def test_a_loop_that_is_stopped_confirms_what_it_has_taken(running):
    running.say(Hello([2], "alice"))
    for number in range(1, 101):
        running.say(publish("s", number))
    assert isinstance(running.hear(), Welcome)
    confirmed = running.hear().ranges[-1][1]
    running.loop.stop()
    running.join()
    assert running.failure is None
    taken = running.loop.core.streams.by_name["s"].messages
    while confirmed < taken:
        confirmed = running.hear().ranges[-1][1]
    assert confirmed == taken
