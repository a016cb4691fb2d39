"""Replay: in order, each message once, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from depth import nightly
from histories import command, numbered, operations, run, run_apart, store
from history_files import BEGIN, Sent, damage, write
from quiet import quiet_broker, quiet_config
from rig_daemon import Daemon

import malamute
from malamute.cli.root import cli
from malamute.errors import (
    AddressTaken,
    ConnectTimeout,
    InvalidValue,
    NotFound,
    StoreError,
    TimedOut,
    TryLater,
)
from malamute.protocol.batch import pack_record
from malamute.spark import replay as module
from malamute.spark.replay import (
    COLUMNS,
    Messages,
    ReplayOrigin,
    ReplayPace,
    ReplayPlan,
    ReplaySettings,
    ReplaySource,
    ReplayWriter,
    plan,
    replay,
    replay_here,
    sources,
)
from malamute.spark.scan import ExportedHistory, HistoryBounds, HistoryPart, read
from malamute.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = 20


def received(url: str, stream: str) -> list[malamute.Message]:
    """Everything that a stream holds."""
    with malamute.connect(url) as client:
        rows = {row["name"]: row for row in client.query("streams")}
        last = rows[stream]["last"] if stream in rows else 0
        with client.subscribe(stream, start="first") as messages:
            found: list[malamute.Message] = []
            while last and (not found or found[-1].sequence < last):
                found += messages.take(1000, timeout=TIMEOUT)
            return found


def origins(url: str, stream: str) -> list[int]:
    """Which sequences of then a stream holds, in its order."""
    return [message.headers["malamute.sequence"] for message in received(url, stream)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two streams; one of them has two files that overlap, and a day in between."""
    day = 86_400
    write(
        tmp_path / "h", "one", [Sent(n, f"a.{n % 3}", b"%d" % n, {"n": n}, seconds=n) for n in range(1, 501)]
    )
    write(
        tmp_path / "h",
        "one",
        [Sent(n, f"a.{n % 3}", b"%d" % n, {"n": n}, seconds=day + n) for n in range(491, 801)],
    )
    write(tmp_path / "h", "two", [Sent(n, "x", b"", None, "") for n in range(1, 101)])
    return tmp_path / "h"


def test_everything_comes_once_and_in_order(spark: SparkSession, directory: Path, broker: Broker) -> None:
    history = ExportedHistory(str(directory))
    options = ReplaySettings(broker.url, name="r")
    rows = {row["stream"]: row for row in replay(spark, history, options)}
    assert {name: (row["published"], row["position"]) for name, row in rows.items()} == {
        "one": (800, 800),
        "two": (100, 100),
    }
    messages = received(broker.url, "one")
    assert [message.headers["malamute.sequence"] for message in messages] == list(range(1, 801))
    assert messages[6].subject == "a.1"
    assert messages[6].body == b"7"
    assert messages[6].headers == {
        "n": 7,
        "malamute.replay": "r",
        "malamute.stream": "one",
        "malamute.sequence": 7,
        "malamute.time": BEGIN + 7 * 10**9,
        "malamute.sender": "alice",
    }
    assert origins(broker.url, "two") == list(range(1, 101))
    # The same again does nothing; under another name it is another replay.
    again = replay_here(history, options)
    assert [(row["published"], row["position"]) for row in again] == [(0, 800), (0, 100)]
    others = replay_here(
        ExportedHistory(str(directory), HistoryBounds(("two",))),
        options._replace(name="s", into="copy"),
    )
    assert [(row["target"], row["published"]) for row in others] == [("copy", 100)]


def test_a_range_and_a_filter(directory: Path, broker: Broker) -> None:
    options = ReplaySettings(broker.url, patterns=("a.0",), where="n > 600", name="r")
    bounds = HistoryBounds(("one",), first=100, last=620)
    rows = replay_here(ExportedHistory(str(directory), bounds), options)
    assert [row["published"] for row in rows] == [6]
    assert origins(broker.url, "one") == [603, 606, 609, 612, 615, 618]


