"""History that ends, pings, the lag of a message, what a log line says, and the names of the package."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

import malamute
from malamute import aio, errors
from malamute.client import events
from malamute.client.events import log_event
from malamute.client.link.admin import AdminMethods
from malamute.protocol.admin import CHANGES, QUERIES
from malamute.testing import Broker

PATIENCE = 60


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address=f"me-{uuid4().hex}", timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def stream(client: malamute.Client) -> str:
    """A stream with five messages: their subjects are a and b in turn, their bodies count from 1."""
    name = uuid4().hex
    client.publish_batch(name, [*"ababa"], [b"%d" % number for number in range(1, 6)])
    return name


def bodies(messages: Iterator[malamute.Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_history_ends_with_what_is_there_now(client: malamute.Client, stream: str) -> None:
    history = client.history(stream)
    client.publish(stream, "a", b"later")
    assert bodies(history) == [b"1", b"2", b"3", b"4", b"5"]
    assert bodies(client.history(stream, since=6)) == [b"later"]


def test_history_of_some_subjects_ends_though_others_follow(client: malamute.Client, stream: str) -> None:
    assert bodies(client.history(stream, "b")) == [b"2", b"4"]
    assert bodies(client.history(stream, "none.of.these")) == []
    assert bodies(client.history(stream, where="unit = 'C'")) == []


def test_history_until_a_sequence_a_moment_and_an_age(client: malamute.Client, stream: str) -> None:
    assert bodies(client.history(stream, since=2, until=4)) == [b"2", b"3", b"4"]
    assert bodies(client.history(stream, until=100)) == [b"1", b"2", b"3", b"4", b"5"]
    assert bodies(client.history(stream, until=0)) == []
    assert bodies(client.history(stream, until=timedelta(hours=1))) == []
    assert bodies(client.history(stream, since=timedelta(hours=1), until=datetime.now(UTC) + timedelta(1)))
    with pytest.raises(errors.InvalidValue, match="invalid until 'tomorrow'"):
        next(client.history(stream, until="tomorrow"))  # type: ignore[arg-type]


def test_history_from_the_end_and_of_nothing_is_empty(client: malamute.Client, stream: str) -> None:
    assert bodies(client.history(stream, since="new")) == []
    assert bodies(client.history(stream, since=100)) == []
    with pytest.raises(errors.NotFound):
        bodies(client.history("missing-" + stream))


def test_history_longer_than_a_window(client: malamute.Client, stream: str) -> None:
    client.publish_batch(stream, ["a"] * 995, [b""] * 995)
    history = client.history(stream, credit=7)
    assert next(history).sequence == 1
    assert [message.sequence for message in history] == [*range(2, 1001)]


def test_history_ends_while_others_publish(client: malamute.Client, stream: str) -> None:
    count = 0
    for message in client.history(stream, credit=1):
        count += 1
        client.publish(stream, message.subject)
    assert count == 5


def test_history_and_ping_on_asyncio(broker: Broker, stream: str) -> None:
    async def program() -> None:
        async with aio.connect(broker.url, timeout=PATIENCE) as client:
            assert [m.body async for m in client.history(stream, "b", until=3)] == [b"2"]
            assert 0 <= await client.ping() < PATIENCE

    asyncio.run(program())


def test_a_ping_is_answered_or_times_out(client: malamute.Client, broker: Broker) -> None:
    assert 0 <= client.ping() < PATIENCE
    with malamute.connect(broker.url, timeout=PATIENCE) as other:
        other._driver.connection.link.receive = list  # type: ignore[method-assign]
        with pytest.raises(errors.TimedOut, match="no answer to a ping"):
            other.ping(timeout=0.01)
        del other._driver.connection.link.receive


def test_the_lag_of_a_message_is_its_age(client: malamute.Client, stream: str) -> None:
    message = next(client.history(stream))
    before = message.lag
    assert 0 <= before <= message.lag <= time.time() - message.time_ns / 1e9 + PATIENCE
    message.time_ns += 10**18
    assert message.lag == 0


def test_a_failed_handler_is_told_in_a_sentence(
    client: malamute.Client, caplog: pytest.LogCaptureFixture
) -> None:
    service = uuid4().hex

    @client.service(service, on_error="reply")
    def paint(request: malamute.Request) -> bytes:
        client.stop()
        raise ValueError("no paint")

    client.enqueue(service, "wall.red")
    client.run()
    [record] = [record for record in caplog.records if record.name == "malamute"]
    assert record.getMessage() == (
        f"Handler paint failed on request 'wall.red' to service '{service}', sequence 1, attempt 1."
    )
    assert (record.queue, record.subject, record.sequence, record.attempt) == (service, "wall.red", 1, 1)  # type: ignore[attr-defined]
    assert record.exc_info is not None


EVENTS = [
    events.Connected("b", True, again=True),
    events.Lost("x"),
    events.Moved("follows a"),
    events.Restored("b"),
    events.Gap("s", 1, 2, "expired"),
    events.Switched("s", "live", 7),
    events.Limited("s"),
    events.Slow("s", 3),
    events.Recalled("q", (1, 2), "timeout"),
    events.Refusal(errors.TryLater("full")),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_event_is_logged_as_a_sentence(event: events.Event, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="malamute"):
        log_event(event)
    [record] = caplog.records
    words = record.getMessage()
    assert words[0].isupper()
    assert words.endswith(".")
    assert all(str(value) in words for value in event._asdict().values() if isinstance(value, str) and value)


def test_each_event_has_a_sentence() -> None:
    assert {type(event) for event in EVENTS} == {*events.Event.__args__}


@pytest.mark.parametrize("module", [malamute, aio])
def test_dir_has_each_public_name(module: object) -> None:
    assert {*module.__all__} <= {*dir(module)}  # type: ignore[attr-defined]
    assert "connect" in dir(module)


def test_each_topic_is_a_method_of_admin() -> None:
    for topic, kind in {**QUERIES, **CHANGES}.items():
        assert vars(AdminMethods)[topic.replace(".", "_").replace("-", "_")].kind is kind


def test_admin_makes_queries_and_changes(broker: Broker, client: malamute.Client, stream: str) -> None:
    assert client.admin.stream(name=stream).last == 5
    assert client.admin.stream_retain(stream=stream, count=3).count == 3
    assert stream in {row.name for row in client.admin.streams()}

    async def program() -> None:
        async with aio.connect(broker.url, timeout=PATIENCE) as other:
            assert (await other.admin.stream(name=stream)).name == stream
            assert (await other.admin.stream_delete(stream=stream)).stream == stream

    asyncio.run(program())
