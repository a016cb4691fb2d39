"""One WebSocket with many subscriptions, each with credit of its own.

A page sends one command in each frame, and receives one report in each, in the form of the requested
subprotocol: `malamute.json` (text, the default) or `malamute.msgpack` (binary).

    subscribe    id, stream; patterns, family, criteria, where, start, committed; credit
    credit       id, messages: so many more may come
    unsubscribe  id

    subscribed   id, first: the first sequence that can come; store: the store that sequences count in
    message      id, and the message
    gap          id, first, last, reason; with `another-store` also store: sequences count in that from now on
    ended        id, and why as a problem if it has not asked for that
    problem      what was wrong with a frame

Without credit no messages of a subscription are sent: all but one small window stay with the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Union

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from malamute.aio import Client
from malamute.client.events import Gap
from malamute.client.session.message import Message
from malamute.errors import InvalidValue, MalamuteError, Malformed, NotFound, TooMany
from malamute.gateway import bodies, problems
from malamute.gateway.events import GapQueue
from malamute.gateway.state import Gateway, gateway_of

JSON, MSGPACK = "malamute.json", "malamute.msgpack"

SUBSCRIPTIONS_MAX = 32
"""Subscriptions of one WebSocket."""

WINDOW_MESSAGES = 256
WINDOW_BYTES = 64 * 1024
"""Messages that the broker may send ahead of the page's credit, for each subscription."""

CREDIT_MAX = 2**31 - 1


class _Command(msgspec.Struct, tag_field="op", forbid_unknown_fields=True):
    id: int


class _Subscribe(_Command, tag="subscribe"):
    stream: str
    patterns: list[str] = []
    family: str = "topic"
    criteria: list[tuple[str, Any]] = []
    where: str = ""
    start: str = "new"
    committed: bool = False
    credit: int = 0


class _Credit(_Command, tag="credit"):
    messages: int


class _Unsubscribe(_Command, tag="unsubscribe"):
    pass


_COMMANDS = Union[_Subscribe, _Credit, _Unsubscribe]  # noqa: UP007  # msgspec wants a value
_DECODE: dict[str, Callable[[bytes], Any]] = {
    JSON: msgspec.json.Decoder(_COMMANDS).decode,
    MSGPACK: msgspec.msgpack.Decoder(_COMMANDS).decode,
}
_ENCODE: dict[str, Callable[[Any], bytes]] = {JSON: bodies.to_json, MSGPACK: msgspec.msgpack.encode}


class _Followed:
    """A subscription of a page: its credit in messages, and the task that sends them."""

    def __init__(self, credit: int) -> None:
        self.credit = 0
        self.granted = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_ending = False
        self.grant(credit)

    def grant(self, messages: int) -> None:
        if not 0 <= messages <= CREDIT_MAX:
            raise InvalidValue(f"invalid credit {messages}: expected 0 to {CREDIT_MAX}")
        self.credit = min(self.credit + messages, CREDIT_MAX)
        if self.credit:
            self.granted.set()

    async def spend(self) -> None:
        """Use one message of credit, when there is some."""
        await self.granted.wait()
        self.credit -= 1
        if not self.credit:
            self.granted.clear()


