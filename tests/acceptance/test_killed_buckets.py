"""Four processes change the same keys while the broker is killed: nothing is won twice, or counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from depth import NIGHT
from rig_daemon import Daemon
from rig_process import FORKS, fork
from rig_waiting import PATIENCE

import malamute
from malamute.errors import ConnectionLost, NotAsExpected, NotOutstanding

RACERS = 4
KILLS = 15 if NIGHT else 2
ROUND_CHANGES = 16
"""Changes of one racer between two kills, at least."""


def race(url: str, name: str, said: Connection) -> None:
    """Change a key over the revision that was read, and count each win; until the pipe is closed."""
    with malamute.connect(url, address=name, timeout=PATIENCE) as client, said:
        bucket = client.bucket("race")
        client.on_event = lambda event: None
        while True:
            found = bucket.get("leader")
            try:
                expected = 0 if found is None else found.revision
                won = bucket.put("leader", name, expect=expected)
                said.send((expected, won))
                bucket.add("wins", 1)
            except NotAsExpected:
                pass
            except ConnectionLost:
                said.send((-1, -1))
            if said.poll():
                said.recv()
                return


def test_of_racing_processes_one_wins_each_revision_over_kills_of_the_broker(
    new_daemon: Callable[[], Daemon],
) -> None:
    daemon = new_daemon().start()
    pipes, racers = [], []
    for number in range(RACERS):
        here, there = FORKS.Pipe()
        racers.append(fork(race, daemon.url, f"racer-{number}", there))
        there.close()
        pipes.append(here)
    wins: list[tuple[int, int]] = []
    for _ in range(KILLS):
        for pipe in pipes:
            # Each gets on in each life.
            for _ in range(ROUND_CHANGES // RACERS):
                assert pipe.poll(PATIENCE)
                wins.append(pipe.recv())
        daemon.kill()
        daemon.start()
    for pipe in pipes:
        pipe.send(None)
    for pipe, racer in zip(pipes, racers, strict=True):
        try:
            while pipe.poll(PATIENCE):
                wins.append(pipe.recv())
        except EOFError:
            racer.join(PATIENCE)
    assert (-1, -1) not in wins, "a session was forgotten in its time"
    with malamute.connect(daemon.url, timeout=PATIENCE) as client:
        bucket = client.bucket("race")
        last, count = bucket.get("leader"), bucket.get("wins")
    assert last is not None
    assert count is not None
    assert len({expected for expected, _ in wins}) == len({won for _, won in wins}) == len(wins)
    # Each win is over the one before it: no confirmed win was lost.
    assert dict(sorted(wins)).keys() == {0, *(won for _, won in wins)} - {last.revision}
    assert int(count.value) == len(wins)


def test_a_result_and_its_acknowledgement_are_both_there_or_neither_over_kills(
    new_daemon: Callable[[], Daemon],
) -> None:
    daemon = new_daemon().start()
    jobs = [f"job-{number}" for number in range(10 * KILLS)]
    with malamute.connect(daemon.url, address="worker", timeout=PATIENCE) as client:
        for job in jobs:
            client.send("worker", job, b"")
        bucket, done = client.bucket("results"), []
        mailbox = client.mailbox(auto_ack=False, credit=5)
        for number in range(6 * KILLS):
            mail = mailbox.receive(timeout=PATIENCE)
            if number % 6 == 3:
                # The put is on its way, or on the disk, or neither.
                time.sleep(0)
                daemon.kill()
                daemon.start()
            try:
                mail.ack(put=("results", mail.subject, b"done"))
                done.append(mail.subject)
            except NotOutstanding:
                # It was taken back when the connection broke.
                mail.release()
        mailbox.cancel()
        left = {row["subject"] for row in client.query("messages", kind="mailbox", name="worker")}
        results = bucket.get_many(jobs)
    assert results.keys() | left == {*jobs}
    assert not results.keys() & left
    assert results.keys() == {*done}
