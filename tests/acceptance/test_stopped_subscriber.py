"""One subscriber among ten stands still, and costs nobody anything (promises 2 and 3)."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from depth import nightly
from rig_daemon import MIB, Daemon, small
from rig_programs import SUBSCRIBER, Program
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.errors import MalamuteError

Connect = Callable[..., malamute.Client]
Run = Callable[..., Program]

BODY = bytes(16_384)
COUNT = 12_500
AHEAD = 500
OTHERS = 9
MEMORY_MIB_MAX = 180
"""Anonymous memory of the broker. All messages have 200 MiB, times ten subscribers."""


class Watch:
    """The highest memory of a broker while it is looked at."""

    def __init__(self, daemon: Daemon) -> None:
        self.highest = daemon.anonymous_mib
        self._daemon = daemon
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.highest = max(self.highest, self._daemon.anonymous_mib)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def counting(url: str, count: int, subscribers: int) -> Iterator[list[int]]:
    """Subscribers on threads. At the end each must have had `count` messages, in order and without a gap."""
    had = [0] * subscribers
    ready = threading.Barrier(subscribers + 1)

    def subscribe(place: int) -> None:
        try:
            with malamute.connect(url, timeout=PATIENCE) as client, client.subscribe("s") as messages:
                ready.wait(PATIENCE)
                while had[place] < count and (batch := messages.take(1000, PATIENCE)):
                    first, last = batch[0].sequence, batch[-1].sequence
                    assert (first, last) == (had[place] + 1, had[place] + len(batch))
                    had[place] += len(batch)
        except (MalamuteError, AssertionError):
            ready.abort()
            raise

    threads = [threading.Thread(target=subscribe, args=(place,)) for place in range(subscribers)]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE)
    yield had
    for thread in threads:
        thread.join(PATIENCE)
    assert had == [count] * subscribers


def publish(client: malamute.Client, count: int, had: list[int]) -> None:
    """Publish, but no further ahead of those who read than the journal keeps in every case."""
    with client.publisher("s", timeout=PATIENCE) as out:
        for number in range(count):
            out.publish("load", BODY + b"%d" % number)
            if number % AHEAD == 0:
                out.flush(PATIENCE)
                eventually(lambda number=number: min(had) >= number - AHEAD, "the others at work")


def ranges_of(lines: list[list[str]]) -> Iterator[tuple[str, int, int]]:
    """What a subscriber had and was reported as missing, as ascending ranges."""
    found = [(words[0], int(words[1]), int(words[2])) for words in lines]
    yield from sorted(found, key=lambda item: item[1])


def test_while_one_stands_still_nine_others_have_everything_and_it_gets_the_rest_by_replay(
    new_daemon: Callable[..., Daemon], connect_to: Connect, run: Run
) -> None:
    """WP3, WP24, WP27, WP38, WP39: the journal keeps all, whether or not its connection is given up."""
    daemon = new_daemon(small(512 * MIB)).start()
    stopped = run(SUBSCRIBER, daemon.url, "s", str(COUNT))
    assert stopped.line() == ["ready"]
    with Watch(daemon) as memory, counting(daemon.url, COUNT, OTHERS) as had:
        stopped.wait_stopped()
        publish(connect_to(daemon.url), COUNT, had)
    print(f"at most {memory.highest:.0f} MiB")
    assert memory.highest < MEMORY_MIB_MAX
    stopped.send_signal(signal.SIGCONT)
    assert [*ranges_of(stopped.lines())] == [("had", 1, COUNT)]


@nightly
def test_one_that_stood_still_until_its_connection_was_given_up_is_notified_of_the_gap(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """WP3, WP24, WP27, WP29, WP37: of 200 MiB the journal keeps less than a quarter."""
    client = connect()
    stopped = run(SUBSCRIBER, daemon.url, "s", str(COUNT))
    assert stopped.line() == ["ready"]
    with Watch(daemon) as memory, counting(daemon.url, COUNT, OTHERS) as had:
        stopped.wait_stopped()
        publish(client, COUNT, had)
        eventually(lambda: any(not one["connected"] for one in client.query("clients")), "its absence")
    print(f"at most {memory.highest:.0f} MiB")
    assert memory.highest < MEMORY_MIB_MAX
    stopped.send_signal(signal.SIGCONT)

    ranges = [*ranges_of(stopped.lines())]
    assert ranges[0][1] == 1
    assert all(before[2] + 1 == after[1] for before, after in pairwise(ranges)), ranges
    assert ranges[-1] == ("had", ranges[-1][1], COUNT)
    assert "gap" in [kind for kind, _, _ in ranges]
