"""Two brokers of a pair as processes: kills, pauses and switch-overs. All that was confirmed is counted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from depth import nightly
from free_ports import free_port

import malamute

PATIENCE = 60.0
ROUNDS = 20


class Pair:
    """The brokers `a` and `b` on one machine, with a register in a file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
        self.links = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in "ab":
            (root / f"{name}.toml").write_text(
                f"""
[listen]
endpoints = ["{self.urls[name]}"]
[storage]
directory = "{root / name}"
size = "64MiB"
[limits]
message_bytes = "1MiB"
[pair]
name = "{name}"
register = "file:{root}/pair.json"
listen = "{self.links[name]}"
advertise = ["{self.urls[name]}"]
"""
            )

    def call(self, command: str, name: str = "a", *options: str) -> dict[str, Any]:
        done = subprocess.run(
            [*MALAMUTE, "pair", command, "--config", str(self.root / f"{name}.toml"), "--json", *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def start(self, name: str) -> None:
        with open(self.root / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*MALAMUTE, "broker", "run", "--config", str(self.root / f"{name}.toml"), "--json"],
                stdout=log,
                stderr=log,
            )

    @property
    def value(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "pair.json").read_bytes())
        return found

    def await_sync(self) -> str:
        """Wait until both are in sync; return the primary."""
        self.wait(lambda: len(self.value["in_sync"]) == 2)
        primary: str = self.value["primary"]
        return primary

    def wait(self, done: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < ends, self.logs()
            time.sleep(0.02)

    def logs(self) -> str:
        return "\n".join((self.root / f"{name}.log").read_text() for name in "ab")

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


MALAMUTE = (sys.executable, "-m", "malamute")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.call("create")
    pair.call("join", "b")
    for name in "ab":
        pair.start(name)
    yield pair
    pair.stop()


class Load(threading.Thread):
    """A client that publishes and waits, one message after the other, as long as `go_on` says."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        self.confirmed: list[int] = []
        self.changed = threading.Condition()
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with malamute.connect(list(self.pair.urls.values()), timeout=PATIENCE) as client:
                client.on_event = lambda event: None
                for number in count():
                    if self.ending.is_set():
                        return
                    client.publish("load", "n", b"%d" % number, timeout=PATIENCE)
                    with self.changed:
                        self.confirmed.append(number)
                        self.changed.notify_all()
        except BaseException as error:
            self.error = error

    def await_more(self) -> float:
        """Wait until one more is confirmed; return the seconds."""
        begun, before = time.monotonic(), len(self.confirmed)
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.confirmed) > before + 1, PATIENCE), self.error
        return time.monotonic() - begun


@pytest.fixture
def load(pair: Pair) -> Iterator[Load]:
    pair.await_sync()
    load = Load(pair)
    load.start()
    yield load
    load.ending.set()
    load.join(PATIENCE)
    assert load.error is None
    assert stored(pair) == load.confirmed, pair.logs()


def stored(pair: Pair) -> list[int]:
    """All messages of the load, in order: each that was confirmed once, and no other."""
    with malamute.connect(list(pair.urls.values()), timeout=PATIENCE) as client:
        return [int(message.body) for message in client.history("load")]


def kill(pair: Pair, load: Load) -> float:
    primary = pair.await_sync()
    pair.processes[primary].kill()
    pair.processes[primary].wait()
    seconds = load.await_more()
    pair.start(primary)
    return seconds


def pause(pair: Pair, load: Load) -> float:
    primary = pair.await_sync()
    pair.processes[primary].send_signal(signal.SIGSTOP)
    seconds = load.await_more()
    pair.processes[primary].send_signal(signal.SIGCONT)
    return seconds


def switch(pair: Pair, load: Load) -> float:
    primary = pair.await_sync()
    begun = time.monotonic()
    assert pair.call("switch")["primary"] != primary
    load.await_more()
    return time.monotonic() - begun


def lose_standby(pair: Pair, load: Load) -> float:
    standby = "b" if pair.await_sync() == "a" else "a"
    pair.processes[standby].kill()
    pair.processes[standby].wait()
    seconds = load.await_more()
    pair.wait(lambda: pair.value["in_sync"] == [pair.value["primary"]])
    pair.start(standby)
    return seconds


def test_a_standby_takes_over_from_a_killed_primary_with_all_that_was_confirmed(
    pair: Pair, load: Load
) -> None:
    load.await_more()
    timeline = pair.value["timeline"]
    kill(pair, load)
    assert pair.value["timeline"] == timeline + 1
    pair.await_sync()
    switch(pair, load)
    assert pair.call("status", "b")["members"] == ["a", "b"]


@nightly
@pytest.mark.parametrize("fault", [kill, pause, switch, lose_standby])
def test_rounds_of_one_fault_lose_nothing(
    pair: Pair, load: Load, fault: Callable[[Pair, Load], float]
) -> None:
    seconds = sorted(fault(pair, load) for _ in range(ROUNDS))
    print(f"{fault.__name__}: p50 {seconds[ROUNDS // 2]:.2f} s, most {seconds[-1]:.2f} s")
    pair.await_sync()
