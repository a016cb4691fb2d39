"""Keys of messages in streams, which a gateway reads after a restart.

The first message of a request with an Idempotency-Key has it in a header, so it becomes durable with the
message and no sooner. Any program may write that header. So the message also has to have the user of the
request as its sender, which the broker stamps: users can only repeat their own messages.

A gateway that does not know a key reads those of the last while out of the stream, once for each stream, and
as a user of its own: others may publish to a stream that they cannot read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from time import time_ns
from typing import NamedTuple

from malamute.aio import Client
from malamute.client.session.message import Message
from malamute.errors import AccessRefused, InvalidValue, KeyReused, LoginNeeded, Malformed, NotFound
from malamute.gateway import bodies
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.users import ANONYMOUS, Users
from malamute.protocol.names import SIGNATURE_PREFIX
from malamute.protocol.time_units import to_ns

HEADER = "idempotency-key"

_DIGEST_BYTES = 16
_DIGEST_CHARACTERS = 2 * _DIGEST_BYTES


class KeyMark(NamedTuple):
    """The digests of a key and of its request, which disclose neither."""

    sender: str
    """The signature of the user whose key it is."""
    key: str
    fingerprint: str

    @classmethod
    def of(cls, sender: str, key: tuple[str, ...], fingerprint: bytes) -> KeyMark:
        """That of a key of a sender, with all that tells it from the same one elsewhere."""
        digest = blake2b("\0".join(key).encode(), digest_size=_DIGEST_BYTES)
        return cls(sender, digest.hexdigest(), fingerprint.hex())

    @property
    def header(self) -> str:
        """The value of the header."""
        return self.key + self.fingerprint


class _Stored(NamedTuple):
    fingerprint: str
    sequence: int
    time_ns: int


class StoredKeys:
    """The keys that were read out of streams: as many as are remembered otherwise, and for as long."""

    def __init__(
        self, settings: GatewaySettings, users: Users, clock_ns: Callable[[], int] = time_ns
    ) -> None:
        self._settings = settings
        self._users = users
        self._clock_ns = clock_ns
        self._known: OrderedDict[tuple[str, str, str], _Stored] = OrderedDict()
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._is_refused = False
        """Whether the gateway has no user of its own: then nothing is read."""

    async def find(self, stream: str, mark: KeyMark) -> int:
        """Return the sequence of the message published under a key; 0 if there is none.

        Raises `KeyReused` for another request, and any error of reading the stream.
        """
        if not self._is_refused:
            await asyncio.shield(self._read_once(stream))
        self._forget()
        known = self._known.get((stream, mark.sender, mark.key))
        if known is None:
            return 0
        if known.fingerprint != mark.fingerprint:
            raise KeyReused("Idempotency-Key was used for another request")
        return known.sequence

    def _read_once(self, stream: str) -> asyncio.Task[None]:
        task = self._reading.get(stream)
        if task is None:
            task = self._reading[stream] = asyncio.create_task(self._read(stream))
            task.add_done_callback(lambda task: self._finished(stream, task))
        return task

    def _finished(self, stream: str, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._reading.pop(stream, None)

    async def _read(self, stream: str) -> None:
        try:
            async with self._users.session(ANONYMOUS) as client:
                await self._read_as(client, stream)
        except LoginNeeded:
            self._is_refused = True
        except (NotFound, AccessRefused):
            # Names of streams that are none may be any number, and are not remembered.
            self._reading.pop(stream, None)

    async def _read_as(self, client: Client, stream: str) -> None:
        async with client.subscribe(stream, credit=1, existing=True) as probe:
            head = probe.first
        start = f"time:{self._oldest_ns()}"
        where = f"exists {HEADER} and sender prefix '{SIGNATURE_PREFIX}'"
        async with client.subscribe(stream, existing=True, start=start, where=where) as subscription:
            # One that begins at the head is never said to have come there.
            while subscription.first < head:
                columns = await subscription.columns(None, enough=lambda: subscription.state == "live")
                if columns is None:
                    return
                for message in bodies.messages_of(columns):
                    self._note(stream, message)
                self._forget()

    def _note(self, stream: str, message: Message) -> None:
        try:
            value = message.header(HEADER, str)
        except (Malformed, InvalidValue):
            # Any program may publish such a header.
            return
        key, fingerprint = value[:_DIGEST_CHARACTERS], value[_DIGEST_CHARACTERS:]
        self._known.setdefault(
            (stream, message.sender, key), _Stored(fingerprint, message.sequence, message.time_ns)
        )

    def _oldest_ns(self) -> int:
        return max(0, self._clock_ns() - to_ns(self._settings.key_seconds))

    def _forget(self) -> None:
        oldest_ns = self._oldest_ns()
        while self._known:
            key, known = next(iter(self._known.items()))
            if known.time_ns >= oldest_ns and len(self._known) <= self._settings.keys:
                return
            del self._known[key]

    async def close(self) -> None:
        """Read no more."""
        tasks = [*self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
