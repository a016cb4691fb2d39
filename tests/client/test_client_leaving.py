"""A program that ends, or drops its client, without closing it: all is stored, or the loss is said."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
from depth import some

import malamute
from malamute.testing import Broker

COUNT = 300

BLOCKING = """
import gc, sys, threading
import malamute

def publish_one_by_one():
    global client
    client = malamute.connect(sys.argv[1])
    for number in range({count}):
        client.publish_nowait("s", "a", b"%d" % number)

def publish_many():
    global publisher
    publisher = malamute.connect(sys.argv[1]).publisher("s", assurance=sys.argv[2])
    for number in range({count}):
        publisher.publish("a", b"%d" % number)

def drop():
    publisher = malamute.connect(sys.argv[1]).publisher("s", assurance=sys.argv[2])
    for number in range({count}):
        publisher.publish("a", b"%d" % number)
    del publisher
    gc.collect()

def thread():
    other = threading.Thread(target=publish_many)
    other.start()
    other.join()

def child():
    from multiprocessing import get_context
    process = get_context("fork").Process(target=publish_many)
    process.start()
    process.join()

def fail():
    publish_many()
    raise SystemExit(3)
"""

ASYNCIO = """
import asyncio, sys
import malamute.aio

async def one_by_one():
    global client
    client = await malamute.aio.connect(sys.argv[1])
    for number in range({count}):
        await client.publish_nowait("s", "a", b"%d" % number)

async def many():
    client = await malamute.aio.connect(sys.argv[1])
    publisher = client.publisher("s", assurance=sys.argv[2])
    for number in range({count}):
        await publisher.publish("a", b"%d" % number)

def publish_one_by_one():
    asyncio.run(one_by_one())

def publish_many():
    asyncio.run(many())
"""

CASES = [
    *((BLOCKING, name, "none") for name in ("publish_one_by_one", "drop", "thread", "child", "fail")),
    (ASYNCIO, "publish_one_by_one", "none"),
    *((text, "publish_many", assurance) for text in (BLOCKING, ASYNCIO) for assurance in ("stored", "none")),
]


def program(text: str, call: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    whole = f"{text.format(count=COUNT)}\n{call}()\n"
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", whole, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("text", "call", "assurance"), some(CASES, *CASES[:6], CASES[7], CASES[8]))
def test_what_was_accepted_is_there_though_nobody_closes_the_client(
    malamute_broker: Broker, text: str, call: str, assurance: str
) -> None:
    ended = program(text, call, malamute_broker.url, assurance)
    assert (ended.returncode, ended.stderr) == (3 if call == "fail" else 0, "")
    with malamute.connect(malamute_broker.url) as client, client.subscribe("s", start="first") as messages:
        bodies = [messages.receive(timeout=10).body for _ in range(COUNT)]
    assert bodies == [b"%d" % number for number in range(COUNT)]


AWAY = """
import sys
import malamute{module}

def wait():
    print("connected", flush=True)
    sys.stdin.readline()
"""

BLOCKING_AWAY = """
client = malamute.connect(sys.argv[1], timeout=0.3)
wait()
out = client.publisher("s")
for number in range(7):
    out.publish("a", b"")
"""

ASYNCIO_AWAY = """
import asyncio

async def main():
    client = await malamute.aio.connect(sys.argv[1], timeout=0.3)
    wait()
    out = client.publisher("s")
    for number in range(7):
        await out.publish("a", b"")

asyncio.run(main())
"""


@pytest.mark.parametrize(("module", "text"), [("", BLOCKING_AWAY), (".aio", ASYNCIO_AWAY)])
def test_a_loss_is_said_on_standard_error_and_by_a_warning(module: str, text: str) -> None:
    with Broker() as broker:
        running = subprocess.Popen(
            [sys.executable, "-W", "always", "-c", AWAY.format(module=module) + text, broker.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        assert running.stdout.readline() == "connected\n"
    _, said = running.communicate("go on\n", timeout=60)
    words = "was not closed, and 7 messages were not confirmed and may be lost: close the client"
    assert f"malamute: the client of {broker.url} {words}" in said
    assert "ResourceWarning: malamute: the client of" in said


def collect_and_leave() -> None:
    """Collect dropped clients, and wait for those that leave in threads."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "malamute-leaving":
            thread.join(60)


def test_the_collector_does_not_wait_for_a_broker_that_is_away() -> None:
    with Broker() as broker:
        client = malamute.connect(broker.url, timeout=30)
        # Confirmed: others are lost if the connection ends behind them.
        out = client.publisher("s")
        broker.stop()
        out.publish("a", b"late")
        del client, out
        gc.collect()
        assert "malamute-leaving" in {thread.name for thread in threading.enumerate()}
        broker.start()
        collect_and_leave()
        with malamute.connect(broker.url) as other, other.subscribe("s", start="first") as messages:
            assert messages.receive(timeout=30).body == b"late"


def test_a_refusal_that_nobody_has_seen_is_said(
    malamute_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    def publish() -> None:
        out = malamute.connect(malamute_broker.url).publisher("$events")
        out.publish("a", b"")

    publish()
    with pytest.warns(ResourceWarning, match="messages were refused"):
        collect_and_leave()
    assert "messages were refused" in capsys.readouterr().err


def test_a_client_that_owes_nothing_leaves_without_a_word(
    malamute_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    client = malamute.connect(malamute_broker.url)
    messages, link = client.subscribe("s"), client._driver.link
    del client, messages
    gc.collect()
    assert link.socket.closed
    assert capsys.readouterr().err == ""
