"""Where a replay begins: every start of the protocol, over hours that a clock of our own lets pass.

The broker is the real one on a real directory; only its clock is in the hands of the test.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rig_waiting import PATIENCE

import malamute
from malamute.config import Config, LimitsConfig, StorageConfig, StreamRule, StreamsConfig
from malamute.server import daemon
from malamute.testing import Broker

Connect = Callable[[], malamute.Client]

MIB = 1024 * 1024
HOUR = 3600.0
HOURS = 5
"""Each hour brings one message on `even` or `odd`, and one on its own subject."""


class Hands:
    """A clock that a test moves. It also runs by itself, as the broker has to see time pass."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._moved = 1_700_000_000.0

    def __call__(self) -> float:
        return time.monotonic() - self._begun + self._moved

    def look(self, now: float) -> None:
        """The wall clock says the same."""

    def move(self, seconds: float, client: malamute.Client) -> None:
        """Let time pass. What the client publishes from now on is of the new time."""
        self._moved += seconds
        client.flush(PATIENCE)  # the iteration that began before is over


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    found = Hands()
    monkeypatch.setattr(daemon, "Clock", lambda: found)
    monkeypatch.setattr(daemon, "counted", found)
    return found


@pytest.fixture
def broker(hands: Hands, tmp_path: Path) -> Iterator[Broker]:
    limits = LimitsConfig(message_bytes=MIB)
    rules = (StreamRule(pattern="short", age=2.5 * HOUR), StreamRule(pattern="long", age=48 * HOUR))
    config = Config(storage=StorageConfig(size=16 * MIB), limits=limits, streams=StreamsConfig(rule=rules))
    with Broker(tmp_path, config=config) as started:
        yield started


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make() -> malamute.Client:
            client = malamute.connect(broker.url, timeout=PATIENCE)
            client.on_event = lambda event: None
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def client(connect: Connect) -> malamute.Client:
    return connect()


def publish_for_hours(client: malamute.Client, hands: Hands, stream: str = "s") -> list[malamute.Message]:
    """Two messages an hour, the newest of now. Returns them as they came live."""
    with client.subscribe(stream) as live:
        for hour in range(HOURS):
            hands.move(HOUR, client)
            for subject in (("odd" if hour % 2 else "even"), f"at.{hour}"):
                client.publish(stream, subject, b"", assurance="stored")
        return [live.receive(PATIENCE) for _ in range(2 * HOURS)]


def sequences_from(client: malamute.Client, start: Any, stream: str = "s") -> list[int]:
    """What comes from a start, and a message that is published after it, which is always the last."""
    with client.subscribe(stream, start=start) as messages:
        end = client.publish(stream, "end", b"end", assurance="stored")
        had = [messages.receive(PATIENCE)]
        while had[-1].sequence < end:
            had.append(messages.receive(PATIENCE))
    return [message.sequence for message in had if message.body != b"end"]


def test_wp5_wp22_a_replay_begins_at_the_first_a_sequence_or_what_is_new(
    client: malamute.Client, hands: Hands
) -> None:
    """WP5, WP7, WP22: every retained message from there on, in order, and then what is published."""
    publish_for_hours(client, hands)
    assert sequences_from(client, "first") == list(range(1, 11))
    assert sequences_from(client, "seq:4") == list(range(4, 11))
    assert sequences_from(client, 10) == [10]
    assert sequences_from(client, "new") == []
    assert sequences_from(client, 1_000) == []


