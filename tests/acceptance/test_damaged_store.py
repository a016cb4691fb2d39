"""A broker on a store that the disk has damaged: it starts, serves the rest, and tells what is lost."""

from __future__ import annotations

import subprocess

import lmdb
import pytest
from forked_commands import forked_malamute
from rig_daemon import Daemon, environment
from rig_waiting import eventually

import malamute
from malamute.errors import CursorLost
from malamute.journal.format import BLOCK, STREAM


def damage(daemon: Daemon, kind: int, holds: bytes) -> None:
    """Flip a bit of each value of a kind that holds something, behind the broker's back."""
    size = (daemon.directory / "data" / "data.mdb").stat().st_size
    with (
        lmdb.open(str(daemon.directory / "data"), map_size=size) as env,
        env.begin(write=True) as transaction,
    ):
        found = [(k, v) for k, v in transaction.cursor() if k[0] == kind and holds in v]
        assert found
        for place, value in found:
            at = value.index(holds) + len(holds) - 1
            transaction.put(place, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])


def check(daemon: Daemon) -> tuple[int, str]:
    command = [forked_malamute(), "broker", "check", "--url", daemon.url]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_state_of_a_stream(daemon: Daemon) -> None:
    with malamute.connect(daemon.url) as client:
        for body in (b"1", b"2"):
            client.publish("weather", "temp", body, assurance="stored")
    daemon.stop()
    damage(daemon, STREAM, b"weather")
    daemon.start()
    code, reported = check(daemon)
    assert (code, "parts of the store are damaged" in reported) == (1, True)
    with malamute.connect(daemon.url) as client, client.subscribe("weather", start="first") as subscription:
        assert [next(iter(subscription)).body for _ in range(2)] == [b"1", b"2"]


def test_a_block_with_mail_that_is_tracked_and_a_cursor(daemon: Daemon) -> None:
    with malamute.connect(daemon.url, address="alice") as client:
        client.publish("weather", "temp", b"1", assurance="stored")
        client.change("cursor.set", stream="weather", cursor="slow", start="first")
        client.send("bob", "hello", b"RECORD-OF-BOB", assurance="confirmed", tracker="t")
    daemon.stop()
    damage(daemon, BLOCK, b"RECORD-OF-BOB")
    damage(daemon, BLOCK, b"slow")
    daemon.start()
    eventually(lambda: "the store is damaged" in daemon.log, "a word in the log")
    with malamute.connect(daemon.url, address="alice") as client:
        assert client.query("status")["damages"] > 0
        outcome = next(iter(client.mailbox()))
        reported = outcome.properties
        assert (outcome.outcome, reported["reason"], reported["tracker"]) == ("dead-lettered", "corrupt", "t")
        with pytest.raises(CursorLost), client.subscribe("weather", cursor="slow") as subscription:
            next(iter(subscription))
        client.change("cursor.set", stream="weather", cursor="slow", start="first")
        with client.subscribe("weather", cursor="slow") as subscription:
            assert next(iter(subscription)).body == b"1"
