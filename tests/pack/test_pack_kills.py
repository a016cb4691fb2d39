"""Brokers and runners as processes that are killed at any moment, over bad lines: each message arrives once.

The source, the first target and the second are in three network namespaces. Packets on the ways between them
are lost, late, repeated, or all lost for a while.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import history
import pytest
from bad_link import BadLink, Packets, why_no_link
from depth import nightly
from free_ports import free_port
from history import PUBLISH, PUBLISHED, STATE, STORED, Record
from real_machine import RealNetwork, why_not

import malamute

KILLS = 100
PATIENCE = 300.0
STREAM = "sensors"
MISSING = why_not("network") or why_no_link()

BAD = {
    "lost": Packets(lost=0.1),
    "late": Packets(delay_seconds=0.05, more_seconds=0.05),
    "repeated": Packets(repeated=0.2, more_seconds=0.01),
    "cut": Packets(lost=1.0),
}


class Process:
    """A command in a network namespace that is killed, and started again at once."""

    def __init__(self, name: str, log: Path, namespace: str, *arguments: str) -> None:
        inside = ("ip", "netns", "exec", namespace) if namespace else ()
        self._arguments = [*inside, sys.executable, "-m", "malamute", *arguments]
        self.name = name
        self._log = log.open("ab")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._arguments, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        # `ip` has become the command.
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


class Chain(NamedTuple):
    """Three brokers in a row, with a runner each for the second and the third, and the lines between."""

    urls: list[str]
    processes: list[Process]
    lines: list[BadLink]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with ExitStack() as stack:
        first, last = (
            stack.enter_context(closing(RealNetwork(os.getpid() % 10_000 + number))) for number in (0, 1)
        )
        # The second broker is where the tests are, and has an address on the way to each of the others.
        port = free_port()
        places = {"a": (first.name, first.address), "b": ("", "0.0.0.0"), "c": (last.name, last.address)}
        every = []
        for name, (namespace, address) in places.items():
            run = ("broker", "run", "--data", str(tmp_path / name), "--listen", f"tcp://{address}:{port}")
            more = ("--set", "storage.size=1GiB", "--set", "listen.insecure=true")
            every.append(Process(name, tmp_path / f"{name}.log", namespace, *run, *more))
            stack.callback(every[-1].end)
        urls = [f"tcp://{address}:{port}" for address in (first.address, "127.0.0.1", last.address)]
        sources = {urls[1]: (urls[0], "", "b"), urls[2]: (f"tcp://{last.host}:{port}", last.name, "c")}
        for target, (source, namespace, name) in sources.items():
            with malamute.connect(target, timeout=PATIENCE) as client:
                given = {"link": "up", "urls": [source], "remote": STREAM, "stream": STREAM}
                client.change("link.set", **given, start="first")
            run = ("pack", "run", "--url", target)
            every.append(Process(f"runner of {name}", tmp_path / f"runner-{name}.log", namespace, *run))
            stack.callback(every[-1].end)
        lines = [stack.enter_context(way.bad(Packets(), 1.0)) for way in (first, last)]
        yield Chain(urls, every, lines)


def stored(url: str, records: list[Record]) -> int:
    """Note all messages of the stream at a broker, and return their number."""

    def note(kind: str, key: str = "", sequence: int = 0) -> None:
        records.append(Record(time.monotonic_ns(), url, kind, STREAM, key, sequence))

    with malamute.connect(url, timeout=PATIENCE) as client:
        # Sequences that were reserved when a broker was killed are left out: only the count is known.
        count = int(client.query("stored", stream=STREAM)[0]["count"])
        note(STATE)
        for message in islice(client.subscribe(STREAM, start="first", committed=True), count):
            note(STORED, bytes(message.body).decode(), message.sequence)
    return count


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_each_message_arrives_once_over_bad_lines_while_every_process_is_killed(chain: Chain) -> None:
    chance, over, begun = random.Random(1), threading.Event(), threading.Event()
    records: list[Record] = []

    def note(kind: str, number: int) -> None:
        records.append(Record(time.monotonic_ns(), "publisher", kind, STREAM, str(number)))

    def publish() -> None:
        number = 0
        with malamute.connect(chain.urls[0], timeout=PATIENCE) as client, client.publisher(STREAM) as out:
            while not over.is_set():
                batch = range(number, number + 200)
                for number in batch:
                    note(PUBLISH, number)
                    out.publish("n", b"%d" % number)
                number += 1
                out.flush(timeout=PATIENCE)
                for confirmed in batch:
                    note(PUBLISHED, confirmed)
                begun.set()
                over.wait(0.02)

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert begun.wait(PATIENCE)
    done: Counter[str] = Counter()
    for _ in range(KILLS):
        line, kind = chance.choice(chain.lines), chance.choice([*BAD])
        line.packets = BAD[kind]
        done[kind] += 1
        over.wait(chance.uniform(0.1, 3.0))
        process = chance.choice(chain.processes)
        process.kill()
        done[process.name] += 1
        over.wait(chance.uniform(0.1, 2.0))
        line.packets = Packets()
    # A cut of more than a minute, under load, after which the line alone is waited for.
    chain.lines[1].packets = BAD["cut"]
    over.wait(90.0)
    chain.lines[1].packets = Packets()
    over.wait(1.0)
    over.set()
    publishing.join()
    sent = sum(record.kind == PUBLISHED for record in records)
    for url in chain.urls[1:]:
        _await(url, sent)
        found = [*records]
        assert stored(url, found) == sent
        assert history.check(found) == []
    packets = sum((line.counts for line in chain.lines), Counter())
    print(f"{sent} messages; {dict(done)}; packets {dict(packets)}")


def _await(url: str, count: int) -> None:
    """Return when a broker has so many messages."""
    end = time.monotonic() + PATIENCE
    with malamute.connect(url, timeout=PATIENCE) as client:
        while client.query("stored", stream=STREAM)[0]["count"] < count:
            assert time.monotonic() < end, "the messages do not arrive"
            time.sleep(0.2)