def test_a_dry_run_changes_nothing(directory: Path, broker: Broker) -> None:
    history = ExportedHistory(str(directory), HistoryBounds(("one",)))
    options = ReplaySettings(broker.url, patterns=("a.1",), name="r")
    wanted = [n for n in range(1, 801) if n % 3 == 1]
    [found] = plan(history, options)
    assert found == ReplayPlan("one", "one", 0, len(wanted), sum(len(str(n)) for n in wanted), *found[5:])
    assert found.first_time == BEGIN + 10**9
    with malamute.connect(broker.url) as client:
        assert [row["name"] for row in client.query("streams")] == ["$audit"]
    with ReplayWriter(broker.url, "one", "r") as writer:
        writer.publish(messages_of(range(1, 101)))
        writer.mark()
    [found] = plan(history, options)
    assert (found.position, found.messages) == (100, len([n for n in wanted if n > 100]))


def messages_of(sequences: Sequence[int], **more: str) -> Messages:
    about = {f"malamute.{name}": value for name, value in more.items()}
    records = [
        pack_record({"malamute.replay": "r", "malamute.sequence": sequence, **about}, b"")
        for sequence in sequences
    ]
    count = len(sequences)
    return Messages(list(sequences), [0] * count, ["s"] * count, records)


def test_the_broker_is_killed_on_the_way(tmp_path: Path) -> None:
    """Each third batch is published to a broker that is killed and started meanwhile."""
    daemon = Daemon(tmp_path).start()

    def kill_and_start() -> None:
        daemon.kill()
        daemon.start()

    try:
        with ReplayWriter(daemon.url, "t", "r") as writer:
            for number in range(12):
                thread = threading.Thread(target=kill_and_start if number % 3 == 2 else int)
                thread.start()
                writer.publish(messages_of(range(number * 10 + 1, number * 10 + 11)))
                thread.join()
        assert origins(daemon.url, "t") == list(range(1, 121))
    finally:
        daemon.close()


def test_a_confirmation_that_is_lost_is_no_second_copy(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReplayWriter(broker.url, "t", "r") as writer:
        writer.publish(messages_of([1, 2, 3]))
        client, _ = writer._linked()
        publish = client._publish_records

        async def lost(*arguments: Any) -> int:
            await publish(*arguments)
            raise ConnectTimeout("as if the answer had not come")

        monkeypatch.setattr(client, "_publish_records", lost)
        assert writer.publish(messages_of([4, 5])) == 2
        assert writer.position == 5
        assert writer.publish(messages_of([4, 5, 6])) == 1
    assert origins(broker.url, "t") == [1, 2, 3, 4, 5, 6]


def test_a_newer_writer_ends_the_older_one(broker: Broker) -> None:
    with ReplayWriter(broker.url, "t", "r") as older:
        older.publish(messages_of([1, 2]))
        with ReplayWriter(broker.url, "t", "r") as newer:
            assert newer.position == 2
            newer.publish(messages_of([3]))
            with pytest.raises(AddressTaken):
                older.publish(messages_of([3]))
            newer.publish(messages_of([4]))
    assert origins(broker.url, "t") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("origin", "reported"),
    [
        (ReplayOrigin("other", "a" * 32), "is of the stream 's' out of the store a"),
        (ReplayOrigin("s", "b" * 32), "out of b+: name the replay otherwise"),
        (ReplayOrigin("s", f"{'a' * 32}.7"), ""),
        (ReplayOrigin("s"), ""),
    ],
)
def test_a_replay_counts_in_its_own_stream_and_store_alone(
    broker: Broker, origin: ReplayOrigin, reported: str
) -> None:
    begun = ReplayOrigin("s", "a" * 32)
    with ReplayWriter(broker.url, "t", "r", origin=begun) as writer:
        writer.publish(messages_of(range(1, 31), stream=begun.stream, store=begun.store))
    again = ReplayWriter(broker.url, "t", "r", 0.0, origin=origin)
    with pytest.raises(InvalidValue, match=reported) if reported else nullcontext(), again as writer:
        assert writer.position == 30


def test_a_history_out_of_another_store_is_not_taken_for_the_one_before(
    tmp_path: Path, broker: Broker
) -> None:
    options = ReplaySettings(broker.url, name="r")
    for name, count in (("one", 5), ("two", 9)):
        store(tmp_path / name, operations("s", 1, numbered(count)))
        run("journal", "export", "--data", str(tmp_path / name), "--to", str(tmp_path / f"{name}-out"))
        history = ExportedHistory(str(tmp_path / f"{name}-out"))
        [source] = sources(history, options)
        if name == "one":
            with ReplayWriter(broker.url, "s", "r", origin=source.origin) as writer:
                for part in read(history.location, source.pieces, COLUMNS, history.bounds):
                    assert isinstance(part, HistoryPart)
                    writer.publish(Messages.of(source.origin, "r", part.batch))
            assert [found.position for found in plan(history, options)] == [5]
        else:
            with pytest.raises(InvalidValue, match="the replay 'r' is of the stream 's' out of the store"):
                plan(history, options)


