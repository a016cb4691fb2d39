"""The benchmarks about history with tiny counts: what they print, not how fast anything is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_commands import Run
from depth import nightly
from lab import hostile, slow_consumer
from lab.start import fill

from malamute.bench import replay, workspace
from malamute.bench.figures import extent, middle
from malamute.cli.bench import show_figures
from malamute.errors import StorageFull
from malamute.journal.disk import DiskStore


@pytest.fixture
def measured(run_lab: Run, tmp_path: Path, forked: None) -> Any:
    """Run a benchmark, whose parameters and rows are returned. The benchmark leaves nothing behind."""

    def measured(name: str, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        shown = json.loads(run_lab(name, "--json", "--data", str(tmp_path), *arguments).stdout)
        assert list(tmp_path.iterdir()) == []
        assert {"cores", "durability", "lmdb"} <= set(shown["parameters"])
        return shown["parameters"], shown["results"]

    return measured


@nightly
def test_replay(measured: Any) -> None:
    parameters, rows = measured("replay", "--messages", "4002", "--readers", "3", "--rounds", "2")
    assert parameters["readers"] == 3
    assert {"rounds", "body"} <= set(parameters)
    assert [row["delivered"] for row in rows] == [4002, 2001, 2002, 600]
    for row in rows:
        assert row["missing"] == 0
        assert row["extent"][0] <= row["per_second"] <= row["extent"][1]
        assert row["scanned_per_second"] >= row["per_second"]
        assert row["rss_anon_max_mib"] > 0


@nightly
def test_filters(measured: Any) -> None:
    parameters, rows = measured("filters", "--messages", "2003", "--filters", "12", "--rounds", "1")
    assert parameters["filters"] == 12
    assert [row["what"] for row in rows] == [
        "one filter, live",
        "one filter, replay",
        "12 filters, live",
        "12 filters, replay",
    ]
    # A half of the ten values that come by turns, and all of them.
    assert [row["delivered"] for row in rows] == [1003, 1003, 2003, 2003]
    assert all(row["missing"] == 0 < row["per_second"] for row in rows)


def test_readers_are_spread_over_the_history() -> None:
    assert [view.start for view in replay.spread(1000, 3)] == [1, 476, 951]
    assert [view[:3] for view in replay.spread(10, 1)] == [(1, 1, 1)]
    assert all(view.start + view.scanned - 1 <= 1000 for view in replay.spread(1000, 50))


@nightly
def test_slow_consumer(measured: Any) -> None:
    _, rows = measured(
        *("slow-consumer", "--subscribers", "3", "--rate", "500", "--seconds", "1"),
        *("--messages", "2000", "--rounds", "1"),
    )
    ways = ["reads", "window used up", "stopped"]
    assert [(row["what"], row["the_one"]) for row in rows] == [
        (rate, way) for rate in ("500/s", "full rate") for way in ways
    ]
    for row in rows:
        assert row["missing"] == 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["per_second_ratio"] > 0
    for row in rows[::3]:
        assert (row["per_second_ratio"], row["p50_ratio"], row["p99_ratio"]) == (1, 1, 1)


@pytest.mark.parametrize("rate", [1, 30, 1000])
def test_the_warm_up_is_whole_batches_and_more_than_the_window(rate: int, tmp_path: Path) -> None:
    options = slow_consumer.SlowConsumerOptions(rate, 2, 5000, 100, 700, 20_000, 10, 1, tmp_path)
    for workload in (slow_consumer.moderate_workload(options), slow_consumer.full_workload(options)):
        assert workload.warm_up > slow_consumer.WINDOW
        assert workload.warm_up % workload.batch == workload.warm_up % workload.stamp_every == 0
    moderate = slow_consumer.moderate_workload(options)
    assert moderate.messages - moderate.warm_up == 2 * rate


@nightly
def test_journal(measured: Any) -> None:
    parameters, rows = measured("journal", "--messages", "1000", "--rounds", "2")
    assert "journal = false" in parameters["journal off"]
    assert [row["messages"] for row in rows] == [1000, 200]
    for row in rows:
        assert row["on_per_second"] > 0
        assert row["off_per_second"] > 0
        assert row["time_ratio_extent"][0] <= row["time_ratio"] <= row["time_ratio_extent"][1]


@nightly
def test_idle(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether one that is busy for long is left alone, tests/acceptance/test_hung_peers.py says.
    monkeypatch.setattr("lab.idle.BUSY_SECONDS", 0.1)
    parameters, rows = measured("idle", "--connections", "30", "--seconds", "1")
    assert parameters["connections"] == 30
    assert [(row["held"], row["flaps"]) for row in rows] == [(3, 0), (30, 0)]
    assert rows[1]["anonymous_kib_each"] > 0
    assert [row["busy_workers_attempts"] for row in rows] == [1, 1]
    assert all(row["stopped_worker_seconds"] > 0 for row in rows)


@nightly
def test_iterator(measured: Any) -> None:
    parameters, (row,) = measured("iterator", "--messages", "3000", "--rounds", "3")
    assert parameters["messages in a list"] == 1000
    assert row["messages"] == 3000
    assert row["list_us"] > 0
    assert row["iterator_us"] > 0
    assert row["more_us_extent"][0] <= row["more_us"] <= row["more_us_extent"][1]


@nightly
def test_commands(measured: Any) -> None:
    parameters, rows = measured("commands", "--rounds", "2")
    assert parameters["rounds"] == 2
    assert [row["what"] for row in rows] == ["python -c pass", "malamute --help", "malamute pub --help"]
    for row in rows:
        assert 0 < row["extent"][0] <= row["milliseconds"] <= row["extent"][1]
    assert rows[0]["more_milliseconds"] == 0


@nightly
def test_start(measured: Any) -> None:
    _, rows = measured("start", "--gigabytes", "0.02", "--rounds", "1")
    assert [row["stored_bytes"] >= 20_000_000 for row in rows] == [False, True, True]
    assert rows[0]["recovered"] == 0
    assert rows[1]["recovered"] == rows[2]["recovered"] > 100_000
    assert all(row["seconds"] > 0 for row in rows)


def test_a_filled_store_has_good_chunks(tmp_path: Path) -> None:
    stored = fill(tmp_path, 1 << 26, 1_000_000, 100)
    store = DiskStore.open_existing(tmp_path)
    try:
        steps = list(store.verify())
        assert store.status().streams_bytes == stored >= 1_000_000
    finally:
        store.close()
    assert not any(step.damages for step in steps)


def test_parameters_come_first(run_lab: Run, forked: None) -> None:
    lines = run_lab("journal", "--messages", "10", "--rounds", "1").stdout.splitlines()
    table = next(number for number, line in enumerate(lines) if "on per second" in line)
    assert any("durability" in line for line in lines[:table])
    assert len(lines) == table + 3


def test_a_disk_without_room_is_refused(run_lab: Run, tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(StorageFull, match="bytes are free"):
        workspace.check_free_space(tmp_path, free)
    workspace.check_free_space(tmp_path, 1)
    wanted = str(min(free // 10**9 + 1, 10_000))
    run_lab("start", "--gigabytes", wanted, "--data", str(tmp_path), exit_code=1)
    assert list(tmp_path.iterdir()) == []


def test_medians_and_extents(capsys: pytest.CaptureFixture[str]) -> None:
    assert (middle([3, 1, 2]), extent([3, 1, 2])) == (2, [1, 3])
    show_figures([replay.ReplayRow("some", 1, 2000, [1, 2], 3, 4, 5, 6, 7)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["delivered", "per"]
    assert lines[1].split()[:6] == ["some", "1", "2,000", "1", "to", "2"]


@nightly
def test_hostile(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.hostile.AFTER_SECONDS", 0.1)
    chosen = ["a purge of the queue", "frames without end before HELLO"]
    attacks = [word for what in chosen for word in ("--attack", what)]
    parameters, rows = measured("hostile", "--depth", "2000", *attacks)
    assert parameters["depth"] == 2000
    assert [row["what"] for row in rows] == [*chosen, hostile.TOGETHER]
    for row in rows:
        assert 0 < row["others_p50_ms"] <= row["others_p99_ms"] <= row["others_max_ms"]
        assert row["seconds"] > 0


@nightly
def test_queues(measured: Any) -> None:
    parameters, rows = measured(
        *("queues", "--messages", "400", "--depth", "2000", "--batch", "50", "--rounds", "1")
    )
    assert parameters["depth"] == 2000
    assert [row["what"] for row in rows] == [
        "mailbox, send → stored",
        "mailbox, deliver and ack",
        "service, request → reply",
        "service, dispatch and ack, depth 100",
        "service, dispatch and ack, depth 2,000",
    ]
    for row in rows:
        assert row["messages"] >= 100
        assert row["extent"][0] <= row["per_second"] <= row["extent"][1]
        assert row["rss_anon_max_mib"] > 0


@nightly
def test_security(measured: Any) -> None:
    small = ("--messages", "2000", "--rules", "20", "--rate", "50", "--sessions", "100", "--users", "50")
    parameters, rows = measured("security", *small, "--rounds", "1")
    assert parameters["rules"] == 20
    assert "fsync" in parameters["durability"]
    assert [row["what"] for row in rows] == [
        "20 rules, batched publish",
        "20 rules, round trip",
        "CURVE, 100 bytes, batched 1 to 1",
        "50 strangers/s at another broker",
        "50 strangers/s here, beside that",
        "50 strangers/s here, processor time",
        "change of rules, 100 sessions",
        "a page of 50 stored accounts",
        "50 users, memory",
        "50 users, start and the stop before",
        "50 users, reload",
    ]
    for row in rows:
        assert row["secured"] > 0
        assert row["extent"][0] <= row["extent"][1]


@nightly
def test_gateway(measured: Any) -> None:
    small = ("--messages", "200", "--pages", "5", "--rate", "50", "--seconds", "1", "--connections", "2")
    parameters, rows = measured("gateway", *small, "--streams", "30", "--rounds", "1")
    assert parameters["streams"] == 30
    assert "fsync" in parameters["durability"]
    assert [row["what"] for row in rows] == [
        "one page, a history",
        "5 pages, each its own filter, 50/s together",
        "5 pages, memory of each at the most",
        "5 pages, one filter, 50/s each",
        "5 pages, memory of each at the most",
        "POST of one message",
        "POST of 200 as NDJSON",
        "GET /metrics, 30 streams",
        "GET /, 30 streams",
        "the broker's longest iteration meanwhile",
    ]
    for row in rows:
        assert row["value"] > 0 or row["unit"] == "KiB"
    assert [row["note"] for row in rows[1:5:2]] == [
        "50 came, none was missing",
        "250 came, none was missing",
    ]
