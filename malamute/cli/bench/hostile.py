"""One client sends what costs the broker most: what everybody else notices of it.

Each attack has a broker of its own, with the default settings, and a process of its own. Beside it another
client asks for a sign of life, again and again: how long it waits is how long the broker was held up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from malamute.cli.bench import ground
from malamute.cli.bench.machine import Watch, anonymous_bytes
from malamute.cli.bench.raw_peer import RawPeer
from malamute.cli.bench.report import percentile_ms
from malamute.cli.bench.stage import Actor, Measured
from malamute.errors import MalamuteError, TimedOut
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import (
    Change,
    Deliver,
    Message,
    Nak,
    Offer,
    Ping,
    Pong,
    Publish,
    Query,
    Request,
    Stored,
    Subscribe,
)

MEBIBYTE = 1 << 20
BATCH = 5_000
PAUSE_SECONDS = 0.002
"""Between two questions of the other client."""

AFTER_SECONDS = 2.0
"""How long it goes on when the attack has its last answer: the broker may still be at work on it."""

HELD = 20_000
"""Deliveries that an attacker holds."""

EMPTY = pack_record(None, b"")


class Options(NamedTuple):
    """What was asked for. `depth` is that of the queue that is attacked."""

    depth: int
    directory: Path


class Row(NamedTuple):
    """What an attack comes to: for the others in milliseconds, for the broker in memory that it took."""

    what: str
    seconds: float
    others_p50_ms: float
    others_p99_ms: float
    others_max_ms: float
    anonymous_mib: float


def measure(options: Options) -> Iterator[Row]:
    """Every attack in its turn."""
    for what in ATTACKS:
        yield _measure(what, options)


def _measure(what: str, options: Options) -> Row:
    with ground.broker(options.directory) as broker, RawPeer(broker.url, "other") as other:
        with Actor(attack, broker.url, what, options.depth) as attacker:
            attacker.get()
            before = anonymous_bytes(broker.pid)
            with Watch(broker.pid) as watch:
                done: list[Measured] = []
                waiting = threading.Thread(target=lambda: done.append(attacker.get()))
                waiting.start()
                attacker.go()
                latencies = sorted(_ask_while(other, waiting))
                waiting.join()
        if not done:
            raise MalamuteError(f"the attack {what!r} failed")
        return Row(
            what=what,
            seconds=round(done[0]["seconds"], 3),
            others_p50_ms=percentile_ms(latencies, 0.5) or 0.0,
            others_p99_ms=percentile_ms(latencies, 0.99) or 0.0,
            others_max_ms=round(latencies[-1] / 1e6, 2),
            anonymous_mib=round(((watch.anonymous_bytes or before) - before) / MEBIBYTE, 1),
        )


def _ask_while(other: RawPeer, waiting: threading.Thread) -> Iterator[int]:
    """How long each answer took while a thread waits for the attack, and for a while after, in ns."""
    until = None
    while until is None or time.monotonic() < until:
        if until is None and not waiting.is_alive():
            until = time.monotonic() + AFTER_SECONDS
        begun = time.perf_counter_ns()
        other.tell(Ping())
        other.next(Pong)
        yield time.perf_counter_ns() - begun
        time.sleep(PAUSE_SECONDS)


def attack(begin: Callable[[], None], url: str, what: str, depth: int) -> Measured:
    """Prepare an attack, and send it when all are ready."""
    prepare, commands = ATTACKS[what]
    with RawPeer(url, "attacker") as peer:
        prepare(peer, depth)
        messages = commands()
        begin()
        start = time.monotonic()
        for message in messages:
            peer.tell(message)
        settle(peer)
        return {"seconds": time.monotonic() - start}


def settle(peer: RawPeer) -> None:
    """Wait until all that was sent has its answer; most of it is refused."""
    peer.tell(Ping())
    while True:
        try:
            peer.next(Pong)
            return
        except TimedOut:
            raise
        except MalamuteError:
            continue


# What is there before.


def nothing(peer: RawPeer, depth: int) -> None:
    """Nothing."""


def deep_queue(peer: RawPeer, depth: int) -> None:
    """A service with so many requests that nobody works for."""
    for first in range(0, depth, BATCH):
        count = min(BATCH, depth - first)
        subjects = [f"job.{first + n}" for n in range(count)]
        peer.tell(Request("deep", first // BATCH + 1, subjects, [EMPTY] * count))
    stored = 0
    while stored < -(-depth // BATCH):
        stored = peer.next(Stored).ranges[-1][1]


def holding(peer: RawPeer, depth: int) -> None:
    """The same, and very much of it is held."""
    deep_queue(peer, min(depth, HELD))
    peer.tell(Offer(1, "deep", [["all", ""]], credit=-1))
    held = 0
    while held < min(depth, HELD):
        held += _count(peer.next(Deliver))


def _count(delivery: Deliver) -> int:
    from malamute.protocol.batch import unpack_payload

    return len(unpack_payload(delivery.payload, delivery.large).subjects)


def streams(peer: RawPeer, depth: int) -> None:
    """Many streams."""
    for number in range(2_000):
        peer.tell(Publish(f"stream-{number}", 0, ["a"], [EMPTY]))
    settle(peer)


def negated(peer: RawPeer, depth: int) -> None:
    """A hundred subscriptions that no term of a message decides."""
    for number in range(1, 101):
        peer.tell(Subscribe(number, "s", [["all", ""]], f"not x = {number}", credit=-1))
    settle(peer)


def patterns(peer: RawPeer, depth: int) -> None:
    """As many regular expressions as one session may have."""
    for number in range(1, 121):
        peer.tell(Subscribe(number, "s", [["regex", f"^a{number}.*z$"]], credit=-1))
    settle(peer)


# What is sent.


def growing() -> list[Message]:
    """Selectors of some hundred bytes whose normal form has 65,536 terms."""
    where = " and ".join(f"(a{n} = 'x' or b{n} = 'y')" for n in range(8))
    where += " and " + " and ".join(f"c{n} in (2, 3)" for n in range(8))
    return [Subscribe(n, "s", [["all", ""]], f"{where} and d = {n}", credit=1) for n in range(1, 201)]


def batch() -> list[Message]:
    """One batch."""
    return [Publish("s", 0, [f"a{n}" for n in range(10_000)], [EMPTY] * 10_000)]


def lists() -> list[Message]:
    """Questions for all there is."""
    return [Query(n, "streams", {}) for n in range(1, 251)]


def idle_offers() -> list[Message]:
    """Offers without credit."""
    return [Offer(n, "deep", [["exact", f"none.{n}"]]) for n in range(1, 301)]


def searching_offers() -> list[Message]:
    """Offers that match nothing."""
    return [Offer(n, "deep", [["exact", f"none.{n}"]], credit=10) for n in range(1, 11)]


def ranges() -> list[Message]:
    """A NAK that names the same a thousand times."""
    return [Nak(1, [[1, HELD + n] for n in range(1_000)], 3_600_000)]


def purge() -> list[Message]:
    """All of the queue."""
    return [Change(0, "queue.purge", {"kind": "service", "name": "deep"})]


ATTACKS: dict[str, tuple[Callable[[RawPeer, int], None], Callable[[], list[Any]]]] = {
    "200 selectors that grow": (nothing, growing),
    "100 selectors with not, one batch": (negated, batch),
    "120 regexes, 10,000 new subjects": (patterns, batch),
    "250 lists of 2,000 streams": (streams, lists),
    "300 offers without credit": (deep_queue, idle_offers),
    "10 offers that match nothing": (deep_queue, searching_offers),
    "a NAK of 1,000 ranges": (holding, ranges),
    "a purge of the queue": (deep_queue, purge),
}
"""Each attack: what is there before, and what is sent."""
