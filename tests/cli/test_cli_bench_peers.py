"""The benchmark beside other brokers: what it prints with tiny counts, and that no server stays behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import ROOT, TIMEOUT, Run
from depth import nightly, some
from lab.peers import server, table
from lab.peers.measure import PeersOptions, PeersRow, choose, measure, take_priority
from lab.peers.server import (
    ServerCommand,
    find_program,
    free_ports,
    group_cpu_seconds,
    has_ended,
    serve,
    version_of,
)
from lab.peers.table import BATCHED, OWN, PEERS, REQUEST, STORED_REQUEST, UNCONFIRMED, WAITED, WORKS

from malamute.errors import InvalidValue, MalamuteError, NotInstalled

STORING = (WAITED, STORED_REQUEST)
FOREIGN = [peer for peer in PEERS.values() if peer.programs]

LISTENER = (
    "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(999)"
)

SERVES = """
import sys
from pathlib import Path
from lab.peers.server import ServerCommand, free_ports, serve
place, ports = Path(sys.argv[1]), free_ports()
with serve(ServerCommand([sys.executable, "-c", sys.argv[2], str(ports[0])]), place, ports) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("forked")


def _measure(peer: str, work: str, place: Path) -> PeersRow:
    (row,) = measure(PeersOptions(200, 100, 50, 1000, 3, 1, [work], [peer], place))
    assert list(place.iterdir()) == []
    return row


# Measurements that need no other server


@nightly
def test_rows_and_ratios(run_lab: Run, tmp_path: Path) -> None:
    works = ("--work", UNCONFIRMED, "--work", REQUEST)
    peers = [word for name in ("Malamute", "zmq.proxy", "bare ROUTER") for word in ("--peer", name)]
    shown = json.loads(
        run_lab(
            *("peers", "--messages", "2000", "--rounds", "2", "--json", "--data", str(tmp_path)),
            *(*works, *peers),
        ).stdout
    )
    assert list(tmp_path.iterdir()) == []
    parameters, rows = shown["parameters"], shown["results"]
    assert {"cores", "speed of fsync", "rounds", "size_bytes", "zmq.proxy"} <= set(parameters)
    assert "fsync before each confirmation" in parameters["Malamute"]
    assert [(row["what"], row["peer"]) for row in rows] == [
        (WORKS[UNCONFIRMED].what, "Malamute"),
        (WORKS[UNCONFIRMED].what, "zmq.proxy"),
        (WORKS[REQUEST].what, "Malamute"),
        (WORKS[REQUEST].what, "zmq.proxy"),
        (WORKS[REQUEST].what, "bare ROUTER"),
    ]
    for row in rows:
        assert row["missing"] == 0
        assert row["extent"][0] <= row["per_second"] <= row["extent"][1]
        assert row["ratio_extent"][0] <= row["malamute_ratio"] <= row["ratio_extent"][1]
        assert (row["malamute_ratio"] == 1) or row["peer"] != "Malamute"
        assert (row["p50_ms"] is None) == (row["what"] == WORKS[UNCONFIRMED].what)


@pytest.mark.parametrize("work", some(WORKS, BATCHED, STORED_REQUEST))
def test_each_of_our_own_works(work: str, tmp_path: Path) -> None:
    row = _measure(OWN.name, work, tmp_path)
    assert row.missing == 0
    assert row.messages >= 10


@pytest.mark.parametrize(
    ("peer", "work"),
    [("floor", REQUEST), *((f"floor, {store}", work) for store in ("LMDB", "log file") for work in STORING)],
)
def test_each_work_of_a_floor(peer: str, work: str, tmp_path: Path) -> None:
    assert _measure(peer, work, tmp_path).missing == 0


def test_a_priority_that_the_system_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(InvalidValue, match="priority 10"):
        take_priority(10)


