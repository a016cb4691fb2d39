"""The room for the bodies of requests: who sends them is proved first, then they are counted, then kept.

All bodies that are here have so many bytes together, and each user has a share of that. Of who is not proved
none is read, but for the form by which somebody signs in to the console, which has few bytes. A body counts
until its request is answered; what is built of it counts, too (`elements.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from malamute.door.shares import Shares
from malamute.errors import MediaTypeRefused, RequestTimeout, TooLarge, TryLater
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import PEER

Built = TypeVar("Built")

STRANGER_BYTES = 16 * 1024
"""The most bytes of a form by which somebody signs in: nobody has looked at the credentials yet."""

APART_BYTES = 64 * 1024
"""A body that is larger is decoded in a thread: others do not wait for it."""

_HELD = "malamute.held"
"""What a request holds of the room, in its scope."""


class BodyRoom:
    """The bodies that are here."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.shares = Shares(settings.bodies_bytes)
        # One after the other: what they build is in the memory of all.
        self._thread = ThreadPoolExecutor(1, "malamute-bodies")

    def take(self, request: Request, who: str, count: int) -> None:
        """Count so many bytes more of a request, until it is answered. Raises `TryLater`."""
        if not self.shares.take(who, count):
            raise TryLater(
                f"bodies of requests have {self.shares.total} bytes together, {self.shares.held(who)} of "
                f"them are this user's: expected at most {self.shares.limit}, and a share for each"
            )
        request.scope.setdefault(_HELD, []).append((who, count))

    def take_more(self, request: Request, count: int) -> None:
        """Count so many bytes more for who has sent the body of a request. Raises `TryLater`."""
        if (held := request.scope.get(_HELD)) and count:
            self.take(request, held[0][0], count)

    def leave(self, scope: Scope) -> None:
        """Give back what a request held."""
        for who, count in scope.pop(_HELD, ()):
            self.shares.give_back(who, count)

    async def read(self, request: Request, who: str, limit_bytes: int = 0) -> bytes:
        """Read the body of a request.

        Raises:
            TooLarge: it has more than `limit_bytes`, or than the settings say; the rest is not read.
            TryLater: all bodies, or those of `who`, would be too large together.
            RequestTimeout: it did not come in time, or not as a whole.
            MediaTypeRefused: it is compressed.

        """
        limit_bytes = limit_bytes or self._settings.body_bytes
        seconds = self._settings.body_seconds
        if request.headers.get("content-encoding", "identity") != "identity":
            raise MediaTypeRefused("a body with a Content-Encoding: expected one that is not compressed")
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > limit_bytes:
            raise TooLarge(f"body of {announced} bytes: expected at most {limit_bytes}")
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                is_whole = False
                while not is_whole:
                    event = await request.receive()
                    if event["type"] == "http.disconnect":
                        raise RequestTimeout("the connection ended before the body did")
                    part = event.get("body", b"")
                    is_whole = not event.get("more_body", False)
                    if len(body) + len(part) > limit_bytes:
                        raise TooLarge(f"body is too large: expected at most {limit_bytes} bytes")
                    if part:
                        self.take(request, who, len(part))
                        body += part
        except TimeoutError:
            raise RequestTimeout(f"the body did not come within {seconds} s") from None
        return bytes(body)

    async def built(self, body: bytes, build: Callable[[], Built]) -> Built:
        """The result of `build`, which decodes this body. A large one is decoded beside the loop."""
        if len(body) <= APART_BYTES:
            return build()
        return await asyncio.get_running_loop().run_in_executor(self._thread, build)

    def close(self) -> None:
        """Decode no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class DoorGuard:
    """ASGI middleware: notes where a request comes from, and frees what it held when it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if client := scope.get("client"):
            PEER.set(client[0])
        try:
            await self._app(scope, receive, send)
        finally:
            if scope.get(_HELD):
                room: Any = scope["app"].state.gateway.bodies
                room.leave(scope)
