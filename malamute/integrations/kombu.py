"""Transport of kombu: the queues of AMQP are shared mailboxes, and broadcasts go over streams.

A queue is the mailbox of its name. Bindings are in a bucket, so that all processes route alike. A queue that
goes with its consumer (`auto_delete`, `exclusive`), if bound to a topic or fanout exchange, is a subscription
to the stream of that exchange: neither events nor remote control leave anything behind.

    import malamute.integrations.kombu  # makes the scheme known
    connection = kombu.Connection("malamute://127.0.0.1:9999")
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.virtual.exchange import TopicExchange
from kombu.utils.json import dumps, loads
from kombu.utils.url import parse_url

import malamute
from malamute import (
    AccessRefused,
    Client,
    Disconnected,
    InUse,
    InvalidValue,
    LinkError,
    Mail,
    Mailbox,
    MalamuteError,
    Message,
    NotAsExpected,
    NotFound,
    Subscription,
    TooMany,
)

ENVELOPE = "kombu"
"""The header with all that kombu knows of a message, as JSON; the body is the payload alone."""

CREDIT_MAX = 1000
"""The credit of a consumer without a prefetch count."""

CONNECT_SECONDS = 5.0
"""Time to wait for a broker, unless kombu has another one."""

TABLE_SECONDS = 1.0
"""Time for which bindings are used before they are read again."""

TRANSIENT_SECONDS = 86_400.0
"""Time for which a binding of a queue that goes with its consumer is kept; each declaration renews it."""

BROADCAST_SECONDS = 60.0
"""Time after which a broadcast message expires, for a stream that has a journal."""

NEVER_SECONDS = 10 * 365 * 86_400.0
"""An ack timeout that no consumer reaches: the longest duration of the protocol."""

TRANSIENT = 1
"""The delivery mode of messages that may be lost."""

RETRIES_CANCELLED = 4
"""Attempts of a task whose messages `cancel` looks for: Celery's `max_retries` is 3 by default."""

CONNECT_OPTIONS = frozenset(
    (
        "act_as",
        "curve",
        "heartbeat",
        "password",
        "server_key",
        "signed",
        "software",
        "timeout",
        "token",
        "user",
    )
)
OWN_OPTIONS = frozenset(("ack_timeout", "assurance", "prefix"))
KOMBU_OPTIONS = frozenset(
    (
        "callback", "connect_retries_timeout", "errback", "interval_max", "interval_start", "interval_step",
        "max_retries", "retry_errors",
    )
)  # fmt: skip
"""Options of the retry policies that kombu itself adds to those of the transport."""


