"""Runs the application with uvicorn: its sockets, its deadlines, and how it stops."""

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
"""Called with the addresses, once they can be reached."""

STOP_SECONDS = 5
"""How long requests that are under way may take when the gateway stops."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

IDLE_SECONDS = 30
"""After how long a connection without a request is closed."""

_LINE_BYTES = len(b"GET  HTTP/1.1\r\n\r\n")
_HEADER_BYTES = len(b": \r\n")
"""What a head has besides its address, and the names and the values of its headers."""


BODY_PIECES_MAX = 65_536
"""The most pieces in which the body of a request may come: each costs the time of a larger one."""

PIPELINE_MAX = 100
"""The most requests that may wait on a connection behind one that is being answered."""

FRAME_BYTES_MAX = 256 * 1024
"""The most bytes of a message of a WebSocket: pages send commands there, and no contents."""

FRAMES_MAX = 1_000
"""The most frames of a message of a WebSocket."""

CONTROL_FRAMES_MAX = 100
"""The most pings and pongs of a WebSocket in `CONTROL_SECONDS`."""

CONTROL_SECONDS = 1.0

TURN_BYTES = 4 * 1024
"""How much of what came by a WebSocket is read before others have their turn: empty frames have 6 bytes."""


class AnswerTransport:
    """The transport of one answer. Its head goes with what follows: each write is a call of the system.

    Without `joins` nothing follows, as behind the head that answers HEAD.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, *, joins: bool) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = b"" if joins else None
        """The head while nothing follows it; None when it was written."""

    def write(self, data: bytes) -> None:
        """Write data. What comes before the head, such as 100 Continue, is not kept.

        Of a connection that is gone, uvloop raises what other loops pass over.
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
        """Whether the connection is being closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection, behind what was written."""
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._transport.close()


def _answer_bytes(answer: Response) -> bytes:
    """An answer as a whole, behind which the connection ends."""
    head = [b": ".join(pair) for pair in (*answer.raw_headers, (b"connection", b"close"))]
    return STATUS_LINE[answer.status_code] + b"\r\n".join(head) + b"\r\n\r\n" + bytes(answer.body)


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn has it, with limits for the line and the headers of a request.

    What is no request is answered with a problem document, as everything else that is refused.
    """

    head_bytes: int
    head_seconds: float
    body_bytes: int
    open: Connections
    deadline: asyncio.TimerHandle | None = None

    _part_bytes: int | None = 0
    """How much of a head is here that is not complete; None behind a head, until the next one begins."""

    _head_ended = False
    """Whether the data that is being read had the end of a head."""

    _fields_bytes = 0
    """The bytes of the headers that have come, and of those behind the body."""

    _has_body = False
    """Whether a part of a request may still come behind its head."""

    _pieces = 0
    """In how many pieces the body has come so far."""

    _unread_bytes = 0
    """How much came of a body behind the answer, which nobody reads."""

    def connection_made(self, transport: Any) -> None:
        """Take a connection: a request is to come."""
        super().connection_made(transport)
        self._await_head()
        self.open.add(self)
        self.open.waits(self)

    def end(self) -> None:
        """End the connection at once: another one needs its place."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes. Those of a head that is not complete do not set its deadline anew."""
        is_unread = self._has_body and self._is_answered
        was_idle = self.timeout_keep_alive_task is not None or is_unread
        is_part = self._part_bytes is not None
        self._head_ended = False
        super().data_received(data)
        if is_unread and self._has_body:
            self._pass_over(len(data))
        elif was_idle and self._part_bytes is None and not self._head_ended:
            # Line feeds alone: they are read over, and begin no request.
            self._part_bytes = 0
        if self._part_bytes is not None and not self.transport.is_closing():
            # Of data in which it began, the rest belongs to what was before it.
            self._part_bytes += len(data) if is_part and not self._head_ended else 0
            self._await_head()
            self._check_size(self._part_bytes)

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def timeout_keep_alive_handler(self) -> None:
        """End a connection without a request, also where the other end does not take the last answer."""
        if not self.transport.is_closing():
            # What is not taken by now is not waited for: it would stay as long as the other end does.
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                self.transport.close()

    def _pass_over(self, count: int) -> None:
        """Read on behind an answer: who sends a body would not see it on a connection that is cut off."""
        self._unread_bytes += count
        if self._unread_bytes > self.body_bytes:
            self.transport.close()
        else:
            self._await_head()

    def on_message_begin(self) -> None:
        """Begin with a request."""
        super().on_message_begin()
        self._fields_bytes = 0
        if self._part_bytes is None:
            self._part_bytes = 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. What is named so behind the body is none of the request.

        Raises `ConnectionError`, by which parsing ends: a head that is too large is not read as a whole.
        """
        self._fields_bytes += len(name) + len(value) + _HEADER_BYTES
        if not self._check_size(self._fields_bytes):
            raise ConnectionError("what else came is not read")
        if self._part_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve a request, whose body may be yet to come. Raises `ConnectionError`, by which parsing ends."""
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
                # Whoever sends it is proved first.
                self.flow.pause_reading()

    def handle_websocket_upgrade(self) -> None:
        """Go over to WebSocket, unless the request was refused."""
        if not self.transport.is_closing():
            self.open.remove(self)
            super().handle_websocket_upgrade()

    def _guard_writes(self) -> None:
        """Write nothing to a connection that is gone, and the head of an answer with what follows it."""
        cycle = self.cycle
        if cycle is not None and not isinstance(cycle.transport, AnswerTransport):
            guarded: Any = AnswerTransport(cycle, joins=self.scope["method"] != "HEAD")
            cycle.transport = guarded  # it has what is used of one

    def on_body(self, body: bytes) -> None:
        """Take a part of a body; there is none of a request that was refused.

        Raises `ConnectionError`, by which parsing ends.
        """
        if not self.transport.is_closing():
            self._pieces += 1
            if self._pieces > BODY_PIECES_MAX:
                self._refuse(TooLarge(f"body in too many pieces: expected at most {BODY_PIECES_MAX}"))
                raise ConnectionError("what else came is not read")
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, if there is one."""
        self._has_body = False
        if not self.transport.is_closing():
            super().on_message_complete()
            if self._is_answered:
                self._forget_deadline()

    def on_response_complete(self) -> None:
        """Begin with the next request, if there is one."""
        super().on_response_complete()
        if not self.pipeline and self._is_answered:
            self.open.waits(self)
            if self._has_body:
                self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget_deadline()
        self.open.remove(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request."""
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
            # A head that was refused already, and what is wrong behind it.
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            answer = problems.response(error)
            self.transport.write(_answer_bytes(answer))
        self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket as uvicorn has it, where what a page does is no fault of the gateway, and costs no other.

    To refuse a handshake with a problem is none, and text that is not UTF-8 is none. What comes is read a
    little at a time, and nothing behind the handshake before that is answered: who sends it is proved first.
    """

    open: Connections

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unread = bytearray()
        self._turn: asyncio.Handle | None = None
        self._controls = 0
        self._controls_since = 0.0
        self._is_full = False
        """Whether reading was paused since what came is still to be read."""

    def connection_made(self, transport: Any) -> None:
        """Take a connection over."""
        super().connection_made(transport)
        self.open.add(self)

    def end(self) -> None:
        """End the connection at once: another one needs its place."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.open.remove(self)
        self._unread.clear()
        if self._turn is not None:
            self._turn.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, and read the first of them unless others are still to be read."""
        if not self.handshake_initiated:
            super().data_received(data)
            if self.conn.handshake_exc is not None:
                self._refuse_handshake()
            return
        self._unread += data
        if self._turn is None:
            self._read()

    def _refuse_handshake(self) -> None:
        """Answer a head that has more than one of a WebSocket may have; one of HTTP has more."""
        answer = problems.response(Malformed("invalid handshake of a WebSocket: expected fewer headers"))
        self.transport.write(_answer_bytes(answer))
        self.transport.close()

    @property
    def _is_reading(self) -> bool:
        return self.handshake_complete and not self.read_paused and not self.close_sent

    def _read(self) -> None:
        """Read a little, and the rest in turns. Messages wait until the one before them was taken."""
        self._turn = None
        if self._unread and self._is_reading:
            part = bytes(self._unread[:TURN_BYTES])
            del self._unread[:TURN_BYTES]
            super().data_received(part)
        elif self.close_sent:
            # What is still to come is its answer.
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
        """Hand on what came; then there is room for more."""
        message = await super().receive()
        if self._unread and not self.transport.is_closing():
            self.transport.pause_reading()
        self._await_turn()
        return message

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message."""
        if len(self.frames) >= FRAMES_MAX:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"expected at most {FRAMES_MAX} frames")
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._may_control():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take the answer to a ping, or one to none."""
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
        """Send something of a WebSocket, or of the answer that refuses it."""
        await super().send(message)
        self._await_turn()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Hand on a whole message. Text that is not UTF-8 ends the socket."""
        try:
            if self.curr_msg_data_type == "text":
                b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "expected UTF-8")
        else:
            super().send_receive_event_to_app()


