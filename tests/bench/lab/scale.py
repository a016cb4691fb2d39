"""How cost and memory grow with the number of things: `make bench ARGS="scale"`.

Each axis is one number that grows by tens while all others stay what they are: connections, streams, bytes of
a body. At each point it is measured what processor time a message takes of the broker, a process of its own
whose peers speak the protocol without the client, and how much anonymous memory that process has then. The
slope of a curve is the exponent of the number with which the cost grows, fitted over all its points; a curve
is flat where that is small. `AXES` has in words what the design expects.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil, log
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

import zmq

from lab import queues, start
from lab.broker_limits import memory_for
from lab.raw_peer import RawPeer
from lab.start import GIGABYTE
from malamute.bench import workspace
from malamute.bench.figures import MEBIBYTE, extent, middle, us_each
from malamute.bench.machine import anonymous_bytes, cpu_seconds
from malamute.bench.processes import Measured, WorkloadFunction, WorkloadProcess
from malamute.bench.workloads import HEADERS, Begin
from malamute.errors import MalamuteError
from malamute.protocol.batch import pack_record, unpack_payload
from malamute.protocol.fields import UNLIMITED
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Credit, Deliver, Ok, Publish, Send, Stored, Subscribe
from malamute.server.process import BrokerProcess

NAME = "scale"
BATCH = 100
"""Messages of a command, where that is not the axis."""

SMALL_BATCH = 10
"""The same where each command is for another stream or mailbox."""

WINDOW = 8
"""Commands that wait for their confirmation."""

WINDOW_BYTES = 32 << 20
"""The same in bytes, though one command may have more."""

FLAT_SLOPE = 0.1
"""Ten times as many cost at the most a quarter more, each."""

READ = 100
"""Messages that a reader asks for at a time."""

READING = 50
"""Readers that have asked, and have not got all."""

FEW = 8
"""Messages that are measured at least."""

BODIES_BYTES = 256 << 20
"""Bytes of all bodies together, where these grow."""

SPARE_BYTES = 1 << 10
"""What a body leaves to the rest of its command."""

CONNECTING = 100
"""Peers that connect at the same time: a listening socket has room for not many more."""

CROWD = 4_000
"""Connections of one process: each takes several of its files."""

PREPARING = 1_000
"""Commands under way while it is made what is measured."""

STRIDE = 7_919
"""From one target to the next: a prime, so that all are met and neighbours are not."""

SPARE_NAMES = 1_000
"""Streams and mailboxes that a limit leaves beside those of the axis: the broker has some, too."""

SELECTOR_BYTES = 4_096
"""What the broker counts for one pattern, at the most."""

MEGABYTE = GIGABYTE // 1000


class ScaleOptions(NamedTuple):
    """What was asked for. `largest` is the highest point that is measured of any axis."""

    messages: int
    size_bytes: int
    largest: int
    rounds: int
    axes: Sequence[str]
    directory: Path


class ScaleRow(NamedTuple):
    """One point of a curve: the median of the rounds.

    `cost_us` is processor time of the broker in microseconds for a message, or for a delivery where there are
    more of them; there are `per_second`, while the clients share the machine. `bytes_each` is what memory has
    grown since the first point, for each one more. `slope` is that of the whole curve; it is `flat` up to
    `FLAT_SLOPE`.
    """

    what: str
    point: int
    messages: int
    cost_us: float
    extent: list[float]
    per_second: float
    memory_mib: float
    bytes_each: float | None
    slope: float | None
    flat: str
    expected: str


class Cost(NamedTuple):
    """What was measured once: processor time of the broker for so many messages, its memory, and how long."""

    messages: int
    seconds: float
    memory_bytes: int
    elapsed_seconds: float


class Axis(NamedTuple):
    """What grows, how it is measured at a point, at which points, and what the design expects."""

    measure: Callable[[ScaleOptions, int], Cost]
    points: Sequence[int]
    expected: str


def measure(options: ScaleOptions) -> Iterator[ScaleRow]:
    """Each axis; a round takes all its points in turn."""
    for name in options.axes:
        axis = AXES[name]
        points = [point for point in axis.points if point <= options.largest] or axis.points[:1]
        costs: dict[int, list[Cost]] = {point: [] for point in points}
        for _ in range(options.rounds):
            for point in points:
                costs[point].append(axis.measure(options, point))
        yield from rows_of(name, axis.expected, costs)


def rows_of(name: str, expected: str, costs: Mapping[int, Sequence[Cost]]) -> Iterator[ScaleRow]:
    """The rows of a curve, of which each point was measured in rounds."""
    each = {point: [us_each(cost.seconds, cost.messages) for cost in found] for point, found in costs.items()}
    memory = {point: median(cost.memory_bytes for cost in found) for point, found in costs.items()}
    slope = slope_of({point: median(found) for point, found in each.items()})
    first = min(memory)
    for point, found in costs.items():
        grown = (memory[point] - memory[first]) / (point - first) if point > first else None
        yield ScaleRow(
            what=name,
            point=point,
            messages=found[0].messages,
            cost_us=middle(each[point]),
            extent=extent(each[point]),
            per_second=middle(cost.messages / cost.elapsed_seconds for cost in found),
            memory_mib=round(memory[point] / MEBIBYTE, 1),
            bytes_each=None if grown is None else round(grown, 1),
            slope=slope,
            flat="-" if slope is None else "yes" if slope <= FLAT_SLOPE else "no",
            expected=expected,
        )


def slope_of(costs: Mapping[int, float]) -> float | None:
    """The exponent with which a cost grows over its points; None for a single one."""
    if len(costs) < 2:
        return None
    return round(linear_regression([*map(log, costs)], [*map(log, costs.values())]).slope, 3)


# What the axes share


class Scene:
    """A broker with peers, all in one thread of libzmq, since they may be ten thousand."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack) -> None:
        from malamute.door.files import raise_file_limit

        raise_file_limit()
        self._broker = broker
        self._stack = stack
        self._context = _context(stack)
        self._number = 0
        (self.publisher,) = self.peers(1)

    def peers(self, count: int) -> list[RawPeer]:
        """More of them, of which some connect at the same time."""
        return _peers(self._broker.url, count, self._stack, self._context)

    def publish(
        self, batches: Sequence[Publish | Send], readers: Sequence[RawPeer] = (), window: int = WINDOW
    ) -> int:
        """Send messages, confirmed, until the readers have each of them. Returns how many."""
        sent = 0
        while sent < len(batches):
            at_once = batches[sent : sent + max(1, min(window, WINDOW_BYTES // _bytes_of(batches[sent])))]
            sent += len(at_once)
            for batch in at_once:
                self._number += 1
                self.publisher.send(batch._replace(number=self._number))
            while self.publisher.next(Stored).ranges[-1][1] < self._number:
                pass
            for reader in readers:
                receive(reader, sum(len(batch.subjects) for batch in at_once))
        return sum(len(batch.subjects) for batch in batches)

    def cost(self, work: Callable[[], int], deliveries: int = 1) -> Cost:
        """What a work costs the broker, which returns how many messages it had, delivered so often."""
        before, begun = cpu_seconds(self._broker.pid), time.monotonic()
        messages = work()
        elapsed = time.monotonic() - begun
        seconds = cpu_seconds(self._broker.pid) - before
        return Cost(messages * deliveries, seconds, anonymous_bytes(self._broker.pid), elapsed)


def _bytes_of(batch: Publish | Send) -> int:
    return sum(map(len, batch.records))


def _context(stack: ExitStack) -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))
    stack.callback(context.destroy, linger=0)
    return context


def _peers(
    url: str, count: int, stack: ExitStack, context: zmq.Context[zmq.Socket[bytes]] | None = None
) -> list[RawPeer]:
    """Peers that are connected, of whom some connect at the same time."""
    context = context or _context(stack)
    peers: list[RawPeer] = []
    while len(peers) < count:
        made = [RawPeer(url, "", context=context) for _ in range(min(CONNECTING, count - len(peers)))]
        peers += [stack.enter_context(peer) for peer in made]
    return peers


def receive(reader: RawPeer, messages: int) -> int:
    """Take so many messages. Returns how many those were."""
    had = 0
    while had < messages:
        delivery = reader.next(Deliver)
        had += sum(1 for _ in unpack_payload(delivery.payload, delivery.large).each_sequence())
    return had


@contextmanager
def _scene(options: ScaleOptions, *settings: str) -> Iterator[Scene]:
    with workspace.broker(options.directory, *settings) as broker, ExitStack() as stack:
        yield Scene(broker, stack)


def _publishes(messages: int, batch: int, size_bytes: int, stream: str = NAME) -> list[Publish]:
    """Batches of messages, each with a subject that no other has."""
    record = pack_record(HEADERS, b"x" * size_bytes)
    return [
        Publish(
            stream,
            0,
            [f"temp.oslo.{number}" for number in range(first, min(first + batch, messages))],
            [record] * (min(first + batch, messages) - first),
        )
        for first in range(0, messages, batch)
    ]


def _subscribe(peer: RawPeer, *subscriptions: Subscribe) -> None:
    """Subscribe, with one id after the other."""
    for source, subscription in enumerate(subscriptions, 1):
        peer.send(subscription._replace(source=source))
    for _ in subscriptions:
        peer.next(Ok)


def _subscription(pattern: str, start: str = "new", credit: int = UNLIMITED) -> Subscribe:
    return Subscribe(0, NAME, [["topic", pattern]], start=start, credit=credit)


# The axes


def _subscriptions(options: ScaleOptions, point: int) -> Cost:
    """Subscriptions of one stream, each with a pattern of its own, of which one matches."""
    return _subscribed(options, point, lambda number: _subscription(f"other.{number}.#"))


def _mixed(options: ScaleOptions, point: int) -> Cost:
    """The same with patterns of all families and with conditions."""
    return _subscribed(options, point, _mixed_subscription)


def _mixed_subscription(number: int) -> Subscribe:
    family, pattern = (
        ("topic", f"other.{number}.#"),
        ("topic-amqp", f"*.oslo.x{number}.#"),
        ("exact", f"temp.oslo.x{number}"),
        ("prefix", f"temp.rome.{number}"),
        ("fields", {"all": {"level": number}}),
        ("all", ""),
    )[number % 6]
    return Subscribe(
        0, NAME, [[family, pattern]], where="" if pattern else f"level = {number}", credit=UNLIMITED
    )


def _subscribed(options: ScaleOptions, point: int, other: Callable[[int], Subscribe]) -> Cost:
    """So many subscriptions of one stream, of which the first matches and `other` makes the rest."""
    each = Limits().sources
    # So many patterns are more than the broker takes by default.
    limit = memory_for("selectors_bytes", point * SELECTOR_BYTES)
    with _scene(options, limit) as scene:
        peers = scene.peers(ceil(point / each))
        for place, peer in enumerate(peers):
            numbers = range(place * each, min((place + 1) * each, point))
            _subscribe(peer, *(other(number) if number else _subscription("temp.#") for number in numbers))
        batches = _publishes(options.messages, BATCH, options.size_bytes)
        return scene.cost(lambda: scene.publish(batches, peers[:1]))


def _streams(options: ScaleOptions, point: int) -> Cost:
    """Streams that are published to in turn."""
    limit = memory_for("streams", point + SPARE_NAMES)
    return _in_turn(options, point, limit, lambda name, batch: batch._replace(stream=name))


def _mailboxes(options: ScaleOptions, point: int) -> Cost:
    """Mailboxes that are sent to in turn, whose owners are not there."""
    limit = memory_for("queues", point + SPARE_NAMES)
    return _in_turn(options, point, limit, lambda name, batch: Send(name, 0, batch.subjects, batch.records))


def _in_turn(
    options: ScaleOptions, point: int, setting: str, to: Callable[[str, Publish], Publish | Send]
) -> Cost:
    """Targets that are there already, and get a batch each in turn."""
    with _scene(options, setting) as scene:
        (first,) = _publishes(1, 1, options.size_bytes)
        scene.publish([to(f"{NAME}.{number}", first) for number in range(point)], window=PREPARING)
        batches = _publishes(options.messages, SMALL_BATCH, options.size_bytes)
        addressed = [to(f"{NAME}.{place * STRIDE % point}", batch) for place, batch in enumerate(batches)]
        return scene.cost(lambda: scene.publish(addressed))


def _connections(options: ScaleOptions, point: int) -> Cost:
    """Connections that do nothing, in processes of their own, beside a publisher and a subscriber."""
    with workspace.broker(options.directory) as broker, ExitStack() as stack:
        scene = Scene(broker, stack)
        _crowds(stack, stay, broker.url, point)
        (reader,) = scene.peers(1)
        _subscribe(reader, _subscription("temp.#"))
        batches = _publishes(options.messages, BATCH, options.size_bytes)
        return scene.cost(lambda: scene.publish(batches, [reader]))


def stay(begin: Begin, url: str, connections: int) -> Measured:
    """Connect so often, and do nothing."""
    from malamute.door.files import raise_file_limit

    raise_file_limit()
    with ExitStack() as stack:
        _peers(url, connections, stack)
        begin()
    return {}


def _crowds(
    stack: ExitStack, work: WorkloadFunction, url: str, peers: int, *more: int
) -> list[WorkloadProcess]:
    """Processes with so many peers in all, each of which is ready to begin."""
    shares = [min(CROWD, peers - first) for first in range(0, peers, CROWD)]
    crowds = [stack.enter_context(WorkloadProcess(work, url, share, *more)) for share in shares]
    for crowd in crowds:
        crowd.get()
    return crowds


def _readers(options: ScaleOptions, point: int) -> Cost:
    """Readers spread over the history of a stream, of whom one after the other asks for some messages."""
    each = Limits().sources
    with _scene(options) as scene:
        scene.publish(_publishes(options.messages, BATCH, options.size_bytes))
        asks = max(1, options.messages // READ)
        farthest = max(0, options.messages - READ * ceil(asks / point))
        peers = scene.peers(ceil(point / each))
        for place, peer in enumerate(peers):
            numbers = range(place * each, min((place + 1) * each, point))
            starts = (f"seq:{1 + number * farthest // point}" for number in numbers)
            _subscribe(peer, *(_subscription("temp.#", start, credit=0) for start in starts))

        def read() -> int:
            at_once = min(READING, point)
            for first in range(0, asks, at_once):
                asking = [place * STRIDE % point for place in range(first, min(first + at_once, asks))]
                for number in asking:
                    peers[number // each].send(Credit(number % each + 1, READ, UNLIMITED))
                for place, asked in Counter(number // each for number in asking).items():
                    receive(peers[place], READ * asked)
            return asks * READ

        return scene.cost(read)


def _bodies(options: ScaleOptions, point: int) -> Cost:
    """Bytes of a body, of messages that are stored and delivered."""
    size_bytes = min(point, Limits().message_bytes - SPARE_BYTES)
    messages = max(FEW, min(options.messages // BATCH, BODIES_BYTES // size_bytes))
    with _scene(options, f"storage.size={8 * BODIES_BYTES}") as scene:
        (reader,) = scene.peers(1)
        _subscribe(reader, _subscription("temp.#"))
        batches = _publishes(messages, 1, size_bytes)
        return scene.cost(lambda: scene.publish(batches, [reader]))


def _batches(options: ScaleOptions, point: int) -> Cost:
    """Messages of a command, stored and delivered."""
    messages = max(point, FEW, min(options.messages, point * options.messages // BATCH))
    with _scene(options) as scene:
        (reader,) = scene.peers(1)
        _subscribe(reader, _subscription("temp.#"))
        batches = _publishes(messages, point, options.size_bytes)
        return scene.cost(lambda: scene.publish(batches, [reader]))


def _fanout(options: ScaleOptions, point: int) -> Cost:
    """Subscribers of everything, a connection each, in processes that have files for so many."""
    messages = max(10 * BATCH, options.messages // point)
    batches = _publishes(messages, BATCH, options.size_bytes)
    with workspace.broker(options.directory) as broker, ExitStack() as stack:
        scene = Scene(broker, stack)
        crowds = _crowds(stack, read_everything, broker.url, point, messages)

        def fan_out() -> int:
            for crowd in crowds:
                crowd.go()
            scene.publish(batches)
            if sum(crowd.get()["received"] for crowd in crowds) != point * messages:
                raise MalamuteError("some readers have not had everything")
            return messages

        return scene.cost(fan_out, point)


def read_everything(begin: Begin, url: str, readers: int, messages: int) -> Measured:
    """Subscribe to everything with a connection each, and take so many messages with each of them."""
    from malamute.door.files import raise_file_limit

    raise_file_limit()
    with ExitStack() as stack:
        peers = _peers(url, readers, stack)
        for peer in peers:
            _subscribe(peer, _subscription("temp.#"))
        begin()
        return {"received": sum(receive(peer, messages) for peer in peers)}


def _ring(options: ScaleOptions, point: int) -> Cost:
    """Megabytes of history, behind which is published; the oldest of it leaves for that."""
    size = max(point * MEGABYTE * 2, workspace.STORE_BYTES_MIN)
    workspace.check_free_space(options.directory, size)
    with workspace.temporary_directory(options.directory) as place:
        start.fill(place / "data", size, point * MEGABYTE, options.size_bytes)
        settings = workspace.set_options(f"storage.size={size}", f"streams.bytes={point * MEGABYTE}")
        with BrokerProcess(place, *settings) as broker, ExitStack() as stack:
            scene = Scene(broker, stack)
            batches = _publishes(options.messages, BATCH, options.size_bytes, start.STREAM)
            return scene.cost(lambda: scene.publish(batches))


def _depth(options: ScaleOptions, point: int) -> Cost:
    """Requests in the queue of a service, which stays as deep while they are dispatched and acknowledged."""
    given = queues.QueuesOptions(
        options.messages, point, options.size_bytes, BATCH, rounds=1, directory=options.directory
    )
    (row,) = queues.dispatch(given, [point])
    seconds = (row.broker_cpu_us or 0.0) * row.messages / 1e6
    memory_bytes = int((row.rss_anon_max_mib or 0.0) * MEBIBYTE)
    return Cost(row.messages, seconds, memory_bytes, row.messages / row.per_second)


AXES: dict[str, Axis] = {
    "subscriptions": Axis(_subscriptions, (10, 100, 1_000, 10_000, 100_000), "flat"),
    "mixed": Axis(_mixed, (10, 100, 1_000, 10_000, 50_000), "flat"),
    "streams": Axis(_streams, (1, 10, 100, 1_000, 10_000), "flat"),
    "mailboxes": Axis(_mailboxes, (1, 10, 100, 1_000, 10_000, 100_000), "flat"),
    "connections": Axis(_connections, (1, 10, 100, 1_000, 10_000), "flat"),
    "readers": Axis(_readers, (1, 10, 100, 1_000, 10_000), "flat"),
    "body": Axis(
        _bodies, (10, 100, 1_000, 10_000, 100_000, 1_000_000, 64 << 20), "flat to 1 KB, then with the bytes"
    ),
    "batch": Axis(_batches, (1, 10, 100, 1_000, 10_000), "falls"),
    "fan-out": Axis(_fanout, (1, 10, 100, 1_000, 10_000), "falls a delivery"),
    "ring": Axis(_ring, (10, 100, 1_000, 10_000), "flat"),
    "depth": Axis(_depth, (100, 1_000, 10_000, 100_000, 1_000_000), "flat"),
}
"""By the word of `--axis`. Bodies are in bytes, and the ring is in megabytes."""