def test_what_is_not_installed_is_left_out_and_named(
    run_lab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "find_program", lambda name: None)
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    few = ("--messages", "10", "--rounds", "1", "--work", REQUEST, "--data", str(tmp_path))
    result = run_lab("peers", "--json", *few)
    shown = json.loads(result.stdout)
    assert {row["peer"] for row in shown["results"]} == {"Malamute", "zmq.proxy", "bare ROUTER", "floor"}
    assert shown["parameters"]["priority"] == "ordinary"
    assert "apt-get install nats-server" in shown["parameters"]["without NATS"]
    for peer in FOREIGN:
        assert f"without {peer.name}: no " in result.stderr
        assert table.INSTALL_CLIENTS in shown["parameters"][f"without {peer.name}"]
    refused = run_lab("peers", "--peer", "NATS", *few, exit_code=1)
    assert "NATS: no nats-server: apt-get install nats-server" in refused.stderr
    with pytest.raises(NotInstalled, match="RabbitMQ: no rabbitmq-server"):
        choose(["Malamute", "RabbitMQ"])


def test_the_table_names_functions_that_are_there() -> None:
    for peer in PEERS.values():
        assert set(peer.parts) <= set(WORKS)
        for side in (side for part in peer.parts.values() for side in (part.sender, part.receiver) if side):
            module, _, function = side.partition(":")
            source = (Path(table.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
            assert re.search(rf"^(async def |def |){function}\b", source, re.MULTILINE), side


def test_the_table_needs_no_client() -> None:
    code = "import sys, lab.peers.measure; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name for peer in FOREIGN for name in peer.needs} & set(loaded.stdout.split())


# Servers


def _wait_for_end(descriptor: int) -> None:
    """Until the process is gone: the system says so by what is to be read."""
    try:
        assert select.select([descriptor], [], [], TIMEOUT)[0]
    finally:
        os.close(descriptor)


def test_a_server_runs_for_as_long_as_its_block(tmp_path: Path) -> None:
    ports = free_ports()
    with serve(ServerCommand([sys.executable, "-c", LISTENER, str(ports[0])]), tmp_path, ports) as running:
        assert not has_ended(running.pid)
        assert running.cpu_seconds == group_cpu_seconds(running.pid) >= 0
        descriptor = os.pidfd_open(running.pid)
    _wait_for_end(descriptor)
    assert has_ended(running.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_however_the_benchmark_ends(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVES, str(tmp_path), LISTENER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    ) as benchmark:
        assert benchmark.stdout is not None
        descriptor = os.pidfd_open(int(benchmark.stdout.readline()))
        benchmark.send_signal(number)
        _wait_for_end(descriptor)


def test_a_server_that_does_not_start_is_an_error_with_what_it_wrote(tmp_path: Path) -> None:
    ports = free_ports()
    leaves = ServerCommand([sys.executable, "-c", "raise SystemExit('no such option')"])
    with pytest.raises(MalamuteError, match="did not start: no such option"), serve(leaves, tmp_path, ports):
        pass
    with (
        pytest.raises(MalamuteError, match="no-such-program did not start"),
        serve(ServerCommand(["no-such-program"]), tmp_path, ports),
    ):
        pass


def test_a_server_that_never_listens_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 0.1)
    silent = ServerCommand([sys.executable, "-c", "import time; time.sleep(999)"])
    with pytest.raises(MalamuteError, match="no server on port"), serve(silent, tmp_path, free_ports()):
        pass


def test_versions() -> None:
    assert version_of([sys.executable, "--version"]) == ".".join(map(str, sys.version_info[:3]))
    assert version_of([sys.executable, "-c", "pass"]) == ""
    assert version_of(["no-such-program"]) == ""
    assert find_program(sys.executable) == sys.executable


# Where the other servers are installed


@pytest.mark.parametrize(
    ("name", "work"),
    [(p.name, work) for p in FOREIGN for work in (BATCHED, REQUEST, STORED_REQUEST) if work in p.parts],
)
def test_a_round_with_an_installed_server(name: str, work: str, tmp_path: Path) -> None:
    peer = PEERS[name]
    if peer.missing:
        pytest.skip(f"{name} is not measured: {'; '.join(peer.missing)}")
    row = _measure(name, work, tmp_path)
    assert row.missing == 0
    assert peer.about.startswith(f"{next(iter(peer.programs))} ")
