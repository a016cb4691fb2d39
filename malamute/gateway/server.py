"""Runs the application with uvicorn: its sockets, its deadlines, and how it stops."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from malamute.errors import ConfigError, MalamuteError, Malformed, RequestTimeout, TooLarge
from malamute.gateway import problems
from malamute.gateway.app import make_app
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


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn has it, with limits for the line and the headers of a request.

    What is no request is answered with a problem document, as everything else that is refused.
    """

    head_bytes: int
    head_seconds: float
    deadline: asyncio.TimerHandle | None = None

    _part_bytes: int | None = 0
    """How much of a head is here that is not complete; None behind a head, until the next one begins."""

    _head_ended = False
    """Whether the data that is being read had the end of a head."""

    def connection_made(self, transport: Any) -> None:
        """Take a connection: a request is to come."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes. Those of a head that is not complete do not set its deadline anew."""
        was_idle = self.timeout_keep_alive_task is not None
        is_part = self._part_bytes is not None
        self._head_ended = False
        super().data_received(data)
        if was_idle and self._part_bytes is None and not self._head_ended:
            # Line feeds alone: they are read over, and begin no request.
            self._part_bytes = 0
        if self._part_bytes is not None and not self.transport.is_closing():
            # Of data in which it began, the rest belongs to what was before it.
            self._part_bytes += len(data) if is_part and not self._head_ended else 0
            self._await_head()
            self._check_size(self._part_bytes)

    def on_message_begin(self) -> None:
        """Begin with a request."""
        super().on_message_begin()
        if self._part_bytes is None:
            self._part_bytes = 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. What is named so behind the body is none of the request."""
        if self._part_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve a request, whose body may be yet to come."""
        self._forget_deadline()
        self._part_bytes, self._head_ended = None, True
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self.send_400_response("")
            return
        fields = sum(len(name) + len(value) + _HEADER_BYTES for name, value in self.headers)
        if self._check_size(_LINE_BYTES + len(self.url) + fields):
            super().on_headers_complete()
            self._guard_writes()

    def handle_websocket_upgrade(self) -> None:
        """Go over to WebSocket, unless the request was refused."""
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()

    def _guard_writes(self) -> None:
        """Write nothing to a connection that is gone, and the head of an answer with what follows it."""
        cycle = self.cycle
        if cycle is not None and not isinstance(cycle.transport, AnswerTransport):
            guarded: Any = AnswerTransport(cycle, joins=self.scope["method"] != "HEAD")
            cycle.transport = guarded  # it has what is used of one

    def on_body(self, body: bytes) -> None:
        """Take a part of a body; there is none of a request that was refused."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, if there is one."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget_deadline()
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
            head = [b": ".join(pair) for pair in (*answer.raw_headers, (b"connection", b"close"))]
            self.transport.write(
                STATUS_LINE[answer.status_code] + b"\r\n".join(head) + b"\r\n\r\n" + bytes(answer.body)
            )
        self.transport.close()


class SocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket as uvicorn has it, where what a page does is no fault of the gateway.

    To refuse a handshake with a problem is none, and text that is not UTF-8 is none.
    """

    async def send(self, message: Any) -> None:
        """Send something of a WebSocket, or of the answer that refuses it."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """Hand on a whole message. Text that is not UTF-8 ends the socket."""
        try:
            if self.curr_msg_data_type == "text":
                b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self.frames = []
            self.conn.send_close(CloseCode.INVALID_DATA)
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()


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
        self._app: Starlette = make_app(settings)
        self._on_started = on_started
        config = uvicorn.Config(
            self._app,
            host=host,
            port=port,
            http=type(
                "Protocol",
                (HttpProtocol,),
                {"head_seconds": settings.head_seconds, "head_bytes": settings.head_bytes},
            ),
            ws=SocketProtocol,
            ws_max_size=settings.body_bytes,
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
