"""NATS and JetStream with nats-py, which is for event loops alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import nats
from nats.js.errors import BadRequestError

from lab.peers.work import NAME, ArrivalCount, PeerWork
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch

NO_LIMIT = -1
"""Of what may wait in a subscriber: the library would drop what is beyond."""

REPLY_TO = "Reply-To"
"""The header of a stored request. JetStream uses the field of NATS for its acknowledgement."""

Client = Any
Arrived = Callable[[Any], Awaitable[None]]


def _run(begin: Begin, work: PeerWork, play: Callable[..., Coroutine[Any, Any, Measured]]) -> Measured:
    async def main() -> Measured:
        client = await _connect(work)
        try:
            return await play(begin, work, client)
        finally:
            await client.close()

    return asyncio.run(main())


async def _connect(work: PeerWork) -> Client:
    return await nats.connect(f"nats://{work.host}:{work.port}")


async def _open_stream(client: Client, name: str) -> Any:
    stream = client.jetstream()
    try:
        await stream.add_stream(name=name, subjects=[name])
    except BadRequestError:
        # The other process of this benchmark makes the same one at this moment.
        await stream.stream_info(name)
    return stream


# Publishing


def publish(begin: Begin, work: PeerWork) -> Measured:
    """Into the buffer of the library, which writes it when the loop is free."""
    return _run(begin, work, _publish)


async def _publish(begin: Begin, work: PeerWork, client: Client) -> Measured:
    body = work.body
    begin()
    stopwatch = Stopwatch()
    for _ in range(work.messages):
        await client.publish(NAME, body)
    await client.flush(TIMEOUT_SECONDS)
    return stopwatch.measured()


def publish_async(begin: Begin, work: PeerWork) -> Measured:
    """To JetStream, each acknowledged, as many under way as the library allows (4,000)."""
    return _run(begin, work, _publish_async)


async def _publish_async(begin: Begin, work: PeerWork, client: Client) -> Measured:
    stream, body = await _open_stream(client, NAME), work.body
    begin()
    stopwatch = Stopwatch()
    for _ in range(work.messages):
        await stream.publish_async(NAME, body)
    await stream.publish_async_completed()
    return stopwatch.measured()


def publish_and_wait(begin: Begin, work: PeerWork) -> Measured:
    """To JetStream, when the one before is acknowledged."""
    return _run(begin, work, _publish_and_wait)


async def _publish_and_wait(begin: Begin, work: PeerWork, client: Client) -> Measured:
    stream, body = await _open_stream(client, NAME), work.body
    return await _ask_one_by_one(begin, work, lambda: stream.publish(NAME, body))


# Receiving


def subscribe(begin: Begin, work: PeerWork) -> Measured:
    """Subscribers with a callback and a connection each."""
    return asyncio.run(_subscribe(begin, work, _subscribe_one))


async def _subscribe_one(client: Client, arrived: Arrived) -> None:
    await client.subscribe(NAME, cb=arrived, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT)


def subscribe_stream(begin: Begin, work: PeerWork) -> Measured:
    """Ordered consumers of JetStream, with a callback and a connection each."""
    return asyncio.run(_subscribe(begin, work, _subscribe_one_to_stream))


async def _subscribe_one_to_stream(client: Client, arrived: Arrived) -> None:
    stream = await _open_stream(client, NAME)
    await stream.subscribe(
        NAME, cb=arrived, ordered_consumer=True, pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT
    )


async def _subscribe(
    begin: Begin, work: PeerWork, subscribe_one: Callable[[Client, Arrived], Awaitable[None]]
) -> Measured:
    done = asyncio.Event()
    count = ArrivalCount(work.messages * work.subscribers, done.set)

    async def arrived(message: Any) -> None:
        count.add()

    clients = [await _connect(work) for _ in range(work.subscribers)]
    for client in clients:
        await subscribe_one(client, arrived)
        await client.flush()
    begin()
    stopwatch = Stopwatch()
    with suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), TIMEOUT_SECONDS)
    measured = stopwatch.measured(received=count.received)
    for client in clients:
        await client.close()
    return measured


# Requests


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request with its body."""
    return _run(begin, work, _answer)


async def _answer(begin: Begin, work: PeerWork, client: Client) -> Measured:
    done = asyncio.Event()
    count = ArrivalCount(work.messages, done.set)

    async def reply(message: Any) -> None:
        await message.respond(message.data)
        count.add()

    await client.subscribe(NAME, cb=reply)
    return await _work(begin, client, done)


def answer_stored(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request of a stream, and acknowledge it. The reply is not stored."""
    return _run(begin, work, _answer_stored)


async def _answer_stored(begin: Begin, work: PeerWork, client: Client) -> Measured:
    done = asyncio.Event()
    count = ArrivalCount(work.messages, done.set)

    async def reply(message: Any) -> None:
        await client.publish(message.headers[REPLY_TO], message.data)
        await message.ack()
        count.add()

    stream = await _open_stream(client, NAME)
    await stream.subscribe(NAME, cb=reply, durable="worker", manual_ack=True)
    return await _work(begin, client, done)


async def _work(begin: Begin, client: Client, done: asyncio.Event) -> Measured:
    await client.flush()
    begin()
    stopwatch = Stopwatch()
    await asyncio.wait_for(done.wait(), TIMEOUT_SECONDS)
    await client.flush()
    return stopwatch.measured()


def ask(begin: Begin, work: PeerWork) -> Measured:
    """Make a request when the one before it is answered."""
    return _run(begin, work, _ask)


async def _ask(begin: Begin, work: PeerWork, client: Client) -> Measured:
    body = work.body
    return await _ask_one_by_one(begin, work, lambda: client.request(NAME, body, timeout=TIMEOUT_SECONDS))


def ask_stored(begin: Begin, work: PeerWork) -> Measured:
    """The same with a request that JetStream has acknowledged before its reply is waited for."""
    return _run(begin, work, _ask_stored)


async def _ask_stored(begin: Begin, work: PeerWork, client: Client) -> Measured:
    stream, body = await _open_stream(client, NAME), work.body
    inbox = client.new_inbox()
    replies = await client.subscribe(inbox)
    headers = {REPLY_TO: inbox}

    async def ask() -> None:
        await stream.publish(NAME, body, headers=headers)
        await replies.next_msg(timeout=TIMEOUT_SECONDS)

    return await _ask_one_by_one(begin, work, ask)


async def _ask_one_by_one(begin: Begin, work: PeerWork, ask: Callable[[], Awaitable[object]]) -> Measured:
    latencies: list[int] = []
    begin()
    stopwatch = Stopwatch()
    for _ in range(work.messages):
        start_ns = time.monotonic_ns()
        await ask()
        latencies.append(time.monotonic_ns() - start_ns)
    return stopwatch.measured(received=work.messages, latencies=latencies)