def test_wp5_the_last_message_and_the_last_of_each_subject(client: malamute.Client, hands: Hands) -> None:
    """WP5: of the subjects that match; in order; and then what is new."""
    publish_for_hours(client, hands)
    with client.subscribe("s", start="last") as messages:
        assert messages.receive(PATIENCE).sequence == 10
    with client.subscribe("s", start="last-per-subject") as messages:
        newest = {2: "at.0", 4: "at.1", 6: "at.2", 7: "odd", 8: "at.3", 9: "even", 10: "at.4"}
        had = [messages.receive(PATIENCE) for _ in newest]
    assert {message.sequence: message.subject for message in had} == newest
    assert [message.sequence for message in had] == sorted(newest)
    with client.subscribe("s", "odd", "even", start="last-per-subject") as messages:
        client.publish("s", "other", b"", assurance="stored")
        end = client.publish("s", "odd", b"", assurance="stored")
        assert [messages.receive(PATIENCE).sequence for _ in range(3)] == [7, 9, end]


def test_wp5_wp22_a_replay_begins_at_a_time_however_it_is_said(client: malamute.Client, hands: Hands) -> None:
    """WP5, WP22: nanoseconds, ISO 8601 with a zone or without, and what Python has for it."""
    had = publish_for_hours(client, hands)
    third, fifth = had[2], had[4]
    assert sequences_from(client, f"time:{third.time_ns}") == list(range(3, 11))
    assert sequences_from(client, f"time:{third.time_ns + 1}") == list(range(4, 11))
    assert sequences_from(client, "time:0") == list(range(1, 11))
    between = fifth.time - timedelta(minutes=30)
    for zone in (UTC, None, datetime.strptime("+0530", "%z").tzinfo):
        said = between.astimezone(zone) if zone else between.replace(tzinfo=None)
        assert sequences_from(client, said) == list(range(5, 11))
        assert sequences_from(client, f"time:{said.isoformat()}") == list(range(5, 11))
    assert sequences_from(client, datetime(2200, 1, 1)) == []


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("since:30m", 9),
        ("since:90m", 7),
        ("since:2.5h", 5),
        ("since:12600", 3),
        ("since:1d", 1),
        ("since:0ms", 11),
        (timedelta(minutes=90), 7),
        (timedelta(days=365), 1),
    ],
    ids=str,
)
def test_wp5_wp22_a_replay_begins_so_long_ago(
    client: malamute.Client, hands: Hands, start: str | timedelta, first: int
) -> None:
    """WP5, WP22."""
    publish_for_hours(client, hands)
    assert sequences_from(client, start) == list(range(first, 11))


def test_wp5_wp22_a_history_of_hours_and_one_of_days(
    client: malamute.Client, hands: Hands, broker: Broker
) -> None:
    """WP5, WP22: by age, of each stream its own, and over a restart. A stream at rest keeps what it has."""
    for stream in ("short", "long"):
        publish_for_hours(client, hands, stream)
    assert kept(client, "short") == list(range(5, 11))
    assert kept(client, "long") == list(range(1, 11))
    hands.move(45.5 * HOUR, client)
    client.publish("long", "a", b"", assurance="stored")
    broker.restart()
    assert kept(client, "short") == list(range(5, 11))
    assert kept(client, "long") == list(range(5, 12))


def kept(client: malamute.Client, stream: str) -> list[int]:
    """All that is there of a stream at rest."""
    last = next(row["last"] for row in client.query("streams") if row["name"] == stream)
    with client.subscribe(stream, start="first") as messages:
        had = [messages.receive(PATIENCE).sequence]
        while had[-1] < last:
            had.append(messages.receive(PATIENCE).sequence)
    return had


def test_wp5_a_start_finds_what_was_published_a_moment_ago(client: malamute.Client, connect: Connect) -> None:
    """WP7, WP39: without waiting for its confirmation."""
    other = connect()
    for number in range(1, 101):
        client.publish_nowait("s", f"n.{number % 3}", b"%d" % number)
        client.flush(PATIENCE)
        start = ("last", "first", "last-per-subject", "since:1h")[number % 4]
        with other.subscribe("s", start=start) as messages:
            first = {"last": number, "last-per-subject": max(1, number - 2)}.get(start, 1)
            expected = list(range(first, number + 1))
            assert [messages.receive(PATIENCE).sequence for _ in expected] == expected
