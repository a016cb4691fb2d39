"""Mosquitto with paho-mqtt: MQTT 5, each client with the network thread that its documentation starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from lab.peers.work import NAME, ArrivalCount, ArrivalCounts, PeerWork, ask_one_by_one
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch

REPLIES = "replies"
INFLIGHT = 1000
"""Messages of QoS 1 that may be under way."""


@contextmanager
def _connect(work: PeerWork) -> Iterator[Any]:
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.max_inflight_messages_set(INFLIGHT)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(work.host, work.port)
    client.loop_start()
    try:
        _wait(connected)
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def _subscribe(client: Any, topic: str) -> None:
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe(topic)
    _wait(subscribed)


def _wait(event: threading.Event) -> None:
    if not event.wait(TIMEOUT_SECONDS):
        raise TimeoutError("no answer from the server")


def publish(begin: Begin, work: PeerWork) -> Measured:
    """QoS 0: no word from the server."""
    return _publish(begin, work, 0)


def publish_confirmed(begin: Begin, work: PeerWork) -> Measured:
    """QoS 1, with a thousand under way."""
    return _publish(begin, work, 1)


def _publish(begin: Begin, work: PeerWork, qos: int) -> Measured:
    body = work.body
    with _connect(work) as client:
        begin()
        stopwatch = Stopwatch()
        sent = [client.publish(NAME, body, qos) for _ in range(work.messages)]
        for info in sent:
            info.wait_for_publish(TIMEOUT_SECONDS)
        return stopwatch.measured()


def publish_and_wait(begin: Begin, work: PeerWork) -> Measured:
    """QoS 1, when the one before is acknowledged."""
    body = work.body
    with _connect(work) as client:
        return ask_one_by_one(
            begin, work, lambda: client.publish(NAME, body, 1).wait_for_publish(TIMEOUT_SECONDS)
        )


def subscribe(begin: Begin, work: PeerWork) -> Measured:
    """Subscribers with a callback and a connection each."""
    counts = ArrivalCounts(work.subscribers, work.messages)
    with ExitStack() as stack:
        for count in counts.each:
            client = stack.enter_context(_connect(work))
            _count(client, count)
            _subscribe(client, NAME)
        return counts.measure(begin)


def _count(client: Any, count: ArrivalCount) -> None:
    client.on_message = lambda *_: count.add()


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Publish the body of each request where it wants its reply."""
    counts = ArrivalCounts(1, work.messages)

    def reply(client: Any, _: object, message: Any) -> None:
        client.publish(message.properties.ResponseTopic, message.payload)
        counts.each[0].add()

    with _connect(work) as client:
        client.on_message = reply
        _subscribe(client, NAME)
        return counts.measure(begin)


def ask(begin: Begin, work: PeerWork) -> Measured:
    """Publish a request with a response topic, and wait for what comes there."""
    replies: SimpleQueue[object] = SimpleQueue()
    body = work.body
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = REPLIES
    with _connect(work) as client:
        client.on_message = lambda *arguments: replies.put(arguments[-1])
        _subscribe(client, REPLIES)

        def ask_once() -> None:
            client.publish(NAME, body, properties=properties)
            replies.get(timeout=TIMEOUT_SECONDS)

        return ask_one_by_one(begin, work, ask_once)
