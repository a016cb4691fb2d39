"""The server, uvicorn: its sockets, its deadlines, and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from malamute.door.files import raise_file_limit
from malamute.door.sampling import Sampler
from malamute.errors import ConfigError, MalamuteError, Malformed, RequestTimeout, TooLarge, TooMany
from malamute.gateway import problems
from malamute.gateway.app import make_app
from malamute.gateway.connections import Connections, files_for
from malamute.gateway.door import END
from malamute.gateway.settings import GatewaySettings

OnStarted = Callable[[list[str]], object]
"""Called with the addresses, once the gateway listens."""

STOP_SECONDS = 5
"""Time for requests under way when the gateway stops."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

IDLE_SECONDS = 30
"""Time after which an idle connection is closed."""

_LINE_BYTES = len(b"GET  HTTP/1.1\r\n\r\n")
_HEADER_BYTES = len(b": \r\n")
"""Bytes of a head besides its address, and the names and values of its headers."""


BODY_PIECES_MAX = 65_536
"""Maximum pieces of a request body: each costs the time of a larger one."""

PIPELINE_MAX = 100
"""Maximum pipelined requests behind the one being answered."""

FRAME_BYTES_MAX = 256 * 1024
"""Maximum bytes of a WebSocket message: pages send commands there, and no contents."""

FRAMES_MAX = 1_000
"""Maximum frames of a WebSocket message."""

CONTROL_FRAMES_MAX = 100
"""Maximum pings and pongs of a WebSocket in `CONTROL_SECONDS`."""

CONTROL_SECONDS = 1.0

TURN_BYTES = 4 * 1024
"""Bytes of a WebSocket that are parsed before other tasks run: empty frames have 6 bytes."""


class AnswerTransport:
    """The transport of one answer. The head is written with the first part: each write is a system call.

    Without `joins` the head is written alone, as in an answer to HEAD.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, *, joins: bool) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = b"" if joins else None
        """The head while no part follows it; None once it was written."""

    def write(self, data: bytes) -> None:
        """Write data. Data before the head, such as 100 Continue, is written at once.

        On a closed connection uvloop raises an error that other loops ignore.
        """
        if self._transport.is_closing():
            return
        if self._head is None or not self._cycle.response_started:
            self._transport.write(data)
        elif not self._head:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = None

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection, behind the written data."""
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._transport.close()


