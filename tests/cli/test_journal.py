"""`malamute journal`: a data directory that no broker uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from click.testing import CliRunner, Result

from malamute.cli.journal import backup, journal
from malamute.errors import MalamuteError, StoreCorrupt, StoreError, StoreLocked
from malamute.journal.disk import DiskStore
from malamute.journal.format import CHUNK, META, key
from malamute.store.operations import AppendChunk, Chunk, PutMessages, PutValue
from malamute.store.tables import CURSORS, FEEDS

Run = Callable[..., Result]
TIME = 1_700_000_000_000_000_000


@pytest.fixture
def run() -> Run:
    def run(*arguments: object, exit_code: int = 0) -> Result:
        result = CliRunner().invoke(journal, list(map(str, arguments)))
        if isinstance(result.exception, MalamuteError):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result

    return run


def opened(path: Path) -> DiskStore:
    store = DiskStore.open(path, size=4 << 20, preallocate=False)
    store.recover()
    return store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with 30 chunks of 10 messages, a queue, a dead letter of it, a cursor and a feed."""
    store = opened(tmp_path / "data")
    appends = [AppendChunk("weather", Chunk(n, 10, TIME + n, b"payload"), n + 9) for n in range(1, 300, 10)]
    message = (1, TIME, "alice", ["subject"], [b"record"])
    queued = [PutMessages(kind, "bob", *message) for kind in ("mailbox", "mailbox-dead")]
    store.write(
        [*appends, *queued, PutValue(CURSORS, ("weather", "c"), 5), PutValue(FEEDS, ("weather", "f"), b"")]
    )
    store.close()
    return tmp_path / "data"


def damage(data: Path, place: bytes) -> None:
    with lmdb.open(str(data), map_size=4 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(place, transaction.get(place)[:-1] + b"?")


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_good_store_is_good(run: Run, data: Path) -> None:
    assert run("verify", "--data", data).stdout.endswith("good\n")
    found = as_json(run("verify", "--data", data, "--json"))
    assert found["good"]
    assert found["checked"][0] == {
        "stream": "weather",
        "last": 300,
        "chunks": 30,
        "bytes": 210,
        "damages": [],
    }
    assert found["checked"][1]["stream"] is None


def test_damage_is_reported_with_its_range(run: Run, data: Path) -> None:
    damage(data, key(CHUNK, 1, 11))
    shown = run("verify", "--data", data, exit_code=1).stdout
    assert "damaged: stream weather 11 to 20, corrupt\n" in shown
    found = as_json(run("verify", "--data", data, "--json", exit_code=1))
    assert not found["good"]
    assert found["checked"][0]["damages"] == [{"first": 11, "last": 20, "reason": "corrupt"}]


def test_a_store_that_cannot_be_opened_says_so(run: Run, data: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        run("verify", "--data", tmp_path / "none")
    damage(data, key(META))
    damage(data, key(META, 0, 1))
    with pytest.raises(StoreCorrupt):
        run("inspect", "--data", data)
    assert "rebuilt" in run("repair", "--dry-run", data, exit_code=1).stdout
    assert [row["kind"] for row in as_json(run("repair", data, "--json"))["repairs"]] == ["meta"]
    assert run("repair", data).stdout == "nothing is damaged\n"
    run("inspect", "--data", data)


@pytest.mark.parametrize("command", [("verify",), ("inspect",), ("backup", "target")])
def test_a_store_in_use_is_refused(run: Run, data: Path, command: tuple[str, ...]) -> None:
    store = opened(data)
    with pytest.raises(StoreLocked, match="in use by process"):
        run(*command, "--data", data)
    store.close()


def test_the_store_and_its_streams_are_shown(run: Run, data: Path) -> None:
    found = as_json(run("inspect", "--data", data, "--json"))
    assert (found["queues"], found["queued_messages"], found["dead_letters"]) == (1, 1, 1)
    assert (found["cursors"], found["feeds"]) == (1, 1)
    (stream,) = found["streams"]
    assert (stream["stream"], stream["first"], stream["last"], stream["chunks"]) == ("weather", 1, 300, 30)
    assert stream["first_time"] == "2023-11-14T22:13:20.000+00:00"
    assert "weather" in run("inspect", "--data", data).stdout


def test_the_chunks_of_a_stream_are_listed(run: Run, data: Path) -> None:
    damage(data, key(CHUNK, 1, 21))
    with lmdb.open(str(data), map_size=4 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(key(CHUNK, 1, 31), b"short")
    listing = ("inspect", "--data", data, "--stream", "weather", "--json")
    rows = as_json(run(*listing, "--from", 15, "--limit", 3))
    assert [(row["first"], row["last"]) for row in rows] == [(11, 20), (21, 30), (31, 40)]
    assert [row["damage"] for row in rows] == [None, None, "corrupt"]
    assert rows[0]["payload_bytes"] == 7
    assert len(as_json(run(*listing))) == 20
    assert len(as_json(run(*listing, "--limit", 99))) == 30
    assert as_json(run(*listing, "--from", 301)) == []


def test_a_backup_is_restored(run: Run, data: Path, tmp_path: Path) -> None:
    saved, fresh = tmp_path / "saved", tmp_path / "fresh"
    assert as_json(run("backup", saved, "--data", data, "--json"))["chunks"] == 30
    assert "chunks   30" in run("restore", saved, fresh).stdout
    shown = [as_json(run("inspect", "--data", path, "--json")) for path in (data, fresh)]
    assert shown[0]["streams"] == shown[1]["streams"]
    with pytest.raises(StoreError, match="already"):
        run("restore", saved, fresh)


def test_a_damaged_backup_is_reported(run: Run, data: Path, tmp_path: Path) -> None:
    damage(data, key(CHUNK, 1, 11))
    shown = run("backup", tmp_path / "saved", "--data", data, exit_code=1).stdout
    assert "damaged: stream weather 11 to 20, corrupt\n" in shown
    assert as_json(run("restore", tmp_path / "saved", tmp_path / "fresh", "--json", exit_code=1))["damages"]


def test_a_store_in_use_is_copied_through_the_seam(data: Path, tmp_path: Path) -> None:
    store = opened(data)
    printed: list[int] = []
    copied = backup(store, tmp_path / "saved", lambda done, total: printed.append(done))
    assert copied.bytes == printed[-1]
    assert backup(store, tmp_path / "again") == copied
    store.close()
