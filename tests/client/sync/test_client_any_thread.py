"""A client for any thread: calls and settlements of several threads, forks, signals, and errors."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import malamute
from malamute.errors import Closed, InvalidValue, LinkError, TimedOut
from malamute.testing import Broker

PATIENCE = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, threads="any", address="me", timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def is_polling(client: malamute.Client) -> bool:
    """Whether a call of a thread waits at the socket."""
    return client._driver.calls is not None and client._driver.calls.polling


def until_polling(client: malamute.Client) -> None:
    while not is_polling(client):
        time.sleep(0.001)


def test_a_message_is_settled_by_a_thread_while_another_is_in_a_call(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    client.enqueue("w", "a", b"1")
    client.enqueue("w", "a", b"2")
    with client.work("w", credit=1) as work:
        first = work.receive(PATIENCE)
        # The credit is used up: the second comes when this thread's settlement is sent by the other one.
        second = threads.submit(work.receive, PATIENCE)
        until_polling(client)
        first.ack()
        assert second.result(PATIENCE).body == b"2"
        second.result().ack()
    assert client.query("service", name="w")["messages"] == 0


@pytest.mark.parametrize("settlement", ["ack", "nak", "release", "in_progress"])
def test_a_settlement_of_a_thread_does_not_wait_for_a_call_of_another(
    client: malamute.Client, threads: ThreadPoolExecutor, settlement: str
) -> None:
    client.send("me", "a", b"1")
    mail = client.mailbox(auto_ack=False).receive(PATIENCE)
    driver = client._driver
    with driver._lock:  # as if another thread were in a call that nothing ends
        threads.submit(getattr(mail, settlement)).result(PATIENCE)
        assert len(driver.calls.new) == 1
    client.ping()
    assert not driver.calls.new
    assert mail.settled is (settlement != "in_progress")


def test_calls_of_many_threads_each_have_their_own_result(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    sequences = [*threads.map(lambda n: client.publish("s", "a", b"%d" % n), range(200))]
    assert sorted(sequences) == [*range(1, 201)]
    stored = {message.sequence: message.body for message in client.history("s")}
    assert [stored[sequence] for sequence in sequences] == [b"%d" % n for n in range(200)]


def test_a_publisher_of_many_threads_publishes_each_message_once(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    with client.publisher("s", batch=7) as out:
        receipts = [*threads.map(lambda n: out.publish("a", b"%d" % n), range(2000))]
    stored = {message.sequence: message.body for message in client.history("s")}
    assert [stored[receipt.sequence] for receipt in receipts] == [b"%d" % n for n in range(2000)]
    assert len(stored) == 2000


def test_unconfirmed_messages_of_many_threads_are_all_published(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    client.publish_nowait("s", "a", b"first")
    [*threads.map(lambda n: client.publish_nowait("s", "a", b"%d" % n), range(500))]
    client.flush()
    assert sorted(m.body for m in client.history("s")) == sorted([b"first", *(b"%d" % n for n in range(500))])


@pytest.mark.parametrize("receive", ["iterate", "receive", "take"])
def test_each_message_of_a_subscription_goes_to_one_of_its_threads(
    client: malamute.Client, threads: ThreadPoolExecutor, receive: str
) -> None:
    client.publish_batch("s", ["a"] * 3000, [b"%d" % n for n in range(3000)])
    got: list[int] = []
    with client.subscribe("s", start="first", credit=100) as messages:

        def note(message: malamute.Message) -> None:
            got.append(message.sequence)
            if len(got) == 3000:
                messages.cancel()

        def iterate() -> None:
            for message in messages:
                note(message)

        def one_by_one() -> None:
            while True:
                try:
                    note(messages.receive(PATIENCE))
                except Closed:
                    return

        def take() -> None:
            while batch := messages.take(7, PATIENCE):
                [*map(note, batch)]

        ways: dict[str, Callable[[], None]] = {"iterate": iterate, "receive": one_by_one, "take": take}
        [way.result(PATIENCE) for way in [threads.submit(ways[receive]) for _ in range(4)]]
    assert sorted(got) == [*range(1, 3001)]


def test_a_call_goes_on_when_the_thread_that_polled_for_it_is_done(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    with client.subscribe("one") as one, client.subscribe("two") as two:
        first = threads.submit(one.receive, PATIENCE)
        until_polling(client)
        second = threads.submit(two.receive, PATIENCE)
        client.publish("one", "a", b"1")
        assert first.result(PATIENCE).body == b"1"
        client.publish("two", "a", b"2")
        assert second.result(PATIENCE).body == b"2"


def test_a_call_of_a_thread_ends_at_its_timeout_while_another_polls(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    with client.subscribe("one") as one, client.subscribe("two") as two:
        first = threads.submit(one.receive, PATIENCE)
        until_polling(client)
        with pytest.raises(TimedOut, match=r"nothing within 0\.01 s"):
            two.receive(0.01)
        assert not first.done()
        client.publish("one", "a", b"1")
        first.result(PATIENCE)


def test_closing_ends_the_calls_of_other_threads(broker: Broker, threads: ThreadPoolExecutor) -> None:
    client = malamute.connect(broker.url, threads="any", address="it", timeout=PATIENCE)
    subscription = client.subscribe("s")
    calls = [threads.submit(subscription.receive, PATIENCE), threads.submit(client.receive, PATIENCE)]
    until_polling(client)
    client.close()
    for call in calls:
        with pytest.raises(Closed):
            call.result(PATIENCE)
    client.close()
    with pytest.raises(Closed):
        client.publish("s", "a", b"")


def test_an_error_of_the_handler_of_events_is_one_of_the_call_that_polls(
    client: malamute.Client, broker: Broker, threads: ThreadPoolExecutor
) -> None:
    polling, other = client.subscribe("s"), client.subscribe("t")

    def fail(event: object) -> None:
        client.on_event = lambda event: None
        raise ZeroDivisionError

    client.on_event = fail
    first = threads.submit(polling.receive, PATIENCE)
    until_polling(client)
    second = threads.submit(other.receive, PATIENCE)
    broker.restart()
    with pytest.raises(ZeroDivisionError):
        first.result(PATIENCE)
    client.publish("t", "a", b"on")
    assert second.result(PATIENCE).body == b"on"


def test_a_signal_handler_may_use_a_client_that_another_thread_uses(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    with client.subscribe("s") as messages:
        other = threads.submit(messages.receive, PATIENCE)
        until_polling(client)
        before = signal.signal(signal.SIGUSR1, lambda *_: client.publish_nowait("t", "a", b"signal"))
        try:
            with client.subscribe("t") as own:
                threads.submit(os.kill, os.getpid(), signal.SIGUSR1)
                assert own.receive(PATIENCE).body == b"signal"
        finally:
            signal.signal(signal.SIGUSR1, before)
        client.publish("s", "a", b"")
        other.result(PATIENCE)


class Interrupt(BaseException):
    """Raised by a signal."""


@pytest.mark.parametrize("polls", [False, True], ids=["handed over", "polling"])
def test_an_interrupted_call_leaves_the_calls_of_others_alone(
    client: malamute.Client, threads: ThreadPoolExecutor, polls: bool
) -> None:
    def interrupt(*_: Any) -> None:
        raise Interrupt

    def when_handed_over() -> None:
        while not client._driver.calls.suspended:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    with client.subscribe("s") as messages, client.subscribe("t") as own:

        def other() -> bytes:
            until_polling(client) if polls else None
            return messages.receive(PATIENCE).body

        late = threads.submit(other)
        polls or until_polling(client)
        interrupting = threads.submit(when_handed_over)
        try:
            with pytest.raises(Interrupt):
                own.receive(PATIENCE)
        finally:
            interrupting.result(PATIENCE)
            signal.signal(signal.SIGUSR1, before)
        client.publish("s", "a", b"on")
        assert late.result(PATIENCE) == b"on"
        assert not client._driver.calls.suspended


def test_handlers_run_on_a_client_for_any_thread(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    @client.service("shout", concurrency=3)
    def shout(request: malamute.Request) -> bytes:
        client.publish("log", "a", request.body)
        return request.body.upper()

    running = threads.submit(client.run)
    until_polling(client)
    answers = threads.map(lambda n: [r.body for r in client.request("shout", "a", b"x%d" % n)], range(20))
    assert [*answers] == [[b"X%d" % n] for n in range(20)]
    assert not running.done()
    client.stop()
    running.result(PATIENCE)
    assert len([*client.history("log")]) == 20


def test_a_failing_handler_of_a_stream_ends_the_run_of_a_client_for_any_thread(
    client: malamute.Client, threads: ThreadPoolExecutor
) -> None:
    @client.subscription("s", start="first")
    def fail(message: malamute.Message) -> None:
        raise ZeroDivisionError

    client.publish("s", "a", b"")
    with pytest.raises(ZeroDivisionError):
        client.run()


def in_a_fork(check: Callable[[], object]) -> bool:
    """Return whether a check is true in the child of a fork."""
    pid = os.fork()
    if pid == 0:
        is_true = False
        try:
            is_true = bool(check())
        finally:
            os._exit(not is_true)
    return os.waitpid(pid, 0)[1] == 0


def test_the_child_of_a_fork_connects_anew_at_its_first_call(broker: Broker) -> None:
    with malamute.connect(broker.url, threads="any", timeout=PATIENCE) as client:
        client.send("box", "a", b"mail")
        subscription, out = client.subscribe("s", start="first"), client.publisher("s")
        mail = client.consume("box", auto_ack=False).receive(PATIENCE)

        def check() -> bool:
            calls: list[Callable[[], object]] = [
                lambda: subscription.receive(1),
                lambda: out.publish("a", b""),
                mail.ack,
            ]
            for call in calls:
                with pytest.raises(LinkError, match="made before a fork"):
                    call()
            with ThreadPoolExecutor(4) as threads:
                return [*threads.map(lambda _: client.publish("s", "a", b"child") > 0, range(8))] == [
                    True
                ] * 8

        assert in_a_fork(check)
        client.publish("s", "a", b"parent")
        assert [message.body for message in subscription.take(9, PATIENCE)]
        mail.ack()
        assert len([*client.history("s")]) == 9


def test_the_child_of_a_fork_does_not_take_over_the_address_of_its_parent(client: malamute.Client) -> None:
    def check() -> bool:
        with pytest.raises(LinkError, match="address 'me' is its parent's"):
            client.ping()
        return True

    assert in_a_fork(check)
    client.ping()


def test_a_closed_client_is_closed_in_the_child_of_a_fork(broker: Broker) -> None:
    client = malamute.connect(broker.url, threads="any", timeout=PATIENCE)
    client.close()

    def check() -> bool:
        with pytest.raises(Closed):
            client.ping()
        return True

    assert in_a_fork(check)


def test_a_dropped_client_leaves_without_the_collector_of_cycles(broker: Broker) -> None:
    client = malamute.connect(broker.url, threads="any", timeout=PATIENCE)
    with client.publisher("s", linger=PATIENCE) as out:
        out.publish("a", b"1")
    client.publish_nowait("s", "a", b"2")
    session = weakref.ref(client._driver.calls)
    gc.disable()
    try:
        del client, out
        while session() is not None:
            time.sleep(0.001)
    finally:
        gc.enable()
    with (
        malamute.connect(broker.url, timeout=PATIENCE) as other,
        other.subscribe("s", start="first") as messages,
    ):
        assert [messages.receive(PATIENCE).body for _ in range(2)] == [b"1", b"2"]


def test_threads_other_than_one_or_any_are_refused(broker: Broker) -> None:
    with pytest.raises(InvalidValue, match="invalid threads 'many': expected 'one' or 'any'"):
        malamute.connect(broker.url, threads="many")  # type: ignore[arg-type]