def _answer_bytes(answer: Response) -> bytes:
    """Return a whole answer, behind which the connection closes."""
    head = [b": ".join(pair) for pair in (*answer.raw_headers, (b"connection", b"close"))]
    return STATUS_LINE[answer.status_code] + b"\r\n".join(head) + b"\r\n\r\n" + bytes(answer.body)


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 of uvicorn, with limits for the line and the headers of a request.

    Malformed requests are answered with a problem document, like all other refusals.
    """

    head_bytes: int
    head_seconds: float
    body_bytes: int
    open: Connections
    deadline: asyncio.TimerHandle | None = None

    _part_bytes: int | None = 0
    """Received bytes of an incomplete head; None behind a head, until the next one begins."""

    _head_ended = False
    """Whether the data being parsed had the end of a head."""

    _fields_bytes = 0
    """Bytes of the received headers and trailers."""

    _has_body = False
    """Whether a part of the body may still arrive."""

    _pieces = 0
    """Number of body pieces so far."""

    _unread_bytes = 0
    """Bytes of a body that arrived behind the answer, unread."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection: a request is awaited."""
        super().connection_made(transport)
        self._await_head()
        self.open.add(self)
        self.open.waits(self)

    def end(self) -> None:
        """Abort the connection: its place is needed."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse bytes. An incomplete head keeps its deadline."""
        is_unread = self._has_body and self._is_answered
        was_idle = self.timeout_keep_alive_task is not None or is_unread
        is_part = self._part_bytes is not None
        self._head_ended = False
        super().data_received(data)
        if is_unread and self._has_body:
            self._pass_over(len(data))
        elif was_idle and self._part_bytes is None and not self._head_ended:
            # Line feeds alone are skipped, and begin no request.
            self._part_bytes = 0
        if self._part_bytes is not None and not self.transport.is_closing():
            # In the data in which a head begins, earlier bytes belong to the request before it.
            self._part_bytes += len(data) if is_part and not self._head_ended else 0
            self._await_head()
            self._check_size(self._part_bytes)

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, also where the client does not read the last answer."""
        if not self.transport.is_closing():
            # Unread data is not waited for: it would stay as long as the client does.
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.close()

    def _pass_over(self, count: int) -> None:
        """Discard the body behind an answer: on a closed connection its sender would not see the answer."""
        self._unread_bytes += count
        if self._unread_bytes > self.body_bytes:
            self.transport.close()
        else:
            self._await_head()

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self._fields_bytes = 0
        if self._part_bytes is None:
            self._part_bytes = 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. A trailer is no header of the request.

        Raises `ConnectionError`, which ends parsing: a too large head is not read as a whole.
        """
        self._fields_bytes += len(name) + len(value) + _HEADER_BYTES
        if not self._check_size(self._fields_bytes):
            raise ConnectionError("what else came is not read")
        if self._part_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve a request, whose body may be still to come. Raises `ConnectionError`, which ends parsing."""
        self._forget_deadline()
        self._part_bytes, self._head_ended = None, True
        self._has_body, self._pieces, self._unread_bytes = True, 0, 0
        self.open.works(self)
        if len(self.pipeline) >= PIPELINE_MAX:
            self._refuse(TooMany(f"too many requests wait here: expected at most {PIPELINE_MAX}"))
        if self.transport.is_closing():
            raise ConnectionError("what else came is not read")
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self.send_400_response("")
            return
        fields = sum(len(name) + len(value) + _HEADER_BYTES for name, value in self.headers)
        self.scope[END] = self.end  # type: ignore[literal-required]
        if self._check_size(_LINE_BYTES + len(self.url) + fields):
            super().on_headers_complete()
            self._guard_writes()
            if any(name in _BODY_HEADERS for name, _ in self.headers):
                # The sender of a body is authenticated before the body is read.
                self.flow.pause_reading()

    def handle_websocket_upgrade(self) -> None:
        """Switch to WebSocket, unless the request was refused."""
        if not self.transport.is_closing():
            self.open.remove(self)
            super().handle_websocket_upgrade()

    def _guard_writes(self) -> None:
        """Write nothing to a closed connection, and the head of an answer with its first part."""
        cycle = self.cycle
        if cycle is not None and not isinstance(cycle.transport, AnswerTransport):
            guarded: Any = AnswerTransport(cycle, joins=self.scope["method"] != "HEAD")
            cycle.transport = guarded  # has the used part of a transport

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body; a refused request has none.

        Raises `ConnectionError`, which ends parsing.
        """
        if not self.transport.is_closing():
            self._pieces += 1
            if self._pieces > BODY_PIECES_MAX:
                self._refuse(TooLarge(f"body in too many pieces: expected at most {BODY_PIECES_MAX}"))
                raise ConnectionError("what else came is not read")
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, if one is under way."""
        self._has_body = False
        if not self.transport.is_closing():
            super().on_message_complete()
            if self._is_answered:
                self._forget_deadline()

    def on_response_complete(self) -> None:
        """Start the next request, if there is one."""
        super().on_response_complete()
        if not self.pipeline and self._is_answered:
            self.open.waits(self)
            if self._has_body:
                self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._forget_deadline()
        self.open.remove(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed data."""
        self._refuse(Malformed("invalid request: expected HTTP/1.1"))

    def _check_size(self, head_bytes: int) -> bool:
        if head_bytes > self.head_bytes:
            self._refuse(
                TooLarge(f"head of a request is too large: expected at most {self.head_bytes} bytes")
            )
        return head_bytes <= self.head_bytes

    def _await_head(self) -> None:
        if self.deadline is None:
            self.deadline = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._part_bytes:
            self._refuse(RequestTimeout(f"line and headers did not come within {self.head_seconds} s"))
        self.transport.close()

    def _forget_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _refuse(self, error: MalamuteError) -> None:
        """Answer with a problem, unless an answer is under way, and close the connection."""
        if self.transport.is_closing():
            # The head was refused already; this is an error behind it.
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            answer = problems.response(error)
            self.transport.write(_answer_bytes(answer))
        self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket of uvicorn, where errors of a page are no fault of the gateway, nor a cost to others.

    A handshake refused with a problem is no fault, nor is text other than UTF-8. Data is parsed in small
    portions, and only after the answer to the handshake: the sender is authenticated first.
    """

    open: Connections

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unread = bytearray()
        self._turn: asyncio.Handle | None = None
        self._controls = 0
        self._controls_since = 0.0
        self._is_full = False
        """Whether reading is paused while received data waits to be parsed."""

    def connection_made(self, transport: Any) -> None:
        """Take over a connection."""
        super().connection_made(transport)
        self.open.add(self)

    def end(self) -> None:
        """Abort the connection: its place is needed."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self.open.remove(self)
        self._unread.clear()
        if self._turn is not None:
            self._turn.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and parse the first of them unless others wait."""
        if not self.handshake_initiated:
            super().data_received(data)
            if self.conn.handshake_exc is not None:
                self._refuse_handshake()
            return
        self._unread += data
        if self._turn is None:
            self._read()

    def _refuse_handshake(self) -> None:
        """Refuse a head that exceeds the limits of a WebSocket handshake, which are below those of HTTP."""
        answer = problems.response(Malformed("invalid handshake of a WebSocket: expected fewer headers"))
        self.transport.write(_answer_bytes(answer))
        self.transport.close()

    @property
    def _is_reading(self) -> bool:
        return self.handshake_complete and not self.read_paused and not self.close_sent

    def _read(self) -> None:
        """Parse a portion at a time. A message waits until the one before it was received."""
        self._turn = None
        if self._unread and self._is_reading:
            part = bytes(self._unread[:TURN_BYTES])
            del self._unread[:TURN_BYTES]
            super().data_received(part)
        elif self.close_sent:
            # The only data still to come is the answer itself.
            part = bytes(self._unread)
            self._unread.clear()
            super().data_received(part)
        self._await_turn()

    def _await_turn(self) -> None:
        if self.transport.is_closing():
            self._unread.clear()
            return
        if self._unread and self._turn is None and (self._is_reading or self.close_sent):
            self._turn = self.loop.call_soon(self._read)
        if self._unread and not self._is_full:
            self._is_full = True
            self.transport.pause_reading()
        elif not self._unread and self._is_full:
            self._is_full = False
            if not self.read_paused:
                self.transport.resume_reading()

    async def receive(self) -> Any:
        """Deliver a message; then reading resumes."""
        message = await super().receive()
        if self._unread and not self.transport.is_closing():
            self.transport.pause_reading()
        self._await_turn()
        return message

    def handle_cont(self, event: Frame) -> None:
        """Add a part of a message."""
        if len(self.frames) >= FRAMES_MAX:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"expected at most {FRAMES_MAX} frames")
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._may_control():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Accept a pong, also without a ping."""
        if self._may_control():
            super().handle_pong(event)

    def _may_control(self) -> bool:
        now = self.loop.time()
        if now >= self._controls_since + CONTROL_SECONDS:
            self._controls, self._controls_since = 0, now
        self._controls += 1
        if self._controls > CONTROL_FRAMES_MAX:
            self._fail(CloseCode.POLICY_VIOLATION, f"expected at most {CONTROL_FRAMES_MAX} pings a second")
        return self._controls <= CONTROL_FRAMES_MAX

    def _fail(self, code: CloseCode, reason: str) -> None:
        if not self.close_sent:
            self.frames = []
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        """Send data of a WebSocket, or of the answer that refuses it."""
        await super().send(message)
        self._await_turn()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Deliver a whole message. Text other than UTF-8 closes the socket."""
        try:
            if self.curr_msg_data_type == "text":
                b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "expected UTF-8")
        else:
            super().send_receive_event_to_app()


class SampledLog(logging.Filter):
    """A filter that passes one record a second of each kind, with the number left out, to keep logs small."""

    def __init__(self, timer: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._sampler = Sampler(timer)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        count = self._sampler.count(f"{record.name} {record.levelname} {record.msg}")
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count} times)", ()
        return count > 0


_SAMPLED = SampledLog()

_LOGGERS = ("uvicorn.error", "malamute.gateway", "asyncio")
"""Loggers of the faults of clients."""

_BODY_HEADERS = (b"content-length", b"transfer-encoding")


class GatewayServer(uvicorn.Server):
    """uvicorn, except that endless answers end before it waits for the others.

    `on_started` is called with the addresses when the server listens.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        host: str,
        port: int,
        on_started: Callable[[list[str]], object],
        **tls: Any,
    ) -> None:
        files = files_for(raise_file_limit(), settings.users)
        settings = replace(settings, users=files.sessions)
        self.connections = Connections(min(files.connections, settings.connections or files.connections))
        self._app: Starlette = make_app(settings)
        self._on_started = on_started
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_SAMPLED)
        config = uvicorn.Config(
            self._app,
            host=host,
            port=port,
            http=type(
                "Protocol",
                (HttpProtocol,),
                {
                    "head_seconds": settings.head_seconds,
                    "head_bytes": settings.head_bytes,
                    "body_bytes": settings.body_bytes,
                    "open": self.connections,
                },
            ),
            ws=type("Socket", (SocketProtocol,), {"open": self.connections}),
            ws_max_size=min(FRAME_BYTES_MAX, settings.body_bytes),
            backlog=files.backlog,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            **tls,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report the addresses."""
        await super().startup(sockets)
        if self.started:
            self._on_started(self.urls)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal. This is a regular end, so the signal is not raised again as uvicorn does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        after = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
            # A second signal during shutdown is not repeated either.
            after = dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN)
        finally:
            for number, handler in after.items():
                signal.signal(number, handler)

    @property
    def urls(self) -> list[str]:
        """Return the addresses."""
        scheme = "https" if self.config.is_ssl else "http"
        names = [sock.getsockname() for server in self.servers for sock in server.sockets]
        return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port, *_ in names]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End endless answers, then wait for the others."""
        if (gateway := getattr(self._app.state, "gateway", None)) is not None:
            gateway.stop_following()
        await super().shutdown(sockets)


def run(settings: GatewaySettings, host: str, port: int, on_started: OnStarted, **tls: Any) -> None:
    """Run a gateway until SIGTERM or SIGINT. `tls` are options of uvicorn.

    Raises:
        ConfigError: the gateway cannot listen at the address.
    """
    server = GatewayServer(settings, host, port, on_started, **tls)
    try:
        server.run()
    except SystemExit:
        raise ConfigError(
            f"the gateway cannot listen on {host}:{port}: its log says why",
            hint="end the program that listens there, or take another address: --listen 127.0.0.1:8081",
        ) from None
