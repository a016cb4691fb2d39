"""What it costs a program to take messages one by one instead of in lists.

A history is read by one client in both ways, in turns. What is counted is the processor time of the program's
own thread, which does the same in both but for handing the messages out.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from malamute.cli.bench import actors, ground
from malamute.cli.bench.actors import TIMEOUT, Plan
from malamute.cli.bench.report import extent, middle
from malamute.cli.bench.stage import perform
from malamute.client.message import Message
from malamute.client.sync import Client, connect
from malamute.client.sync_consumers import Subscription

LIST = 1000
"""Messages in a list, at most."""


class Options(NamedTuple):
    """What was asked for."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    rounds: int
    directory: Path


class Row(NamedTuple):
    """Both ways, in microseconds of the program's thread for a message; `more_us` is their difference."""

    what: str
    messages: int
    list_us: float
    iterator_us: float
    more_us: float
    more_us_extent: list[float]


def measure(options: Options) -> Iterator[Row]:
    """A history, read in lists and one by one."""
    size = ground.store_bytes(options.messages * (options.size_bytes + 100))
    with ground.broker(options.directory, f"storage.size={size}") as broker:
        name = f"bench-{secrets.token_hex(4)}"
        plan = Plan(broker.url, name, options.messages, options.size_bytes, options.batch, options.credit)
        perform((actors.publish_columns, plan))
        with connect(broker.url, timeout=TIMEOUT) as client:
            rounds = [_round(client, plan, number) for number in range(options.rounds)]
    lists, each = zip(*rounds, strict=True)
    more = [one - many for many, one in rounds]
    yield Row(
        what="for message in subscription",
        messages=options.messages,
        list_us=round(middle(lists), 3),
        iterator_us=round(middle(each), 3),
        more_us=round(middle(more), 3),
        more_us_extent=[round(value, 3) for value in extent(more)],
    )


def _round(client: Client, plan: Plan, number: int) -> tuple[float, float]:
    """In lists and one by one; which comes first, alternates."""
    if number % 2:
        each = _read(client, plan, _each)
        return _read(client, plan, _lists), each
    return _read(client, plan, _lists), _read(client, plan, _each)


def _read(client: Client, plan: Plan, read: Callable[[Subscription, int], None]) -> float:
    """Microseconds of this thread for each message of the history."""
    with client.subscribe(plan.name, start="first", credit=plan.credit, timeout=TIMEOUT) as messages:
        start = time.thread_time()
        read(messages, plan.messages)
        return (time.thread_time() - start) * 1e6 / plan.messages


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
