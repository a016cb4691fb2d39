"""What the broker sends is what was granted, to the message, from the history and live (promise 2)."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from rig_daemon import Daemon, small
from rig_peer import Peer, peer
from rig_waiting import PATIENCE

import malamute
from malamute.client.events import Event, Gap, Slow, Switched
from malamute.client.sync.publisher import Publisher
from malamute.config import StreamsConfig
from malamute.protocol.batch import unpack_payload
from malamute.protocol.messages import Credit, Deliver, Message, Ok, Ping, Subscribe, Switch

Connect = Callable[..., malamute.Client]

SIZE = 1 + 2 + 2 + 100
"""The bytes of one message as credit counts them: its subject, and a record of headers and one frame."""


class Reader:
    """A subscriber that grants what a test says, and has counted what came."""

    def __init__(self, peer: Peer, client: malamute.Client) -> None:
        self.sequences: list[int] = []
        self.switches: list[tuple[str, int]] = []
        self._peer = peer
        self._client = client

    def subscribe(self, start: str, credit: int, credit_bytes: int = -1) -> None:
        """Subscribe to everything."""
        self._peer.open("reader")
        answer = self._peer.ask(Subscribe(1, "s", [["all", ""]], "", start, credit, credit_bytes))
        if isinstance(answer, Switch):
            # At the head of a stream it comes before the answer.
            self.switches.append((answer.state, answer.sequence))
            answer = self._peer.receive()
        assert isinstance(answer, Ok), answer

    def grant(self, messages: int, size_bytes: int = 0) -> None:
        """Grant more."""
        self._peer.send(Credit(1, messages, size_bytes))

    def take_to(self, count: int) -> None:
        """Receive until so many messages have come in all."""
        while len(self.sequences) < count:
            self._note(self._peer.receive())

    def take_to_live(self) -> None:
        """Receive until what comes is live."""
        while not self.switches or self.switches[-1][0] != "live":
            self._note(self._peer.receive())

    def has_exactly(self, count: int) -> None:
        """So many messages came, in order from the first, and the broker has sent no more."""
        self.take_to(count)
        for answer in self._peer.answers():
            self._note(answer)
        assert self.sequences == list(range(1, count + 1))
        (row,) = self._client.query("stream", name="s")["readers"]
        assert row["delivered"] == count

    def _note(self, message: Message) -> None:
        if isinstance(message, Switch):
            self.switches.append((message.state, message.sequence))
        elif not isinstance(message, Ping):
            assert isinstance(message, Deliver), message
            self.sequences += unpack_payload(message.payload, message.large).each_sequence()


@pytest.fixture
def client(connect: Connect) -> malamute.Client:
    return connect()


@pytest.fixture
def out(client: malamute.Client) -> Publisher:
    return client.publisher("s")


@pytest.fixture
def reader(daemon: Daemon, client: malamute.Client) -> Iterator[Reader]:
    with peer(daemon.url) as bare:
        yield Reader(bare, client)


def publish(out: Publisher, count: int) -> None:
    """Publish messages of 105 bytes, as one batch, and wait until they are stored."""
    out.publish_many(["a"] * count, [bytes(100)] * count)
    out.flush(PATIENCE)


@pytest.mark.parametrize("start", ["new", "first"])
def test_wp25_no_more_than_the_credit_is_delivered_and_grants_that_overlap_add_up(
    reader: Reader, out: Publisher, start: str
) -> None:
    """WP25, WP39: live at first, and from the history."""
    if start == "first":
        publish(out, 50)
    reader.subscribe(start, 7)
    if start == "new":
        publish(out, 50)
    reader.has_exactly(7)
    publish(out, 50)
    reader.has_exactly(7)
    reader.grant(3)
    reader.grant(4)
    reader.grant(0)
    reader.has_exactly(14)
    for _ in range(20):
        reader.grant(1)
    reader.has_exactly(34)
    reader.grant(60)
    publish(out, 5)
    reader.has_exactly(94)
    reader.grant(100)
    reader.has_exactly(105)


def test_wp25_grants_while_messages_flow_add_up_to_the_message(reader: Reader, out: Publisher) -> None:
    """WP25: batches and grants come at the same time, and the sum of the grants is what came."""
    reader.subscribe("new", 1)
    granted = 1
    for number in range(1, 101):
        out.publish_many(["a"] * 30, [bytes(100)] * 30)
        reader.grant(number % 40)
        granted += number % 40
    out.flush(PATIENCE)
    reader.has_exactly(granted)


@pytest.mark.parametrize("start", ["new", "first"])
def test_wp25_credit_without_limit_stays_so(reader: Reader, out: Publisher, start: str) -> None:
    """WP25: -1, also when it comes later, and further grants take nothing from it."""
    reader.subscribe(start, 1)
    publish(out, 100)
    reader.has_exactly(1)
    reader.grant(-1)
    reader.has_exactly(100)
    reader.grant(5)
    for _ in range(10):
        publish(out, 200)
    reader.has_exactly(2_100)


@pytest.mark.parametrize("start", ["new", "first"])
def test_wp25_the_message_that_uses_up_the_bytes_is_the_last_and_what_went_past_is_owed(
    reader: Reader, out: Publisher, start: str
) -> None:
    """WP25: 3 1/2 messages bring 4, and the half that went past them is taken from the next grant."""
    if start == "first":
        publish(out, 100)
    reader.subscribe(start, -1, 3 * SIZE + SIZE // 2)
    if start == "new":
        publish(out, 100)
    reader.has_exactly(4)
    reader.grant(0, SIZE // 2)  # one byte is still owed
    reader.has_exactly(4)
    reader.grant(0, 1)  # all is paid
    reader.has_exactly(4)
    reader.grant(0, 1)
    reader.has_exactly(5)
    reader.grant(0, 3 * SIZE - 1)
    reader.has_exactly(7)
    reader.grant(0, -1)
    reader.has_exactly(100)


def test_wp24_wp38_each_switch_names_the_first_sequence_to_which_it_applies(
    reader: Reader, out: Publisher
) -> None:
    """WP24, WP38: one step at a time, so that each switch is known beforehand."""
    reader.subscribe("new", 10)
    for head in (20, 40, 60):
        publish(out, 20)
        reader.has_exactly(head - 10)
        reader.grant(20)
        reader.has_exactly(head)
        reader.take_to_live()
    expected = [("replay", 11), ("live", 21), ("replay", 31), ("live", 41), ("replay", 51), ("live", 61)]
    assert reader.switches == expected


def test_wp38_with_its_last_credit_used_up_at_the_head_a_reader_loses_nothing(
    reader: Reader, out: Publisher
) -> None:
    """WP24, WP38: no credit is no reason to switch before there is something to send."""
    reader.subscribe("new", 20)
    publish(out, 20)
    reader.has_exactly(20)
    assert reader.switches == []
    publish(out, 1)
    reader.has_exactly(20)
    assert reader.switches == [("replay", 21)]
    reader.grant(1)
    reader.has_exactly(21)


def test_wp25_a_consumer_that_tops_up_at_half_is_never_paused(daemon: Daemon, connect: Connect) -> None:
    """WP25: the publisher is at most 100 ahead of it, all the time. It has ten windows without a switch."""
    count, batch, window = 20_000, 50, 2_000
    client = connect()
    switches: list[Event] = []
    client.on_event = lambda event: switches.append(event) if isinstance(event, Switched) else None
    ahead = threading.Semaphore(2)

    def feed() -> None:
        with malamute.connect(daemon.url, timeout=PATIENCE) as other, other.publisher("s") as out:
            for _ in range(count // batch):
                assert ahead.acquire(timeout=PATIENCE)
                publish(out, batch)

    with client.subscribe("s", credit=window) as messages:
        publisher = threading.Thread(target=feed)
        publisher.start()
        for sequence in range(1, count + 1):
            assert messages.receive(PATIENCE).sequence == sequence
            if sequence % batch == 0:
                ahead.release()
        publisher.join(PATIENCE)
    assert switches == []


def test_wp38_a_stream_without_a_history_drops_and_counts_and_shows_what_there_was_no_credit_for(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP3, WP38: nothing else is lost."""
    daemon = new_daemon(replace(small(), streams=StreamsConfig(journal=False))).start()
    client, other = connect_to(daemon.url), connect_to(daemon.url)
    events: list[Event] = []
    other.on_event = events.append
    messages, out = other.subscribe("s", credit=10), client.publisher("s")
    publish(out, 100)
    (row,) = client.query("stream", name="s")["readers"]
    assert (row["state"], row["delivered"], row["lag"]) == ("replay", 10, 0)  # none of the 90 is there
    assert [messages.receive(PATIENCE).sequence for _ in range(10)] == list(range(1, 11))
    other.flush(PATIENCE)
    publish(out, 5)
    assert [messages.receive(PATIENCE).sequence for _ in range(5)] == list(range(101, 106))
    (row,) = client.query("stream", name="s")["readers"]
    assert (row["state"], row["delivered"], row["skipped"]) == ("live", 15, 90)
    assert events == [
        Switched("s", "replay", 11),
        Slow("s", 10),
        Gap("s", 11, 100, "no-journal"),
        Switched("s", "live", 101),
    ]
