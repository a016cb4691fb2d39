"""A program of a user, for the type checkers: what it is handed out has the types that it is declared with.

The program is checked and never run. `assert_type` and `reveal` say what a type has to be; the lines that are
wrong on purpose are marked, and a checker that finds nothing there complains about the mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import assert_type

import malamute
import malamute.aio
from malamute.client.events import Event, Gap, Lost
from malamute.protocol.admin import StreamDetails
from malamute.testing import Broker


def tell(event: Event) -> None:
    if isinstance(event, Gap):
        assert_type(event.first, int)
    elif isinstance(event, Lost):
        assert_type(event.reason, str)


def of_any_thread(url: str) -> None:
    assert_type(malamute.connect(url, threads="any"), malamute.Client)
    malamute.connect(url, threads="all")  # type: ignore[arg-type]  # pyright: ignore


def blocking(url: str) -> None:
    with malamute.connect((url, "tcp://127.0.0.1:9998"), address="alice", timeout=5.0) as client:
        assert_type(client, malamute.Client)
        client.on_event = tell
        assert_type(client.publish("weather", "temp.oslo", b"-3.5", {"unit": "C"}, assurance="stored"), int)
        assert_type(client.publish("weather", "temp.oslo", json=1, id="a"), malamute.StoredSequence)
        assert_type(client.ask("weather", "who", wait=1), list[malamute.Mail])
        with client.publisher("weather", batch=100) as out:
            receipt = out.publish("temp.oslo", [b"a", b"b"])
            assert_type(receipt, malamute.Receipt)
            assert_type(receipt.wait(1.0), int)
        with client.subscribe("weather", "temp.*", where="unit = 'C'", start=timedelta(hours=1)) as messages:
            for message in messages:
                assert_type(message, malamute.Message)
                assert_type(message.body, bytes)
                assert_type(message.time, datetime)
                assert_type(message.header("unit", str), str)
                assert_type(message.header("degrees", float, 0.0), float)
                messages.commit(message)
            for batch in messages.batches(100):
                assert_type(batch, list[malamute.Message])
        sent = client.send(
            "bob", "hello", b"", assurance="confirmed", ttl=60, priority=5, at=datetime.now(UTC)
        )
        assert_type(sent.wait(), str)
        for mail in client.mailbox(auto_ack=False):
            assert_type(mail, malamute.Mail)
            mail.nak(timedelta(seconds=5))
        for reply in client.request("printer", "bw.A4", b"...", timeout=5, key="a", immediate=True):
            assert_type(reply, malamute.Mail)
        with client.work("printer", "bw.*", ack_timeout=30) as work:
            for request in work:
                assert_type(request, malamute.Request)
                assert_type(request.reply(b"done", final=True), malamute.Receipt)

        @client.service("printer", "bw.*", concurrency=4, ack_timeout=timedelta(minutes=1))
        def printer(request: malamute.Request) -> bytes:
            return request.body

        assert_type(printer(next(iter(client.work("printer")))), bytes)

        @client.subscription("weather", "temp.*", start="first", cursor="report")
        def weather(message: malamute.Message) -> None:
            print(message.headers)

        @client.on_mail(on_error="reject")
        def post(mail: malamute.Mail) -> None:
            mail.in_progress()

        client.run()
        weather(messages.receive())
        post(client.receive())

        assert_type(client.ping(), float)
        assert_type(client.admin.stream(name="weather"), StreamDetails)
        assert_type(client.enqueue("printer", "bw.A4", b"...", key="desk"), malamute.Sent)
        for message in client.history("weather", since=timedelta(hours=1), until="now"):
            assert_type(message.lag, float)
        client.publish_nowait("weather", "temp.oslo", {"celsius": -3.5})

        client.publish("weather", "temp.oslo", 5)  # type: ignore[call-overload]  # pyright: ignore
        client.publish("weather", "temp.oslo", assurance="some")  # type: ignore[call-overload]  # pyright: ignore
        client.admin.stream(nme="weather")  # type: ignore[call-arg]  # pyright: ignore
        client.send("bob", "hello", b"", prority=5)  # type: ignore[call-arg]  # pyright: ignore


async def asynchronous(url: str) -> None:
    async with malamute.aio.connect(url, address="alice") as client:
        assert_type(client, malamute.aio.Client)
        assert_type(await client.publish("weather", "temp.oslo", b"-3.5", assurance="stored"), int)
        async with client.publisher("weather") as out:
            receipt = await out.publish("temp.oslo", b"")
            assert_type(await receipt.wait(1.0), int)
        assert_type(await client.ping(), float)
        assert_type(await client.admin.stream(name="weather"), StreamDetails)
        async for message in client.history("weather"):
            assert_type(message, malamute.Message)
        async with client.subscribe("weather", "temp.*") as messages:
            assert_type(messages, malamute.aio.Subscription)
            async for message in messages:
                assert_type(message, malamute.Message)
            async for batch in messages.batches():
                assert_type(batch, list[malamute.Message])
        async for message in client.subscribe("weather"):
            assert_type(message, malamute.Message)
        async for reply in client.request("printer", "bw.A4"):
            assert_type(reply, malamute.Mail)
        work = await client.work("printer")
        async for request in work:
            assert_type(request, malamute.aio.Request)
            await request.reply(b"done")
            request.ack()
        sent = await client.send("bob", "hello", b"", delay=timedelta(seconds=3))
        assert_type(await sent.wait(), str)

        @client.service("printer")
        async def printer(request: malamute.aio.Request) -> bytes | None:
            return request.body

        await printer(await work.receive())

        @client.service("printer")  # type: ignore[type-var]  # pyright: ignore
        def wrong(request: malamute.aio.Request) -> bytes:
            return request.body

        wrong(await work.receive())
        await client.run()


def tests() -> Iterator[None]:
    with Broker() as broker:
        assert_type(broker.url, str)
        asyncio.run(asynchronous(broker.url))
        yield
