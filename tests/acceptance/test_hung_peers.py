"""Peers that hang with work in hand, and peers that are only busy, with the settings that users have.

The work is given back long before its ack timeout, which is half an hour by default: what ends the wait here
is that the broker has given the connection up. The times that it took are printed; `make bench ARGS="idle"`
measures one beside thousands of connections.

By the defaults that is within ten seconds. What a busy machine adds is allowed for, and not more.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from depth import some
from rig_daemon import Daemon, small
from rig_programs import RECIPIENT, WORKER, Program
from rig_waiting import GIVEN_UP_SECONDS, PATIENCE, eventually, in_time

import malamute
from malamute.client.events import Event, Lost
from malamute.client.options import HEARTBEAT_SECONDS
from malamute.config import Config, ListenConfig
from malamute.config.derived import ConnectionLimits

Connect = Callable[..., malamute.Client]
Run = Callable[..., Program]

MIB = 1024 * 1024
BUSY_SECONDS = ListenConfig().heartbeat_interval + 2 * ListenConfig().heartbeat_timeout
"""Longer than a connection stands whose peer gives no sign of life."""

BUSY = """
import sys
import time
import malamute

def compute(seconds):
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1

def hold(seconds):
    # One call into C that gives the interpreter's lock to nobody until it is done.
    start = time.perf_counter()
    sum(range(10_000_000))
    rate = 10_000_000 / (time.perf_counter() - start)
    sum(range(int(seconds * rate)))

url, kind, seconds = sys.argv[1:]
with malamute.connect(url, timeout=60) as client, client.work("busy." + kind) as requests:
    client.on_event = lambda event: print("event", type(event).__name__, flush=True)
    print("ready", flush=True)
    request = requests.receive(60)
    print("got", request.attempts, flush=True)
    {"python": compute, "sleep": time.sleep, "lock": hold}[kind](float(seconds))
    request.reply(b"done").wait(60)
    print("done", flush=True)
"""
"""A worker that does one request, and says nothing to anybody while it does."""


@pytest.fixture(params=some(("tcp", "ipc"), "tcp"))
def url(request: pytest.FixtureRequest, new_daemon: Callable[..., Daemon], tmp_path: Path) -> Iterator[str]:
    """Where a broker listens, by TCP or a socket of the system."""
    if request.param == "tcp":
        yield new_daemon(small(128 * MIB)).start().url
    else:
        endpoint = f"ipc://{tmp_path}/broker"
        new_daemon(replace(small(128 * MIB), listen=ListenConfig(endpoints=(endpoint,)))).start()
        yield endpoint


def test_the_rig_has_the_settings_that_users_have() -> None:
    """But for the size of the store, and what has to fit into it."""
    ours, theirs = small(), Config()
    listen = replace(ours.listen, connections=theirs.listen.connections)
    storage = replace(ours.storage, size=theirs.storage.size)
    assert replace(ours, storage=storage, limits=theirs.limits, listen=listen) == theirs


def test_by_the_defaults_who_hangs_is_given_up_in_time() -> None:
    """A heartbeat is late, or libzmq's question has no answer; and what is looked at is who holds work."""
    listen, probe_interval = ListenConfig(), ConnectionLimits().probe_interval
    assert HEARTBEAT_SECONDS + listen.heartbeat_timeout + probe_interval < GIVEN_UP_SECONDS
    assert listen.heartbeat_interval + listen.heartbeat_timeout + probe_interval < GIVEN_UP_SECONDS


