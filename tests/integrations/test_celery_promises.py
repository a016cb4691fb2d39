"""The promises of the adapter of Celery, with brokers and workers that are processes, and are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import pytest
from depth import nightly
from rig_daemon import Daemon
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.bench.machine import cpu_seconds
from malamute.config import Config

pytest.importorskip("celery", reason="celery is not installed: see the extra celery")

from celery import Celery, chain, group
from celery_worker import Worker, environment_of, url_of

import malamute.integrations.celery


class Site:
    """A broker, its application, and the runs of its tasks."""

    def __init__(self, daemon: Daemon, stack: ExitStack) -> None:
        self.daemon = daemon
        self.runs_file = daemon.directory / "runs"
        self.runs_file.touch()
        self._stack, self._workers = stack, 0
        self.app = Celery("site", broker=url_of(daemon), backend=url_of(daemon), set_as_current=False)
        self.app.conf.broker_connection_timeout = PATIENCE
        stack.callback(self.close)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that has the application."""
        return environment_of(self.daemon, self.runs_file)

    def close(self) -> None:
        """Close the connections of the application."""
        self.app.close()
        if self.app.backend._connected is not None:
            with suppress(malamute.MalamuteError):
                self.app.backend._connected.close(0)

    def worker(self, *options: str, pool: str = "prefork") -> Worker:
        """Start a worker."""
        self._workers += 1
        worker = Worker(self.daemon, self.runs_file, f"w{self._workers}", *options, pool=pool)
        self._stack.callback(worker.close)
        return worker

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        """Send a task, and return its result."""
        return self.app.send_task(f"celery_tasks.{task}", arguments, **options)

    def runs(self, name: str = "") -> list[str]:
        """The processes that began a task of this name, once for each time."""
        lines = [line.split() for line in self.runs_file.read_text().splitlines()]
        return [process for begun, process in lines if not name or begun == name]

    def mailbox(self) -> dict[str, Any]:
        """The figures of the queue."""
        with malamute.connect(self.daemon.url, timeout=PATIENCE) as client:
            return dict(client.query("mailbox", name="celery"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A broker that runs, without a worker."""
    daemon = Daemon(tmp_path / "broker").start()
    with ExitStack() as stack:
        stack.callback(daemon.close)
        yield Site(daemon, stack)


def test_every_task_runs_and_has_its_result_whoever_is_killed(site: Site) -> None:
    first, second = site.worker("-c", "2"), site.worker("-c", "2")
    sent = {name: site.send("work", name, 0.02) for name in (f"task-{n}" for n in range(20))}
    first.ready()
    second.ready()

    # A child of a pool that is in the middle of a task.
    sent["in-child"] = site.send("work", "in-child", 0.5)
    eventually(lambda: site.runs("in-child"), "a child has begun the task")
    os.kill(int(site.runs("in-child")[0]), signal.SIGKILL)
    eventually(lambda: len(site.runs("in-child")) > 1, "the task of a killed child begins again")

    # The main process of a worker, while each worker has more than it can begin.
    sent |= {name: site.send("work", name, 0.1) for name in (f"more-{n}" for n in range(16))}
    eventually(lambda: site.runs("more-3"), "workers are at it")
    first.kill()

    # The broker, in the middle of all that. Tasks that are sent meanwhile wait for it.
    site.daemon.kill()
    site.daemon.start()
    sent |= {name: site.send("work", name) for name in (f"late-{n}" for n in range(10))}

    assert [result.get(timeout=PATIENCE) for result in sent.values()] == [*sent]
    assert {*sent} == {line.split()[0] for line in site.runs_file.read_text().splitlines()}
    eventually(lambda: site.mailbox()["messages"] == 0, "nothing is left in the queue")
    assert site.mailbox()["dead_letters"] == 0


def test_a_task_of_next_year_survives_and_another_process_revokes_it(site: Site) -> None:
    worker = site.worker("-c", "1").ready()
    inspect = site.app.control.inspect(timeout=PATIENCE, limit=1)
    year = datetime.now(UTC) + timedelta(days=365)
    delayed = [site.send("work", f"year-{n}", eta=year) for n in range(50)]
    assert site.send("work", "now").get(timeout=PATIENCE) == "now"
    # Such tasks are in the broker, and the worker has none of them.
    assert [*inspect.scheduled().values()] == [[]]
    assert [*inspect.reserved().values()] == [[]]
    assert site.mailbox()["delayed"] == 50

    # Mail that is no task, and unknown tasks, are dead letters at once, and the worker goes on.
    with malamute.connect(site.daemon.url, timeout=PATIENCE) as client:
        client.send("celery", "hello", b"no task")
    site.send("unknown")
    assert site.send("work", "later").get(timeout=PATIENCE) == "later"
    eventually(lambda: site.mailbox()["dead_letters"] == 2, "both are dead letters")

    worker.kill()
    site.daemon.restart()
    assert site.mailbox()["delayed"] == 50
    revoke = "import sys; from celery_tasks import app; app.control.revoke(sys.argv[1:])"
    ids = [result.id for result in delayed[:2]]
    subprocess.run([sys.executable, "-c", revoke, *ids], env=site.environment, check=True)
    assert site.mailbox()["delayed"] == 48
    assert [result.state for result in delayed[:3]] == ["REVOKED", "REVOKED", "PENDING"]


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=nightly)])
def test_a_task_that_holds_the_interpreter_keeps_its_lease(site: Site, seconds: float) -> None:
    # The heartbeat is half a second: a client whose thread for it stood still would be given up within two.
    site.worker("-c", "1", pool="solo")
    other = site.worker("-c", "1", pool="solo").ready()
    name = f"compute-{uuid4().hex}"
    assert site.send("compute", name, seconds).get(timeout=PATIENCE + seconds) > 1
    eventually(lambda: site.mailbox()["messages"] == 0, "it is acknowledged")
    assert len(site.runs(name)) == 1, other.log
    assert site.mailbox()["redelivered"] == 0


@pytest.mark.parametrize("pool", ["threads", pytest.param("gevent", marks=nightly)])
def test_a_pool_in_one_process_goes_on_after_the_broker_was_away(site: Site, pool: str) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent", reason="gevent is not installed: see the extra dev")
    site.worker("-c", "8", pool=pool).ready()
    sent = {name: site.send("work", name, 0.3) for name in (f"before-{n}" for n in range(8))}
    eventually(lambda: len(site.runs()) == 8, "eight have begun")
    assert len({*site.runs()}) == 1, "all in one process"
    site.daemon.kill()
    site.daemon.start()
    sent |= {name: site.send("work", name) for name in (f"after-{n}" for n in range(8))}
    assert [result.get(timeout=PATIENCE) for result in sent.values()] == [*sent]

    # The body of a chord is sent after the last task of a group within its header, and not before.
    def step(value: int) -> Any:
        return site.app.signature("celery_tasks.number", (value,), immutable=True)

    within = chain(step(3), group(step(4), step(5)))
    assert chain(step(1), group(step(2), within), step(6)).apply_async().get(timeout=PATIENCE) == 6


@nightly
def test_workers_go_on_after_the_broker_was_away_for_long(site: Site) -> None:
    worker = site.worker("-c", "2").ready()
    sent = {name: site.send("work", name, 1.0) for name in (f"before-{n}" for n in range(8))}
    eventually(lambda: site.runs(), "workers are at it")
    site.daemon.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(30)
    site.daemon.start()
    sent |= {name: site.send("work", name) for name in (f"after-{n}" for n in range(8))}
    assert [result.get(timeout=PATIENCE) for result in sent.values()] == [*sent]
    worker.stop()


@nightly
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_many_threads_and_forks_enqueue(site: Site, pool: str) -> None:
    site.worker("-c", "4", pool=pool)
    enqueue = """
import os, sys, threading
from celery_tasks import work
work.delay('parent')
children = []
for _ in range(4):
    children.append(os.fork())
    if not children[-1]:
        break
def send(n):
    work.delay(f"{os.getpid()}-{n}")
threads = [threading.Thread(target=send, args=(n,)) for n in range(200)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if 0 in children:
    os._exit(0)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
    subprocess.run([sys.executable, "-c", enqueue], env=site.environment, check=True)
    eventually(lambda: site.mailbox()["messages"] == 0, "all are done")
    assert site.mailbox()["dead_letters"] == 0
    assert len(site.runs()) == 1 + 5 * 200


@nightly
def test_the_task_of_a_killed_worker_begins_elsewhere(site: Site) -> None:
    took = []
    for name in (f"killed-{n}" for n in range(5)):
        first = site.worker("-c", "1").ready()
        site.send("work", name, 3600.0)
        eventually(lambda name=name: site.runs(name), "it has begun")  # type: ignore[misc]
        second = site.worker("-c", "1").ready()
        start = time.monotonic()
        first.kill()
        eventually(lambda name=name: len(site.runs(name)) > 1, "it begins elsewhere")  # type: ignore[misc]
        took.append(time.monotonic() - start)
        first.close()
        second.close()
        eventually(lambda: site.mailbox()["ready"] == 1, "it is back")
        assert site.app.control.purge() == 1
    print(f"begun elsewhere after {median(took):.2f} s (median of five), {max(took):.2f} s at most")


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tasks", [5_000, 100_000])
def test_delayed_tasks_cost_a_worker_nothing(site: Site, tasks: int) -> None:
    site.daemon.configure(Config())  # with room for them
    site.daemon.restart()
    worker = site.worker("-c", "1", "--without-gossip", "--without-mingle").ready()
    inspect = site.app.control.inspect(timeout=PATIENCE, limit=1)
    assert site.send("work", "before").get(timeout=PATIENCE) == "before"
    before, start = _used(worker.process.pid), time.monotonic()
    # Sent as quickly as possible: a message says nothing of its assurance.
    site.app.conf.broker_transport_options = {"assurance": "none"}
    year = datetime.now(UTC) + timedelta(days=365)
    with site.app.producer_or_acquire() as producer:
        for number in range(tasks):
            site.send("work", f"year-{number}", eta=year, producer=producer, ignore_result=True)
    eventually(lambda: site.mailbox()["delayed"] == tasks, "all are there", 600.0)
    after, seconds = _used(worker.process.pid), time.monotonic() - start
    print(
        f"the main process of a worker: {before[0] / 2**20:.1f} MiB, then {after[0] / 2**20:.1f} MiB; "
        f"{1e3 * (after[1] - before[1]) / seconds:.1f} ms of processor time a second"
    )
    assert [*inspect.scheduled().values()] == [*inspect.reserved().values()] == [[]]
    assert after[0] - before[0] < 2 * 2**20
    assert site.send("work", "after").get(timeout=PATIENCE) == "after"


def _used(pid: int) -> tuple[int, float]:
    """The resident bytes of a process, and the seconds of its processor time."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), cpu_seconds(pid)
