"""Requests to services sent by HTTP clients, and their replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from malamute.door.shares import share_of
from malamute.errors import NotFound, TooLarge, TooMany
from malamute.gateway import bodies
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.tracing import sending
from malamute.gateway.users import Identity, ProvedUser, Users


class AskedRequest:
    """A request to a service, with the replies received so far."""

    def __init__(self, identity: Identity, owner: ProvedUser, service: str) -> None:
        self.identity = identity
        self.owner = owner
        self.service = service
        self.stored = asyncio.get_running_loop().create_future()
        self.replies: list[dict[str, Any]] = []
        self.size_bytes = 0
        self.task: asyncio.Task[None] | None = None

    async def run(
        self,
        settings: GatewaySettings,
        users: Users,
        content: bodies.Content,
        options: Mapping[str, Any],
        keep: Callable[[AskedRequest, int], None],
    ) -> None:
        """Send the request, and collect its replies. `keep` reserves the bytes of each reply.

        Raises:
            TooLarge: the replies exceed a page.
            TooMany: a reply finds no room.
        """
        async with users.session(self.identity) as client:
            with sending("request", self.service, [content.headers], client) as [headers]:
                replies = await client.request(
                    self.service,
                    content.subject,
                    content.body,
                    headers,
                    timeout=settings.reply_seconds,
                    **options,
                )
                await replies.wait(settings.timeout_seconds)
            self.stored.set_result(None)
            async for reply in replies:
                size_bytes = len(reply.body)
                if self.size_bytes + size_bytes > settings.page_bytes and self.replies:
                    raise TooLarge(f"replies are too large: expected at most {settings.page_bytes} bytes")
                keep(self, size_bytes)
                self.replies.append(bodies.shown(reply))


class Requests:
    """The requests whose replies are awaited, or kept for the client."""

    def __init__(self, settings: GatewaySettings, users: Users) -> None:
        self._settings = settings
        self._users = users
        self._asked: dict[str, AskedRequest] = {}
        self._size_bytes = 0
        """Bytes of all kept replies."""

    def __len__(self) -> int:
        return len(self._asked)

    async def ask(
        self,
        identity: Identity,
        owner: ProvedUser,
        service: str,
        content: bodies.Content,
        options: Mapping[str, Any],
    ) -> tuple[str, AskedRequest]:
        """Send a request, and return it with its name when it is durable.

        Raises:
            TooMany: the limit of requests that wait for replies is reached.
            MalamuteError: the broker refuses the request.
        """
        total, most = len(self._asked), self._settings.requests
        own = sum(one.owner.user == owner.user for one in self._asked.values())
        if share_of(most, total, own, named=bool(owner.user)) < 1:
            raise TooMany(
                f"{total} requests wait for replies: expected at most {most}, and a share for each user; "
                f"this one has {own}"
            )
        name, asked = secrets.token_urlsafe(16), AskedRequest(identity, owner, service)
        self._asked[name] = asked
        asked.task = asyncio.create_task(asked.run(self._settings, self._users, content, options, self._keep))
        asked.task.add_done_callback(lambda task: self._finished(name, task))
        await asyncio.wait({asked.task, asked.stored}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.stored.done():
            self._forget(name)
            asked.task.result()
        return name, asked

    def _keep(self, asked: AskedRequest, size_bytes: int) -> None:
        """Count the bytes of a reply, and forget old replies to make room. Raises `TooMany`."""
        most = self._settings.reply_bytes
        if self._size_bytes + size_bytes > most:
            complete = [name for name, one in self._asked.items() if one.task is not None and one.task.done()]
            for name in complete:
                if self._size_bytes + size_bytes <= most:
                    break
                self._forget(name)
        if self._size_bytes + size_bytes > most:
            raise TooMany(f"{self._size_bytes} bytes of replies are kept: expected at most {most}")
        self._size_bytes += size_bytes
        asked.size_bytes += size_bytes

    def _forget(self, name: str) -> None:
        if (asked := self._asked.pop(name, None)) is not None:
            self._size_bytes -= asked.size_bytes

    def _finished(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            # A client may ask for the error; without one it must not be logged as unretrieved.
            task.exception()
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.reply_seconds, self._forget, name)

    def find(self, owner: ProvedUser, service: str, name: str) -> AskedRequest:
        """Return a request of this user. Raises `NotFound`."""
        asked = self._asked.get(name)
        if asked is None or (asked.owner, asked.service) != (owner, service):
            raise NotFound(
                f"there is no request {name[:50]!r} to {service!r}, or its replies are kept no longer"
            )
        return asked

    async def close(self) -> None:
        """Stop waiting for replies."""
        tasks = [asked.task for asked in self._asked.values() if asked.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
