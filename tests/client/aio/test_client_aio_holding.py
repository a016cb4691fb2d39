"""Messages that are held for others to join while the broker is busy, on an event loop."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest
import uvloop

import malamute
import malamute.aio
from malamute.protocol import messages as wire
from malamute.protocol.codec import decode
from malamute.testing import Broker

Play = Callable[[Callable[..., Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(broker: Broker, request: pytest.FixtureRequest) -> Play:
    def start(program: Callable[..., Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            async with malamute.aio.connect(broker.url, timeout=60) as client:
                await client.publish_nowait("s", "a", b"0")
                # Events of the connection itself are behind us.
                await client.flush()
                await program(client, record(client))

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(whole())

    return start


def record(client: malamute.aio.Client) -> list[int]:
    """How many messages are in each PUBLISH from now on."""
    counts: list[int] = []
    outbox = client._session.outbox
    take = outbox.sent

    def sent() -> None:
        message = decode([bytes(frame) for frame in outbox.next_to_send()])
        counts.extend([len(message.records)] if isinstance(message, wire.Publish) else [])
        take()

    outbox.sent = sent
    return counts


def busy(client: malamute.aio.Client) -> None:
    client._driver._iteration_due = inf
    client._driver._backlog.until = inf


def test_the_next_pass_of_the_loop_sends_what_is_held(play: Play) -> None:
    async def program(client: malamute.aio.Client, sent: list[int]) -> None:
        busy(client)
        for number in range(5):
            await client.publish_nowait("s", "a", b"%d" % number)
        assert sent == []
        arrived = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(arrived.set_result, None)
        await arrived
        assert sent == [5]

    play(program)


def test_nothing_is_held_for_a_broker_that_is_not_busy(play: Play) -> None:
    async def program(client: malamute.aio.Client, sent: list[int]) -> None:
        for number in range(3):
            client._driver._backlog.until = 0.0
            await client.publish_nowait("s", "a", b"%d" % number)
        assert sent == [1, 1, 1]

    play(program)


def test_tasks_that_publish_confirmed_share_a_command_and_each_gets_its_sequence(play: Play) -> None:
    async def program(client: malamute.aio.Client, sent: list[int]) -> None:
        busy(client)
        stream = f"confirmed-{uuid.uuid4()}"
        first = await client.publish(stream, "a", b"first", assurance="stored")
        sent.clear()
        busy(client)
        sequences = await asyncio.gather(
            *(client.publish(stream, "a", b"%d" % n, assurance="stored") for n in range(50))
        )
        assert sequences == [*range(first + 1, first + 51)]
        assert sent == [50]

    play(program)


def test_a_task_that_is_cancelled_while_its_message_is_held_changes_nothing_for_others(
    play: Play,
) -> None:
    async def program(client: malamute.aio.Client, sent: list[int]) -> None:
        stream = f"cancelled-{uuid.uuid4()}"
        busy(client)
        tasks = [
            asyncio.ensure_future(client.publish(stream, "a", b"%d" % n, assurance="stored"))
            for n in range(3)
        ]
        client._driver._loop.call_soon(tasks[1].cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [results[0], results[2]] == [1, 3]
        async with client.subscribe(stream, start="first") as messages:
            assert [(await messages.receive(60)).body for _ in range(3)] == [b"0", b"1", b"2"]

    play(program)


def test_a_refusal_is_the_error_of_each_that_shared_the_command(play: Play) -> None:
    async def program(client: malamute.aio.Client, sent: list[int]) -> None:
        busy(client)
        results = await asyncio.gather(
            *(client.publish("$reserved", "a", b"", assurance="stored") for _ in range(3)),
            client.publish("s", "a", b"", assurance="stored"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [malamute.AccessRefused] * 3 + [int]
        assert sent == [3, 1]

    play(program)
