"""Participants: subscribers in threads, and workers in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from malamute.cli.demo.tally import DemoTopic
from malamute.client.sync.client import connect
from malamute.errors import MalamuteError

END = "demo.end"
"""The subject of the last message of each stream, by which every subscriber knows that it has all."""

SERVICE = "delays"
START_SECONDS = 30.0
WAIT_SECONDS = 120.0


class WorkerKind(NamedTuple):
    """A worker, and how often it repeats the same work."""

    name: str
    effort: int


WORKERS = (WorkerKind("fast", 50), WorkerKind("medium", 400), WorkerKind("slow", 3200))


class Listener(threading.Thread):
    """Counts the messages of one topic until the end. `error` is the failure, if any."""

    def __init__(self, url: str, topic: DemoTopic) -> None:
        super().__init__(name=f"listener {topic.pattern}", daemon=True)
        self.topic = topic
        self.messages = 0
        self.size_bytes = 0
        self.gaps = 0
        self.error: MalamuteError | None = None
        self.ready = threading.Event()
        self._url = url

    def run(self) -> None:
        """Subscribe, report that it is `ready`, and count."""
        try:
            self._listen()
        except MalamuteError as error:
            self.error = error
        finally:
            self.ready.set()

    def _listen(self) -> None:
        with (
            connect(self._url, timeout=START_SECONDS) as client,
            client.subscribe(self.topic.stream, self.topic.pattern, END) as messages,
        ):
            self.ready.set()
            while batch := messages.take(1000, timeout=WAIT_SECONDS):
                ended = batch[-1].subject == END
                if ended:
                    batch.pop()
                self.messages += len(batch)
                self.size_bytes += sum(len(message.body) for message in batch)
                if ended:
                    break
            self.gaps = messages.gaps


def answer(url: str, kind: WorkerKind, together: Barrier) -> None:
    """Answer each request with the statistics of its delays, until the process is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with connect(url, address=f"worker-{kind.name}", timeout=START_SECONDS) as client:
        requests = client.work(SERVICE, "delay.#")
        together.wait(WAIT_SECONDS)
        for request in requests:
            delays = json.loads(request.body)
            for _ in range(kind.effort):
                found = summary(delays)
            request.reply(json.dumps({"worker": kind.name, **found}).encode())


def summary(delays: Sequence[int]) -> dict[str, float]:
    """Return the number of flights, the sum of minutes late, and the median."""
    return {"flights": len(delays), "minutes": sum(delays), "median": statistics.median(delays)}


@contextmanager
def working(url: str) -> Iterator[Callable[[], object]]:
    """Run the workers during the block. The yielded function waits until all of them are ready."""
    # A forked child would share the sockets of this process.
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(len(WORKERS) + 1)
    workers = [context.Process(target=answer, args=(url, kind, together), daemon=True) for kind in WORKERS]
    for process in workers:
        process.start()
    try:
        yield lambda: together.wait(START_SECONDS)
    finally:
        for process in workers:
            process.terminate()
        for process in workers:
            process.join()
            process.close()
