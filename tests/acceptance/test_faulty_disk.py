"""A disk that answers writes with errors: a library in front of the C library lets LMDB's root pages fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import pytest
from forked_commands import forked_malamute
from rig_daemon import environment
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.cli.exit_codes import STORE_LOST
from malamute.errors import Failed, TimedOut
from malamute.server.process import BrokerProcess

SOURCE = Path(__file__).with_name("faulty_disk.c")

SILENCE = 0.1
"""Seconds in which nothing more comes. Too short a time would only hide a fault."""

Faults = Callable[[int], None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler (gcc)")
    made = tmp_path_factory.mktemp("faults") / "faulty_disk.so"
    ensure_running()  # no fork is to have the library
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True)
    return made


@pytest.fixture
def faults(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Says how many of the next writes of a root page fail."""
    file = tmp_path / "faults"
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAULTS", str(file))

    def fail(count: int) -> None:
        # In one system call, as the broker may read it at any time.
        new = file.with_suffix(".new")
        new.write_text(f"{count:<8}")
        new.rename(file)

    fail(0)
    return fail


@pytest.fixture
def broker(tmp_path: Path, faults: Faults) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url) as client:
        yield client


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked_malamute(), *arguments], env=environment(), capture_output=True, text=True, check=False
    )


def health(broker: BrokerProcess) -> tuple[int, int]:
    """The exit codes of `broker check` and `broker status`, the latter being the container's health check."""
    return tuple(command("broker", what, "--url", broker.url).returncode for what in ("check", "status"))


def publish(client: malamute.Client, body: bytes) -> None:
    client.publish("weather", "temp", body, assurance="stored")


def history(client: malamute.Client) -> list[bytes]:
    with client.subscribe("weather", start="first") as subscription:
        found = []
        for message in subscription:
            found.append(message.body)
            if message.body == b"end":
                return found
    raise AssertionError("no end")


@pytest.mark.parametrize("count", [1, 2], ids=["the new root", "the new root, and putting back the old one"])
def test_a_root_that_cannot_be_written_once_costs_nothing(
    broker: BrokerProcess, client: malamute.Client, faults: Faults, count: int
) -> None:
    publish(client, b"before")
    faults(count)
    publish(client, b"after")
    publish(client, b"end")
    assert health(broker) == (0, 0)
    assert history(client) == [b"before", b"after", b"end"]


def test_a_disk_that_takes_no_root_is_reported_and_is_well_when_it_takes_one(
    broker: BrokerProcess, client: malamute.Client, faults: Faults
) -> None:
    publish(client, b"before")
    assert health(broker) == (0, 0)
    with client.subscribe("weather") as live:
        faults(10**6)
        with pytest.raises(Failed):
            publish(client, b"refused")
        assert next(iter(live)).body == b"refused"
        assert health(broker) == (2, 1)
        reported = command("broker", "check", "--url", broker.url).stdout
        assert reported.startswith("MALAMUTE CRITICAL - the store takes nothing: ")
        # Reading goes on.
        with client.subscribe("weather", start="first") as replay:
            assert next(iter(replay)).body == b"before"
        faults(0)
    # Nobody writes: the broker finds out by itself.
    eventually(lambda: not client.query("status")["store_error"], "a store that takes writes again")
    assert health(broker) == (0, 0)
    publish(client, b"end")
    assert history(client)[0] == b"before"


def test_wp32_no_sequence_is_used_twice_where_the_disk_fails_first_and_then_the_power(
    tmp_path: Path, faults: Faults
) -> None:
    """WP32: in two lives, of which the second has nothing reserved. What was refused is not there later."""
    had: list[tuple[int, bytes]] = []

    def hear(broker: BrokerProcess, *messages: tuple[str, bytes]) -> None:
        with malamute.connect(broker.url) as client:
            client.on_event = lambda event: None
            old, new = client.subscribe("weather"), client.subscribe("new")
            for stream, body in messages:
                with suppress(Failed):
                    client.publish(stream, "temp", body, assurance="stored")
            for live in (old, new):
                with suppress(TimedOut):
                    while True:
                        message = live.receive(SILENCE)
                        had.append((message.sequence, message.body))

    for life in (b"first", b"second"):
        with BrokerProcess(tmp_path) as broker:
            if life == b"first":
                hear(broker, ("weather", b"stored"))
            faults(10**6)
            hear(broker, ("weather", life), ("new", life), ("weather", life))
            os.kill(broker.pid, signal.SIGKILL)
        faults(0)
    assert had == [(1, b"stored"), (2, b"first"), (3, b"first")]
    with BrokerProcess(tmp_path) as broker:
        hear(broker, ("weather", b"end"), ("new", b"end"))
        with malamute.connect(broker.url) as client:
            assert history(client) == [b"stored", b"end"]
    (old, _), (new, _) = had[3:]
    assert old > 3
    assert new == 1


def test_a_store_that_cannot_be_opened_again_ends_the_broker_with_an_exit_code_of_its_own(
    tmp_path: Path, faults: Faults
) -> None:
    data = tmp_path / "data" / "data.mdb"
    aside = data.with_name("aside.data.mdb")
    with BrokerProcess(tmp_path) as broker:
        client = malamute.connect(broker.url)
        publish(client, b"before")
        # LMDB goes on with the file that it has; only when it has to open one again, there is none.
        data.rename(aside)
        data.mkdir(0o700)
        faults(10**6)
        client.publish_nowait("weather", "temp", b"lost")
        assert broker.wait(PATIENCE) == STORE_LOST
        with pytest.raises(TimedOut):  # it says goodbye to nobody
            client.close(0.1)
    reported = json.loads((tmp_path / "broker.log").read_text().splitlines()[-1])["error"]
    assert (reported["code"], "cannot open" in reported["text"]) == (804, True)
    faults(0)
    data.rmdir()
    aside.rename(data)
    with BrokerProcess(tmp_path) as broker, malamute.connect(broker.url) as client:
        publish(client, b"end")
        assert history(client) == [b"before", b"end"]


def test_a_store_that_is_none_keeps_the_broker_from_starting_and_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(0o700)
    data = tmp_path / "data" / "data.mdb"
    data.write_bytes(b"no store" * 4096)
    done = command("broker", "run", "--data", str(data.parent), "--listen", "tcp://127.0.0.1:*")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error 803: ")
    assert "malamute journal repair" in done.stderr
    assert data.read_bytes() == b"no store" * 4096
