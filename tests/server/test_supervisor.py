"""Reports to systemd: by a supervisor alone, and by a broker that runs as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from malamute.server.process import environment
from malamute.server.supervisor import BEATS, Supervisor

PATIENCE = 60.0


class Manager:
    """The other side: a datagram socket, as systemd has it. `address` is what is in NOTIFY_SOCKET."""

    def __init__(self, path: Path | None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path) if path else f"\0malamute-test-{os.getpid()}")
        name = self.socket.getsockname()
        self.address = name if isinstance(name, str) else f"@{name[1:].decode()}"
        self.socket.settimeout(PATIENCE)

    def heard(self) -> str:
        """The next that is reported to it."""
        return self.socket.recv(1 << 16).decode()

    def heard_but(self, words: str) -> str:
        """The next that is something else."""
        while (found := self.heard()) == words:
            pass
        return found

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits to be read."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)
        return False


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify" if request.param == "path" else None)
    yield manager
    manager.socket.close()


class Timer:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_state_is_a_datagram(manager: Manager) -> None:
    supervisor = Supervisor.of({"NOTIFY_SOCKET": manager.address})
    supervisor.ready()
    supervisor.reloading()
    supervisor.reloaded()
    supervisor.stopping()
    assert manager.heard() == "READY=1"
    first, second = manager.heard().splitlines()
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert [manager.heard(), manager.heard()] == ["READY=1", "STOPPING=1"]
    supervisor.close()
    supervisor.ready()
    assert manager.is_quiet


def test_what_was_not_announced_as_a_reload_is_none(manager: Manager) -> None:
    supervisor = Supervisor(manager.address)
    supervisor.reloaded()
    assert manager.is_quiet
    supervisor.close()


def test_signs_of_life_come_when_the_loop_turns_and_some_time_has_passed(manager: Manager) -> None:
    timer = Timer()
    supervisor = Supervisor(manager.address, 8.0, timer)
    supervisor.iterated()
    assert manager.heard() == "WATCHDOG=1"
    supervisor.iterated()
    timer.now += 8.0 / BEATS - 0.1
    supervisor.iterated()
    assert manager.is_quiet
    timer.now += 0.1
    assert manager.is_quiet
    supervisor.iterated()
    assert manager.heard() == "WATCHDOG=1"
    supervisor.close()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
    ids=str,
)
def test_nobody_who_did_not_ask_gets_signs_of_life(manager: Manager, variables: dict[str, str]) -> None:
    supervisor = Supervisor.of({"NOTIFY_SOCKET": manager.address, **variables})
    supervisor.iterated()
    assert manager.is_quiet
    supervisor.close()


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/at/all", "@nobody-listens", "/\0", "/" * 200])
def test_an_address_where_nobody_listens_harms_nobody(address: str) -> None:
    supervisor = Supervisor.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
    supervisor.ready()
    supervisor.iterated()
    supervisor.close()
    supervisor.close()


def test_a_supervisor_that_reads_nothing_holds_nobody_up(manager: Manager) -> None:
    supervisor = Supervisor(manager.address)
    for _ in range(10_000):
        supervisor.ready()
    assert manager.heard() == "READY=1"
    supervisor.close()


def test_what_a_busy_supervisor_has_not_taken_is_said_again_and_a_sign_of_life_is_not(
    manager: Manager,
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                others.sendto(b"another", manager.socket.getsockname())
    supervisor = Supervisor(manager.address, 8.0, Timer())
    supervisor.ready()
    supervisor.iterated()
    while not manager.is_quiet:
        pass
    supervisor.iterated()
    assert manager.heard() == "READY=1"
    supervisor.iterated()
    assert manager.is_quiet
    supervisor.close()


def test_a_broker_process_tells_how_it_goes_from_its_start_to_its_end(
    manager: Manager, tmp_path: Path
) -> None:
    file = tmp_path / "malamute.toml"
    file.write_text('[listen]\nendpoints = ["tcp://127.0.0.1:*"]\n[storage]\nkind = "memory"\n')
    told = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
    command = [sys.executable, "-m", "malamute", "broker", "run", "--json", "--config", str(file)]
    process = subprocess.Popen(
        command,
        env={**environment(), **told},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert manager.heard() == "READY=1"
        assert [manager.heard() for _ in range(3)] == ["WATCHDOG=1"] * 3
        file.write_text("nonsense")
        process.send_signal(signal.SIGHUP)
        assert manager.heard_but("WATCHDOG=1").startswith("RELOADING=1\n")
        assert manager.heard_but("WATCHDOG=1") == "READY=1"
        process.send_signal(signal.SIGTERM)
        assert manager.heard_but("WATCHDOG=1") == "STOPPING=1"
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_the_unit_asks_for_what_the_broker_tells_and_takes_away_what_it_does_not_need() -> None:
    text = (Path(__file__).parents[2] / "deploy" / "malamute.service").read_text()
    options = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    assert {
        "Type=notify",
        "NotifyAccess=main",
        "DynamicUser=yes",
        "StateDirectoryMode=0700",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "PrivateDevices=yes",
        "MemoryDenyWriteExecute=yes",
        "RestrictNamespaces=yes",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged",
        "UMask=0077",
    } <= {*options}
    (watchdog,) = (line.partition("=")[2] for line in options if line.startswith("WatchdogSec="))
    # The loop turns once a second at least.
    assert int(watchdog) >= BEATS
