"""The benchmarks with tiny counts: what they print, not how fast anything is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_commands import Run
from depth import nightly

from malamute.bench.machine import ProcessWatch, describe
from malamute.bench.processes import WorkloadProcess, run_together
from malamute.bench.scenarios import row_of
from malamute.bench.workloads import Workload, with_stamps
from malamute.errors import MalamuteError
from malamute.testing import Broker


def test_all_of_them_as_json(run: Run, broker: Broker, forked: None) -> None:
    shown = json.loads(
        run("bench", "--messages", "1000", "--subscribers", "3", "--json", "--url", broker.url).stdout
    )
    assert list(shown) == ["parameters", "results"]
    assert {"cores", "python", "zmq", "lmdb", "messages", "body", "broker"} <= set(shown["parameters"])
    names = [row["what"] for row in shown["results"]]
    assert len(names) == len(set(names)) == 14
    for row in shown["results"]:
        assert row["per_second"] > 0
        assert row["missing"] == 0
        assert row["p50_ms"] <= row["p99_ms"]
        assert row["rss_anon_max_mib"] is None


def test_parameters_come_first(run: Run, tmp_path: Path, forked: None) -> None:
    lines = run(
        "bench", "mailbox", "--messages", "200", "--size", "8", "--data", str(tmp_path)
    ).stdout.splitlines()
    table = next(number for number, line in enumerate(lines) if "msg/s" in line)
    words = "\n".join(lines[:table])
    for parameter in ("cores", "durability", "messages", "8 bytes", "lmdb", "batches of up to 1000"):
        assert parameter in words
    assert len(lines) == table + 2
    assert "mailbox" in lines[-1]


def test_the_broker_of_a_benchmark_is_watched(run: Run) -> None:
    shown = json.loads(run("bench", "mailbox", "--messages", "1000", "--json").stdout)
    (row,) = shown["results"]
    assert row["rss_anon_max_mib"] > 0
    assert row["broker_cpu_us"] >= 0
    assert "fsync" in shown["parameters"]["durability"]


def test_the_benchmark_of_matching_is_one_of_them(run_lab: Run) -> None:
    """Its rows are run in tests/matching."""
    assert "matching" in run_lab("match", "--help").stdout


def test_a_watch_sees_a_process() -> None:
    with ProcessWatch(os.getpid()) as watch:
        sum(range(1000))
    assert watch.cpu_seconds is not None
    assert watch.anonymous_bytes is not None
    assert watch.anonymous_bytes > 0
    with ProcessWatch(0) as blind:
        pass
    assert (blind.cpu_seconds, blind.anonymous_bytes) == (None, None)


def test_the_machine_is_described(tmp_path: Path) -> None:
    assert all(describe(tmp_path).values())


def test_a_row() -> None:
    measured = {
        "start_ns": 0,
        "end_ns": 2 * 10**9,
        "cpu_seconds": 0.001,
        "latencies": [*range(0, 10**8, 10**6)],
    }
    row = row_of("x", 1000, 1000, ProcessWatch(0), measured, measured)
    assert (row.per_second, row.p50_ms, row.p99_ms) == (500, 50, 99)
    assert (row.sender_cpu_us, row.receiver_cpu_us, row.missing) == (1, None, 0)


def _failing(begin: object) -> dict[str, object]:
    raise ValueError("no")


def _leaving(begin: object) -> dict[str, object]:
    os._exit(0)


def test_a_workload_that_fails_is_an_error() -> None:
    with pytest.raises(MalamuteError, match="ValueError: no"):
        run_together((_failing,))
    with WorkloadProcess(_leaving) as process, pytest.raises(MalamuteError, match="was lost"):
        process.get()


@nightly
def test_the_time_in_the_system_is_shown_for_each_load(run_lab: Run, tmp_path: Path, forked: None) -> None:
    given = ("--messages", "3000", "--batch", "50", "--rounds", "1", "--subscribers", "2")
    shown = json.loads(run_lab("latency", *given, "--data", str(tmp_path), "--json").stdout)
    assert "fsync" in shown["parameters"]["durability"]
    rows = shown["results"]
    assert [row["what"].rpartition(", ")[2] for row in rows] == ["100%", "90%", "50%"] * 2
    for row in rows:
        assert row["missing"] == 0
        assert row["per_second"] > 0
        assert row["p50_ms"] <= row["p99_ms"]
        assert row["to_broker_p50_ms"] <= row["to_broker_p99_ms"] <= row["p99_ms"]


@pytest.mark.parametrize("takes", [1, 7, 100, 1_000])
def test_every_message_with_a_stamp_is_looked_into_but_those_of_the_warm_up(takes: int) -> None:
    workload = Workload("", "s", 1_000, 100, 50, 1, warm_up=50)
    messages = [SimpleNamespace(sequence=number + 1) for number in range(workload.messages)]
    found = [
        message.sequence
        for first in range(0, workload.messages, takes)
        for message in with_stamps(messages[first : first + takes], workload)  # type: ignore[arg-type]
    ]
    every = workload.stamp_every
    assert found == [number for number in range(51, workload.messages + 1) if number % every == 1 % every]