def test_a_target_whose_store_is_another_one_ends_the_replay() -> None:
    with Broker(config=quiet_config()) as broker, ReplayWriter(broker.url, "t", "r", 30.0) as writer:
        writer.publish(messages_of(range(1, 11)))
        # In memory, so what comes back is another store.
        broker.restart()
        with pytest.raises(StoreError, match="begin the same replay again"):
            writer.publish(messages_of(range(11, 21)))


def test_others_may_publish_into_the_target(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CURSOR_EVERY", 4)
    with malamute.connect(broker.url) as other:
        for first in (1, 4, 7):
            with ReplayWriter(broker.url, "t", "r") as writer:
                assert writer.position == first - 1
                writer.publish(messages_of(range(first, first + 3)))
            for number in range(5):
                other.publish(
                    "t", "other", b"", {"malamute.sequence": 99, "number": number}, assurance="stored"
                )
    mine = [m.headers["malamute.sequence"] for m in received(broker.url, "t") if m.subject == "s"]
    assert mine == list(range(1, 10))


def test_a_target_that_has_dropped_the_replay_is_reported(tmp_path: Path) -> None:
    with quiet_broker(tmp_path / "data") as broker, malamute.connect(broker.url) as client:
        with ReplayWriter(broker.url, "t", "r") as writer:
            writer.publish(messages_of([1, 2, 3]))
        client.change("stream.retain", stream="t", count=1)
        for number in range(3):
            client.publish("t", "other", b"", {"n": number}, assurance="stored")
        with (
            pytest.raises(NotFound, match="dropped the messages of the replay"),
            ReplayWriter(broker.url, "t", "r"),
        ):
            pass


def test_the_pace(tmp_path: Path, broker: Broker) -> None:
    write(tmp_path / "h", "one", [Sent(n, seconds=n * 0.2) for n in range(1, 7)])
    replay_here(ExportedHistory(str(tmp_path / "h")), ReplaySettings(broker.url, speed=2, name="r"))
    assert origins(broker.url, "one") == [1, 2, 3, 4, 5, 6]
    # Later than it was due a message may be, on a busy machine; never earlier.
    pace = ReplayPace(BEGIN, time.time(), 2)
    write(tmp_path / "g", "one", [Sent(n, seconds=n * 0.2) for n in range(1, 7)])
    source = ReplaySource("one", "two", tuple(ExportedHistory(str(tmp_path / "g")).pieces))
    [row] = module._replay(
        ExportedHistory(str(tmp_path / "g")), source, ReplaySettings(broker.url, name="r"), pace
    )
    assert row.to_pylist()[0]["published"] == 6
    messages = received(broker.url, "two")
    assert all(m.time_ns / 1e9 >= pace.due(m.headers["malamute.time"]) - 1e-3 for m in messages)
    assert ReplayPace(1000, 5.0, 2.0).due(1000 + 4 * 10**9) == 7.0


def test_several_streams_cannot_become_one(directory: Path, broker: Broker) -> None:
    with pytest.raises(InvalidValue, match="2 streams"):
        replay_here(ExportedHistory(str(directory)), ReplaySettings(broker.url, into="t"))


def test_what_cannot_be_read_is_reported_and_the_rest_replayed(tmp_path: Path, broker: Broker) -> None:
    path = write(tmp_path / "h", "one", [Sent(n, body=os.urandom(50)) for n in range(1, 301)], rows=100)
    damage(path, 1, "body")
    rows = replay_here(ExportedHistory(str(tmp_path / "h")), ReplaySettings(broker.url, name="r"))
    assert [(r["row_group"], r["messages"]) for r in rows if r["path"]] == [(1, 100)]
    assert [r["published"] for r in rows if not r["path"]] == [200]
    assert origins(broker.url, "one") == [*range(1, 101), *range(201, 301)]


def test_a_broker_that_is_away_is_an_error(directory: Path) -> None:
    options = ReplaySettings("tcp://127.0.0.1:9", name="r", patience_seconds=0)
    with pytest.raises(ConnectTimeout):
        replay_here(ExportedHistory(str(directory)), options)


def test_the_command_is_killed_on_the_way(tmp_path: Path, broker: Broker) -> None:
    """Killed wherever it is, the command continues: in order, nothing twice, nothing missing."""
    count = 30_000
    write(tmp_path / "h", "one", [Sent(n, f"a.{n % 9}", b"%d" % n) for n in range(1, count + 1)], rows=1000)
    arguments = ("journal", "replay", str(tmp_path / "h"), "--url", broker.url, "--name", "r", "--json")
    for before in (1, 12_000):
        killed = command(*arguments)
        seen(broker.url, "one", before)
        killed.kill()
        killed.communicate()
    [done] = json.loads(run_apart(*arguments))["streams"]
    assert done["position"] == count
    assert origins(broker.url, "one") == [*range(1, count + 1)]


KILLED = """
import sys
from malamute.spark.replay import ReplaySettings, replay
from malamute.spark.scan import ExportedHistory
from malamute.spark.session import open_session

settings = ReplaySettings(sys.argv[2], name="r", speed=1)
replay(open_session("killed", "local[2,4]"), ExportedHistory(sys.argv[1]), settings)
"""


@pytest.fixture
def driver(tmp_path: Path, broker: Broker) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Run a replay in a process group of its own, which is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run() -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "h"), broker.url]
        started.append(subprocess.Popen(arguments, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        kill(process)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver and its Java."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def kill_workers(driver: int) -> int:
    """Kill the workers in Python of a driver: the children of what they are forked from. Returns how many."""
    parents: dict[int, int] = {}
    names: dict[int, bytes] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat, names[int(process.name)] = (
                (process / "stat").read_text(),
                (process / "cmdline").read_bytes(),
            )
        except OSError:
            continue  # it has ended
        parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])

    def below(pid: int) -> bool:
        return pid == driver or (pid in parents and below(parents[pid]))

    daemons = {pid for pid, name in names.items() if b"pyspark.worker" in name}
    workers = [pid for pid in daemons if parents.get(pid) in daemons and below(pid)]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return len(workers)


