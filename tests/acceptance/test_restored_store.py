"""A backup takes the place of a store that went on meanwhile, as the documentation says (promise 3)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import lmdb
import pytest
from forked_commands import forked_malamute
from rig_daemon import Daemon, environment
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Event, Gap, Restored
from malamute.core.stream.stream import RESERVE
from malamute.journal.directory import META_TWIN
from malamute.journal.format import META, key

Connect = Callable[..., malamute.Client]

LOST = RESERVE + 1_000
"""Messages that come after the backup: more than the broker reserves ahead."""


def malamute_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [forked_malamute(), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def publish(client: malamute.Client, count: int) -> int:
    """Publish messages, and return the sequence of the last one when all are confirmed."""
    with client.publisher("s") as out:
        for _ in range(count):
            receipt = out.publish("a", b"")
        out.flush(PATIENCE)
    return receipt.sequence


def reported(events: list[Event], stream: str = "s") -> list[Gap]:
    return [event for event in events if isinstance(event, Gap) and event.stream == stream]


@pytest.fixture
def back_in_time(daemon: Daemon) -> Callable[[], None]:
    """Kills the broker, puts the backup `monday` in the place of its store, and starts it."""

    def restore() -> None:
        daemon.kill()
        data = daemon.directory / "data"
        done = malamute_command(
            "journal", "restore", str(daemon.directory / "monday"), str(daemon.directory / "new")
        )
        assert done.returncode == 0, done.stderr
        data.rename(daemon.directory / f"old-{len([*daemon.directory.glob('old-*')])}")
        (daemon.directory / "new").rename(data)
        daemon.start()

    return restore


def test_a_restore_is_reported_to_everybody_and_uses_no_sequence_again(
    daemon: Daemon, connect: Connect, back_in_time: Callable[[], None]
) -> None:
    alice, bob = connect(), connect()
    events: list[Event] = []
    bob.on_event = events.append
    assert publish(alice, 3) == 3
    with alice.subscribe("s", start="first", cursor="billing") as reader:
        reader.commit([reader.receive(PATIENCE) for _ in range(2)][-1])
    done = malamute_command("broker", "backup", "monday", "--url", daemon.url)
    assert done.returncode == 0, done.stderr
    (daemon.directory / "data/backups/monday").rename(daemon.directory / "monday")
    last = publish(alice, LOST)
    assert last == 3 + LOST
    with alice.subscribe("s", start="last", cursor="billing") as reader:
        reader.commit(last)
    with bob.subscribe("s", start="last") as live:
        assert live.receive(PATIENCE).sequence == last
        back_in_time()
        # A client that has lived through it: what it had is no more, and neither is what may have come then.
        again = publish(alice, 1)
        assert live.receive(PATIENCE).sequence == again
    assert [event for event in events if isinstance(event, Restored)]
    first, second = reported(events)
    assert (first.first, first.last, first.reason) == (4, last, "restored")
    assert (second.first, second.last, second.reason) == (last + 1, again - 1, "restored")
    # A cursor is where it was when the backup was made.
    carol = connect()
    seen: list[Event] = []
    carol.on_event = seen.append
    with carol.subscribe("s", cursor="billing") as reader:
        assert [reader.receive(PATIENCE).sequence for _ in range(2)] == [3, again]
    assert [(gap.first, gap.last, gap.reason) for gap in reported(seen)] == [(4, again - 1, "restored")]
    with carol.subscribe("$sys", "broker.restored", start="first") as system:
        assert system.receive(PATIENCE).headers["incarnation"] == again - 1
    eventually(lambda: "the store was restored" in daemon.log, "a word in the log")
    # The same backup once more: what the first restore gave out is not given out again.
    middle = publish(alice, 10)
    back_in_time()
    assert publish(alice, 1) > middle > again


def test_a_meta_record_that_is_lost_with_its_twin_is_repaired_as_a_restore(daemon: Daemon) -> None:
    with malamute.connect(daemon.url) as client:
        last = publish(client, 3)
    daemon.stop()
    data = daemon.directory / "data"
    size = (data / "data.mdb").stat().st_size
    with lmdb.open(str(data), map_size=size) as env, env.begin(write=True) as transaction:
        for place in (key(META), META_TWIN):
            transaction.put(place, transaction.get(place)[:-1] + b"!")
    refused = malamute_command("broker", "run", "--data", str(data), "--listen", "tcp://127.0.0.1:*")
    assert (refused.returncode, "error 803" in refused.stderr) == (1, True)
    assert "malamute journal repair" in refused.stderr
    assert malamute_command("journal", "repair", str(data)).returncode == 0
    daemon.start()
    events: list[Event] = []
    with malamute.connect(daemon.url) as client:
        client.on_event = events.append
        again = publish(client, 1)
        assert again > last + RESERVE
        with client.subscribe("s", start="seq:3") as subscription:
            assert [subscription.receive(PATIENCE).sequence for _ in range(2)] == [last, again]
    assert [gap.reason for gap in reported(events)] == ["restored"]
