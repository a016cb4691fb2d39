"""Messages whose handlers were cut off by the end of the program: others have them as if they were new."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

import malamute
import malamute.aio
from malamute.testing import Broker

PATIENCE = 60.0
COUNT = 5
"""Requests and mails. A handler has the first, and the others came to the client and wait there."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def asker(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="asker", timeout=PATIENCE) as asker:
        for n in range(COUNT):
            asker.send("worker", "hello", b"%d" % n)
            asker.request("svc", "a", b"%d" % n, assurance="stored")
        yield asker
        for kind, name in (("mailbox", "worker"), ("service", "svc")):
            asker.change("queue.purge", kind=kind, name=name)


def raised() -> None:
    """In a handler: the interrupt comes in it."""
    raise KeyboardInterrupt


def signalled() -> None:
    """In a handler: the interrupt comes in the main thread, while the handler goes on."""
    os.kill(os.getpid(), signal.SIGINT)


def block(broker: Broker, interrupt: Callable[[], None], *, mail: bool) -> None:
    """A blocking program whose handler is interrupted."""
    over = threading.Event()
    with malamute.connect(broker.url, address="worker", timeout=PATIENCE) as worker:

        def handle(message: object) -> None:
            interrupt()
            over.wait(PATIENCE)

        (worker.on_mail() if mail else worker.service("svc", credit=COUNT))(handle)
        try:
            worker.run()
        finally:
            over.set()


def loop(broker: Broker, interrupt: Callable[[], None], *, mail: bool) -> None:
    """An asyncio program whose handler is interrupted."""

    async def main() -> None:
        async with malamute.aio.connect(broker.url, address="worker", timeout=PATIENCE) as worker:

            async def handle(message: object) -> None:
                interrupt()
                await asyncio.Event().wait()

            (worker.on_mail() if mail else worker.service("svc", credit=COUNT))(handle)
            await worker.run()

    asyncio.run(main())


@pytest.mark.parametrize("mail", [True, False], ids=["mail", "requests"])
@pytest.mark.parametrize("interrupt", [raised, signalled])
@pytest.mark.parametrize("program", [block, loop])
def test_what_an_interrupt_breaks_off_and_what_no_handler_began_counts_no_attempt(
    broker: Broker,
    asker: malamute.Client,
    program: Callable[..., None],
    interrupt: Callable[[], None],
    mail: bool,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        program(broker, interrupt, mail=mail)
    kind, name = ("mailbox", "worker") if mail else ("service", "svc")
    rows = asker.query("messages", kind=kind, name=name)
    assert [(row["state"], row["attempts"]) for row in rows] == [("ready", 0)] * COUNT


def test_a_handler_that_ends_its_program_itself_counts_its_attempt(
    broker: Broker, asker: malamute.Client
) -> None:
    """A message that no worker survives has to become a dead letter in the end."""

    def leave() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        block(broker, leave, mail=True)
    rows = asker.query("messages", kind="mailbox", name="worker")
    assert [row["attempts"] for row in rows] == [1] + [0] * (COUNT - 1)


def test_a_handler_that_waited_for_what_was_cancelled_has_failed_and_the_next_message_is_handled(
    broker: Broker, asker: malamute.Client
) -> None:
    handled: list[bytes] = []

    async def main() -> None:
        async with malamute.aio.connect(broker.url, address="worker", timeout=PATIENCE) as worker:

            @worker.on_mail(on_error="reject")
            async def handle(mail: malamute.Mail) -> None:
                if mail.body == b"0":
                    task = asyncio.create_task(asyncio.sleep(PATIENCE))
                    task.cancel()
                    await task
                handled.append(mail.body)
                if len(handled) == COUNT - 1:
                    worker.stop()

            await asyncio.wait_for(worker.run(), PATIENCE)

    asyncio.run(main())
    assert handled == [b"%d" % n for n in range(1, COUNT)]
    (dead,) = asker.query("messages", kind="mailbox", name="worker", dead=True)
    assert "was cancelled" in dead["properties"]["dead"]["reason"]
