"""Runs the application with uvicorn: its sockets, its deadlines, and how it stops."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from malamute.errors import ConfigError
from malamute.gateway.app import make_app
from malamute.gateway.settings import GatewaySettings

OnStarted = Callable[[list[str]], object]
"""Called with the addresses, once they can be reached."""

STOP_SECONDS = 5
"""How long requests that are under way may take when the gateway stops."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

IDLE_SECONDS = 30
"""After how long a connection without a request is closed."""


class HeadDeadline(H11Protocol):
    """HTTP/1.1 as uvicorn has it, with a deadline for the line and the headers of a request."""

    head_seconds: float
    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection: a request is to come."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes. Those of a head that is not complete do not set its deadline anew."""
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        """Go on with the next request. While nothing of it is here, the idle timeout counts."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget_deadline()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget_deadline()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _forget_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


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
            http=type("Protocol", (HeadDeadline,), {"head_seconds": settings.head_seconds}),
            h11_max_incomplete_event_size=settings.head_bytes,
            ws="websockets-sansio",
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
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
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
