"""A ring smaller than the traffic: what has left is reported, exactly, and the file stays as it is."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig_daemon import MIB, Daemon, small
from rig_waiting import PATIENCE

import malamute
from malamute.client.events import Event, Gap
from malamute.client.sync.consumers import Subscription
from malamute.client.sync.publisher import Publisher
from malamute.config import Config, StreamRule, StreamsConfig

Connect = Callable[..., malamute.Client]

BATCH = 50
BODY = bytes(1_000)

RINGS = {
    "by count": replace(small(8 * MIB), streams=StreamsConfig(rule=(StreamRule(pattern="s", count=500),))),
    "by bytes": replace(
        small(8 * MIB), streams=StreamsConfig(rule=(StreamRule(pattern="s", bytes=500_000),))
    ),
    "by the size of the store": small(2 * MIB),
}


class Account:
    """What one reader had, and what was reported to it as missing."""

    def __init__(self, client: malamute.Client) -> None:
        self.had: list[int] = []
        self.gaps: list[Gap] = []
        client.on_event = self._note

    def _note(self, event: Event) -> None:
        if isinstance(event, Gap):
            self.gaps.append(event)

    @property
    def ranges(self) -> list[tuple[int, int, str]]:
        return [(gap.first, gap.last, gap.reason) for gap in self.gaps]

    def read_to(self, messages: Subscription, last: int) -> None:
        """Take all messages up to this one."""
        while messages.last != last or self.had[-1:] != [last]:
            batch = messages.take(1_000, PATIENCE) or pytest.fail(f"nothing comes behind {self.had[-1:]}")
            self.had += [message.sequence for message in batch]

    def is_whole(self, last: int) -> bool:
        """Whether messages and gaps together are everything from 1 on, each sequence once."""
        missing = [sequence for gap in self.gaps for sequence in range(gap.first, gap.last + 1)]
        return sorted(self.had + missing) == list(range(1, last + 1)) and self.had == sorted(self.had)


def publish(out: Publisher, batches: int) -> int:
    """Publish batches, each stored before the next. Returns the last sequence."""
    for _ in range(batches):
        receipt = out.publish("a", BODY)
        out.publish_many(["a"] * (BATCH - 1), [BODY] * (BATCH - 1))
        out.flush(PATIENCE)
    return int(receipt.sequence) + BATCH - 1


def kept(client: malamute.Client, stream: str = "s") -> dict[str, Any]:
    """What the store says of a stream."""
    rows: Sequence[dict[str, Any]] = client.query("stored", stream=stream)
    return rows[0]


def room_on_disk(daemon: Daemon) -> tuple[int, int]:
    """Bytes and blocks of the file of the store."""
    found = os.stat(data_file(daemon))
    return found.st_size, found.st_blocks


def data_file(daemon: Daemon) -> Path:
    """The file of the store."""
    return daemon.config.storage.directory / "data.mdb"


@pytest.mark.parametrize("config", [pytest.param(config, id=name) for name, config in RINGS.items()])
def test_wp37_a_reader_that_the_ring_has_passed_is_notified_of_the_exact_gaps_and_the_file_is_constant(
    new_daemon: Callable[..., Daemon], connect_to: Connect, config: Config
) -> None:
    """WP5, WP22, WP37: three times it stands still for more than the ring."""
    daemon = new_daemon(config).start()
    client, reader = connect_to(daemon.url), connect_to(daemon.url)
    size, account = room_on_disk(daemon), Account(reader)
    messages, out = reader.subscribe("s", start=1, credit=100), client.publisher("s")
    last, expected = publish(out, 2), []
    for _ in range(3):
        account.read_to(messages, last)
        last = publish(out, 60)
        reader.flush(PATIENCE)
        assert messages.last is not None
        expected.append((messages.last + 1, kept(client)["first"] - 1, "overwritten"))
        account.read_to(messages, last)
    assert account.ranges == expected
    assert account.is_whole(last)
    assert room_on_disk(daemon) == size
    print(f"{last} messages, of which {len(account.had)} were had")


def test_wp37_what_is_had_and_what_is_missing_is_everything_while_the_ring_drops(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP37, WP39: a reader that takes one message where two are published never loses count."""
    daemon = new_daemon(RINGS["by count"]).start()
    client, reader = connect_to(daemon.url), connect_to(daemon.url)
    account, out = Account(reader), client.publisher("s")
    messages = reader.subscribe("s", start=1, credit=40)
    for _ in range(100):
        last = publish(out, 1)
        batch = messages.take(BATCH // 2, PATIENCE)
        account.had += [message.sequence for message in batch]
    account.read_to(messages, last)
    print(f"{len(account.gaps)} gaps in {last} messages")
    assert len(account.gaps) > 1
    assert {gap.reason for gap in account.gaps} == {"overwritten"}
    assert account.is_whole(last)


def test_wp5_wp22_a_history_by_count_is_kept_to_the_chunk_and_changed_while_the_broker_runs(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP5, WP22: 500 messages of `s`, set in the configuration; then 200, set at run time, over a restart."""
    daemon = new_daemon(RINGS["by count"]).start()
    client = connect_to(daemon.url)
    out, other = client.publisher("s"), client.publisher("other")
    assert (publish(out, 20), publish(other, 20)) == (1_000, 1_000)
    assert all_of(client, "s") == list(range(501, 1_001))
    assert all_of(client, "other") == list(range(1, 1_001))

    change = {"stream": "other", "count": 200}
    assert client.change("stream.retain", dry_run=True, **change)["count"] == 200
    assert kept(client, "other")["first"] == 1
    client.change("stream.retain", **change)
    daemon.restart()
    publish(other, 1)
    assert all_of(client, "other") == list(range(851, 1_051))
    assert all_of(client, "s") == list(range(501, 1_001))


def test_wp5_wp22_a_history_by_bytes_is_as_long_as_fits(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP5, WP22: no more than its bytes, and no chunk less than that."""
    daemon = new_daemon(RINGS["by bytes"]).start()
    client = connect_to(daemon.url)
    publish(client.publisher("s"), 20)
    row = kept(client)
    chunk = row["bytes"] / row["chunks"]
    assert 500_000 - 2 * chunk < row["bytes"] <= 500_000
    assert all_of(client, "s") == list(range(row["first"], 1_001))
    assert row["first"] > 1


def test_wp6_a_history_is_switched_on_without_a_word_to_publishers(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP6: the same publisher, over the restart that switches it on."""
    daemon = new_daemon(replace(small(8 * MIB), streams=StreamsConfig(journal=False))).start()
    client = connect_to(daemon.url)
    out = client.publisher("s", timeout=PATIENCE)
    assert publish(out, 2) == 100
    assert client.query("stream", name="s")["journaled"] is False
    daemon.stop()
    daemon.configure(small(8 * MIB))
    daemon.start()
    assert publish(out, 2) == 200
    assert all_of(client, "s") == list(range(101, 201))


def all_of(client: malamute.Client, stream: str, start: Any = "first") -> list[int]:
    """The sequences of a stream that are there, up to the newest."""
    last = next(row["last"] for row in client.query("streams") if row["name"] == stream)
    had: list[int] = []
    with client.subscribe(stream, start=start) as messages:
        while not had or had[-1] < last:
            had += [m.sequence for m in messages.take(1_000, PATIENCE)] or pytest.fail("the stream ends")
    return had


@pytest.mark.parametrize("start", [1, "first"])
def test_a_chunk_that_is_corrupt_is_reported_with_its_range_and_the_rest_is_delivered(
    new_daemon: Callable[..., Daemon], connect_to: Connect, start: int | str
) -> None:
    """WP37: one bit of one body, found in the file while no broker uses it."""
    daemon = new_daemon(small(8 * MIB)).start()
    out = connect_to(daemon.url).publisher("s")
    for number in range(10):
        out.publish_many(["a"] * 10, [b"<%d,%d>" % (number, place) + bytes(2_000) for place in range(10)])
        out.flush(PATIENCE)
    daemon.stop()
    flip(data_file(daemon), b"<4,7>")
    daemon.start()

    reader = connect_to(daemon.url)
    account = Account(reader)
    account.read_to(reader.subscribe("s", start=start), 100)
    assert account.ranges == [(41, 50, "corrupt")]
    assert account.is_whole(100)
    publish(out, 1)
    account.read_to(reader.subscribe("s", start=50), 150)
    assert account.ranges == [(41, 50, "corrupt"), (50, 50, "corrupt")]


def flip(file: Path, mark: bytes) -> None:
    """Change one bit behind a mark that occurs once."""
    raw = bytearray(file.read_bytes())
    assert raw.count(mark) == 1
    raw[raw.index(mark) + 1_000] ^= 1
    file.write_bytes(raw)