def test_stopped_peers_are_given_up_and_what_they_hold_is_given_back(
    url: str, connect_to: Connect, run: Run
) -> None:
    """Two mailbox readers and a worker. No heartbeat gets out any more to those to whom much is sent then."""
    alice = connect_to(url, "alice")
    readers = {name: run(RECIPIENT, url, name) for name in ("bob", "full")}
    for name, reader in readers.items():
        alice.send(name, "hello", b"1", assurance="stored").wait(PATIENCE)
        assert reader.line() == ["got", "1", "1"]
    more_credit = WORKER.replace("client.work(service)", "client.work(service, credit=100)")
    worker = run(more_credit, url, "svc", "stuck")
    assert worker.line() == ["ready"]
    asked = [alice.request("svc", "do", b"this", timeout=2 * PATIENCE)]
    alice.flush()
    assert worker.line() == ["got", "this", "1"]
    for stuck in (*readers.values(), worker):
        stuck.wait_stopped()
    stopped = time.monotonic()
    for _ in range(7):
        alice.send("full", "more", bytes(MIB), assurance="stored").wait(PATIENCE)
        asked.append(alice.request("svc", "do", bytes(MIB), timeout=2 * PATIENCE))
    alice.flush()
    with connect_to(url, "other").work("svc") as requests:
        for _ in range(8):
            requests.receive(PATIENCE).reply(b"done")
        in_time("with the other worker", stopped)
    for name in ("bob", "full", "stuck"):
        eventually(lambda n=name: not alice.query("client", id=n)["connected"], f"{name} is given up")
        in_time(f"{name} was given up", stopped)
    assert [row["in_flight"] for row in alice.query("mailboxes") if row["name"] in readers] == [0, 0]
    assert [[reply.body for reply in replies] for replies in asked] == [[b"done"]] * 8
    readers["bob"].send_signal(signal.SIGCONT)
    readers["bob"].tell("go on")
    eventually(lambda: alice.query("client", id="bob")["connected"], "bob is back")


def test_workers_that_are_busy_for_long_keep_their_requests(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """In Python, in a sleep, and in C code that holds the interpreter's lock; all at the same time."""
    kinds = some(("python", "sleep", "lock"), "sleep", "lock")
    workers = [run(BUSY, daemon.url, kind, str(BUSY_SECONDS)) for kind in kinds]
    for worker in workers:
        assert worker.line() == ["ready"]
    client = connect()
    pending = [client.request(f"busy.{kind}", "do", b"", timeout=10 * PATIENCE) for kind in kinds]
    client.flush()
    for worker in workers:
        assert worker.line() == ["got", "1"]
    for worker in workers:
        assert worker.line(10 * PATIENCE) == ["done"]
    assert [[reply.body for reply in replies] for replies in pending] == [[b"done"]] * len(kinds)


REPORTING = """
import sys
import threading
import malamute

url, ack_timeout = sys.argv[1:]
with malamute.connect(url, timeout=60) as client:
    client.on_event = lambda event: print("event", type(event).__name__, flush=True)

    @client.service("svc", ack_timeout=float(ack_timeout))
    def slowly(request):
        print("got", request.attempts, flush=True)
        sys.stdin.readline()
        client.stop()
        return b"done"

    client.run()
"""
"""A worker with a handler that takes as long as it is set to, and reports on its request meanwhile."""


def test_while_the_broker_stands_still_nobody_is_late(daemon: Daemon, connect: Connect, run: Run) -> None:
    """As after a suspend of its host: it reads what was said meanwhile before it gives anybody up."""
    ack_timeout = 4.0
    worker = run(REPORTING, daemon.url, str(ack_timeout))
    client = connect()
    replies = client.request("svc", "do", b"", timeout=2 * PATIENCE)
    client.flush()
    assert worker.line() == ["got", "1"]
    daemon.send_signal(signal.SIGSTOP)
    threading.Event().wait(2 * ack_timeout)
    daemon.send_signal(signal.SIGCONT)
    threading.Event().wait(ack_timeout)
    worker.tell("end")
    assert [reply.body for reply in replies] == [b"done"]
    assert worker.lines() == [], "it was neither cut off nor was its request recalled"


def test_clients_that_do_nothing_keep_their_connections(
    new_daemon: Callable[..., Daemon], closing: ExitStack
) -> None:
    """Heartbeats and probes come at the same moments here, so that each probe finds a heartbeat on its way.

    They come more often than by default, where that takes half a minute.
    """
    config = small()
    daemon = new_daemon(replace(config, overrides={"probe_interval": 1 / 30})).start()
    events: list[Event] = []
    clients = [closing.enter_context(malamute.connect(daemon.url, heartbeat=1.0)) for _ in range(100)]
    for client in clients:
        client.on_event = events.append
    threading.Event().wait(ListenConfig().heartbeat_interval + 2 * ListenConfig().heartbeat_timeout)
    for client in clients:
        client.query("status", timeout=PATIENCE)
    assert not [event for event in events if isinstance(event, Lost)]
