"""The benchmarks: who plays in each, and how much of what."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from malamute.cli.bench import actors, loop_actors, relay
from malamute.cli.bench.actors import Plan
from malamute.cli.bench.machine import Watch
from malamute.cli.bench.report import Row, row_of
from malamute.cli.bench.stage import Actor, Play, perform
from malamute.cli.daemon import Daemon


class Options(NamedTuple):
    """What was asked for. `messages` is for the fastest benchmark; the others take a part of it."""

    messages: int
    size_bytes: int
    batch: int
    credit: int
    subscribers: int
    url: str
    directory: Path

    def part(self, divisor: int) -> int:
        """A part of the messages, and a few at least."""
        return max(self.messages // divisor, 10)


class Run(NamedTuple):
    """One broker for one row: its plan, and whoever watches it."""

    plan: Plan
    watch: Watch


@contextmanager
def _run(options: Options, messages: int, **changes: Any) -> Iterator[Run]:
    """A broker of its own, or the one that was named, watched during the block."""
    # On a broker with a past, too, streams, mailboxes and services are new ones.
    name = f"bench-{secrets.token_hex(4)}"
    plan = Plan(options.url, name, messages, options.size_bytes, options.batch, options.credit)._replace(
        **changes
    )
    if options.url:
        yield Run(plan, Watch(0))
        return
    with (
        TemporaryDirectory(prefix="malamute-bench-", dir=options.directory) as place,
        Daemon(Path(place)) as broker,
    ):
        yield Run(plan._replace(url=broker.url), Watch(broker.pid))


def publish(options: Options) -> Iterator[Row]:
    """1 publisher, 1 subscriber: batched, a message a command, one at a time."""
    yield _stream(options, "1→1, batched as columns", actors.publish_columns, 1)
    yield _stream(options, "1→1, batched one by one", actors.publish_each, 1)
    yield _stream(options, "1→1, one message a command", actors.publish_each, 5, batch=1)
    yield _stream(options, "1→1, the same, unconfirmed", actors.publish_unconfirmed, 5)
    yield _stream(options, "1→1, one at a time", actors.publish_and_wait, 500, stamp_every=1)


def _stream(options: Options, what: str, sender: Play, divisor: int, **changes: int) -> Row:
    with _run(options, options.part(divisor), **changes) as (plan, watch):
        return _pair(what, plan, watch, (sender, plan), (actors.subscribe, plan))


def _pair(what: str, plan: Plan, watch: Watch, sending: tuple[Any, ...], receiving: tuple[Any, ...]) -> Row:
    with watch:
        receiver, sender = perform(receiving, sending)
    return row_of(what, plan.messages, plan.messages, watch, sender, receiver)


def event_loop(options: Options) -> Iterator[Row]:
    """1 publisher, 1 subscriber, each blocking and on an event loop."""
    for sending, sender in (("blocking", actors.publish_each), ("asyncio", loop_actors.publish_each)):
        for receiving, receiver in (("blocking", actors.subscribe), ("asyncio", loop_actors.subscribe)):
            with _run(options, options.part(2)) as (plan, watch):
                yield _pair(f"1→1, {sending} → {receiving}", plan, watch, (sender, plan), (receiver, plan))


def fanout(options: Options) -> Iterator[Row]:
    """1 publisher, many subscribers who each get everything."""
    subscribers = options.subscribers
    with _run(options, options.part(5)) as (plan, watch):
        with watch:
            receiver, sender = perform(
                (actors.subscribe_many, plan, subscribers), (actors.publish_columns, plan)
            )
        deliveries = plan.messages * subscribers
        yield row_of(
            f"1→{subscribers}, batched, deliveries", plan.messages, deliveries, watch, sender, receiver
        )


def stored(options: Options) -> Iterator[Row]:
    """A publisher alone, until all is stored."""
    for what, sender, divisor in (
        ("stored, pipelined", actors.publish_each, 1),
        ("stored, one at a time", actors.publish_and_wait, 500),
    ):
        with _run(options, options.part(divisor)) as (plan, watch):
            with watch:
                (measured,) = perform((sender, plan))
            yield row_of(what, plan.messages, plan.messages, watch, measured, measured)


def mailbox(options: Options) -> Iterator[Row]:
    """A sender and a recipient who acknowledges."""
    with _run(options, options.part(20)) as (plan, watch):
        yield _pair("mailbox, batched", plan, watch, (actors.send, plan), (actors.receive, plan))


def service(options: Options) -> Iterator[Row]:
    """Round trips through a worker, and a bare ROUTER."""
    messages = options.part(200)
    for what, assurance in (("service, request stored", "stored"), ("service, request not stored", "none")):
        with _run(options, messages, assurance=assurance) as (plan, watch):
            with watch:
                _, asker = perform((actors.answer, plan), (actors.ask, plan))
            yield row_of(what, messages, messages, watch, asker, asker)
    yield _bare_relay(options, messages)


def _bare_relay(options: Options, messages: int) -> Row:
    with Actor(relay.relay) as router:
        plan = Plan(router.get(), "", messages, options.size_bytes, 1, 1)
        router.go()
        _, asker = perform((relay.answer, plan), (relay.ask, plan))
    return row_of("bare ROUTER, nothing stored", messages, messages, Watch(0), asker, asker)


SCENARIOS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "publish": publish,
    "asyncio": event_loop,
    "fanout": fanout,
    "stored": stored,
    "mailbox": mailbox,
    "service": service,
}
