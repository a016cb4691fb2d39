"""Jobs without a reply, replies that nobody reads, and the assurance of a message by default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import malamute
from malamute import aio, errors
from malamute.client.events import Refusal
from malamute.client.session import replies as limits
from malamute.protocol.admin import MailboxesQuery
from malamute.testing import Broker

PATIENCE = 60


@pytest.fixture
def name() -> str:
    return uuid4().hex


def test_a_job_is_done_once_and_its_reply_goes_nowhere(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, address=f"me-{name}", timeout=PATIENCE) as client:
        client.enqueue(name, "resize", b"1.png")
        tracked = client.enqueue(name, "resize", json={"file": "2.png"}, assurance="confirmed", key="k")
        with client.work(name) as requests:
            for _ in range(2):
                request = requests.receive(PATIENCE)
                assert request.properties["no_reply"] is True
                request.reply(b"done")
        assert tracked.wait(PATIENCE) == "acknowledged"
        client.flush()
        rows = {row.name: row for row in client.query(MailboxesQuery())}
        assert rows[f"me-{name}"].messages == 0
        with pytest.raises(errors.TimedOut):
            client.receive(0)


def test_control_c_in_the_middle_of_a_settlement_ends_run(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("malamute.client.sync.handler_pool.settle", interrupted)
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        client.service(name)(lambda request: None)
        client.enqueue(name, "resize")
        with pytest.raises(KeyboardInterrupt):
            client.run()


def test_a_job_on_asyncio(broker: Broker, name: str) -> None:
    async def program() -> None:
        async with aio.connect(broker.url, timeout=PATIENCE) as client:
            sent = await client.enqueue(name, "resize", "1.png", ttl=60)
            assert sent.done
            async with client.work(name) as requests:
                request = await requests.receive(PATIENCE)
                assert request.text == "1.png"
                await request.reply()

    asyncio.run(program())


def test_replies_that_nobody_reads_end_the_oldest_request(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNREAD_MAX", 2)
    monkeypatch.setattr(limits, "KEPT_MAX", 5)
    with (
        malamute.connect(broker.url, timeout=PATIENCE) as client,
        malamute.connect(broker.url, timeout=PATIENCE) as other,
        other.work(name) as requests,
    ):
        first = client.request(name, "a", timeout=PATIENCE)
        second = client.request(name, "b", timeout=PATIENCE)
        request = requests.receive(PATIENCE)
        for _ in range(5):
            request.reply(final=False)
        other.flush()
        client.flush()
        request.reply()
        assert requests.receive(PATIENCE).reply(b"second")
        assert [reply.body for reply in second] == [b"second"]
        with pytest.raises(errors.TooMany, match=f"6 replies to a request to '{name}' were not read"):
            next(first)
        assert client._session.pending_replies.unread == 0


def test_replies_of_many_bytes_count_by_these(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNREAD_MAX", 0)
    monkeypatch.setattr(limits, "KEPT_BYTES_MAX", 1500)
    with malamute.connect(broker.url, timeout=PATIENCE) as client, client.work(name) as requests:
        replies = client.request(name, "a", timeout=PATIENCE)
        request = requests.receive(PATIENCE)
        request.reply(b"x" * 1000, final=False)
        request.reply(b"x" * 1000)
        # Replies come in order: those before are here when this one is.
        last = client.request(name, "b", timeout=PATIENCE)
        requests.receive(PATIENCE).reply()
        assert [reply.body for reply in last] == [b""]
        with pytest.raises(errors.TooMany, match="2 replies"):
            next(replies)


def test_publish_returns_the_sequence_and_publish_nowait_nothing(broker: Broker, name: str) -> None:
    events: list[Any] = []
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        client.on_event = events.append
        assert client.publish(name, "a", b"1") == 1
        assert client.publish(name, "a", b"2", assurance="none") == 0
        assert client.publish_nowait(name, "a", json=3) is None
        assert client.publish_nowait(name, "a", b"4", ttl=60) is None
        assert client.publish(name, "a") == 5
        client.publish_nowait("$SYS.forbidden", "a")
        client.flush()
        assert [type(event) for event in events] == [Refusal]


def test_the_same_on_asyncio(broker: Broker, name: str) -> None:
    async def program() -> None:
        async with aio.connect(broker.url, timeout=PATIENCE) as client:
            await client.publish_nowait(name, "a", b"1")
            await client.publish_nowait(name, "a", json={"n": 2}, ttl=60)
            assert await client.publish(name, "a") == 3

    asyncio.run(program())


# Handlers


def hidden(request: Any) -> Any:
    """A function that returns a coroutine, as a wrapper of an `async def` does."""

    async def answer() -> bytes:
        return b"done"

    return answer()


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (hidden, "handler hidden returned coroutine: "),
        (lambda request: {}, "handler <lambda> returned dict: "),
        (lambda request: {"a": 1}, "handler <lambda> returned dict: "),
        (lambda request: 7, "handler <lambda> returned int: "),
    ],
)
def test_a_result_that_cannot_be_sent_is_rejected_at_once(
    broker: Broker, name: str, handler: Callable[[Any], Any], words: str
) -> None:
    calls: list[Any] = []
    with malamute.connect(broker.url, address=f"me-{name}", timeout=PATIENCE) as client:

        @client.service(name)
        def serve(request: malamute.Request) -> Any:
            calls.append(request)
            client.stop()
            return handler(request)

        serve.__name__ = getattr(handler, "__name__", "")
        replies = client.request(name, "a", assurance="confirmed", timeout=PATIENCE)
        client.run()
        assert replies.wait(PATIENCE) == "rejected"
        assert replies.reason.startswith(f"InvalidValue: {words}")
        assert len(calls) == 1


def test_mail_for_a_hidden_coroutine_is_rejected_and_not_acknowledged(broker: Broker, name: str) -> None:
    with malamute.connect(broker.url, address=f"me-{name}", timeout=PATIENCE) as client:

        @client.on_mail()
        def handle(mail: malamute.Mail) -> Any:
            client.stop()
            return hidden(mail)

        sent = client.send(f"me-{name}", "a", assurance="confirmed")
        client.run()
        assert sent.wait(PATIENCE) == "rejected"
        assert sent.reason.startswith("InvalidValue: handler handle returned coroutine: ")
