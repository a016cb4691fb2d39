"""The client with a real broker: the three patterns, and what a broken connection does to them (nothing)."""

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import pytest

import malamute
import malamute.aio
from malamute import errors
from malamute.client.events import Connected, Event, Gap, Lost
from malamute.config.sections import StreamsConfig
from malamute.protocol.admin import StoredQuery
from malamute.testing import Broker, small_config


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="alice", timeout=20) as client:
        client.on_event = lambda event: None
        yield client


class Proxy:
    """A TCP relay whose connections the test can cut."""

    def __init__(self, url: str) -> None:
        self._target = int(url.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            outer = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._ends += [inner, outer]
            for source, target in ((inner, outer), (outer, inner)):
                thread = threading.Thread(target=self._relay, args=(source, target))
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(16_384):
                target.sendall(data)
        _shut(source)
        _shut(target)

    def cut(self) -> None:
        with self._lock:
            for end in self._ends:
                _shut(end)

    def stop(self) -> None:
        _shut(self._listener)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    proxy = Proxy(broker.url)
    yield proxy
    proxy.stop()


def test_what_is_published_arrives_as_it_was(client):
    with client.subscribe("weather", "temp.*") as messages:
        client.publish_nowait("weather", "temp.oslo", [b"-3", b"5"], {"unit": "C", "n": 1, "ok": None})
        client.publish_nowait("weather", "wind.oslo", b"9")
        sequence = client.publish("weather", "temp.rome", b"x" * 200_000, assurance="stored")
        first, second = messages.receive(10), messages.receive(10)
    assert (first.subject, first.sender, first.frames) == ("temp.oslo", "alice", [b"-3", b"5"])
    assert first.headers == {"unit": "C", "n": 1, "ok": None}
    assert (second.sequence, len(second.body)) == (sequence, 200_000)


def test_receipts_know_the_sequences_of_the_stream(client):
    with client.publisher("s", batch=7) as out:
        receipts = [out.publish("a", b"%d" % n) for n in range(100)]
        out.publish_many(["a"] * 50, [b"%d" % n for n in range(100, 150)])
    messages = client.subscribe("s", start="first").take(1000, 10)
    assert [receipt.sequence for receipt in receipts] == list(range(1, 101))
    assert [message.body for message in messages] == [b"%d" % n for n in range(len(messages))]


def test_a_small_window_is_filled_again_and_again(client):
    with client.publisher("s") as out:
        out.publish_many(["é"] * 500, [b"x" * 100] * 500)
    subscription = client.subscribe("s", start="first", credit=3, credit_bytes=250)
    assert [subscription.receive(10).sequence for _ in range(500)] == list(range(1, 501))


@pytest.mark.parametrize(
    ("start", "pattern", "error"),
    [("yesterday", "a", errors.InvalidValue), ("new", "a" * 2000, errors.TooLarge)],
)
def test_a_subscription_that_cannot_be_is_refused(client, start, pattern, error):
    with pytest.raises(error):
        client.subscribe("s", pattern, start=start)


def test_mail_waits_for_its_owner_and_is_gone_once_acknowledged(broker, client):
    client.send("bob", "hello", b"1", {"x": 1}, correlation="c")
    with client.sender("bob") as out:
        out.publish_many(["more"] * 9, [b"2"] * 9)
    with malamute.connect(broker.url, address="bob") as bob:
        first = bob.receive(10)
        assert (first.subject, first.sender, first.correlation) == ("hello", "alice", "c")
        assert [bob.receive(10).subject for _ in range(4)] == ["more"] * 4
    with malamute.connect(broker.url, address="bob") as bob:
        mail = [bob.receive(10) for _ in range(5)]
        with pytest.raises(errors.TimedOut):
            bob.receive(0.01)
    assert [m.sequence for m in mail] == [6, 7, 8, 9, 10]
    # It was on its way when its reader left, who never had it in hand.
    assert not mail[0].redelivered


def test_mail_that_was_not_acknowledged_is_redelivered(broker, client):
    client.send("bob", "hello", b"1")
    for attempt in (1, 2):
        with malamute.connect(broker.url, address="bob") as bob:
            assert next(iter(bob.mailbox(auto_ack=False))).attempts == attempt


def test_requests_are_answered_by_handlers(broker, client):
    def work() -> None:
        with malamute.connect(broker.url, address="worker") as worker:

            @worker.service("sum", "add.*")
            def add(request: malamute.Request) -> bytes:
                request.reply(b"so far", final=False)
                if request.subject == "add.stop":
                    worker.stop()
                return b"%d" % sum(request.body)

            worker.run()

    thread = threading.Thread(target=work)
    thread.start()
    pending = [client.request("sum", "add.x", bytes([n, n])) for n in range(20)]
    answers = [[reply.body for reply in replies] for replies in pending]
    assert answers == [[b"so far", b"%d" % (2 * n)] for n in range(20)]
    assert [r.final for r in client.request("sum", "add.stop")] == [False, True]
    thread.join()


def test_an_anonymous_client_gets_its_replies(broker, client):
    work = client.work("svc")
    with malamute.connect(broker.url) as asker:
        replies = asker.request("svc", "a", b"?")
        asker.flush()
        work.receive(10).reply(b"!")
        client.flush()
        assert [reply.body for reply in replies] == [b"!"]


def test_the_newest_owner_of_an_address_wins(broker, client):
    with malamute.connect(broker.url, address="alice"), pytest.raises(errors.AddressTaken):
        client.mailbox().receive(10)


def test_the_broker_reports_on_itself(client):
    assert client.query("status")["clients"] == 1
    with pytest.raises(errors.MalamuteError):
        client.query("weather")


def test_a_restart_loses_nothing_and_doubles_nothing(tmp_path):
    events: list[Event] = []
    with Broker(tmp_path) as broker, malamute.connect(broker.url, address="alice", timeout=20) as client:
        client.on_event = events.append
        subscription = client.subscribe("s", start="first")
        seen = []
        for run in range(3):
            with client.publisher("s", batch=5) as out:
                out.publish_many(["a"] * 20, [b"%d" % (40 * run + n) for n in range(20)])
                if run < 2:
                    broker.restart()
                out.publish_many(["a"] * 20, [b"%d" % (40 * run + n) for n in range(20, 40)])
            while len(seen) < 40 * (run + 1):
                seen += [int(message.body) for message in subscription.take(100, 20)]
        assert seen == list(range(120))
        assert [type(event) for event in events if isinstance(event, Lost | Connected)].count(Lost) >= 2


def test_a_program_that_seeds_its_random_numbers_gets_them_beside_a_client_that_reconnects(broker, client):
    random.seed(1)
    expected = random.getstate()
    client.publish("s", "a", b"", assurance="stored")
    broker.restart()
    client.publish("s", "a", b"", assurance="stored")
    assert random.getstate() == expected


def test_a_publisher_whose_connection_is_cut_again_and_again_stores_each_once(broker, client, proxy):
    with malamute.connect(proxy.url, timeout=30) as cut:
        cut.on_event = lambda event: None
        with cut.publisher("s", batch=10, timeout=60) as out:
            for n in range(1000):
                out.publish("a", b"%d" % n)
                if n % 200 == 100:
                    proxy.cut()
    bodies: list[bytes] = []
    subscription = client.subscribe("s", start="first")
    while len(bodies) < 1000:
        bodies += [message.body for message in subscription.take(1000, 10)]
    assert bodies == [b"%d" % n for n in range(1000)]
    assert subscription.take(1, 0.05) == []


def test_a_subscriber_whose_connection_is_cut_again_and_again_sees_each_once(client, proxy):
    with malamute.connect(proxy.url, timeout=30) as cut:
        cut.on_event = lambda event: None
        subscription = cut.subscribe("s", credit=50)
        with client.publisher("s", batch=10, linger=0) as out:
            seen = []
            for run in range(5):
                out.publish_many(["a"] * 100, [b"%d" % (100 * run + n) for n in range(100)])
                out.flush()
                seen.append(subscription.receive(30).sequence)
                proxy.cut()
        while len(seen) < 500:
            seen.append(subscription.receive(30).sequence)
    assert seen == list(range(1, 501))
    assert subscription.gaps == 0


def test_a_worker_and_its_requester_continue_over_a_cut(client, proxy):
    with malamute.connect(proxy.url, address="worker", timeout=30) as worker:
        worker.on_event = lambda event: None
        work = worker.work("svc", credit=1)
        for _ in range(3):
            replies = client.request("svc", "a", b"?", timeout=30)
            client.flush()
            request = work.receive(30)
            proxy.cut()
            worker.flush(30)
            try:
                request.reply(b"!", assurance="stored").wait(30)
            except errors.NotOutstanding:
                # The broker had given it to nobody yet when the reply came: it is redelivered.
                work.receive(30).reply(b"!", assurance="stored").wait(30)
            assert [reply.body for reply in replies] == [b"!"]


def test_an_outage_is_bridged_up_to_a_bound(broker):
    with malamute.connect(broker.url, timeout=30) as client:
        client.on_event = lambda event: None
        subscription = client.subscribe("s")
        broker.stop()
        while client.connected:
            client._driver.iterate()
        client._session.outbox.window_bytes = 1000
        sent = 0
        refusal = None
        while refusal is None:
            try:
                client.publish_nowait("s", "a", b"x" * 100, timeout=0.01)
                sent += 1
            except errors.ConnectionLost as error:
                refusal = error
        assert "broker is unreachable" in refusal.text
        assert 5 < sent < 15
        broker.start()
        client.flush()
        assert client.connected
        count = 0
        while count < sent:
            count += len(subscription.take(100, 10))
        assert subscription.take(1, 0.05) == []


def test_columns_come_as_they_were_published_and_end_when_there_is_enough(client):
    for number in range(2500):
        client.publish_nowait("s", f"a.{number % 3}", b"%d" % number)
    # A subscription to what is on its way to the disk is live from there on, and has had nothing yet.
    client.publish("s", "end", b"", assurance="stored")
    live: list[Event] = []
    client.on_event = live.append
    with client.subscribe("s", "a.1", "a.2", start=11, credit=100) as subscription:
        assert subscription.first == 11
        runs = []
        while (columns := subscription.columns(20, enough=lambda: live)) is not None or not live:
            runs += [columns] if columns is not None else []
    numbers = [number for number in range(10, 2500) if number % 3]
    assert [sequence for run in runs for sequence in run.each_sequence()] == [
        number + 1 for number in numbers
    ]
    assert [subject for run in runs for subject in run.subjects] == [f"a.{number % 3}" for number in numbers]
    assert [event.state for event in live] == ["live"]
    assert max(map(len, runs)) <= 25


def test_waiting_for_columns_ends_with_the_time_and_with_the_subscription(client):
    subscription = client.subscribe("s", start="new")
    assert subscription.first == 1
    with pytest.raises(errors.TimedOut):
        subscription.columns(0.01)
    assert subscription.columns(20, enough=lambda: True) is None
    subscription.cancel()
    assert subscription.columns(20) is None


# Messages that expire, and streams that age


def test_messages_expire_for_programs_of_both_kinds(client: malamute.Client, broker: Broker) -> None:
    async def publish_and_read() -> list[tuple[bytes, datetime | None]]:
        async with await malamute.aio.connect(broker.url) as other:
            await other.publish("quotes", "eur", b"old", ttl=timedelta(milliseconds=1), assurance="stored")
            await other.publish_batch("quotes", ["eur"], [b"old"], ttl=0.001)
            async with other.publisher("quotes", ttl=0.001) as out:
                await out.publish("eur", b"old")
            await other.publish("quotes", "eur", b"new", ttl=3600, assurance="stored")
            await asyncio.sleep(0.002)
            async with other.subscribe("quotes", start=1) as quotes:
                message = await quotes.receive(timeout=10)
                assert [*quotes.recent_gaps] == [Gap("quotes", 1, 3, "expired")]
                return [(message.body, message.expires)]

    (body, expires), *more = asyncio.run(publish_and_read())
    assert body == b"new"
    assert not more
    with client.subscribe("quotes", start="last") as quotes:
        client.publish_nowait("quotes", "eur", b"for ever")
        found = [quotes.receive(timeout=10) for _ in range(2)]
    assert [message.expires for message in found] == [expires, None]
    assert expires == found[0].time + timedelta(hours=1)
    for ttl in (0, -1, 11 * 365 * 86_400, "1s"):
        with pytest.raises(errors.InvalidValue):
            client.publish_nowait("quotes", "eur", b"", ttl=ttl)


def test_a_stream_at_rest_loses_what_is_too_old(tmp_path: Path) -> None:
    config = replace(small_config(), streams=StreamsConfig(age=0.2))
    with Broker(tmp_path, config=config) as broker, malamute.connect(broker.url, timeout=20) as client:
        client.publish("s", "a", b"1", assurance="stored")
        client.publish("s", "a", b"2", assurance="stored")
        deadline = monotonic() + 20
        while client.query(StoredQuery(stream="s"))[0].count:
            assert monotonic() < deadline, "a stream at rest does not age"
            sleep(0.05)
        assert client.query(StoredQuery(stream="s"))[0].last == 2
