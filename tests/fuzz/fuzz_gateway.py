"""What the gateway hears: the bytes of a connection, up to its paths and a real broker behind them."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import fuzz_brokers
import msgspec
from fuzz_frames import STEP, Change, changed_frame, vary_steps
from fuzz_requests import UPGRADE, changed_json, written

from malamute.gateway import problems
from malamute.gateway.app import ENDPOINTS
from malamute.gateway.openapi import COMMON_PROBLEMS
from malamute.gateway.server import GatewayServer
from malamute.gateway.settings import GatewaySettings

INPUTS_MAX = 300
"""How many inputs one broker and one gateway get."""

STEPS_MAX = 8
PATIENCE_SECONDS = 0.06
"""How long a page waits for its answer. Then it leaves."""

MOMENT_SECONDS = 0.005
"""How long it reads an answer without end."""

HANG_SECONDS = 10.0

FAULTY = {500, 501, 502}
ANY_PATH = {400, 405, 408, 413}
"""Problems of the protocol, and of methods that a path has not."""

_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n((?:[^\r]+\r\n)*)\r\n")
_MARKS: Mapping[bytes, re.Pattern[bytes]] = {
    b"{etag}": re.compile(rb"etag: ([^\r]+)\r\n"),
    b"{href}": re.compile(rb'href="?:?"?([^"]+)"'),
    b"{lease}": re.compile(rb'"lease":"([^"]+)"'),
    b"{location}": re.compile(rb"location: (?:http://[^/\r]+)?([^\r]+)\r\n"),
}
_PATHS = [
    (re.compile(re.sub(r"\\{[a-z]+\\}", "[^?]+", re.escape(one.path))), one.method, one) for one in ENDPOINTS
]


class Answer(NamedTuple):
    """What came for a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection(asyncio.Transport):
    """One end of a connection whose other end is the gateway's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: GatewayServer) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        protocol: Any = server.config.http_protocol_class
        self.protocol = protocol(
            config=server.config, server_state=server.server_state, app_state={}, _loop=loop
        )
        self.protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        assert not self.closed, "something was written to a connection that is closed"
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_protocol(self) -> Any:
        return self.protocol

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        """The other end sends something."""
        if not self.closed:
            self.protocol.data_received(data)

    def leave(self) -> None:
        """The other end leaves."""
        self.closed = True
        self.protocol.connection_lost(None)


class _Errors(logging.Handler):
    """What the gateway, uvicorn and asyncio log as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self._loggers = [logging.getLogger(name) for name in ("malamute", "uvicorn", "asyncio")]
        for logger in self._loggers:
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))

    def close(self) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)
        super().close()