class PageSocket:
    """The WebSocket of one page."""

    def __init__(self, socket: WebSocket, gateway: Gateway, client: Client, form: str) -> None:
        self._socket = socket
        self._gateway = gateway
        self._client = client
        self._form = form
        self._followed: dict[int, _Followed] = {}

    async def serve(self) -> None:
        """Carry out the commands of the page, until it disconnects."""
        try:
            while True:
                try:
                    await self._carry_out(await self._next())
                except MalamuteError as error:
                    await self._send("problem", problems.document(error))
                # Other tasks run between commands that have already arrived.
                await asyncio.sleep(0)
        except WebSocketDisconnect:
            pass
        finally:
            tasks = [one.task for one in self._followed.values() if one.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self) -> _Command:
        frame = await self._socket.receive()
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code") or 1000)
        data = frame.get("bytes") if self._form == MSGPACK else frame.get("text")
        if data is None:
            raise Malformed(f"invalid frame: expected {'binary' if self._form == MSGPACK else 'text'}")
        try:
            command: _Command = _DECODE[self._form](data)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"invalid command: {error}") from None
        return command

    async def _send(self, op: str, fields: dict[str, Any]) -> None:
        data = _ENCODE[self._form]({"op": op, **fields})
        try:
            if self._form == MSGPACK:
                await self._socket.send_bytes(data)
            else:
                await self._socket.send_text(data.decode())
        except RuntimeError:
            # The page has disconnected, or sent an invalid frame: the server knows, and this task does not
            # yet.
            raise WebSocketDisconnect from None

    async def _carry_out(self, command: _Command) -> None:
        if isinstance(command, _Subscribe):
            self._subscribe(command)
            # The task must have started before the next command: cancelled earlier, it would report nothing.
            await asyncio.sleep(0)
            return
        followed = self._followed.get(command.id)
        if followed is None or followed.task is None or followed.is_ending:
            raise NotFound(f"there is no subscription {command.id}")
        if isinstance(command, _Credit):
            followed.grant(command.messages)
        else:
            followed.is_ending = True
            followed.task.cancel()

    def _subscribe(self, command: _Subscribe) -> None:
        if command.id in self._followed:
            raise InvalidValue(f"subscription {command.id} is there already: expected another id")
        if len(self._followed) >= SUBSCRIPTIONS_MAX:
            raise TooMany(f"too many subscriptions: expected at most {SUBSCRIPTIONS_MAX}")
        followed = self._followed[command.id] = _Followed(command.credit)
        followed.task = asyncio.create_task(self._run(command, followed))

    async def _run(self, command: _Subscribe, followed: _Followed) -> None:
        problem: dict[str, Any] = {}
        try:
            await self._follow(command, followed)
        except MalamuteError as error:
            problem = {"problem": problems.document(error)}
        except asyncio.CancelledError:
            # The page has unsubscribed or disconnected, so no report is needed.
            pass
        followed.is_ending = True
        # The task counts until the page has read its report: a page that reads nothing gets no more tasks.
        try:
            with suppress(WebSocketDisconnect):
                await self._send("ended", {"id": command.id, **problem})
        finally:
            del self._followed[command.id]

    async def _follow(self, command: _Subscribe, followed: _Followed) -> None:
        subscribing = self._client.subscribe(
            command.stream,
            *command.patterns,
            family=command.family,
            criteria=command.criteria,
            where=command.where,
            start=command.start,
            committed=command.committed,
            credit=WINDOW_MESSAGES,
            credit_bytes=WINDOW_BYTES,
        )
        async with subscribing as subscription:
            with self._gateway.follows(subscription):
                begin = {"first": subscription.first, "store": subscription.store}
                await self._send("subscribed", {"id": command.id, **begin})
                gaps = GapQueue()
                while True:
                    columns = await subscription.columns(enough=lambda: gaps.due(subscription))
                    gaps.note(subscription, columns)
                    if columns is None and not gaps:
                        return
                    for message in () if columns is None else bodies.messages_of(columns):
                        for gap in gaps.before_next():
                            await self._send_gap(command.id, gap)
                        await self._send_message(command.id, followed, message)
                    if columns is None:
                        for gap in gaps.rest():
                            await self._send_gap(command.id, gap)

    async def _send_gap(self, subscription: int, gap: Gap) -> None:
        await self._send("gap", {"id": subscription, "stream": gap.stream, **bodies.shown_gap(gap)})

    async def _send_message(self, subscription: int, followed: _Followed, message: Message) -> None:
        """Send a message when the page has credit, or the gap in its place at once."""
        try:
            fields = bodies.shown(message)
        except Malformed:
            await self._send_gap(subscription, bodies.unreadable(message))
        else:
            await followed.spend()
            await self._send("message", {"id": subscription, **fields})


async def page_socket(socket: WebSocket) -> None:
    """Serve one WebSocket."""
    gateway = gateway_of(socket)
    asked = socket.scope.get("subprotocols", [])
    form = next((name for name in asked if name in _DECODE), JSON)
    try:
        async with gateway.session(socket, followers=1) as client:
            await socket.accept(form if form in asked else None)
            await PageSocket(socket, gateway, client, form).serve()
    except MalamuteError as error:
        await problems.response(error)(socket.scope, socket.receive, socket.send)
