"""Several stores on real directories: what happens to one of them, and that nothing else does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rig_daemon import MIB, Daemon, environment, small
from rig_waiting import PATIENCE

import malamute
from malamute.config import Config, StoreTable, StreamRule, StreamsConfig
from malamute.errors import StorageFull, StoreAway
from malamute.journal.disk import DiskStore
from malamute.protocol.admin import FeedSet
from malamute.server.process import BrokerProcess

SOURCE = Path(__file__).with_name("faulty_disk.c")

CONFIG = """
[storage]
size = "32MiB"
[[storage.store]]
name = "archive"
directory = "{archive}"
size = "16MiB"
[[storage.store]]
name = "quick"
kind = "memory"
size = "16MiB"
[[streams.rule]]
pattern = "ticks*"
store = "archive"
[[streams.rule]]
pattern = "quick*"
store = "quick"
[limits]
message_bytes = "1MiB"
"""

MESSAGES, KILLS = 3_000, 5

STOP_SECONDS = 10.0
"""A broker with a store that hangs has ended by then."""


class Place:
    """A broker's directories; `start` it as often as needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.archive = directory / "disk" / "archive"
        self.archive.parent.mkdir()
        self.trouble = directory / "trouble"
        self._config = directory / "malamute.toml"
        self._config.write_text(CONFIG.format(archive=self.archive))

    def start(self) -> BrokerProcess:
        return BrokerProcess(self.directory, "--config", str(self._config))

    def let(self, kind: str) -> None:
        """From now on what is written to the archive is to `hang`, or finds the disk `full`."""
        new = self.trouble.with_suffix(".new")
        new.write_text(f"{kind} {self.archive}")
        new.rename(self.trouble)

    def heal(self) -> None:
        """The disk is well again."""
        self.trouble.unlink()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler (gcc)")
    made = tmp_path_factory.mktemp("trouble") / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True)
    return made


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def faulty(place: Place, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("TROUBLE", str(place.trouble))
    yield place
    place.trouble.unlink(missing_ok=True)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "malamute", *arguments]
    return subprocess.run(whole, env=environment(), capture_output=True, text=True, check=False)


def publish(client: malamute.Client, stream: str, body: bytes) -> int:
    sequence = client.publish(stream, "s", body, assurance="stored")
    assert sequence is not None
    return sequence


def history(client: malamute.Client, stream: str, count: int) -> list[bytes]:
    with client.subscribe(stream, start="first") as subscription:
        return [subscription.receive(PATIENCE).body for _ in range(count)]


def in_two_stores(directory: Path) -> Config:
    """Streams whose names begin with `ticks` are in another store."""
    archive = StoreTable("archive", directory / "archive", size=16 * MIB)
    storage = replace(small().storage, store=(archive,))
    rules = StreamsConfig(rule=(StreamRule("ticks*", store="archive"),))
    return replace(small(), storage=storage, streams=rules)


def test_a_full_store_refuses_what_is_for_it_and_nothing_else(faulty: Place) -> None:
    with faulty.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"1")
        faulty.let("full")
        with pytest.raises(StorageFull):
            publish(client, "ticks", b"2")
        publish(client, "weather", b"3")
        faulty.heal()
        publish(client, "ticks", b"4")
        assert history(client, "ticks", 2) == [b"1", b"4"]
        assert history(client, "weather", 1) == [b"3"]


