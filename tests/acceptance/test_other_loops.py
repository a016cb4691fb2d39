"""A client in the event loop of another library, by its one file, while the broker is killed."""

import asyncio
import importlib.util
import selectors
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack

import pytest
from depth import nightly
from rig_daemon import Daemon
from rig_waiting import PATIENCE

import malamute

ROUNDS = 3
"""Each broker but the last is killed."""

PATCHED = {
    "gevent": """
import gevent.monkey
gevent.monkey.patch_all()
from gevent import sleep, spawn
result = gevent.Greenlet.get
""",
    "eventlet": """
import eventlet
eventlet.monkey_patch()
from eventlet import sleep, spawn
result = eventlet.greenthread.GreenThread.wait
""",
}
"""The beginnings of a program of greenlets, by their library."""

GREENLETS = """
import select
import sys
import malamute

url, threads = sys.argv[1:]
ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        sleep(0.001)

spawn(tick)
client = malamute.connect(url, threads=threads, timeout=60)
work = client.work("jobs", credit=10)
# A waiting call lets others run.
print("ready", flush=True)
before, first = ticks, work.receive(60)
assert ticks > before, "the wait held up the other greenlets"
first.ack()
if threads == "any":
    calls = [spawn(client.publish, "s", "a", b"") for _ in range(100)]
    assert sorted(map(result, calls)) == [*range(1, 101)]
done = [first.body.decode()]
fd = client.fileno()
print("done", *done, flush=True)
while done[-1] != "last":
    select.select([fd], [], [], client.next_timeout())
    more = True
    while more:
        more = client.dispatch()
        for job in work.take(10, timeout=0):
            job.ack()
            if job.body.decode() not in done:
                done.append(job.body.decode())
                print("done", job.body.decode(), flush=True)
client.close()
"""


def killing(daemon: Daemon, rounds: int = ROUNDS) -> Iterable[tuple[malamute.Client, str]]:
    """Yield a client of each broker, and a job to send: the broker is killed when the job is done."""
    for n in range(rounds):
        with malamute.connect(daemon.url, timeout=PATIENCE) as sender:
            yield sender, f"job-{n}"
        daemon.kill()
        daemon.start()
    with malamute.connect(daemon.url, timeout=PATIENCE) as sender:
        yield sender, "last"


@pytest.mark.parametrize("threads", ["one", "any"])
def test_a_client_in_a_loop_of_selectors_gets_every_job_over_reconnects(
    daemon: Daemon, closing: ExitStack, threads: str
) -> None:
    client = closing.enter_context(malamute.connect(daemon.url, threads=threads, timeout=PATIENCE))  # type: ignore[arg-type]
    work, fd = client.work("jobs", credit=10), client.fileno()
    selector = closing.enter_context(selectors.DefaultSelector())
    selector.register(fd, selectors.EVENT_READ)
    done: set[str] = set()
    for sender, job in killing(daemon):
        sender.enqueue("jobs", "do", job.encode())
        while job not in done:
            selector.select(client.next_timeout())
            while client.dispatch():
                pass
            for request in work.take(10, timeout=0):
                request.ack()
                done.add(request.body.decode())
        assert client.fileno() == fd


def test_a_client_in_a_loop_of_asyncio_gets_every_job_over_reconnects(
    daemon: Daemon, closing: ExitStack
) -> None:
    client = closing.enter_context(malamute.connect(daemon.url, timeout=PATIENCE))
    work = client.work("jobs", credit=10)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        jobs: asyncio.Queue[str] = asyncio.Queue()

        def dispatch() -> None:
            while client.dispatch():
                pass
            while request := work.poll():
                request.ack()
                jobs.put_nowait(request.body.decode())
            if (timeout := client.next_timeout()) is not None:
                loop.call_later(timeout, dispatch)

        loop.add_reader(client.fileno(), dispatch)
        for sender, job in killing(daemon):
            sender.enqueue("jobs", "do", job.encode())
            while await jobs.get() != job:
                pass  # a job whose acknowledgement was lost with the connection

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("library", "threads"),
    [
        ("gevent", "one"),
        ("gevent", "any"),
        pytest.param("eventlet", "one", marks=nightly),
        pytest.param("eventlet", "any", marks=nightly),
    ],
)
def test_a_client_under_greenlets_lets_others_run_and_gets_every_job_over_reconnects(
    daemon: Daemon, closing: ExitStack, library: str, threads: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    # eventlet itself warns that it is deprecated.
    warnings = [] if library == "eventlet" else ["-W", "error"]
    command = [sys.executable, *warnings, "-c", PATCHED[library] + GREENLETS, daemon.url, threads]
    program = closing.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    closing.callback(program.kill)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    for sender, job in killing(daemon, rounds=1):
        sender.enqueue("jobs", "do", job.encode())
        assert program.stdout.readline() == f"done {job}\n"
    assert program.wait(PATIENCE) == 0
