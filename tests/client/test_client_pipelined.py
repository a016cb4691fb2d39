"""Sending without waiting for each confirmation, options of messages of a sender, and changes of credit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import malamute
import malamute.aio
from malamute.client.events import Refusal
from malamute.errors import Closed, InvalidValue, MalamuteError, NotFound, NoWorkers
from malamute.testing import Broker

PATIENCE = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="me", timeout=PATIENCE) as client:
        yield client


def test_messages_are_sent_without_waiting_for_each_and_confirmed_later(client: malamute.Client) -> None:
    sent = [client.send("me", "a", b"%d" % n, wait=False) for n in range(100)]
    sent += [client.enqueue("w", "a", b"%d" % n, wait=False) for n in range(100)]
    assert not sent[-1].done
    assert [one.wait(PATIENCE) for one in sent] == [""] * 200
    assert all(one.done for one in sent)
    assert client.query("service", name="w")["messages"] == 100
    tracked = client.send("me", "a", b"last", wait=False, assurance="confirmed")
    with client.mailbox() as mailbox:
        while mailbox.receive(PATIENCE).body != b"last":
            pass
        mailbox.acknowledge()
        assert tracked.wait(PATIENCE) == "acknowledged"
    with pytest.raises(InvalidValue, match="invalid wait 'no'"):
        client.send("me", "a", b"", wait="no")  # type: ignore[arg-type]


def test_the_refusal_of_a_message_that_is_not_waited_for_is_raised_later_and_is_an_event(
    client: malamute.Client,
) -> None:
    events: list[object] = []
    client.on_event = events.append
    sent = client.enqueue("nobody", "a", b"", wait=False, immediate=True)
    with pytest.raises(NoWorkers):
        sent.wait(PATIENCE)
    assert [type(event) for event in events] == [Refusal]


def test_a_request_is_stored_before_its_replies(client: malamute.Client) -> None:
    replies = client.request("w", "a", b"")
    replies.stored(PATIENCE)
    assert client.query("service", name="w")["messages"] == 1
    client.request("w", "a", b"", assurance="none").stored()
    refused = client.request("nobody", "a", b"", immediate=True)
    with pytest.raises(NoWorkers):
        refused.stored(PATIENCE)


@pytest.mark.parametrize("threads", ["one", "any"])
def test_each_message_of_a_sender_has_options_of_its_own(broker: Broker, threads: str) -> None:
    with malamute.connect(broker.url, address="me", threads=threads, timeout=PATIENCE) as client:  # type: ignore[arg-type]
        with client.sender("me", batch=3) as out:
            for n in range(10):
                out.publish("a", b"%d" % n, priority=n % 10, correlation=n)
            out.publish("a", b"plain")
            out.publish("a", b"once", id="i", ttl=60)
            out.publish("a", b"once", id="i", ttl=60)
            out.publish("a", b"late", delay=3600)
            out.publish("a", b"later", at=datetime.now(UTC) + timedelta(days=1))
        row = client.query("mailbox", name="me")
        assert (row["messages"], row["delayed"]) == (14, 2)
        with client.mailbox() as mailbox:
            got = [mailbox.receive(PATIENCE) for _ in range(12)]
        assert [mail.body for mail in got[:9]] == [b"%d" % n for n in range(9, 0, -1)]
        assert [mail.correlation for mail in got[:9]] == [*range(9, 0, -1)]
        assert sorted(mail.body for mail in got[9:]) == [b"0", b"once", b"plain"]


def test_wrong_options_of_a_message_are_refused_and_add_nothing(client: malamute.Client) -> None:
    with client.sender("me") as out:
        for options, words in (
            ({"priority": 10}, "invalid priority 10"),
            ({"prority": 1}, "unknown option 'prority'"),
            ({"delay": 1, "at": datetime.now(UTC)}, "options 'delay' and 'at' together"),
            ({"tracker": "t"}, "tracker without an outcome"),
        ):
            with pytest.raises(InvalidValue, match=words):
                out.publish("a", b"", **options)  # type: ignore[arg-type]
    with client.publisher("s") as out, pytest.raises(InvalidValue, match="message to a stream"):
        out.publish("a", b"", priority=1)
    with pytest.raises(MalamuteError):
        client.query("mailbox", name="me")


def test_the_credit_of_a_consumer_grows_at_once_and_shrinks_as_messages_are_settled(
    client: malamute.Client,
) -> None:
    for n in range(10):
        client.enqueue("w", "a", b"%d" % n)

    def in_flight() -> int:
        client.flush()
        return int(client.query("service", name="w")["in_flight"])

    with client.work("w", credit=2) as work:
        held = [work.receive(PATIENCE) for _ in range(2)]
        assert (work.credit, in_flight()) == (2, 2)
        work.credit = 5
        held += [work.receive(PATIENCE) for _ in range(3)]
        assert (work.credit, in_flight()) == (5, 5)
        work.credit = 1
        for n in (4, 3, 2, 1):
            held.pop().ack()
            assert in_flight() == n
        held.pop().ack()
        assert work.receive(PATIENCE).body == b"5"
        assert in_flight() == 1
        work.credit = 3
        work.credit = 1
        work.credit = 3
        assert in_flight() == 3


def test_a_credit_that_cannot_be_set_is_refused_and_changes_nothing(client: malamute.Client) -> None:
    with client.work("w", credit=2) as work, client.subscribe("s") as messages:
        for wrong in (0, -2, "5", None, True, 2**70):
            with pytest.raises(InvalidValue, match="invalid credit"):
                work.credit = wrong  # type: ignore[assignment]
        assert work.credit == 2
        messages.credit = 100
        work.credit = -1
        with pytest.raises(InvalidValue, match="invalid credit 5: the consumer has one without limit"):
            work.credit = 5
    with pytest.raises(Closed, match="consumer is cancelled"):
        work.credit = 3


def test_get_returns_the_next_message_or_none_at_once(client: malamute.Client) -> None:
    assert client.get("box") is None
    with pytest.raises(NotFound, match="there is no mailbox 'box'"):
        client.query("mailbox", name="box")
    client.send("box", "a", b"1")
    client.send("box", "a", b"2")
    client.send("box", "a", b"3", delay=3600)
    first = client.get("box")
    assert first is not None
    assert first.body == b"1"
    second = client.get("box")
    assert second is not None
    assert client.get("box") is None
    row = client.query("mailbox", name="box")
    assert (row["in_flight"], row["ready"], row["delayed"]) == (2, 0, 1)
    first.ack()
    second.nak(0)
    again = client.get("box")
    while again is None:  # it is ready when the NAK is stored
        again = client.get("box")
    assert (again.body, again.attempts) == (b"2", 2)
    again.release()
    client.flush()
    row = client.admin.mailbox(name="box")
    assert (row.messages, row.in_flight, row.consumers) == (2, 0, 0)


def test_get_takes_no_message_of_a_consumer_and_each_goes_to_one(broker: Broker) -> None:
    with malamute.connect(broker.url, threads="any", timeout=PATIENCE) as client:
        for n in range(50):
            client.send("box", "a", b"%d" % n)

        def get_all(_: int) -> list[bytes]:
            got = []
            while (mail := client.get("box")) is not None:
                got.append(mail.body)
                mail.ack()
            return got

        with ThreadPoolExecutor(4) as threads:
            bodies = [body for some in threads.map(get_all, range(4)) for body in some]
        assert sorted(bodies) == sorted(b"%d" % n for n in range(50))


def test_the_asyncio_client_has_the_same(broker: Broker) -> None:
    async def use() -> None:
        async with malamute.aio.connect(broker.url, address="me", timeout=PATIENCE) as client:
            sent = [await client.send("me", "a", b"%d" % n, wait=False) for n in range(10)]
            assert [await one.wait(PATIENCE) for one in sent] == [""] * 10
            async with client.sender("me") as out:
                receipt = await out.publish("a", b"first", priority=9)
            assert receipt.done
            async with client.mailbox(credit=1) as mailbox:
                mailbox.credit = 20
                got = await mailbox.take(11, PATIENCE)
                while len(got) < 11:
                    got += await mailbox.take(11, PATIENCE)
                assert got[0].body == b"first"
                assert await mailbox.poll() is None
            assert await client.get("me") is None
            await client.send("box", "a", b"1")
            mail = await client.get("box")
            assert mail is not None
            mail.ack()
            await client.flush()
            assert (await client.admin.mailbox(name="box")).messages == 0
            replies = await client.request("w", "a", b"")
            await replies.stored(PATIENCE)
            async with client.work("w") as work:
                assert [request.body for request in await work.take(3, PATIENCE)] == [b""]
                assert await work.poll() is None

    asyncio.run(use())


@pytest.mark.parametrize(
    "call", ["publisher", "sender", "subscribe", "consume", "work", "mailbox", "service"]
)
def test_an_unknown_option_of_a_call_is_refused_with_those_that_it_has(
    client: malamute.Client, call: str
) -> None:
    names = () if call == "mailbox" else ("s",)
    with pytest.raises(InvalidValue, match=f"unknown option 'prefetch' of {call}: expected .*(credit|batch)"):
        getattr(client, call)(*names, prefetch=10)


def test_a_body_that_is_a_value_is_refused_with_the_way_to_send_it(client: malamute.Client) -> None:
    with pytest.raises(InvalidValue, match=r"invalid body \{'a': 1\}: .*; json= and a codec take other"):
        client.publish("s", "a", {"a": 1})  # type: ignore[call-overload]
