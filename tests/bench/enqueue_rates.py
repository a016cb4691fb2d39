"""Enqueue from one thread, beside Redis streams: pipelined, and one confirmed at a time.

    PYTHONPATH=tests/bench python tests/bench/enqueue_rates.py [ROUNDS]

Each round takes all ways in turn, each on a queue or a stream of its own. Redis runs without an append-only
file, and with one that is synced before each answer. Rates are medians; a ratio is Malamute's rate divided
by that of Redis in the same round.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.peers.server import HOST, ServerCommand, free_ports, serve

import malamute
from malamute.bench.figures import extent, middle
from malamute.server.process import BrokerProcess

BODY = b"x" * 100
BATCH = 1000
MESSAGES, ALONE = 20_000, 300
"""How many are enqueued pipelined, and one at a time."""

REDIS = {"without AOF": ("no", "no"), "AOF always": ("yes", "always")}


@contextmanager
def redis_client(appendonly: str, appendfsync: str) -> Iterator[Any]:
    """Yield a client of a server of its own."""
    import redis

    with TemporaryDirectory() as directory:
        ports = free_ports()
        options = ["--bind", HOST, "--port", str(ports[0]), "--save", "", "--dir", directory]
        kept = ["--appendonly", appendonly, "--appendfsync", appendfsync]
        with (
            serve(ServerCommand(["redis-server", *options, *kept]), Path(directory), ports),
            redis.Redis(HOST, ports[0], protocol=2) as client,
        ):
            yield client


def rate(count: int, enqueue: Callable[[Any, str], None], client: Any, name: str) -> float:
    """Return the messages a second of a way that enqueues so many."""
    begun = time.perf_counter()
    enqueue(client, name)
    return count / (time.perf_counter() - begun)


def by_sender(client: malamute.Client, name: str) -> None:
    """Enqueue batched, confirmed at the end."""
    with client.sender(name) as out:
        for _ in range(MESSAGES):
            out.publish("task", BODY)


def by_calls(client: malamute.Client, name: str) -> None:
    """Enqueue by a call for each, confirmed at the end."""
    for _ in range(MESSAGES):
        client.send(name, "task", BODY, wait=False)
    client.flush()


def one_by_one(client: malamute.Client, name: str) -> None:
    """Enqueue, each confirmed before the next."""
    for _ in range(ALONE):
        client.send(name, "task", BODY)


def xadd_pipelined(client: Any, name: str) -> None:
    """Add in pipelines of a batch each."""
    for _ in range(MESSAGES // BATCH):
        pipeline = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipeline.xadd(name, {"body": BODY})
        pipeline.execute()


def xadd(client: Any, name: str) -> None:
    """Add one after the other."""
    for _ in range(ALONE):
        client.xadd(name, {"body": BODY})


WAYS = {
    "pipelined": (MESSAGES, {"sender": by_sender, "send(wait=False)": by_calls}, xadd_pipelined),
    "one at a time": (ALONE, {"send": one_by_one}, xadd),
}


def main(rounds: int) -> None:
    """Measure, and print medians and ratios."""
    rates: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(BrokerProcess(directory, "--set", "storage.size=2GiB"))
        client = stack.enter_context(malamute.connect(broker.url, timeout=60))
        others = {name: stack.enter_context(redis_client(*kept)) for name, kept in REDIS.items()}
        for number in range(rounds):
            for way, (count, own, added) in WAYS.items():
                for name, enqueue in own.items():
                    queue = f"{name}-{number}"
                    rates.setdefault((way, name), []).append(rate(count, enqueue, client, queue))
                    client.change("queue.purge", kind="mailbox", name=queue)
                for name, other in others.items():
                    rates.setdefault((way, name), []).append(rate(count, added, other, f"s{number}"))
                    other.delete(f"s{number}")
    print("load", *(f"{value:.1f}" for value in os.getloadavg()), "on", os.cpu_count(), "cores")
    for way, (_, own, _) in WAYS.items():
        for name in (*own, *others):
            print(f"{way:14} {name:18} {middle(rates[way, name]):>12,.0f}/s")
        for name in own:
            for other_name in others:
                ratios = [a / b for a, b in zip(rates[way, name], rates[way, other_name], strict=True)]
                low, high = extent(ratios)
                print(f"{way:14} {name} : {other_name} = {middle(ratios):.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
