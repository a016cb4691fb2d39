"""From the history to what is published now, and back, without a message lost or doubled."""

import threading
import time
from collections.abc import Callable

import pytest
from rig_daemon import Daemon
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Event, Gap, Switched
from malamute.client.sync.consumers import Subscription

Connect = Callable[..., malamute.Client]

BATCH = 100
HISTORY = 5_000
WINDOW = 200
LAPSES = 5
MEMORY_MIB_MAX = 200
"""Anonymous memory of the broker. The test hands out more than twice as much."""


class Feed:
    """A publisher on a thread of its own, which has every batch confirmed before the next one."""

    def __init__(self, url: str) -> None:
        self.count = 0
        self.rate = 0.0
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="publisher")

    def __enter__(self) -> "Feed":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Publish no more."""
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def grows_past(self, count: int) -> None:
        """Wait for so many messages."""
        eventually(lambda: self.count > count or not self._thread.is_alive(), f"message {count}")
        assert self.count > count, "the publisher has ended"

    def _publish(self) -> None:
        with malamute.connect(self._url, timeout=PATIENCE) as client, client.publisher("s") as out:
            begun = time.monotonic()
            while not self._over.is_set():
                publish(out, self.count, BATCH)
                self.count += BATCH
            self.rate = self.count / (time.monotonic() - begun)


class Witness:
    """What one reader was sent besides messages."""

    def __init__(self, client: malamute.Client) -> None:
        self.switches: list[Switched] = []
        self.gaps: list[Gap] = []
        client.on_event = self._note

    def _note(self, event: Event) -> None:
        if isinstance(event, Switched):
            self.switches.append(event)
        elif isinstance(event, Gap):
            self.gaps.append(event)

    @property
    def states(self) -> list[str]:
        return [switch.state for switch in self.switches]

    @property
    def live(self) -> bool:
        return bool(self.switches) and self.switches[-1].state == "live"


def publish(out: "malamute.client.sync.publisher.Publisher", before: int, count: int) -> None:
    """Publish messages that say their number in the stream, and wait until they are stored."""
    numbers = range(before + 1, before + count + 1)
    out.publish_many(["n"] * count, [b"%d" % number for number in numbers])
    out.flush(PATIENCE)


def read_to(messages: Subscription, had: list[int], enough: Callable[[], object]) -> None:
    """Take messages until it is enough. What they say has to be their place in the stream."""
    while not enough():
        for message in messages.take(1_000, PATIENCE) or pytest.fail(f"nothing comes behind {had[-1:]}"):
            assert int(message.body) == message.sequence
            had.append(message.sequence)


def lag_and_catch_up(messages: Subscription, witness: Witness, feed: Feed, had: list[int]) -> None:
    """Stand still until the window has been used up, then read until what comes is live."""
    feed.grows_past((had[-1] if had else 0) + 2 * WINDOW)
    witness.switches.clear()
    read_to(messages, had, lambda: witness.live)


@pytest.mark.parametrize("start", [1, "first"])
def test_wp7_wp39_a_reader_from_the_start_beside_a_publisher_gets_all_once_in_order_over_many_switches(
    daemon: Daemon, connect: Connect, start: int | str
) -> None:
    """WP5, WP7, WP24, WP39: nine switches at least, forced by a small window and a reader with lapses."""
    client = connect()
    witness, had, states = Witness(client), [], []
    with Feed(daemon.url) as feed:
        feed.grows_past(HISTORY)
        messages = client.subscribe("s", start=start, credit=WINDOW)
        for _ in range(LAPSES):
            lag_and_catch_up(messages, witness, feed, had)
            states += witness.states
        feed.finish()
        read_to(messages, had, lambda: had[-1] == feed.count)
    print(f"{feed.count} messages at {feed.rate:.0f} msg/s, {len(states)} switches")
    assert had == list(range(1, feed.count + 1))
    assert witness.gaps == []
    assert states.count("live") >= LAPSES
    assert states.count("replay") >= LAPSES - 1


def _drained(client: malamute.Client, witness: Witness) -> bool:
    client.flush(PATIENCE)
    return witness.live


def test_wp39_a_replay_applies_the_criteria_and_the_filter_of_its_reader(
    daemon: Daemon, connect: Connect
) -> None:
    """WP23, WP39: what is matched in the history is what would have been matched live."""
    client, early, late = connect(), connect(), connect()
    wanted = {"where": "weight >= 50", "credit": -1}
    live = early.subscribe("s", "even.*", **wanted)
    with client.publisher("s") as out:
        for number in range(1, 1_001):
            out.publish(f"{'odd' if number % 2 else 'even'}.{number}", b"", {"weight": number % 100})
    replayed = late.subscribe("s", "even.*", start="first", **wanted)
    expected = [n for n in range(1, 1_001) if n % 2 == 0 and n % 100 >= 50]
    for messages in (live, replayed):
        assert [messages.receive(PATIENCE).sequence for _ in expected] == expected


def test_wp3_wp24_wp38_one_stopped_reader_is_seen_in_replay_while_the_others_are_live(
    daemon: Daemon, connect: Connect
) -> None:
    """WP3, WP24, WP38: the others have everything while it stands still, and it has it later."""
    count = 2_000
    client, stopped = connect(), connect("stopped")
    witness = Witness(stopped)
    messages = stopped.subscribe("s", credit=100)
    others = [connect().subscribe("s") for _ in range(9)]
    publish(client.publisher("s"), 0, count)
    for other in others:
        had: list[int] = []
        read_to(other, had, lambda h=had: h[-1:] == [count])
        assert had == list(range(1, count + 1))

    readers = client.query("stream", name="s")["readers"]
    (row,) = [reader for reader in readers if reader["address"] == "stopped"]
    assert (row["state"], row["delivered"], row["lag"]) == ("replay", 100, count - 100)
    assert sorted(reader["state"] for reader in readers) == ["live"] * 9 + ["replay"]
    stopped.flush(PATIENCE)
    assert [*witness.switches] == [Switched("s", "replay", 101)]

    had = []
    read_to(messages, had, lambda: had[-1:] == [count])
    eventually(lambda: _drained(stopped, witness), "live again")
    assert had == list(range(1, count + 1))
    assert witness.states == ["replay", "live"]
    (row,) = [r for r in client.query("stream", name="s")["readers"] if r["address"] == "stopped"]
    assert (row["state"], row["delivered"], row["lag"]) == ("live", count, 0)


def on_threads(count: int, work: Callable[[int], None], meanwhile: Callable[[], object]) -> None:
    """Do the same on many threads at once, and raise what went wrong in any."""
    failures: list[BaseException] = []

    def run(place: int) -> None:
        try:
            work(place)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        eventually(lambda t=thread: meanwhile() or not t.is_alive(), "the end of every reader")
    if failures:
        raise failures[0]


def test_wp39_fifty_readers_that_replay_at_once_all_get_everything_and_memory_is_bounded(
    daemon: Daemon, connect: Connect
) -> None:
    """WP3, WP5, WP39: half of them begin at places of their own, so that reads are not all shared."""
    readers, count, size = 50, 1_000, 10_000
    with connect().publisher("s") as out:
        for number in range(1, count + 1):
            out.publish("n", b"%d" % number, {"filling": "x" * size})
    ready, highest = threading.Barrier(readers), [0.0]

    def replay(place: int) -> None:
        first = 1 + 10 * place * (place % 2)
        with malamute.connect(daemon.url, timeout=PATIENCE) as client:
            ready.wait(PATIENCE)
            with client.subscribe("s", start=first, timeout=PATIENCE) as messages:
                had: list[int] = []
                read_to(messages, had, lambda: had[-1:] == [count])
        assert had == list(range(first, count + 1))

    def look() -> None:
        highest[0] = max(highest[0], daemon.anonymous_mib)

    on_threads(readers, replay, look)
    print(f"at most {highest[0]:.0f} MiB for {readers} x {count * size / 2**20:.0f} MiB")
    assert highest[0] < MEMORY_MIB_MAX
