"""Clients of a broker that answers at once, from a script: their work is the same on any machine.

The connection is one without a socket. It takes commands, and the answers to them can be received. So a call
of a client does all that it does on a real connection, but for ZeroMQ's part.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count as count_up
from math import inf
from types import FrameType
from typing import Any

from opcodes import PACKAGE

import malamute
import malamute.aio
from malamute.client.aio.driver import AioDriver
from malamute.client.session.session import ClientSession
from malamute.client.sync.client import Client
from malamute.client.sync.driver import BlockingDriver
from malamute.protocol.batch import Columns, pack_queue_payload, pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import (
    BY_TYPE,
    MAILBOX,
    Deliver,
    Hello,
    Message,
    Offer,
    Ok,
    Ping,
    Pong,
    Publish,
    Reply,
    Request,
    Stored,
    Welcome,
)

IDENTITY = b"\x01scripted-client"
RECORD = pack_record(None, b"x")
TIMEOUT = 5.0


class ScriptedLink:
    """A connection to a broker that answers at once. `files` are readable while answers wait."""

    def __init__(self) -> None:
        self.quiet = self.taken = self.deferred = self.unexplained = False
        self._answers: list[list[bytes]] = []
        self._sequences = count_up(1)
        reading, self._bell = os.pipe()
        os.set_blocking(reading, False)
        self.files = (reading,)

    def send(self, frames: Sequence[Any]) -> bool:
        with uncounted():
            answers = [*self._answers_to(decode([bytes(frame) for frame in frames]))]
            self._answers += [[bytes(frame) for frame in encode(answer)] for answer in answers]
            if answers:
                os.write(self._bell, b"!")
        return True

    def receive(self) -> list[list[bytes]]:
        with uncounted():
            commands, self._answers = self._answers, []
        return commands

    def wait(self, timeout: float, *, sending: bool, wake_fd: int | None = None) -> bool:
        with uncounted():
            if self._answers:
                with suppress(BlockingIOError):
                    os.read(self.files[0], 4096)
        self.quiet = self.taken
        return bool(self._answers)

    def close(self) -> None:
        for file in (self._bell, *self.files):
            os.close(file)

    def _answers_to(self, command: Message) -> Iterator[Message]:
        if isinstance(command, Publish | Request) and command.number:
            yield Stored([[command.number, command.number, next(self._sequences)]])
        if isinstance(command, Hello):
            yield Welcome(2, IDENTITY, b"broker", False, "scripted", {}, command.attempt)
        elif isinstance(command, Ping):
            yield Pong()
        elif isinstance(command, Offer):
            yield Ok(BY_TYPE[Offer].opcode, command.source)
            yield self._delivery(command.source, {})
        elif isinstance(command, Reply):
            yield self._delivery(command.source, {})
        elif isinstance(command, Request):
            assert command.properties is not None
            correlation = (command.properties[0] or {})["correlation"]
            yield self._delivery(MAILBOX, {"service": command.service, "correlation": correlation})

    def _delivery(self, source: int, properties: dict[str, Any]) -> Deliver:
        sequence = next(self._sequences)
        columns = Columns([sequence], [1], ["peer"], ["a"], [RECORD], [1], [properties])
        return Deliver(source, 0, *pack_queue_payload(columns))


class ScriptedConnection:
    """The connection with that link: it is up from the first look on."""

    due = inf
    url = "scripted"
    taken = True

    def __init__(self) -> None:
        self.link = ScriptedLink()
        self.before_close: Callable[[], None] = lambda: None

    def changes(self, now: float) -> list[bool]:
        changes, self.link.taken = [] if self.link.taken else [True], True
        return changes

    def answered(self, urls: Sequence[str]) -> None:
        """There is nothing to note."""

    def close(self) -> None:
        self.before_close()
        self.link.close()


def blocking_client() -> Client:
    """An open client for blocking programs."""
    driver = BlockingDriver(_session(), _connection(), TIMEOUT)
    for _ in range(2):
        driver.do(driver.iterate)
    return Client(driver)


def aio_client() -> malamute.aio.Client:
    """An open client on the running loop."""
    driver = AioDriver(_session(), _connection(), TIMEOUT)
    driver.hold_seconds = inf  # nothing waits for others to join it: that would depend on the time
    for _ in range(2):
        driver.iterate()
    return malamute.aio.Client(driver)


def _session() -> ClientSession:
    return ClientSession(IDENTITY, address="alice")


def _connection() -> Any:
    return ScriptedConnection()


# The calls: each returns a step that makes one


def publish(client: Client) -> Callable[[], object]:
    return lambda: client.publish("s", "a", b"x", assurance="stored")


def request(client: Client, assurance: str = "none") -> Callable[[], object]:
    return lambda: [*client.request("w", "a", b"x", assurance=assurance)]


def stored_request(client: Client) -> Callable[[], object]:
    return request(client, "stored")


def answer(client: Client) -> Callable[[], object]:
    work = client.work("w")
    return lambda: work.receive(TIMEOUT).reply(b"x")


AioStep = Callable[[], Coroutine[Any, Any, object]]


async def aio_publish(client: malamute.aio.Client) -> AioStep:
    return lambda: client.publish("s", "a", b"x", assurance="stored")


async def aio_request(client: malamute.aio.Client, assurance: str = "none") -> AioStep:
    async def ask() -> None:
        async for _ in client.request("w", "a", b"x", assurance=assurance):
            pass

    return ask


async def aio_stored_request(client: malamute.aio.Client) -> AioStep:
    return await aio_request(client, "stored")


async def aio_answer(client: malamute.aio.Client) -> AioStep:
    work = await client.work("w")

    async def serve() -> None:
        await (await work.receive(TIMEOUT)).reply(b"x")

    return serve


CALLS = {
    "publish and wait": (publish, aio_publish),
    "request and its reply": (request, aio_request),
    "stored request and its reply": (stored_request, aio_stored_request),
    "receive and reply": (answer, aio_answer),
}
"""The calls that wait, on both edges."""


@contextmanager
def stepping(name: str, *, aio: bool) -> Iterator[Callable[[], object]]:
    """The step of a call: the same again with each call."""
    if not aio:
        client = blocking_client()
        yield CALLS[name][0](client)
        client._driver.close()
        return

    async def begin() -> tuple[malamute.aio.Client, AioStep]:
        client = aio_client()
        return client, await CALLS[name][1](client)

    with closing(asyncio.new_event_loop()) as loop:
        client_on_loop, step = loop.run_until_complete(begin())
        yield lambda: loop.run_until_complete(step())
        client_on_loop._driver.close()


# Calls of functions, in Python and in C


@contextmanager
def uncounted() -> Iterator[None]:
    """A block whose calls are not counted: they are the script's."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profile)


def calls(step: Callable[[], object], repeats: int) -> tuple[int, int]:
    """The calls of one step: of Python functions of the package, and of C functions by them.

    The profiler of CPython does not see the calls of ZeroMQ: they are functions of Cython.
    """
    in_python = in_c = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal in_python, in_c
        if frame.f_code.co_filename.startswith(PACKAGE):
            in_python += event == "call"
            in_c += event == "c_call"

    for _ in range(repeats):
        step()
    gc.disable()
    sys.setprofile(count)
    try:
        for _ in range(repeats):
            step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return in_python // repeats, in_c // repeats