class Site:
    """A gateway before a broker, both in this process."""

    def __init__(self) -> None:
        self._faults = fuzz_brokers.Faults()
        self._errors = _Errors()
        self._broker = fuzz_brokers.broker()
        self.loop = asyncio.new_event_loop()
        settings = GatewaySettings(broker=self._broker.url, reply_seconds=0.5, body_bytes=10_000, users=20)
        self.server = GatewayServer(settings, "127.0.0.1", 0, lambda addresses: None)
        self.server.config.load()
        self._stack = AsyncExitStack()
        self.run(self._stack.enter_async_context(self.app.router.lifespan_context(self.app)))

    @property
    def app(self) -> Any:
        return self.server.config.app

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Let the gateway work until a call is done."""
        return self.loop.run_until_complete(call)

    def connect(self) -> Connection:
        """Open a connection to the gateway."""
        return Connection(self.loop, self.server)

    async def idle(self, seconds: float) -> bool:
        """Wait until the gateway is at work for no connection. Returns whether it is."""
        tasks = self.server.server_state.tasks
        if tasks:
            await asyncio.wait([*tasks], timeout=seconds)
            # What ends with a task is done behind it.
            await asyncio.sleep(0)
        return not tasks

    async def left(self, connection: Connection) -> None:
        """A page has left, and nothing of it stays."""
        connection.leave()
        assert await self.idle(HANG_SECONDS), "an answer goes on whose page has left"
        assert not self.app.state.gateway._followed

    def check(self) -> None:
        """Raise what was logged."""
        assert not self._errors.found, "\n".join(self._errors.found)
        self._faults.check()

    def close(self) -> None:
        """End both. Nothing is left at work."""
        self.run(self._stack.aclose())
        self.run(asyncio.sleep(0))
        left = asyncio.all_tasks(self.loop)
        self.loop.close()
        self._broker.stop()
        self.check()
        self._errors.close()
        self._faults.close()
        assert not left, left


SITE = fuzz_brokers.Lasting(Site, INPUTS_MAX)


def http(data: bytes) -> None:
    """Each request has one answer that its path may give; none is a fault, and who leaves is forgotten."""
    here = SITE.get()
    here.run(_talk(here, data.split(STEP)[:STEPS_MAX]))
    here.check()


async def _talk(here: Site, steps: list[bytes]) -> None:
    known = {b"{csrf}": here.app.state.console.sessions.anonymous.csrf.encode()}
    connection = here.connect()
    for step in steps:
        if connection.closed:
            await here.left(connection)
            connection = here.connect()
        connection.written = b""
        if step.startswith(b"!"):
            connection.send(step[1:])
        else:
            for mark, value in known.items():
                step = step.replace(mark, value)
            connection.send(_on_the_wire(step))
        answered = await _answered(here, connection)
        for mark, pattern in _MARKS.items():
            if found := pattern.findall(connection.written):
                known[mark] = found[-1]
        if answered and not step.startswith(b"!"):
            _check_answer(step, connection)
        if not answered or not isinstance(connection.protocol, here.server.config.http_protocol_class):  # type: ignore[arg-type]  # it is a class by now
            await here.left(connection)
            connection = here.connect()
    await here.left(connection)


async def _answered(here: Site, connection: Connection) -> bool:
    """Wait for an answer, unless it has no end. Returns whether it is there."""
    deadline = here.loop.time() + PATIENCE_SECONDS
    while here.loop.time() < deadline:
        endless = b"text/event-stream" in connection.written or b" 101 " in connection.written[:20]
        if await here.idle(MOMENT_SECONDS):
            return bool(connection.written)
        if endless:
            return False
    return False


def _on_the_wire(step: bytes) -> bytes:
    """A request as HTTP has it. What it says itself of its host and the length of its body stays."""
    head, _, body = step.partition(b"\n\n")
    line, *headers = head.split(b"\n")
    names = {header.partition(b":")[0].strip().lower() for header in headers}
    if b"host" not in names:
        headers.append(b"Host: localhost")
    if not names & {b"content-length", b"transfer-encoding"} and (body or not line.startswith(b"GET")):
        headers.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([line + b" HTTP/1.1", *headers, b"", b""]) + body


def _answers(data: bytes) -> list[Answer]:
    """The heads of the answers in some bytes, each with what is behind it."""
    heads = [found for found in _HEAD.finditer(data) if found[1] != b"100"]
    ends = [*(found.start() for found in heads[1:]), len(data)]
    return [
        Answer(
            int(head[1]),
            {
                name.lower(): value.strip()
                for name, _, value in (
                    line.partition(":") for line in head[2].decode("latin-1").split("\r\n")
                )
            },
            data[head.end() : end],
        )
        for head, end in zip(heads, ends, strict=True)
    ]


def _check_answer(step: bytes, connection: Connection) -> None:
    found = _answers(connection.written)
    assert found, f"an answer that is none: {connection.written[:300]!r}"
    answer = found[0]
    line = step.partition(b"\n")[0].decode("latin-1")
    method, _, target = line.partition(" ")
    path = re.split("[?#]", target, maxsplit=1)[0]
    assert answer.status not in FAULTY, (line, answer)
    if answer.status >= 400 and method != "HEAD" and b"upgrade" not in step.lower():
        # What is no handshake of WebSocket its library answers.
        _check_problem(line, answer)
    for pattern, of, endpoint in _PATHS:
        if method == of and pattern.fullmatch(path):
            expected = {*endpoint.answers, *endpoint.problems, *COMMON_PROBLEMS, *ANY_PATH}
            # Two paths may have one address: `{name}` has slashes.
            others = [o for p, m, o in _PATHS if m == of and p.fullmatch(path)]
            for other in others:
                expected |= {*other.answers, *other.problems}
            assert answer.status in expected, (line, answer)


def _check_problem(line: str, answer: Answer) -> None:
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/html"):
        # The console says it to people.
        return
    assert kind == problems.MEDIA_TYPE, (line, answer)
    document = msgspec.json.decode(answer.body)
    assert document["status"] == answer.status, (line, answer)
    assert answer.status != 405 or answer.headers["allow"]


def websocket(data: bytes) -> None:
    """Each command of a page has what it asked for or a problem, in the form of the page."""
    here = SITE.get()
    first, *commands = data.split(STEP)
    here.run(_command(here, first, commands[:50]))
    here.check()


def mutate_commands(data: bytes, size_max: int, seed: int, change: Change) -> bytes:
    """Commands with one or a few of them changed as values, moved, doubled or left out."""

    def changed(steps: list[bytes], place: int, rng: random.Random) -> bytes:
        kind, command = steps[place][:1], steps[place][1:]
        return kind + (changed_json if kind == b"t" else changed_frame)(command, rng)

    return vary_steps(data, size_max, seed, change, changed)


SENTINEL = -7
"""The subscription that no page has: what is said about it comes behind all that was asked before."""


async def _command(here: Site, first: bytes, commands: list[bytes]) -> None:
    form = "malamute.msgpack" if first.startswith(b"m") else "malamute.json"
    connection = here.connect()
    asked = written(("GET", "/v1/ws", {**UPGRADE, "Sec-WebSocket-Protocol": form}, ""))
    connection.send(_on_the_wire(asked))
    await _until(here, lambda: b"\r\n\r\n" in connection.written)
    assert b" 101 " in connection.written[:20], connection.written
    for command in commands:
        kind, command = command[:1], command[1:]
        connection.send(command if kind == b"!" else _frame(command, 1 if kind == b"t" else 2))
    encode: Callable[[Any], bytes] = msgspec.msgpack.encode if first.startswith(b"m") else msgspec.json.encode
    connection.send(_frame(encode({"op": "unsubscribe", "id": SENTINEL}), 2 if first.startswith(b"m") else 1))
    if any(command.startswith(b"!") for command in commands):
        # It may have swallowed what came behind it.
        await asyncio.sleep(PATIENCE_SECONDS)
    else:
        await _until(here, lambda: b"no subscription -7" in connection.written or connection.closed)
        await asyncio.sleep(MOMENT_SECONDS)
    await here.left(connection)


def _frame(data: bytes, opcode: int) -> bytes:
    """A frame of WebSocket, with a mask that masks nothing."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([0x80 | opcode]) + size + bytes(4) + data


async def _until(here: Site, done: Callable[[], bool]) -> None:
    deadline = here.loop.time() + HANG_SECONDS
    while not done():
        assert here.loop.time() < deadline, "the gateway says nothing"
        await asyncio.sleep(0.001)