def test_a_store_that_hangs_holds_up_nothing_but_itself_and_not_the_end_of_the_broker(faulty: Place) -> None:
    with faulty.start() as broker:
        with malamute.connect(broker.url) as client, malamute.connect(broker.url) as other:
            publish(client, "ticks", b"1")
            faulty.let("hang")
            with client.publisher("ticks") as out:
                waiting = out.publish("s", b"2")
                for number in range(100):
                    publish(other, "weather", b"%d" % number)
                assert not waiting.done
                # Whoever asks how the broker is waits for none of its stores.
                (archive, _) = other.query("status")["stores"]
                assert archive["backlog_bytes"] > 0
                assert command("broker", "status", "--url", broker.url).returncode == 0
                faulty.heal()
                waiting.wait(PATIENCE)
            assert history(client, "ticks", 2) == [b"1", b"2"]
            faulty.let("hang")
            client.publish("ticks", "s", b"3")
            publish(other, "weather", b"last")
        begun = time.monotonic()
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.wait(STOP_SECONDS) == 0
        assert time.monotonic() - begun < STOP_SECONDS
        faulty.heal()
    with faulty.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"4")
        assert history(client, "ticks", 3) == [b"1", b"2", b"4"]


def publish_over_kills(daemon: Daemon, client: malamute.Client) -> list[bytes]:
    """Publish to a stream of each store in turn, over kills of the broker. Returns what each is to have."""
    with client.publisher("ticks") as ticks, client.publisher("weather") as weather:
        for number in range(MESSAGES):
            ticks.publish("s", b"%d" % number)
            weather.publish("s", b"%d" % number)
            if number % (MESSAGES // KILLS) == MESSAGES // KILLS // 2:
                daemon.kill()
                daemon.start()
    return [b"%d" % number for number in range(MESSAGES)]


def test_what_one_session_publishes_to_two_stores_is_there_once_over_kills(
    new_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Its numbers alternate between the stores. In the end all is there, in order, and nothing twice."""
    daemon = new_daemon(in_two_stores(tmp_path)).start()
    with malamute.connect(daemon.url) as client:
        client.on_event = lambda event: None
        expected = publish_over_kills(daemon, client)
        assert history(client, "ticks", MESSAGES) == expected
        assert history(client, "weather", MESSAGES) == expected


def test_feeds_between_two_stores_put_each_message_once_over_kills(
    new_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """One in each direction, while a client publishes to both sources."""
    daemon = new_daemon(in_two_stores(tmp_path)).start()
    with malamute.connect(daemon.url) as client:
        client.on_event = lambda event: None
        for source, target in (("ticks", "copied"), ("weather", "ticks-copied")):
            client.change(FeedSet(source=f"stream/{source}", feed="f", target=f"stream/{target}"))
        expected = publish_over_kills(daemon, client)
        assert history(client, "copied", MESSAGES) == expected
        assert history(client, "ticks-copied", MESSAGES) == expected
        last = client.query("stream", name="copied")["last"]
        client.publish("ticks", "s", b"end", assurance="stored")
        with client.subscribe("copied", start=f"seq:{last + 1}") as subscription:
            # Nothing else came behind them.
            assert subscription.receive(PATIENCE).body == b"end"


def test_a_mount_that_is_missing_is_no_new_empty_store(place: Place) -> None:
    with place.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"1")
        publish(client, "weather", b"2")
    aside = place.archive.with_name("aside")
    place.archive.rename(aside)
    place.archive.mkdir(0o700)
    with place.start() as broker, malamute.connect(broker.url) as client:
        with pytest.raises(StoreAway, match="mounted"):
            publish(client, "ticks", b"lost")
        with pytest.raises(StoreAway):
            client.subscribe("ticks", start="first").receive(PATIENCE)
        publish(client, "weather", b"3")
        done = command("broker", "check", "--url", broker.url)
        assert done.returncode == 2
        assert "the store archive takes nothing: it could not be opened" in done.stdout
        assert command("broker", "status", "--url", broker.url).returncode == 1
    assert [*place.archive.iterdir()] == []
    place.archive.rmdir()
    aside.rename(place.archive)
    with place.start() as broker, malamute.connect(broker.url) as client:
        assert publish(client, "ticks", b"4") == 2
        assert history(client, "ticks", 2) == [b"1", b"4"]
        assert history(client, "weather", 2) == [b"2", b"3"]


def test_a_store_that_is_gone_for_good_is_made_anew_when_an_operator_says_so(place: Place) -> None:
    with place.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"1")
    shutil.rmtree(place.archive)
    data = str(place.directory / "data")
    assert command("journal", "forget-store", "other", "--yes", "--data", data).returncode != 0
    assert command("journal", "forget-store", "archive", "--yes", "--data", data).returncode == 0
    with place.start() as broker, malamute.connect(broker.url) as client:
        # No reader that had the first one takes it for that.
        assert publish(client, "ticks", b"2") > 1 << 40
        assert command("broker", "check", "--url", broker.url).returncode == 0


def test_a_store_of_another_broker_is_not_written_to(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    with other.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"theirs")
    shutil.copytree(other.archive, place.archive)
    before = (place.archive / "data.mdb").read_bytes()
    with place.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "weather", b"ours")
        with pytest.raises(StoreAway, match="another broker"):
            publish(client, "ticks", b"ours")
    assert (place.archive / "data.mdb").read_bytes() == before


def test_a_store_that_another_process_uses_or_that_is_damaged_keeps_no_broker_from_starting(
    place: Place,
) -> None:
    with place.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"1")
    with (
        closing(DiskStore.open_existing(place.archive)),
        place.start() as broker,
        malamute.connect(broker.url) as client,
    ):
        with pytest.raises(StoreAway, match="in use"):
            publish(client, "ticks", b"2")
        publish(client, "weather", b"3")
    data = place.archive / "data.mdb"
    good = data.read_bytes()
    data.write_bytes(b"no store" * 4096)
    with place.start() as broker, malamute.connect(broker.url) as client:
        with pytest.raises(StoreAway):
            publish(client, "ticks", b"2")
        publish(client, "weather", b"4")
    data.write_bytes(good)
    with place.start() as broker, malamute.connect(broker.url) as client:
        assert history(client, "ticks", 1) == [b"1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to what is read-only")
def test_a_store_that_is_read_only_keeps_no_broker_from_starting(place: Place) -> None:
    with place.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"1")
    place.archive.chmod(0o500)
    for file in place.archive.iterdir():
        file.chmod(0o400)
    with place.start() as broker, malamute.connect(broker.url) as client:
        with pytest.raises(StoreAway):
            publish(client, "ticks", b"2")
        publish(client, "weather", b"3")
    place.archive.chmod(0o700)


def test_what_is_in_memory_is_gone_with_the_broker_and_its_sequences_are_not_used_again(place: Place) -> None:
    with place.start() as broker, malamute.connect(broker.url) as client:
        first = publish(client, "quick", b"1")
        publish(client, "weather", b"2")
    with place.start() as broker, malamute.connect(broker.url) as client:
        assert publish(client, "quick", b"3") > first
        assert history(client, "quick", 1) == [b"3"]
        assert history(client, "weather", 1) == [b"2"]


def test_a_backup_has_all_stores_and_each_is_restored_by_itself(place: Place) -> None:
    with place.start() as broker, malamute.connect(broker.url) as client:
        publish(client, "ticks", b"1")
        publish(client, "weather", b"2")
        done = command("broker", "backup", "monday", "--url", broker.url)
        assert done.returncode == 0, done.stderr
        assert "archive" in done.stdout
        publish(client, "ticks", b"3")
        publish(client, "weather", b"4")
    backup = place.directory / "data" / "backups" / "monday"
    assert command("journal", "verify", "--data", str(backup / "stores" / "archive")).returncode == 0
    shutil.rmtree(place.archive)
    done = command("journal", "restore", str(backup / "stores" / "archive"), str(place.archive))
    assert done.returncode == 0, done.stderr
    with place.start() as broker, malamute.connect(broker.url) as client:
        # What the archive had after the backup is lost, and its sequences are not used again.
        assert publish(client, "ticks", b"5") > 2
        assert history(client, "ticks", 2) == [b"1", b"5"]
        assert history(client, "weather", 2) == [b"2", b"4"]
