"""Messages that are held for others to join while the broker is busy: when they go, and what goes before."""

import os
import threading
from collections.abc import Callable, Iterator
from math import inf
from sys import float_info

import pytest

import malamute
from malamute import errors
from malamute.client.sync import driver as sync_driver
from malamute.client.sync.client import Client
from malamute.client.sync.driver import BlockingDriver
from malamute.protocol import messages as wire
from malamute.testing import Broker


class Recorded:
    """A sender that is asked, and does nothing before the test says so."""

    def __init__(self) -> None:
        self.asked: list[BlockingDriver] = []

    def ask(self, driver: BlockingDriver) -> None:
        self.asked.append(driver)


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with malamute.connect(broker.url, timeout=60) as client:
        yield client


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    sender = Recorded()
    monkeypatch.setattr(sync_driver, "sender", lambda: sender)
    return sender


@pytest.fixture
def sent(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were in each PUBLISH, and 0 for each other command."""
    counts: list[int] = []
    outbox = client._session.outbox
    take = outbox.sent

    def record() -> None:
        message = wire_of(outbox.next_to_send())
        counts.append(len(message.records) if isinstance(message, wire.Publish) else 0)
        take()

    monkeypatch.setattr(outbox, "sent", record)
    return counts


def wire_of(frames):
    from malamute.protocol.codec import decode

    return decode([bytes(frame) for frame in frames])


def busy(client: Client) -> None:
    """Have published, and from now on have a broker that is busy."""
    client.publish_nowait("s", "a", b"0")
    client._driver._iteration_due = float_info.max
    client._driver._backlog.until = inf


def elsewhere(function: Callable[[], object]) -> object:
    """Return or raise the outcome of a function in another thread."""
    results: list[object] = []

    def call() -> None:
        try:
            results.append(function())
        except errors.MalamuteError as error:
            results.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return results[0]


def test_the_first_message_does_not_wait_and_those_behind_it_go_together(client, sender, sent):
    busy(client)
    assert sent == [1]
    for number in range(5):
        client.publish_nowait("s", "a", b"%d" % number)
    assert sent == [1]
    client.flush()
    assert sent == [1, 5, 0]


def test_nothing_is_held_for_a_broker_that_is_not_busy(client, sender, sent):
    busy(client)
    client._driver._backlog.until = 0.0
    for _ in range(3):
        client.publish_nowait("s", "a", b"")
        client._driver._backlog.until = 0.0
    assert sent == [1, 1, 1, 1]
    assert not sender.asked


def test_a_look_at_the_connection_is_due_in_time_and_sends_what_is_held(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    client._driver._iteration_due = 0.0
    client.publish_nowait("s", "a", b"2")
    assert sum(sent) == 3


def test_the_sender_sends_what_is_held_for_a_program_that_does_something_else(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    client.publish_nowait("s", "a", b"2")
    [driver] = sender.asked
    assert elsewhere(driver.send_lent) is False
    assert sent == [1, 2]
    client.publish_nowait("s", "a", b"3")
    assert len(sender.asked) == 2
    client.flush()
    assert sent == [1, 2, 1, 0]


def test_the_thread_of_the_process_sends_it(client, sent):
    arrived = threading.Event()
    take = client._session.outbox.sent

    def record() -> None:
        take()
        arrived.set()

    busy(client)
    client._session.outbox.sent = record
    client.publish_nowait("s", "a", b"1")
    assert arrived.wait(60)
    assert sent == [1, 1]


def test_the_sender_leaves_alone_who_is_in_a_call(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")

    def during() -> None:
        client._session.outbox.publish("s", "a", b"\x92\xc0\xc4\x012", None)
        assert elsewhere(client._driver.send_lent) is False
        assert sent == [1, 1]

    client._driver.do(during)
    client.flush()
    assert sent == [1, 1, 1, 0]


def test_what_the_connection_does_not_take_is_tried_again(client, sender, sent, monkeypatch):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    monkeypatch.setattr(client._driver.link, "send", lambda frames: False)
    assert elsewhere(client._driver.send_lent) is True
    monkeypatch.undo()
    assert elsewhere(client._driver.send_lent) is False


def test_the_thread_of_the_process_tries_again_until_it_is_taken():
    results, done = [True, True, True, False], threading.Event()

    class Blocked:
        def send_lent(self) -> bool:
            blocked = results.pop(0)
            if not results:
                done.set()
            return blocked

    sync_driver.sender().ask(Blocked())
    assert done.wait(60)


def test_a_connection_that_fails_in_the_thread_of_the_process_harms_no_other(client, sent):
    class Failing:
        def send_lent(self) -> bool:
            raise OSError("a socket that is gone")

    arrived = threading.Event()
    take = client._session.outbox.sent

    def record() -> None:
        take()
        arrived.set()

    busy(client)
    client._session.outbox.sent = record
    sync_driver.sender().ask(Failing())
    client.publish_nowait("s", "a", b"1")
    assert arrived.wait(60)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.query("status"),
        lambda client: client.publish_nowait("t", "a", b""),
        lambda client: client.publish("s", "a", b"", assurance="stored"),
        lambda client: client.publish_nowait("s", "a", b"x" * 100_000),
        lambda client: client.send("bob", "a", b""),
        lambda client: client.subscribe("s").cancel(),
        lambda client: client.publisher("s"),
        lambda client: client.drain(),
        lambda client: client.close(),
    ],
    ids=["query", "other stream", "stored", "large", "send", "subscribe", "publisher", "drain", "close"],
)
def test_every_other_call_first_sends_what_is_held(client, sender, sent, call):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    client.publish_nowait("s", "a", b"2")
    call(client)
    assert sent[:2] == [1, 2]


def test_a_publish_within_another_call_is_not_held(client, sender, sent):
    busy(client)
    client._driver.do(lambda: client.publish_nowait("s", "a", b"1"))
    assert sent == [1, 1]
    assert not sender.asked


def test_a_wrong_message_is_refused_to_its_caller_and_the_others_go(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    for subject, error in (("\ud800", errors.InvalidValue), ("x" * 256, errors.TooLarge)):
        with pytest.raises(error):
            client.publish_nowait("s", subject, b"2")
    client.publish_nowait("s", "a", b"3")
    client.flush()
    assert sent == [1, 2, 0]


def test_another_thread_is_refused_while_something_is_held(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    for call in (lambda: client.publish_nowait("s", "a", b"2"), client.drain, client.flush):
        assert isinstance(elsewhere(call), errors.LinkError)
    assert sent == [1]
    client.flush()
    assert sent == [1, 1, 0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_send_what_is_held(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    pid = os.fork()
    if pid == 0:
        try:
            client.publish_nowait("s", "a", b"2")
        except errors.LinkError:
            client._driver.send_lent()
            os._exit(0 if sent == [1] else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client.flush()
    assert sent == [1, 1, 0]


def test_the_sender_does_nothing_for_a_client_that_is_closed(client, sender, sent):
    busy(client)
    client.publish_nowait("s", "a", b"1")
    client.close()
    assert elsewhere(client._driver.send_lent) is False
    assert sent[:2] == [1, 1]


def test_everything_comes_in_order_whatever_is_held(broker, client):
    with malamute.connect(broker.url, timeout=60) as other:
        messages = other.subscribe("order")
        for number in range(5_000):
            client.publish_nowait("order", "a", b"%d" % number)
        bodies = [messages.receive(60).body for _ in range(5_000)]
    assert bodies == [b"%d" % number for number in range(5_000)]
