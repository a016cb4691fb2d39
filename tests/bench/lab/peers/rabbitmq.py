"""RabbitMQ with pika: its blocking connection, and its own loop where many confirmations are under way.

Messages go through a fanout exchange into a queue for each subscriber. Queues are durable and messages are
persistent, but for the requests that are not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika

from lab.peers.work import NAME, ArrivalCount, PeerWork, ask_one_by_one
from malamute.bench.processes import Measured
from malamute.bench.workloads import TIMEOUT_SECONDS, Begin, Stopwatch, run_in_threads

EXCHANGE = "amq.fanout"
DEFAULT = ""
"""The exchange that passes a message to the queue that its key names."""

REPLY_TO = "amq.rabbitmq.reply-to"
"""Where a reply comes without a queue."""

PERSISTENT = pika.BasicProperties(delivery_mode=2)
WINDOW = 1000
"""Confirmations that may be outstanding."""

AT_ONCE = 100
"""Messages that are published before the loop of the connection runs."""

NO_HEARTBEAT = 0
"""The loop of a blocking connection runs only when we call it."""

Channel = Any


def _parameters(work: PeerWork) -> Any:
    return pika.ConnectionParameters(
        work.host, work.port, heartbeat=NO_HEARTBEAT, blocked_connection_timeout=TIMEOUT_SECONDS
    )


@contextmanager
def _channel(work: PeerWork) -> Iterator[Channel]:
    connection = pika.BlockingConnection(_parameters(work))
    try:
        yield connection.channel()
    finally:
        connection.close()


# Publishing


class _Publisher:
    """Publishes on the loop of its connection, as pika's example of an asynchronous publisher does."""

    def __init__(self, begin: Begin, work: PeerWork, *, confirm: bool) -> None:
        self._begin = begin
        self._work = work
        self._confirm = confirm
        self._body = work.body
        self._sent = self._confirmed = 0
        self._channel: Channel = None
        self._connection = pika.SelectConnection(
            _parameters(work),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def run(self) -> Measured:
        self._connection.ioloop.start()
        return self._measured

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        if self._confirm:
            channel.confirm_delivery(self._on_confirmation, callback=lambda _: self._start())
        else:
            self._start()

    def _start(self) -> None:
        self._begin()
        self._stopwatch = Stopwatch()
        self._publish_some()

    def _publish_some(self) -> None:
        room = WINDOW - (self._sent - self._confirmed) if self._confirm else AT_ONCE
        for _ in range(min(AT_ONCE, room, self._work.messages - self._sent)):
            self._channel.basic_publish(EXCHANGE, NAME, self._body, PERSISTENT)
            self._sent += 1
        if self._sent == self._work.messages:
            if not self._confirm:
                self._end()
        elif room > 0:
            self._connection.ioloop.add_callback_threadsafe(self._publish_some)

    def _on_confirmation(self, frame: Any) -> None:
        was_full = self._sent - self._confirmed == WINDOW
        self._confirmed = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        if self._confirmed == self._work.messages:
            self._end()
        elif was_full:
            self._publish_some()

    def _end(self) -> None:
        self._measured = self._stopwatch.measured()
        self._connection.close()


def publish_batched(begin: Begin, work: PeerWork) -> Measured:
    """On the loop of the connection, a hundred messages at a time, without confirmations."""
    return _Publisher(begin, work, confirm=False).run()


def publish_confirmed(begin: Begin, work: PeerWork) -> Measured:
    """On the loop of the connection, with a thousand confirmations outstanding."""
    with _channel(work) as channel:
        _declare_for_subscriber(channel, 0)
        return _Publisher(begin, work, confirm=True).run()


def publish_unconfirmed(begin: Begin, work: PeerWork) -> Measured:
    """On the blocking connection, which writes each message by itself."""
    body = work.body
    with _channel(work) as channel:
        begin()
        stopwatch = Stopwatch()
        for _ in range(work.messages):
            channel.basic_publish(EXCHANGE, NAME, body, PERSISTENT)
        return stopwatch.measured()


def publish_and_wait(begin: Begin, work: PeerWork) -> Measured:
    """On the blocking connection, which waits for each confirmation."""
    body = work.body
    with _channel(work) as channel:
        _declare_for_subscriber(channel, 0)
        channel.confirm_delivery()
        return ask_one_by_one(begin, work, lambda: channel.basic_publish(EXCHANGE, NAME, body, PERSISTENT))


# Receiving


def _declare_for_subscriber(channel: Channel, number: int) -> str:
    queue = f"{NAME}-{number}"
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, EXCHANGE)
    return queue


def subscribe(begin: Begin, work: PeerWork) -> Measured:
    """Consumers that need not acknowledge, each with a connection and a thread."""
    return run_in_threads(begin, [(_subscribe, work, number) for number in range(work.subscribers)])


def _subscribe(begin: Begin, work: PeerWork, number: int) -> Measured:
    with _channel(work) as channel:
        count = ArrivalCount(work.messages, channel.stop_consuming)
        channel.basic_consume(_declare_for_subscriber(channel, number), lambda *_: count.add(), auto_ack=True)
        begin()
        _consume(channel)
        return {"received": count.received, "latencies": []}


def _consume(channel: Channel) -> None:
    """Until `stop_consuming`, or for `TIMEOUT_SECONDS`."""
    channel.connection.call_later(TIMEOUT_SECONDS, channel.stop_consuming)
    channel.start_consuming()


# Requests


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request with its body; none is acknowledged."""
    return _answer(begin, work, stored=False)


def answer_stored(begin: Begin, work: PeerWork) -> Measured:
    """Answer each request, and acknowledge it. The reply is not stored."""
    return _answer(begin, work, stored=True)


def _answer(begin: Begin, work: PeerWork, *, stored: bool) -> Measured:
    with _channel(work) as channel:
        count = ArrivalCount(work.messages, channel.stop_consuming)

        def reply(_: Channel, method: Any, properties: Any, body: bytes) -> None:
            channel.basic_publish(DEFAULT, properties.reply_to, body)
            if stored:
                channel.basic_ack(method.delivery_tag)
            count.add()

        channel.queue_declare(NAME, durable=stored)
        channel.basic_consume(NAME, reply, auto_ack=not stored)
        begin()
        stopwatch = Stopwatch()
        _consume(channel)
        return stopwatch.measured()


def ask(begin: Begin, work: PeerWork) -> Measured:
    """Make a request when the one before it is answered; the reply comes to the connection itself."""
    return _ask(begin, work, stored=False)


def ask_stored(begin: Begin, work: PeerWork) -> Measured:
    """The same with requests that are confirmed before their reply is waited for."""
    return _ask(begin, work, stored=True)


def _ask(begin: Begin, work: PeerWork, *, stored: bool) -> Measured:
    body = work.body
    properties = pika.BasicProperties(reply_to=REPLY_TO, delivery_mode=2 if stored else 1)
    replies: list[bytes] = []
    with _channel(work) as channel:
        channel.queue_declare(NAME, durable=stored)
        channel.basic_consume(REPLY_TO, lambda *arguments: replies.append(arguments[-1]), auto_ack=True)
        if stored:
            channel.confirm_delivery()

        def ask_once() -> None:
            replies.clear()
            channel.basic_publish(DEFAULT, NAME, body, properties)
            while not replies:
                channel.connection.process_data_events(TIMEOUT_SECONDS)

        return ask_one_by_one(begin, work, ask_once)
