"""What it costs a program to take messages one by one instead of in lists.

A history is read by one client in both ways, alternating. What is counted is the processor time of the
program's own thread, which does the same in both but for handing the messages out.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from malamute.bench import workloads, workspace
from malamute.bench.figures import extent, middle, us_each
from malamute.bench.processes import run_together
from malamute.bench.workloads import TIMEOUT_SECONDS, Workload
from malamute.client.session.message import Message
from malamute.client.sync.client import Client, connect
from malamute.client.sync.consumers import Subscription

LIST = 1000
"""Messages in a list, at most."""


class IteratorOptions(NamedTuple):
    """What was asked for."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    rounds: int
    directory: Path


class IteratorRow(NamedTuple):
    """Both ways, in microseconds of the program's thread for a message; `more_us` is their difference."""

    what: str
    messages: int
    list_us: float
    iterator_us: float
    more_us: float
    more_us_extent: list[float]


def measure(options: IteratorOptions) -> Iterator[IteratorRow]:
    """A history, read in lists and one by one."""
    size = workspace.store_bytes(options.messages * (options.size_bytes + 100))
    with workspace.broker(options.directory, f"storage.size={size}") as broker:
        name = f"bench-{secrets.token_hex(4)}"
        workload = Workload(
            broker.url, name, options.messages, options.size_bytes, options.batch, options.credit
        )
        run_together((workloads.publish_columns, workload))
        with connect(broker.url, timeout=TIMEOUT_SECONDS) as client:
            rounds = [_round(client, workload, number) for number in range(options.rounds)]
    lists, each = zip(*rounds, strict=True)
    more = [one - many for many, one in rounds]
    yield IteratorRow(
        what="for message in subscription",
        messages=options.messages,
        list_us=round(middle(lists), 3),
        iterator_us=round(middle(each), 3),
        more_us=round(middle(more), 3),
        more_us_extent=[round(value, 3) for value in extent(more)],
    )


def _round(client: Client, workload: Workload, number: int) -> tuple[float, float]:
    """In lists and one by one; which comes first, alternates."""
    if number % 2:
        each = _read(client, workload, _each)
        return _read(client, workload, _lists), each
    return _read(client, workload, _lists), _read(client, workload, _each)


def _read(client: Client, workload: Workload, read: Callable[[Subscription, int], None]) -> float:
    """Microseconds of this thread for each message of the history."""
    with client.subscribe(
        workload.name, start="first", credit=workload.credit, timeout=TIMEOUT_SECONDS
    ) as messages:
        start = time.thread_time()
        read(messages, workload.messages)
        return us_each(time.thread_time() - start, workload.messages)


def _lists(messages: Subscription, count: int) -> None:
    left = count
    for batch in messages.batches(LIST):
        _use(batch)
        left -= len(batch)
        if not left:
            return


def _each(messages: Subscription, count: int) -> None:
    _use(islice(messages, count))


def _use(messages: Iterable[Message]) -> None:
    """What a program does with each at the least."""
    for message in messages:
        message.sequence  # noqa: B018  # looking at it is what is to be done
