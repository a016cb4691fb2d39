"""The world of a scenario: a broker, and clients of one edge.

A scenario is written once, in the form of the asyncio edge. `Blocking` gives the blocking edge that form:
what is awaited has happened when the call returns, so a scenario on it is never suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from rig_daemon import Daemon

import malamute
import malamute.aio
from malamute.client.sync.driver import run
from malamute.testing import Broker

PATIENCE = 60.0


class Blocking:
    """Something of the blocking edge, in the form of the asyncio edge."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return (lambda *args, **options: _Done(value, args, options)) if callable(value) else value

    def __getitem__(self, key: Any) -> Any:
        return self._inner[key]

    def __call__(self, *arguments: Any) -> Any:
        return self._inner(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_inner":
            super().__setattr__(name, value)
        else:
            setattr(self._inner, name, value)

    async def __aenter__(self) -> Blocking:
        return Blocking(self._inner.__enter__())

    async def __aexit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def __aiter__(self) -> Blocking:
        return Blocking(iter(self._inner))

    async def __anext__(self) -> Any:
        try:
            return _blocking(next(self._inner))
        except StopIteration:
            raise StopAsyncIteration from None


class _Done(Blocking):
    """A call that was made; it may be awaited, entered or iterated, or left alone."""

    def __init__(self, call: Callable[..., Any], arguments: Any, options: Any) -> None:
        super().__init__(call(*arguments, **options))

    def __await__(self) -> Any:
        yield from ()
        return _blocking(self._inner)


def _blocking(value: Any) -> Any:
    plain = isinstance(value, int | str | bytes | list | dict | None | malamute.Message)
    replies = isinstance(value, malamute.Request)
    return value if plain and not replies else Blocking(value)


class World:
    """A broker, and clients of one edge."""

    def __init__(self, broker: Broker | Daemon, edge: str, *, restarts: bool) -> None:
        self.broker = broker
        self.edge = edge
        self.restarts = restarts
        self.events: list[Any] = []
        self._clients: list[Any] = []

    async def connect(self, address: str = "", **options: Any) -> Any:
        """A client of this edge."""
        options = {"address": address, "timeout": PATIENCE, **options}
        client: Any
        if self.edge == "sync":
            client = Blocking(malamute.connect(self.broker.url, **options))
        else:
            client = await malamute.aio.connect(self.broker.url, **options)
        client.on_event = self.events.append
        self._clients.append(client)
        return client

    async def middle(self) -> None:
        """In the middle of a scenario: with `restarts`, the broker is restarted."""
        if not self.restarts:
            return
        if self.edge == "sync":
            self.broker.restart()
        else:
            # The loop goes on meanwhile, as it would with a broker elsewhere.
            await asyncio.get_running_loop().run_in_executor(None, self.broker.restart)

    def handler(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        """A handler of this edge."""
        if self.edge != "sync":
            return function

        def blocking(message: Any) -> Any:
            async def call() -> Any:
                return await function(_blocking(message))

            return run(call())

        return blocking

    async def close(self) -> None:
        """Close every client."""
        for client in self._clients:
            with suppress(malamute.MalamuteError):
                await client.close()
