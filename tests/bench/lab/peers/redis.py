"""Redis Streams with redis-py, blocking."""

from __future__ import annotations

from typing import Any

import redis

from lab.peers.work import NAME, PeerWork, ask_one_by_one
from malamute.bench.processes import Measured
from malamute.bench.workloads import BATCH, QUIET_SECONDS, TIMEOUT_SECONDS, Begin, Stopwatch, run_in_threads

REPLIES, GROUP, FIELD = "replies", "workers", "body"
BLOCK_MS = int(QUIET_SECONDS * 1e3)

Client = Any


def _connect(work: PeerWork) -> Client:
    # Protocol 2, in which a read answers with lists.
    return redis.Redis(work.host, work.port, protocol=2, socket_timeout=TIMEOUT_SECONDS)


def publish_batched(begin: Begin, work: PeerWork) -> Measured:
    """XADD in pipelines, a batch each."""
    fields = {FIELD: work.body}
    with _connect(work) as client:
        client.ping()
        begin()
        stopwatch = Stopwatch()
        for size in work.batches:
            pipeline = client.pipeline(transaction=False)
            for _ in range(size):
                pipeline.xadd(NAME, fields)
            pipeline.execute()
        return stopwatch.measured()


def publish_and_wait(begin: Begin, work: PeerWork) -> Measured:
    """XADD, each answered before the next: the library has no other way without a pipeline."""
    fields = {FIELD: work.body}
    with _connect(work) as client:
        client.ping()
        return ask_one_by_one(begin, work, lambda: client.xadd(NAME, fields))


def subscribe(begin: Begin, work: PeerWork) -> Measured:
    """XREAD of up to a thousand, each reader with a connection and a thread."""
    return run_in_threads(begin, [(_read, work)] * work.subscribers)


def _read(begin: Begin, work: PeerWork) -> Measured:
    last, received = "0", 0
    with _connect(work) as client:
        client.ping()
        begin()
        while received < work.messages:
            answer = client.xread({NAME: last}, count=BATCH, block=BLOCK_MS)
            if not answer:
                break
            entries = answer[0][1]
            received += len(entries)
            last = entries[-1][0]
    return {"received": received, "latencies": []}


def answer(begin: Begin, work: PeerWork) -> Measured:
    """Take requests as a group, and add replies to a stream, acknowledging in the same pipeline."""
    with _connect(work) as client:
        client.xgroup_create(NAME, GROUP, mkstream=True)
        begin()
        stopwatch = Stopwatch()
        for _ in range(work.messages):
            taken = client.xreadgroup(GROUP, "worker", {NAME: ">"}, count=1, block=BLOCK_MS)
            ((number, fields),) = taken[0][1]
            pipeline = client.pipeline(transaction=False)
            pipeline.xadd(REPLIES, fields)
            pipeline.xack(NAME, GROUP, number)
            pipeline.execute()
        return stopwatch.measured()


def ask(begin: Begin, work: PeerWork) -> Measured:
    """Add a request, and read the reply from its stream. Both are stored."""
    fields = {FIELD: work.body}
    last = "0"
    with _connect(work) as client:
        client.ping()

        def ask_once() -> None:
            nonlocal last
            client.xadd(NAME, fields)
            last = client.xread({REPLIES: last}, count=1, block=BLOCK_MS)[0][1][0][0]

        return ask_one_by_one(begin, work, ask_once)
