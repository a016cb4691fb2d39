"""The file of a client for other event loops, and what it says; taking without waiting."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Iterator
from math import inf

import pytest

import malamute
import malamute.aio
from malamute.client.link import consumers
from malamute.errors import Closed, InvalidValue, LinkError
from malamute.protocol import messages as wire
from malamute.protocol.codec import decode
from malamute.testing import Broker

PATIENCE = 60.0
THREADS = ("one", "any")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(params=THREADS)
def client(broker: Broker, request: pytest.FixtureRequest) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, threads=request.param, address="me", timeout=PATIENCE) as client:
        yield client


def is_readable(client: malamute.Client, timeout: float = 0.0) -> bool:
    return bool(select.select([client.fileno()], [], [], timeout)[0])


def until_quiet(client: malamute.Client) -> None:
    while is_readable(client):
        client.dispatch()


def test_the_file_is_readable_when_something_comes_and_not_without(
    client: malamute.Client, broker: Broker
) -> None:
    with client.subscribe("s") as messages, malamute.connect(broker.url) as other:
        until_quiet(client)
        assert not is_readable(client)
        other.publish("s", "a", b"1")
        while not (got := messages.take(5, timeout=0)):
            assert is_readable(client, PATIENCE)
            while client.dispatch():
                pass
        assert [message.body for message in got] == [b"1"]


def test_the_file_tells_of_messages_that_another_call_has_received(
    client: malamute.Client, broker: Broker
) -> None:
    with client.work("w", credit=5) as work, malamute.connect(broker.url) as other:
        until_quiet(client)
        other.enqueue("w", "a", b"1")
        while not work.waiting:
            client.ping()  # it receives the request, too
        assert is_readable(client)
        request = work.poll()
        assert request is not None
        request.ack()
        assert work.poll() is None
        until_quiet(client)
        assert not is_readable(client)


def test_a_closed_client_has_no_file(broker: Broker) -> None:
    client = malamute.connect(broker.url)
    client.fileno()
    client.close()
    for call in (client.fileno, client.dispatch):
        with pytest.raises(Closed, match="client is closed"):
            call()


def test_another_thread_dispatches_for_a_client_of_any_thread_alone(client: malamute.Client) -> None:
    errors: list[LinkError] = []

    def dispatch() -> None:
        try:
            client.dispatch()
        except LinkError as error:
            errors.append(error)

    client.dispatch()
    thread = threading.Thread(target=dispatch)
    thread.start()
    thread.join()
    shared = "Shared" in type(client).__name__
    assert [("another thread" in str(error)) for error in errors] == ([] if shared else [True])
    client.dispatch()


def test_the_next_timeout_is_that_of_what_waits(client: malamute.Client) -> None:
    assert client.next_timeout() is None
    with client.publisher("s", linger=PATIENCE) as out:
        out.publish("a", b"1")
        out.publish("a", b"2")
        assert client.next_timeout() is not None
        client.dispatch()
        assert client.next_timeout() is None


def test_take_returns_the_mail_that_is_here_and_acknowledges_it_with_the_next(
    client: malamute.Client,
) -> None:
    with client.mailbox() as mailbox:
        assert mailbox.take(3, timeout=0) == []
        for n in range(5):
            client.send("me", "a", b"%d" % n)
        got = mailbox.take(3, PATIENCE)
        while len(got) < 3:
            got += mailbox.take(3 - len(got), PATIENCE)
        assert [mail.body for mail in got] == [b"0", b"1", b"2"]
        rest = mailbox.take(9, PATIENCE)
        assert all(mail.settled for mail in got)
        assert not any(mail.settled for mail in rest)
    for most in (0, -1, True, "3"):
        with pytest.raises(InvalidValue, match="invalid most"):
            client.mailbox().take(most, timeout=0)  # type: ignore[arg-type]


def acks_of(client: malamute.Client | malamute.aio.Client) -> list[int]:
    """How many messages each ACK names from now on."""
    counts: list[int] = []
    outbox = client._session.outbox
    take = outbox.sent

    def sent() -> None:
        command = decode([bytes(frame) for frame in outbox.next_to_send() or ()])
        counts.extend([sum(b - a + 1 for a, b in command.ranges)] if isinstance(command, wire.Ack) else [])
        take()

    outbox.sent = sent  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("watched", [True, False], ids=["loop", "no loop"])
def test_a_loop_acknowledges_several_messages_at_once_and_others_each(
    client: malamute.Client, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time plays no part: until then the timer of the loop has sent none.
    monkeypatch.setattr(consumers, "ACK_DELAY", inf)
    if watched:
        client.fileno()
    with client.consume("q", credit=10, auto_ack=False) as mailbox:
        for n in range(10):
            client.send("q", "a", b"%d" % n)
        mails: list[malamute.Mail] = []
        while len(mails) < 10:
            mails += mailbox.take(10, PATIENCE)
        acks = acks_of(client)
        for mail in mails:
            mail.ack()
        assert acks == ([5, 3, 1, 1] if watched else [1] * 10)


def test_a_client_of_asyncio_acknowledges_several_messages_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "ACK_DELAY", 1e9)

    async def acknowledge() -> list[int]:
        async with malamute.aio.connect(broker.url, timeout=PATIENCE) as client:
            box = await client.consume("q", credit=10, auto_ack=False)
            for n in range(10):
                await client.send("q", "a", b"%d" % n)
            mails = [await box.receive(PATIENCE) for _ in range(10)]
            acks = acks_of(client)
            for mail in mails:
                mail.ack()
            await client.ping()
            return acks

    assert asyncio.run(acknowledge()) == [5, 3, 1, 1]
