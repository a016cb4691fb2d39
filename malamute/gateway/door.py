"""The room for request bodies: the sender is authenticated first, then bytes are counted, then kept.

The bytes of all bodies in memory are limited, and each user has a share. No body of an unauthenticated sender
is read, except for the small form that signs in to the console. A body counts until its request is answered;
objects built from it count, too (`elements.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from malamute.door.shares import Shares
from malamute.errors import MediaTypeRefused, RequestTimeout, TooLarge, TryLater
from malamute.gateway import problems
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import PEER, USER

Built = TypeVar("Built")

STRANGER_BYTES = 16 * 1024
"""Maximum bytes of the form that signs in: its credentials are not verified yet."""

APART_BYTES = 64 * 1024
"""Bytes from which a body is decoded in a thread, so that other requests do not wait for it."""

TAKE_SECONDS = 30.0
"""Time for a client to accept the next piece of a large answer."""

END = "malamute.end"
"""Key in the scope of a request: the function that closes its connection at once."""

_HELD = "malamute.held"
"""Key in the scope of a request: its share of the room."""


class BodyRoom:
    """The request bodies in memory."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.shares = Shares(settings.bodies_bytes)
        self.answers = Shares(settings.answers_bytes)
        """The large answers under way."""
        # Bodies are decoded one after the other: their objects share the memory of the process.
        self._thread = ThreadPoolExecutor(1, "malamute-bodies")

    def take(self, request: Request, who: str, count: int) -> None:
        """Count more bytes of a request, until it is answered. Raises `TryLater`."""
        if not self.shares.take(who, count):
            raise TryLater(
                f"bodies of requests have {self.shares.total} bytes together, {self.shares.held(who)} of "
                f"them are this user's: expected at most {self.shares.limit}, and a share for each"
            )
        request.scope.setdefault(_HELD, []).append((who, count))

    def take_more(self, request: Request, count: int) -> None:
        """Count more bytes for the sender of a request body. Raises `TryLater`."""
        if (held := request.scope.get(_HELD)) and count:
            self.take(request, held[0][0], count)

    def leave(self, scope: Scope) -> None:
        """Release the bytes of a request."""
        for who, count in scope.pop(_HELD, ()):
            self.shares.give_back(who, count)

    async def read(self, request: Request, who: str, limit_bytes: int = 0) -> bytes:
        """Read the body of a request.

        Raises:
            TooLarge: the body exceeds `limit_bytes` or the settings; the rest is not read.
            TryLater: all bodies, or the bodies of `who`, would be too large together.
            RequestTimeout: the body did not arrive in time, or not completely.
            MediaTypeRefused: the body is compressed.
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
        """Return the result of `build`, which decodes this body. A large body is decoded in a thread."""
        if len(body) <= APART_BYTES:
            return build()
        return await asyncio.get_running_loop().run_in_executor(self._thread, build)

    def close(self) -> None:
        """Stop decoding."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class _Answer:
    """An answer sent in pieces if it is large: a client that does not read it loses it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, room: BodyRoom) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._room = room
        self._start: Message | None = None
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer. A large part waits for its share of the room."""
        if message["type"] == "http.response.start" and _length_of(message) > APART_BYTES:
            self._start = message
        elif self._start is not None and message["type"] == "http.response.body":
            start, self._start = self._start, None
            await self._send_large(start, message)
        elif not self._is_refused:
            await self._send(message)

    async def _send_large(self, start: Message, message: Message) -> None:
        body, shares, user = message.get("body", b""), self._room.answers, USER.get()
        if not shares.take(user, len(body)):
            self._is_refused = True
            words = f"answers have {shares.total} bytes together: expected at most {shares.limit}"
            await problems.response(TryLater(words))(self._scope, self._receive, self._send)
            return
        try:
            await self._send(start)
            for at in range(0, len(body), APART_BYTES):
                part = {**message, "body": body[at : at + APART_BYTES]}
                part["more_body"] = message.get("more_body", False) or at + APART_BYTES < len(body)
                async with asyncio.timeout(TAKE_SECONDS):
                    await self._send(part)
        except TimeoutError:
            if (end := self._scope.get(END)) is None:
                raise
            end()
            while (await self._receive())["type"] != "http.disconnect":
                pass
        finally:
            shares.give_back(user, len(body))


def _length_of(message: Message) -> int:
    found = next((value for name, value in message.get("headers", ()) if name == b"content-length"), b"")
    return int(found) if found.isdigit() else 0


class DoorGuard:
    """ASGI middleware: notes the address of a request, and frees its bytes when it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if client := scope.get("client"):
            PEER.set(client[0])
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        room: BodyRoom = scope["app"].state.gateway.bodies
        if scope["type"] == "http" and scope["method"] != "HEAD":
            send = _Answer(scope, receive, send, room).send
        try:
            await self._app(scope, receive, send)
        finally:
            if scope.get(_HELD):
                room.leave(scope)
