"""Clients for any thread: threads and forks enqueue while the broker is killed; each job is stored once."""

import threading
import time
from contextlib import ExitStack

from depth import NIGHT, nightly
from rig_daemon import Daemon
from rig_programs import Program
from rig_waiting import PATIENCE

import malamute

THREADS = 1000 if NIGHT else 200
FORKS = 50
KILLS = 3

FORKER = """
import os
import sys
import malamute

url, count = sys.argv[1], int(sys.argv[2])
client = malamute.connect(url, threads="any", timeout=60)
client.ping()
children = []
for n in range(count):
    pid = os.fork()
    if pid == 0:
        try:
            for part in range(2):
                client.enqueue("jobs", "do", b"fork-%d-%d" % (n, part), id=f"fork-{n}-{part}")
            client.close()
            os._exit(0)
        except BaseException as error:
            print("failed", n, repr(error), flush=True)
            os._exit(1)
    children.append(pid)
print("forked", flush=True)
client.enqueue("jobs", "do", b"parent", id="parent")
print("codes", *{os.waitpid(pid, 0)[1] for pid in children}, flush=True)
client.close()
"""
"""A program whose children use the client of their parent: each connects anew."""


def jobs_of(client: malamute.Client, count: int) -> list[str]:
    """Return the jobs that are there, when they are all."""
    with client.work("jobs", credit=100) as work:
        jobs = []
        for _ in range(count):
            job = work.receive(PATIENCE)
            jobs.append(job.body.decode())
            job.ack()
        client.flush()
    assert client.query("service", name="jobs")["messages"] == 0, "a job was stored twice"
    return jobs


def test_threads_and_forks_enqueue_while_the_broker_is_killed_and_each_job_is_stored_once(
    daemon: Daemon, closing: ExitStack
) -> None:
    client = closing.enter_context(malamute.connect(daemon.url, threads="any", timeout=PATIENCE))
    program = Program(FORKER, daemon.url, str(FORKS))
    closing.callback(program.close)
    assert program.line() == ["forked"]
    failures: list[BaseException] = []
    under_way = threading.Semaphore(0)

    def enqueue(n: int) -> None:
        try:
            under_way.release()
            client.enqueue("jobs", "do", b"thread-%d" % n, id=f"thread-{n}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(THREADS)]
    for place, thread in enumerate(threads):
        thread.start()
        under_way.acquire()
        if place % (THREADS // KILLS) == THREADS // KILLS // 2:
            daemon.kill()
            daemon.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert program.line() == ["codes", "0"]
    expected = [f"thread-{n}" for n in range(THREADS)]
    expected += [f"fork-{n}-{part}" for n in range(FORKS) for part in range(2)]
    assert sorted(jobs_of(client, len(expected) + 1)) == sorted([*expected, "parent"])


@nightly
def test_the_rate_of_confirmed_jobs_of_one_to_a_thousand_threads(daemon: Daemon) -> None:
    """Print the figures: jobs of threads that wait at the same time share a write to the disk."""
    with malamute.connect(daemon.url, threads="any", timeout=PATIENCE) as client:
        for count in (1, 10, 100, 1000):
            each = max(1, 2000 // count)

            def enqueue(each: int = each) -> None:
                for _ in range(each):
                    client.enqueue("jobs", "do", b"x" * 100)

            threads = [threading.Thread(target=enqueue) for _ in range(count)]
            begun = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(f"{count} threads: {count * each / (time.perf_counter() - begun):,.0f} jobs/s")
        assert client.query("service", name="jobs")["messages"] == 4 * 2000
