"""One client sends what costs the broker most: what everybody else notices of it.

Each attack has a broker of its own, with the default settings, and a process of its own, of the lowest
priority; at last all of them meet at one broker. Beside it another client asks for a sign of life, publishes
to itself, and asks a service of its own, again and again: how long a sign of life takes is how long the
broker was held up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from lab.attacks import EMPTY, attack
from lab.raw_peer import RawPeer
from malamute.bench import workspace
from malamute.bench.figures import MEBIBYTE, percentile_ms
from malamute.bench.machine import ProcessWatch, anonymous_bytes
from malamute.bench.processes import Measured, WorkloadProcess
from malamute.errors import MalamuteError
from malamute.protocol.batch import unpack_payload
from malamute.protocol.messages import (
    MAILBOX,
    Ack,
    Credit,
    Deliver,
    Offer,
    Ok,
    Ping,
    Pong,
    Publish,
    Reply,
    Request,
    Subscribe,
)
from malamute.protocol.time_units import to_ms

PAUSE_SECONDS = 0.002
"""Between two rounds of the other client."""

AFTER_SECONDS = 2.0
"""How long it continues when the attack has its last answer: the broker may still be at work on it."""

SUBSCRIPTION, OFFER = 1, 2
"""The sources of the other client."""

TOGETHER = "all of them together"


class HostileOptions(NamedTuple):
    """What was asked for. `depth` is that of the queue that is attacked."""

    depth: int
    attacks: Sequence[str]
    directory: Path


class HostileRow(NamedTuple):
    """What an attack comes to: for the others in milliseconds, for the broker in memory that it took.

    `others` are signs of life, `published` is from a publisher to a subscriber, and `requests` is from a
    request to its reply.
    """

    what: str
    seconds: float
    others_p50_ms: float
    others_p99_ms: float
    others_max_ms: float
    published_p99_ms: float
    requests_p99_ms: float
    anonymous_mib: float


def measure(options: HostileOptions) -> Iterator[HostileRow]:
    """One attack after the other, and then all of them."""
    for what in options.attacks:
        yield _measure(what, [what], options)
    yield _measure(TOGETHER, options.attacks, options)


def _measure(what: str, attacks: Sequence[str], options: HostileOptions) -> HostileRow:
    with workspace.broker(options.directory) as broker, ExitStack() as stack:
        attackers = [
            stack.enter_context(
                WorkloadProcess(attack, broker.url, name, max(options.depth // len(attacks), 1))
            )
            for name in attacks
        ]
        for attacker in attackers:
            attacker.get()
        other = stack.enter_context(RawPeer(broker.url, "other"))
        before = anonymous_bytes(broker.pid)
        with ProcessWatch(broker.pid) as watch:
            done: list[Measured] = []

            def begin() -> None:
                for attacker in attackers:
                    attacker.go()
                done.extend([attacker.get() for attacker in attackers])

            waiting = threading.Thread(target=begin)
            lives, published, requests = map(sorted, zip(*_live_while(other, waiting), strict=True))
            waiting.join()
        if not done:
            raise MalamuteError(f"{what} failed")
        return HostileRow(
            what=what,
            seconds=round(max(one["seconds"] for one in done), 3),
            others_p50_ms=percentile_ms(lives, 0.5) or 0.0,
            others_p99_ms=percentile_ms(lives, 0.99) or 0.0,
            others_max_ms=round(to_ms(lives[-1]), 3),
            published_p99_ms=percentile_ms(published, 0.99) or 0.0,
            requests_p99_ms=percentile_ms(requests, 0.99) or 0.0,
            anonymous_mib=round(((watch.anonymous_bytes or before) - before) / MEBIBYTE, 1),
        )


def _live_while(other: RawPeer, waiting: threading.Thread) -> Iterator[tuple[int, int, int]]:
    """What each round of the other client took while a thread attacks, and for a while after, in ns."""
    other.send(Credit(MAILBOX, -1, -1))
    other.send(Subscribe(SUBSCRIPTION, "others", [["all", ""]], credit=-1))
    other.send(Offer(OFFER, "others", [["all", ""]], credit=-1))
    other.next(Ok)
    other.next(Ok)
    # Its first rounds are before the attack, so that it misses nothing of a short one.
    for _ in range(10):
        yield _round(other)
    waiting.start()
    until = None
    while until is None or time.monotonic() < until:
        if until is None and not waiting.is_alive():
            until = time.monotonic() + AFTER_SECONDS
        yield _round(other)
        time.sleep(PAUSE_SECONDS)


def _round(other: RawPeer) -> tuple[int, int, int]:
    return _timed(_ask, other), _timed(_publish, other), _timed(_request, other)


def _timed(action: Callable[[RawPeer], None], other: RawPeer) -> int:
    begun = time.perf_counter_ns()
    action(other)
    return time.perf_counter_ns() - begun


def _ask(other: RawPeer) -> None:
    other.send(Ping())
    other.next(Pong)


def _publish(other: RawPeer) -> None:
    other.send(Publish("others", 0, ["a"], [EMPTY]))
    other.next(Deliver)


def _request(other: RawPeer) -> None:
    other.send(Request("others", 0, ["a"], [EMPTY]))
    request = other.next(Deliver)
    other.send(Reply(OFFER, 0, _sequences(request), [True], [EMPTY]))
    reply = other.next(Deliver)
    other.send(Ack(MAILBOX, [[sequence, sequence] for sequence in _sequences(reply)]))


def _sequences(delivery: Deliver) -> Sequence[int]:
    return unpack_payload(delivery.payload, delivery.large).each_sequence()
