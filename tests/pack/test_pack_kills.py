"""Brokers and runners as processes that are killed at any moment: each message arrives once, in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice, pairwise
from pathlib import Path

import pytest
from depth import nightly
from free_ports import free_port

import malamute

KILLS = 100
PATIENCE = 300.0
STREAM = "sensors"


class Process:
    """A command that is killed, and started again at once."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._arguments = [sys.executable, "-m", "malamute", *arguments]
        self._log = log.open("ab")
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._arguments, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[tuple[list[str], list[Process]]]:
    """Three brokers in a row, linked, with a runner each for the second and the third; their URLs first."""
    urls = [f"tcp://127.0.0.1:{free_port()}" for _ in "abc"]
    with ExitStack() as stack:
        every = []
        for name, url in zip("abc", urls, strict=True):
            run = ("broker", "run", "--data", str(tmp_path / name), "--listen", url)
            every.append(Process(tmp_path / f"{name}.log", *run, "--set", "storage.size=1GiB"))
            stack.callback(every[-1].end)
        for source, target in pairwise(urls):
            with malamute.connect(target, timeout=PATIENCE) as client:
                given = {"link": "up", "urls": [source], "remote": STREAM, "stream": STREAM}
                client.change("link.set", **given, start="first")
            every.append(Process(tmp_path / f"runner-{target[-5:]}.log", "pack", "run", "--url", target))
            stack.callback(every[-1].end)
        yield urls, every


@nightly
@pytest.mark.timeout(3600)
def test_each_message_arrives_once_while_every_process_is_killed(
    chain: tuple[list[str], list[Process]],
) -> None:
    urls, processes = chain
    chance, over, begun, sent = random.Random(1), threading.Event(), threading.Event(), [0]

    def publish() -> None:
        with malamute.connect(urls[0], timeout=PATIENCE) as client, client.publisher(STREAM) as out:
            while not over.is_set():
                out.publish("n", b"%d" % sent[0])
                sent[0] += 1
                begun.set()
                if sent[0] % 200 == 0:
                    over.wait(0.02)
            out.flush(timeout=PATIENCE)

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert begun.wait(PATIENCE)
    for _ in range(KILLS):
        over.wait(chance.uniform(0.1, 5.0))
        chance.choice(processes).kill()
    over.set()
    publishing.join()
    with malamute.connect(urls[2], timeout=PATIENCE) as client:
        arriving = islice(client.subscribe(STREAM, start="first", committed=True), sent[0])
        assert [int(message.body) for message in arriving] == [*range(sent[0])]
        # Sequences that were reserved when a broker was killed are left out, so they count more.
        assert client.query("stored", stream=STREAM)[0]["count"] == sent[0]
    print(f"{sent[0]} messages over {KILLS} kills")
