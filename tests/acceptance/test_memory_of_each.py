"""What one of very many takes of a broker's memory, held against the table in docs/operations/sizing.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from lab.raw_peer import RawPeer
from rig_daemon import Daemon

from malamute.protocol.batch import pack_record, unpack_payload
from malamute.protocol.messages import (
    Deliver,
    Nak,
    Offer,
    Ping,
    Pong,
    Publish,
    Request,
    Stored,
    Subscribe,
)

SIZING = Path(__file__).parents[2] / "docs" / "operations" / "sizing.md"
UNITS = {"bytes": 1, "KiB": 1024}
SUBSCRIBERS = 4
"""A session has a thousand subscriptions at the most."""
STREAMS = 900 * SUBSCRIBERS
QUEUES = 4_000
MESSAGES = 100_000
BATCH = 1_000
RECORD = pack_record(None, b"x")
BODY_BYTES = sys.getsizeof(RECORD)
"""What the bodies of messages take has a row of its own."""
HOUR_MS = 3_600_000


def promised_bytes(option: str) -> list[float]:
    """What the page says that each of these takes at the most."""
    page = SIZING.read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"^\| [^|]* \|([^|]*)`{option}`", page, re.MULTILINE)
    return [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (bytes|KiB)", found[0])]


@pytest.fixture
def peer(broker: Daemon) -> Iterator[RawPeer]:
    with RawPeer(broker.url, "peer") as peer:
        taken(broker, peer)
        yield peer


def taken(broker: Daemon, *peers: RawPeer) -> float:
    """The bytes of memory that the broker has when it has taken up what these said."""
    for peer in peers:
        peer.send(Ping())
        peer.next(Pong)
    return broker.anonymous_mib * 1024 * 1024


def request(peer: RawPeer, count: int) -> None:
    """Have so many requests stored that nobody works for."""
    for number in range(count // BATCH):
        subjects = [f"job.{number}.{place}" for place in range(BATCH)]
        peer.send(Request("service", number + 1, subjects, [RECORD] * BATCH))
    while peer.next(Stored).ranges[-1][1] < count // BATCH:
        pass


def test_a_stream_takes_what_sizing_says(broker: Daemon, peer: RawPeer) -> None:
    promised, promised_idle = promised_bytes("streams")
    before = taken(broker, peer)
    for number in range(STREAMS):
        peer.send(Publish(f"stream-{number}", 0, ["a"], [RECORD]))
    idle = taken(broker, peer)
    share = STREAMS // SUBSCRIBERS
    with ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(broker.url, f"peer-{n}")) for n in range(SUBSCRIBERS)]
        for number in range(STREAMS):
            subscribe = Subscribe(number % share + 1, f"stream-{number}", [["all", ""]], credit=-1)
            peers[number // share].send(subscribe)
        subscribed = taken(broker, *peers)
    print(f"{(idle - before) / STREAMS:.0f} bytes, and {(subscribed - before) / STREAMS:.0f} with a reader")
    assert idle - before <= STREAMS * promised_idle
    assert subscribed - before <= STREAMS * promised


def test_a_queue_takes_what_sizing_says(broker: Daemon, peer: RawPeer) -> None:
    (promised,) = promised_bytes("queues")
    (promised_message, _) = promised_bytes("queues_messages")
    before = taken(broker, peer)
    for number in range(QUEUES):
        peer.send(Request(f"service-{number}", number + 1, ["a"], [RECORD]))
    each = (taken(broker, peer) - before) / QUEUES
    print(f"{each:.0f} bytes with a message")
    assert each <= promised + promised_message + BODY_BYTES


def test_a_queued_message_takes_what_sizing_says_and_a_delayed_one_too(broker: Daemon, peer: RawPeer) -> None:
    promised, more = promised_bytes("queues_messages")
    before = taken(broker, peer)
    request(peer, MESSAGES)
    waiting = (taken(broker, peer) - before) / MESSAGES
    assert waiting <= promised + BODY_BYTES
    peer.send(Offer(1, "service", [["all", ""]], credit=-1))
    got = 0
    while got < MESSAGES:
        delivery = peer.next(Deliver)
        got += len(unpack_payload(delivery.payload, delivery.large).subjects)
    for first in range(1, MESSAGES + 1, BATCH):
        peer.send(Nak(1, [[first, first + BATCH - 1]], HOUR_MS))
    delayed = (taken(broker, peer) - before) / MESSAGES
    print(f"{waiting:.0f} bytes, and {delayed:.0f} delayed")
    assert delayed <= promised + more + BODY_BYTES
