"""The broker is killed again and again under load, and what it confirmed is there (promises 1 and 3)."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from depth import NIGHT
from rig_daemon import Daemon
from rig_load import ROLES, STREAM, Load, check_numbering, check_taken_back, read_back
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.journal.directory import read_meta
from malamute.journal.write_ahead import find_records, read_log

KILLS = 100 if NIGHT else 8
PAUSE_MAX = 0.25
"""Seconds at most from the first confirmations of a life to its end."""


def only_logged(directory: Path) -> int:
    """Return how many records of the write-ahead log are not in LMDB yet."""
    with lmdb.open(str(directory), readonly=True, lock=False) as environment, environment.begin() as reading:
        return len(find_records(read_log(directory), read_meta(reading)).records)


@pytest.mark.parametrize("seed", [20])
def test_kills_under_load_lose_nothing_that_was_confirmed_and_double_nothing(
    new_daemon: Callable[[], Daemon], seed: int
) -> None:
    """WP27, WP29, WP30, WP31, WP32, WP43, WP45."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    daemon, logged = new_daemon().start(), 0
    with Load(dict.fromkeys(ROLES, daemon.url)) as load:
        for _ in range(KILLS):
            load.progress()
            # Nothing is waited for here: the moment of the kill is drawn.
            time.sleep(chance.uniform(0, PAUSE_MAX))
            daemon.kill()
            logged += bool(only_logged(daemon.config.storage.directory))
            daemon.start()
        load.settle()
        # Behind the last message a gap is reported as well: with one after the last kill, each is between
        # two.
        with malamute.connect(daemon.url, timeout=PATIENCE) as client:
            client.publish(STREAM, "last", b"", assurance="stored")
        stored, gaps = read_back(daemon.url)
        eventually(lambda: load.live[-1].sequence == stored[-1].sequence, "the last message, live")
    print(f"{load}; {len(gaps)} gaps; {logged} of {KILLS} kills left something in the log only")
    assert logged

    load.check_all(stored)
    check_numbering([message.sequence for message in stored], gaps)
    live = [message.sequence for message in load.live]
    check_numbering(live, check_taken_back(live, [message.sequence for message in stored], load.gaps))