def check_options(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise `InvalidValue` for an option that is unknown, or has a wrong value."""
    if unknown := sorted(options.keys() - {*known}):
        raise InvalidValue(
            f"unknown transport option {unknown[0]!r}: expected some of {', '.join(sorted(known))}"
        )
    if (assurance := options.get("assurance", "stored")) not in ("stored", "none"):
        raise InvalidValue(f"invalid transport option assurance {assurance!r}: expected 'stored' or 'none'")
    ack_timeout = options.get("ack_timeout", 1)
    if not isinstance(ack_timeout, int | float) or ack_timeout <= 0:
        raise InvalidValue(
            f"invalid transport option ack_timeout {ack_timeout!r}: expected seconds such as 3600"
        )
    if not isinstance(prefix := options.get("prefix", ""), str):
        raise InvalidValue(f"invalid transport option prefix {prefix!r}: expected text such as 'shop.'")


def _address(parts: Mapping[str, Any]) -> str:
    if (path := parts.get("virtual_host") or "/") != "/":
        raise InvalidValue(
            f"unexpected path {path!r} in a URL: expected malamute://host:9999; "
            "for several applications at one broker use the transport option prefix"
        )
    host = parts.get("hostname") or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    return f"tcp://{host}:{parts.get('port') or 9999}"


def connect(
    parts: Mapping[str, Any], others: Iterable[str], options: Mapping[str, Any], timeout: float | None
) -> Client:
    """Connect to the broker of a URL that kombu has parsed, or else to one of the other URLs.

    The client itself goes to another broker after a lost connection, too.

    Raises:
        InvalidValue: a URL has a path.
    """
    parsed = (parse_url(url) for url in others)
    urls = [_address(parts), *(_address(other) for other in parsed if other["transport"] == "malamute")]
    chosen = {name: options[name] for name in CONNECT_OPTIONS & options.keys()}
    for option, part in (("user", "userid"), ("password", "password")):
        if parts.get(part):
            chosen.setdefault(option, parts[part])
    if timeout is not None:
        chosen.setdefault("timeout", timeout)
    return malamute.connect([*dict.fromkeys(urls)], threads="any", **chosen)


class Bindings:
    """The bindings of all processes, in a bucket.

    A key is an exchange, and for direct exchanges an exchange with a routing key; its value is a list of
    routing keys and queues. A queue that outlives its consumers has a key with its own bindings, and is in
    the list of the key `queues`.
    """

    QUEUES = "queues"

    def __init__(self, client: Client, bucket: str) -> None:
        self._client, self._name = client, bucket
        self._tables: dict[str, tuple[float, list[list[str]]]] = {}
        self._declared: set[str] = set()

    def _read(self, key: str) -> tuple[list[Any], int, float | None]:
        found = self._client.bucket(self._name).get(key)
        return (found.json(list), found.revision, found.ttl) if found else ([], 0, None)

    def _change(self, key: str, change: Callable[[list[Any]], list[Any]], *, transient: bool = False) -> None:
        """Change the list of a key, though others may change it at the same time."""
        while True:
            entries, revision, ttl = self._read(key)
            changed = change(entries)
            expires = transient and (ttl is not None or not revision)
            self._tables.pop(key, None)
            if changed == entries and not expires:
                return
            bucket = self._client.bucket(self._name)
            with suppress(NotAsExpected):
                if changed:
                    lifetime = TRANSIENT_SECONDS if expires else None
                    bucket.put(key, dumps(changed), expect=revision, ttl=lifetime)
                else:
                    bucket.delete(key, expect=revision)
                return

    def add(self, key: str, routing_key: str, queue: str, *, transient: bool) -> None:
        """Add a binding. One of a queue that goes with its consumer expires."""
        self._change(key, lambda entries: _with(entries, [routing_key, queue]), transient=transient)
        if not transient:
            self._change(dumps(queue), lambda entries: _with(entries, [routing_key, key]))

    def remove(self, key: str, queue: str, routing_key: str) -> None:
        """Remove a binding."""
        self._change(key, lambda entries: _without(entries, [routing_key, queue]))

    def table(self, key: str) -> list[list[str]]:
        """Return the routing keys and queues of a key. A table without any is read again each time."""
        until, entries = self._tables.get(key, (0.0, []))
        if not entries or monotonic() >= until:
            entries = self._read(key)[0]
            self._tables[key] = monotonic() + TABLE_SECONDS, entries
        return entries

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return self._read(self.QUEUES)[0]

    def declare(self, queue: str) -> None:
        """Note the name of a queue, once."""
        if queue not in self._declared:
            self._change(self.QUEUES, lambda names: sorted({*names, queue}))
            self._declared.add(queue)

    def forget(self, queue: str) -> None:
        """Remove a queue with all its bindings."""
        self._declared.discard(queue)
        for routing_key, key in self._read(dumps(queue))[0]:
            self.remove(key, queue, routing_key)
        self._change(dumps(queue), lambda entries: [])
        self._change(self.QUEUES, lambda names: [name for name in names if name != queue])


def _with(entries: list[Any], entry: list[str]) -> list[Any]:
    return entries if entry in entries else [*entries, entry]


def _without(entries: list[Any], entry: list[str]) -> list[Any]:
    return [other for other in entries if other != entry]


class Consuming(NamedTuple):
    """One consumer of a channel: its queue, where its messages come from, and where they go."""

    queue: str
    source: Mailbox | Subscription
    callback: Callable[[Any], object]
    no_ack: bool


class QoS(virtual.QoS):
    """The unsettled messages of a channel. The broker has them too, so none is sent again at the exit."""

    restore_at_shutdown = False

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        self.channel = channel
        self._prefetch_count = prefetch_count or 0
        self._held: dict[str, tuple[Any, Mail | None]] = {}

    @property
    def prefetch_count(self) -> int:
        """The credit of each consumer of the channel; 0 is without a limit."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self._prefetch_count = count or 0
        self.channel.resize()

    @property
    def credit(self) -> int:
        """Return the credit of a consumer."""
        return self._prefetch_count or CREDIT_MAX

    def can_consume(self) -> bool:
        """Return True: the broker sends no more than the credit."""
        return True

    def append(self, message: Any, delivery_tag: str) -> None:
        """Add a message that is to be settled."""
        self._held[delivery_tag] = message, getattr(message, "mail", None)

    def get(self, delivery_tag: str) -> Any:
        """Return a message that is not settled."""
        return self._held[delivery_tag][0]

    def held(self) -> list[Mail]:
        """Return the mail that is not settled."""
        return [mail for _, mail in [*self._held.values()] if mail is not None]

    def _settle(self, delivery_tag: str, how: Callable[[Mail], None]) -> None:
        _, mail = self._held.pop(delivery_tag, (None, None))
        if mail is not None:
            how(mail)
            self.channel.settled()
            self.channel.connection.settled()

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message, in any thread."""
        self._settle(delivery_tag, Mail.ack)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Make a message a dead letter, or return it to its queue.

        A returned one is redelivered at once and counts an attempt, so that it is marked as redelivered, and
        ends as a dead letter after the last attempt of its queue.
        """
        self._settle(delivery_tag, _requeue if requeue else _dead_letter)

    def restore_unacked(self) -> list[Any]:
        """Release all messages."""
        for delivery_tag in [*self._held]:
            self._settle(delivery_tag, Mail.release)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Release all messages, at the end of the channel."""
        with suppress(MalamuteError):
            self.restore_unacked()


class Channel(virtual.Channel):
    """A channel: queues, exchanges, and consumers that share a prefetch count."""

    QoS = QoS
    do_restore = False
    supports_fanout = True
    body_encoding = None
    from_transport_options = ()
    connection: Transport

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._consuming: dict[str, Consuming] = {}
        self._drained: list[Mailbox] = []

    @property
    def _client(self) -> Client:
        return self.connection.connected()

    # Declarations

    def _new_queue(
        self, queue: str, auto_delete: bool = False, exclusive: bool = False, **options: Any
    ) -> None:
        if auto_delete or exclusive:
            self.connection.transient.add(queue)
        else:
            self.connection.bindings.declare(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        transport = self.connection
        return (
            queue in transport.transient
            or queue in transport.bindings.queues()
            or self._row(queue) is not None
        )

    def _row(self, queue: str) -> dict[str, Any] | None:
        """Return the figures of a mailbox; None if there is none, or the user may not see it."""
        with suppress(NotFound, AccessRefused):
            row: dict[str, Any] = self._client.query("mailbox", name=self.connection.prefix + queue)
            return row
        return None

    def _size(self, queue: str) -> int:
        return int((self._row(queue) or {"ready": 0})["ready"])

    def _purge(self, queue: str) -> int:
        name = self.connection.prefix + queue
        purged = 0
        with suppress(NotFound, AccessRefused):
            for state in ("ready", "delayed"):
                changed = self._client.change("queue.purge", kind="mailbox", name=name, state=state)
                purged += int(changed["messages"])
            return purged
        while (mail := self._client.get(name)) is not None:
            mail.ack()
            purged += 1
        return purged

    def _kind(self, exchange: str) -> str:
        return str(self.state.exchanges.get(exchange, {}).get("type", "direct"))

    def _key(self, exchange: str, routing_key: str) -> str:
        return str(dumps([exchange, routing_key] if self._kind(exchange) == "direct" else [exchange]))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        """Bind a queue: for all processes, or as a subscription of this one."""
        exchange = exchange or "amq.direct"
        transport, kind = self.connection, self._kind(exchange)
        transient = queue in transport.transient
        self.state.binding_declare(queue, exchange, routing_key, arguments)
        if transient and kind != "direct":
            transport.subscribe(queue, exchange, routing_key if kind == "topic" else "#")
        else:
            transport.bindings.add(self._key(exchange, routing_key), routing_key, queue, transient=transient)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **options: Any,
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        self._unbind(queue, exchange, routing_key)

    def _unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        transport = self.connection
        if (queue, exchange) in transport.subscriptions:
            transport.unsubscribe(queue, exchange)
        else:
            transport.bindings.remove(self._key(exchange, routing_key), queue, routing_key)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        """Delete a queue with its messages and bindings."""
        if if_empty and self._size(queue):
            return
        for exchange, routing_key, _ in [*self.state.queue_bindings(queue)]:
            self._unbind(queue, exchange, routing_key)
        self.state.queue_bindings_delete(queue)
        if queue in self.connection.transient:
            self.connection.transient.discard(queue)
        else:
            self.connection.bindings.forget(queue)
        if self._row(queue) is None:
            return
        try:
            name = self.connection.prefix + queue
            self._client.change("queue.delete", kind="mailbox", name=name, cascade=not if_unused)
        except (NotFound, AccessRefused, InUse):
            self._purge(queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Forget an exchange. Its bindings are those of queues."""
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return the bindings of this process to an exchange."""
        return [(key.routing_key, None, key.queue) for key in self.state.bindings if key.exchange == exchange]

    # Sending

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a message. One that is published again after an error keeps its identity."""
        properties = {} if properties is None else properties
        properties.setdefault("delivery_tag", self._next_delivery_tag())
        message: dict[str, Any] = super().prepare_message(
            body, priority, content_type, content_encoding, headers, properties
        )
        return message

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Send a message to each queue that is bound, and to the stream of its exchange.

        Raises:
            OperationalError: the broker refuses the message.
        """
        message["properties"]["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        with _as_operational():
            for queue in self._lookup(exchange, routing_key):
                self._put(queue, message)
            if exchange and self._kind(exchange) != "direct":
                self._put_fanout(exchange, message, routing_key)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if not exchange:
            return [routing_key]
        entries = self.connection.bindings.table(self._key(exchange, routing_key))
        if self._kind(exchange) == "topic":
            matching = TopicExchange(self)
            entries = [e for e in entries if matching._match(matching.key_to_pattern(e[0]), routing_key)]
        return [*dict.fromkeys(queue for _, queue in entries)]

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        transport = self.connection
        properties = message["properties"]
        lossy = transport.assurance == "none" or properties.get("delivery_mode") == TRANSIENT
        subject, body, headers = _envelope(message)
        with transport.guarded() as client:
            client.send(
                transport.prefix + queue, subject, body, headers, assurance="none" if lossy else "stored",
                **_options(message),
            )  # fmt: skip

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        _, body, headers = _envelope(message)
        stream = self.connection.stream(exchange)
        with self.connection.guarded() as client:
            client.publish_nowait(stream, routing_key or exchange, body, headers, ttl=BROADCAST_SECONDS)

    def cancel(self, task_ids: Iterable[str]) -> set[str]:
        """Cancel the delayed messages of tasks in all queues, and return the tasks found."""
        cancelled = set()
        queues = self.connection.bindings.queues()
        for task_id in task_ids:
            for queue in queues:
                for retries in range(RETRIES_CANCELLED):
                    identity = _identity(task_id, retries, 0)
                    name = self.connection.prefix + queue
                    if self._client.cancel("mailbox", name, id=identity).cancelled:
                        cancelled.add(task_id)
        return cancelled

    # Receiving

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **options: Any
    ) -> None:
        """Consume from a queue."""
        source = self.connection.subscription(queue) or self._open(queue)
        self._consuming[consumer_tag] = Consuming(queue, source, callback, no_ack)
        self._consumers.add(consumer_tag)
        self._tag_to_queue[consumer_tag] = queue

    def _open(self, queue: str) -> Mailbox:
        transport, client = self.connection, self._client
        options: dict[str, Any] = {
            "credit": self.qos.credit,
            "ack_timeout": transport.ack_timeout or NEVER_SECONDS,
        }
        if queue in transport.transient:
            with suppress(InUse):
                return client.consume(transport.prefix + queue, auto_ack=False, temporary=True, **options)
        return client.consume(transport.prefix + queue, auto_ack=False, **options)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Its messages in hand can still be settled."""
        self._consumers.discard(consumer_tag)
        self._tag_to_queue.pop(consumer_tag, None)
        consuming = self._consuming.pop(consumer_tag, None)
        if consuming is None or not isinstance(consuming.source, Mailbox):
            return
        consuming.source.drain()
        self._drained.append(consuming.source)
        self.settled()

    def settled(self) -> None:
        """Close ended consumers once nothing is in hand."""
        if self._drained and not self.qos.held():
            drained, self._drained = self._drained, []
            for source in drained:
                source.cancel()

    def resize(self) -> None:
        """Give each consumer the present credit."""
        for consuming in self._consuming.values():
            if isinstance(consuming.source, Mailbox):
                consuming.source.credit = self.qos.credit

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next message of a queue, or None if it is empty."""
        if (subscription := self.connection.subscription(queue)) is not None:
            return next((self._received(queue, found, True) for found in subscription.take(1, 0.0)), None)
        mail = self._client.get(self.connection.prefix + queue)
        return None if mail is None else self._received(queue, mail, no_ack)

    def deliver(self) -> bool:
        """Hand all messages that are here to their consumers. Return whether there was one."""
        busy = False
        for consuming in [*self._consuming.values()]:
            source = consuming.source
            if isinstance(source, Mailbox) and not source.waiting:
                continue
            for found in source.take(CREDIT_MAX, 0.0):
                message = self._received(consuming.queue, found, consuming.no_ack)
                if message is not None:
                    busy = True
                    consuming.callback(message)
        return busy

    def _received(self, queue: str, found: Message, no_ack: bool) -> Any:
        """Return a message of kombu. One that is none becomes a dead letter, and the result is None."""
        mail = found if isinstance(found, Mail) else None
        try:
            payload = _payload(queue, found, self._next_delivery_tag())
        except (ValueError, TypeError, KeyError, AttributeError, MalamuteError) as error:
            if mail is not None:
                mail.reject(f"no message of kombu: {error}"[:200])
            return None
        message = self.Message(payload, channel=self)
        message.mail = mail
        if mail is not None and no_ack:
            mail.ack()
        elif not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def report(self) -> None:
        """Report that messages in hand are in progress."""
        for mail in self.qos.held():
            mail.in_progress()

    def close(self) -> None:
        """Close the channel: messages in hand are released."""
        super().close()
        with suppress(MalamuteError):
            self.settled()


class Transport(virtual.Transport):
    """One connection: a client for any thread."""

    Channel = Channel
    driver_type = driver_name = "malamute"
    default_port = 9999
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, LinkError, Disconnected)
    channel_errors = (*virtual.Transport.channel_errors, AccessRefused, TooMany)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(("direct", "topic", "fanout")), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        chosen = client.transport_options
        check_options(chosen, CONNECT_OPTIONS | OWN_OPTIONS | KOMBU_OPTIONS)
        super().__init__(client, **options)
        self.prefix: str = chosen.get("prefix", "")
        self.assurance: str = chosen.get("assurance", "stored")
        self.ack_timeout: float | None = chosen.get("ack_timeout")
        self.transient: set[str] = set()
        """Queues that go with their consumer."""
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self._connected: Client | None = None
        self._process = 0
        self._loop: Any = None
        self._due: Any = None
        self._report_at = 0.0
        self._delivering = False

    def driver_version(self) -> str:
        """Return the version of malamute."""
        return malamute.__version__

    # The connection

    def establish_connection(self) -> Transport:
        """Connect. The first channel is that of the connection, as with other virtual transports."""
        client = self.client
        timeout = client.connect_timeout or CONNECT_SECONDS
        self._connected = connect(client.info(), client.alt or (), client.transport_options, timeout)
        self._process = os.getpid()
        self.bindings = Bindings(self._connected, f"{self.prefix}kombu")
        result: Transport = super().establish_connection()
        return result

    def connected(self) -> Client:
        """Return the client.

        Raises:
            ConnectionLost: the connection is closed.
        """
        if self._connected is None:
            raise malamute.ConnectionLost("connection is closed: connect again")
        return self._connected

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the client is there."""
        return self._connected is not None

    @contextmanager
    def guarded(self) -> Iterator[Client]:
        """Lend the client. If it fails, it is closed: a message that was not confirmed is not sent later."""
        try:
            yield self.connected()
        except LinkError:
            self._close(0.0)
            raise

    def _close(self, timeout: float | None) -> None:
        client, self._connected = self._connected, None
        # A child of a fork has no part in the connection of its parent.
        if client is not None and self._process == os.getpid():
            if self._loop is not None:
                with suppress(MalamuteError):
                    self._loop.remove_reader(client.fileno())
            with suppress(MalamuteError):
                client.close(timeout)

    def close_connection(self, connection: Any) -> None:
        """Close the channels, and the client."""
        if self._process == os.getpid():
            super().close_connection(connection)
        if self._loop is not None:
            self._loop.on_tick.discard(self._tick)
        self.subscriptions.clear()
        self._close(None)

    # Broadcasts

    def stream(self, exchange: str) -> str:
        """Return the stream of an exchange."""
        return f"{self.prefix}kombu.{exchange}"

    def subscribe(self, queue: str, exchange: str, pattern: str) -> None:
        """Subscribe for a queue that goes with its consumer: from now on it misses no message."""
        if (queue, exchange) not in self.subscriptions:
            self.subscriptions[queue, exchange] = self.connected().subscribe(
                self.stream(exchange), pattern, family="topic-amqp"
            )

    def unsubscribe(self, queue: str, exchange: str) -> None:
        """End a subscription."""
        self.subscriptions.pop((queue, exchange)).cancel()

    def subscription(self, queue: str) -> Subscription | None:
        """Return the subscription of a queue; None if the queue is a mailbox."""
        return next((found for (name, _), found in self.subscriptions.items() if name == queue), None)

    # Events

    def settled(self) -> None:
        """Send a settlement now if a consumer makes it, which may take long, as in the pool `solo`.

        Others wait for the loop, which sends several at once.
        """
        if self._delivering and self._connected is not None:
            self._connected.dispatch()

    def _deliver_all(self) -> bool:
        delivering, self._delivering = self._delivering, True
        try:
            # Not by `any`, which would stop at the first.
            delivered = [channel.deliver() for channel in [*self.channels]]
        finally:
            self._delivering = delivering
        if self.ack_timeout and monotonic() >= self._report_at:
            self._report_at = monotonic() + float(self.ack_timeout) / 3
            for channel in [*self.channels]:
                channel.report()
        return True in delivered

    def drain_events(self, connection: Any, timeout: float | None = None, **options: Any) -> None:
        """Deliver all messages that are here, after waiting for one.

        Raises:
            TimeoutError: no message came in time; `socket.timeout` is the same.
        """
        by = None if timeout is None else monotonic() + timeout
        while not self._deliver_all():
            client = self.connected()
            more = client.dispatch()
            if self._deliver_all():
                return
            left = None if by is None else by - monotonic()
            if left is not None and left <= 0 and not more:
                raise TimeoutError("no message in time")
            if not more:
                self._wait(client, left)

    def _wait(self, client: Client, left: float | None) -> None:
        """Wait until the client has something to do."""
        waits = [wait for wait in (left, client.next_timeout(), self._report_left()) if wait is not None]
        poll = select.poll()
        poll.register(client.fileno(), select.POLLIN)
        poll.poll(max(0.0, min(waits)) * 1000 if waits else None)

    def _report_left(self) -> float | None:
        return self._report_at - monotonic() if self.ack_timeout else None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have the event loop of a worker watch the client."""
        self._loop = loop
        loop.on_tick.add(self._tick)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Have the event loop watch the client no more."""
        loop.on_tick.discard(self._tick)
        if self._connected is not None:
            loop.remove_reader(self._connected.fileno())

    def _tick(self) -> None:
        """Watch the file, which the loop forgets after an error, and the time."""
        client, loop = self._connected, self._loop
        if client is None or loop is None:
            return
        if (file := client.fileno()) not in loop.readers:
            loop.add_reader(file, self.on_readable, self, loop)
        if self._due is None and (wait := client.next_timeout()) is not None:
            self._due = loop.call_later(wait, self._on_due)

    def _on_due(self) -> None:
        self._due = None
        self.on_readable(self, self._loop)

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Receive messages, and deliver them."""
        if self._connected is not None:
            while self._connected is not None and self._connected.dispatch():
                pass
            self._deliver_all()


def _requeue(mail: Mail) -> None:
    mail.nak(delay=0)


def _dead_letter(mail: Mail) -> None:
    mail.reject("rejected by its consumer")


def _identity(task_id: str, retries: int, nesting: int) -> str:
    """Return the id of a delayed message of a task, for `cancel`. Each retry and replacement has its own.

    Other messages have ids of their own, since a program may send a task twice under the same task id.
    """
    return (
        task_id
        if not retries and not nesting
        else f"{task_id}:{retries}" + (f":{nesting}" if nesting else "")
    )


def _envelope(message: Mapping[str, Any]) -> tuple[str, bytes, dict[str, Any]]:
    """Return subject, body and headers of a message of kombu."""
    headers, properties = message["headers"], message["properties"]
    info = properties["delivery_info"]
    known = {key: message.get(key) for key in ("content-type", "content-encoding", "headers", "properties")}
    outer: dict[str, Any] = {ENVELOPE: dumps(known)}
    if isinstance(message["content-type"], str):
        outer["content-type"] = message["content-type"]
    if isinstance(task_id := headers.get("id"), str):
        outer["id"] = task_id
    subject = headers.get("task") or info.get("routing_key") or info.get("exchange") or "message"
    body = message["body"]
    return str(subject), body.encode() if isinstance(body, str) else body or b"", outer


def _options(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a message to a mailbox."""
    headers, properties = message["headers"], message["properties"]
    options: dict[str, Any] = {"priority": properties.get("priority") or 0, "id": properties["delivery_tag"]}
    if isinstance(correlation := properties.get("correlation_id"), str):
        options["correlation"] = correlation
    if expiration := properties.get("expiration"):
        options["ttl"] = max(1, int(expiration)) / 1000
    if "task" in headers and isinstance(task_id := headers.get("id"), str):
        options["correlation"] = task_id
        if eta := headers.get("eta"):
            nesting = headers.get("replaced_task_nesting") or 0
            options["id"] = _identity(task_id, headers.get("retries") or 0, nesting)
            options["at"] = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    return options


def _payload(queue: str, found: Message, delivery_tag: str) -> dict[str, Any]:
    """Return a message as kombu has it. Raises an error for one that is not of kombu."""
    known = loads(found.header(ENVELOPE, str))
    info = known["properties"]["delivery_info"]
    known["properties"].update(delivery_tag=delivery_tag, body_encoding=None)
    info["redelivered"] = isinstance(found, Mail) and found.redelivered
    return {**known, "body": found.body}


@contextmanager
def _as_operational() -> Iterator[None]:
    """Raise the error of kombu for a message that the broker or the client refuses.

    A broken connection is no refusal: kombu connects again, and raises the error itself.
    """
    try:
        yield
    except (LinkError, Disconnected):
        raise
    except (MalamuteError, ValueError) as error:
        raise OperationalError(str(error)) from error


TRANSPORT_ALIASES["malamute"] = "malamute.integrations.kombu:Transport"