class SampledLog(logging.Filter):
    """A filter that leaves one line a second of each kind, and says how many there were: peers write none."""

    def __init__(self, timer: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._sampler = Sampler(timer)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        count = self._sampler.count(f"{record.name} {record.levelname} {record.msg}")
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count} times)", ()
        return count > 0


_SAMPLED = SampledLog()

_LOGGERS = ("uvicorn.error", "malamute.gateway", "asyncio")
"""Loggers of the faults of clients."""

_BODY_HEADERS = (b"content-length", b"transfer-encoding")


class GatewayServer(uvicorn.Server):
    """uvicorn, which ends the answers without end before it waits for the others.

    `on_started` is called with the addresses when it listens.
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
        """Listen, and report where."""
        await super().startup(sockets)
        if self.started:
            self._on_started(self.urls)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop by a signal. It is a good end, so it is not raised again as uvicorn does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        after = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
            # Who asks once more while the process ends has what was asked for.
            after = dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN)
        finally:
            for number, handler in after.items():
                signal.signal(number, handler)

    @property
    def urls(self) -> list[str]:
        """Where it listens."""
        scheme = "https" if self.config.is_ssl else "http"
        names = [sock.getsockname() for server in self.servers for sock in server.sockets]
        return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port, *_ in names]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let those who follow a stream leave, and then the others."""
        if (gateway := getattr(self._app.state, "gateway", None)) is not None:
            gateway.stop_following()
        await super().shutdown(sockets)


def run(settings: GatewaySettings, host: str, port: int, on_started: OnStarted, **tls: Any) -> None:
    """Run a gateway until SIGTERM or SIGINT. `tls` are options of uvicorn.

    Raises:
        ConfigError: it cannot listen there.

    """
    server = GatewayServer(settings, host, port, on_started, **tls)
    try:
        server.run()
    except SystemExit:
        raise ConfigError(f"the gateway cannot listen on {host}:{port}: its log says why") from None