def seen(url: str, stream: str, count: int) -> None:
    """Wait until a stream holds so many messages."""
    with malamute.connect(url) as client, client.subscribe(stream, start="first") as messages:
        for _ in range(count):
            messages.receive(timeout=300)


@nightly
def test_driver_and_executor_are_killed(
    spark: SparkSession, tmp_path: Path, broker: Broker, driver: Callable[[], subprocess.Popen[bytes]]
) -> None:
    # However long a driver takes to start, it is not at the end when it is killed.
    count = 5000
    write(tmp_path / "h", "one", [Sent(n, seconds=n / 20) for n in range(1, count + 1)])
    killed = driver()
    seen(broker.url, "one", 50)
    # The worker in Python that publishes dies; Spark runs its task again.
    assert kill_workers(killed.pid)
    before = len(origins(broker.url, "one"))
    seen(broker.url, "one", before + 50)
    kill(killed)
    assert before + 50 < count
    replay(spark, ExportedHistory(str(tmp_path / "h")), ReplaySettings(broker.url, name="r"))
    assert origins(broker.url, "one") == list(range(1, count + 1))


def test_the_command_shows_what_it_would_do(directory: Path, broker: Broker) -> None:
    arguments = ["spark", "replay", str(directory), "--url", broker.url, "--dry-run", "--json"]
    done = CliRunner().invoke(cli, [*arguments, "--stream", "one", "--last", "100"])
    assert done.exit_code == 0, done.output
    [row] = json.loads(done.stdout)
    assert (row["stream"], row["target"], row["messages"], row["position"]) == ("one", "one", 100, 0)
    assert row["first_time"] == "2024-01-01T00:00:01+00:00"
    refused = CliRunner().invoke(cli, [*arguments, "--stream", "nosuch"])
    assert (refused.exit_code, json.loads(refused.stderr)["error"]["code"]) == (1, 404)


def test_a_look_that_failed_is_done_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplayWriter(broker.url, "t", "r") as writer:
        writer.publish(messages_of([1, 2, 3]))
    look, failures = module._look, [TryLater("full"), TimedOut("slow")]

    def failing(*arguments: Any) -> int:
        if failures:
            raise failures.pop()
        return look(*arguments)

    monkeypatch.setattr(module, "_look", failing)
    with ReplayWriter(broker.url, "t", "r") as writer:
        assert writer.position == 3
        writer.publish(messages_of([3, 4]))
    assert origins(broker.url, "t") == [1, 2, 3, 4]
