"""The transport of kombu and the result backend of Celery, on a broker in this process."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from rig_waiting import eventually

import malamute
from malamute.config import Config
from malamute.config.sections import QueueRule, QueuesConfig
from malamute.testing import Broker, small_config

pytest.importorskip("celery", reason="celery is not installed: see the extra celery")

import celery
import kombu
from celery.exceptions import BackendStoreError
from celery.exceptions import TimeoutError as ResultTimeout
from kombu.exceptions import OperationalError

import malamute.integrations.celery


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker whose mailboxes of the name `full.*` take three messages."""
    config: Config = small_config()
    rules = QueuesConfig(rule=(QueueRule(pattern="full.*", depth=3),))
    with Broker(config=replace(config, queues=rules)) as broker:
        yield broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., kombu.Connection]]:
    """Connects, each time as another process would."""
    made = []

    def make(**options: Any) -> kombu.Connection:
        made.append(kombu.Connection(broker.url.replace("tcp", "malamute"), transport_options=options))
        return made[-1]

    yield make
    for connection in made:
        connection.release()


@pytest.fixture
def app(broker: Broker) -> Iterator[celery.Celery]:
    """An application with a queue of its own, and no worker."""
    url = broker.url.replace("tcp", "malamute")
    app = celery.Celery("app", broker=url, backend=url, set_as_current=False)
    app.conf.task_default_queue = f"tasks-{uuid4().hex}"
    yield app
    app.close()
    if app.backend._connected is not None:
        app.backend._connected.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    """A client beside kombu."""
    with malamute.connect(broker.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"q-{uuid4().hex}"


def test_a_higher_priority_is_first(connect: Callable[..., kombu.Connection], name: str) -> None:
    connection = connect()
    for priority in (0, 9, 5):
        _send(connection, name, priority, priority=priority)
    queue = connection.SimpleQueue(name)
    assert [queue.get_nowait().payload for _ in range(3)] == [9, 5, 0]


def _send(connection: kombu.Connection, name: str, body: Any = "hello", **options: Any) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put(body, **options)


# Where a message goes


def test_a_task_is_a_message_that_the_tools_of_the_broker_show(
    app: celery.Celery, client: malamute.Client
) -> None:
    queue = app.conf.task_default_queue
    eta = datetime.now(UTC) + timedelta(days=365)
    sent = app.send_task("shop.bill", (7,), eta=eta, expires=eta + timedelta(days=1), priority=9)
    app.send_task("shop.bill", (8,))
    (row,) = client.query("messages", kind="mailbox", name=queue, where=f"id = '{sent.id}'")
    assert row["subject"] == "shop.bill"
    assert row["state"] == "delayed"
    message = client.query("message", kind="mailbox", name=queue, sequence=row["sequence"])
    assert b"7" in message["body"]
    assert client.query("mailbox", name=queue)["ready"] == 1


def test_all_processes_route_by_the_same_bindings(
    connect: Callable[..., kombu.Connection], name: str
) -> None:
    here, there = connect(), connect()
    direct, topic = kombu.Exchange(name, "direct"), kombu.Exchange(f"{name}.t", "topic")
    queues = [
        kombu.Queue(f"{name}.1", direct, "red"),
        kombu.Queue(f"{name}.2", direct, "blue"),
        kombu.Queue(f"{name}.3", topic, "cars.*"),
        kombu.Queue(f"{name}.4", topic, "#"),
    ]
    for queue in queues:
        queue(here.channel()).declare()
    producer = kombu.Producer(there.channel())
    for exchange, key in ((direct, "red"), (topic, "cars.old"), (topic, "boats")):
        producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
    counts = [queue(here.channel()).queue_declare(passive=True).message_count for queue in queues]
    assert counts == [1, 0, 1, 2]
    queues[0](there.channel()).unbind_from(direct, "red")
    queues[3](there.channel()).delete()
    late = kombu.Producer(connect().channel())
    for exchange, key in ((direct, "red"), (topic, "boats")):
        late.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
    assert queues[0](here.channel()).queue_declare(passive=True).message_count == 1
    with pytest.raises(kombu.exceptions.ChannelError, match="NOT_FOUND"):
        queues[3](connect().channel()).queue_declare(passive=True)


def test_a_prefix_keeps_applications_apart(
    connect: Callable[..., kombu.Connection], client: malamute.Client, name: str
) -> None:
    _send(connect(prefix="shop."), name)
    assert client.query("mailbox", name=f"shop.{name}")["ready"] == 1
    assert connect().SimpleQueue(name).qsize() == 0


def test_a_broadcast_reaches_each_that_listens_and_leaves_nothing_behind(
    connect: Callable[..., kombu.Connection], client: malamute.Client, name: str
) -> None:
    exchange = kombu.Exchange(name, "fanout")
    listeners = [connect(), connect()]
    heard: list[str] = []
    for number, connection in enumerate(listeners):
        queue = kombu.Queue(f"{name}.{number}", exchange, auto_delete=True)
        consumer = kombu.Consumer(connection, [queue], callbacks=[lambda body, message: heard.append(body)])
        consumer.consume()
    kombu.Producer(connect().channel()).publish("all", exchange=exchange, declare=[exchange])
    for connection in listeners:
        connection.drain_events(timeout=30)
    assert heard == ["all", "all"]
    assert not [row for row in client.query("mailboxes") if row["name"].startswith(name)]


# How it ends


def test_a_message_is_acknowledged_requeued_or_a_dead_letter(
    connect: Callable[..., kombu.Connection], client: malamute.Client, name: str
) -> None:
    queue = connect().SimpleQueue(name)
    for body in ("ack", "requeue", "reject"):
        queue.put(body)
    message = queue.get(timeout=30)
    assert not message.delivery_info["redelivered"]
    message.ack()
    first, second = queue.get(timeout=30), queue.get(timeout=30)
    first.requeue()
    second.reject()
    again = queue.get(timeout=30)
    assert again.payload == "requeue"
    assert again.delivery_info["redelivered"]
    again.ack()
    queue.close()
    eventually(lambda: client.query("mailbox", name=name)["messages"] == 0, "two are settled")
    assert client.query("mailbox", name=name)["dead_letters"] == 1


def test_what_a_consumer_has_at_its_end_is_released_and_not_sent_again(
    connect: Callable[..., kombu.Connection], client: malamute.Client, name: str
) -> None:
    connection = connect()
    queue = connection.SimpleQueue(name)
    for number in range(5):
        queue.put(number)
    assert queue.get(timeout=30).payload == 0
    connection.release()
    rows = client.query("messages", kind="mailbox", name=name)
    assert [(row["state"], row["attempts"]) for row in rows] == [("ready", 0)] * 5


def test_what_is_no_message_of_kombu_is_a_dead_letter_and_no_consumer_sees_it(
    connect: Callable[..., kombu.Connection], client: malamute.Client, name: str
) -> None:
    for headers in (None, {"kombu": 7}, {"kombu": "no json"}, {"kombu": "[]"}, {"kombu": "{}"}):
        client.send(name, "hello", b"body", headers)
    connection = connect()
    _send(connection, name)
    assert connection.SimpleQueue(name).get(timeout=30).payload == "hello"
    connection.release()
    eventually(lambda: client.query("mailbox", name=name)["dead_letters"] == 5, "five are dead letters")


def test_credit_is_the_prefetch_count(
    connect: Callable[..., kombu.Connection], client: malamute.Client, name: str
) -> None:
    connection = connect()
    for number in range(9):
        _send(connection, name, number)
    consumer = kombu.Consumer(
        connection,
        [kombu.Queue(name, no_declare=True)],
        callbacks=[lambda body, message: None],
        prefetch_count=2,
    )
    with consumer:
        connection.drain_events(timeout=30)
        assert client.query("mailbox", name=name)["in_flight"] == 2
        consumer.qos(prefetch_count=5)
        while client.query("mailbox", name=name)["in_flight"] < 5:
            connection.drain_events(timeout=30)
        assert client.query("mailbox", name=name)["in_flight"] == 5


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"visibility_timeout": 3600},
            "unknown transport option 'visibility_timeout': expected some of ack_",
        ),
        ({"assurance": "confirmed"}, "assurance 'confirmed': expected 'stored' or 'none'"),
        ({"prefix": 7}, "prefix 7: expected text"),
        ({"heartbeat": "often"}, "invalid heartbeat 'often'"),
        ({"ack_timeout": "soon"}, "ack_timeout 'soon': expected seconds such as 3600"),
    ],
)
def test_a_wrong_option_is_refused_at_the_start(
    connect: Callable[..., kombu.Connection], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(malamute.InvalidValue, match=words):
        connect(**options).connect()


def test_a_path_in_the_url_is_refused_at_the_start(broker: Broker) -> None:
    with pytest.raises(malamute.InvalidValue, match="use the transport option prefix"):
        kombu.Connection(broker.url.replace("tcp", "malamute") + "/shop").connect()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("q", {"priority": 10}, "priority 10: expected a whole number from 0 to 9"),
        ("q", {"priority": -1}, "priority -1"),
        ("q", {"body": "x" * 5 * 1024 * 1024}, "too large: expected at most 4194304"),
        ("x" * 300, {}, "expected at most 255 bytes"),
        ("full.queue", {}, "full"),
    ],
)
def test_a_refused_message_is_an_operational_error_and_nothing_is_stored(
    connect: Callable[..., kombu.Connection],
    client: malamute.Client,
    name: str,
    options: dict[str, Any],
    words: str,
) -> None:
    for number in range(3):
        client.send("full.queue", "fill", id=f"fill-{number}")
    if name == "q":
        name = f"q-{uuid4().hex}"
    producer = kombu.Producer(connect().channel())
    options = {"body": "hello", **options}
    with pytest.raises(OperationalError, match=words):
        producer.publish(routing_key=name, retry=True, retry_policy={"max_retries": 2}, **options)
    assert name not in [row["name"] for row in client.query("mailboxes") if row["name"] != "full.queue"]
    assert client.query("mailbox", name="full.queue")["messages"] == 3


def test_a_broker_that_is_away_is_an_operational_error_and_the_message_is_not_sent_later(name: str) -> None:
    with Broker() as broker:
        url = broker.url.replace("tcp", "malamute")
        with kombu.Connection(url, transport_options={"timeout": 0.2}) as connection:
            producer = kombu.Producer(connection.channel())
            producer.publish("before", routing_key=name)
            broker.stop()
            with pytest.raises(OperationalError):
                producer.publish("lost", routing_key=name, retry=True, retry_policy={"max_retries": 1})
            broker.start()
            connection.ensure_connection(max_retries=100, interval_start=0.01, interval_step=0)
            kombu.Producer(connection.channel()).publish("after", routing_key=name)
            got = connection.SimpleQueue(name).get(timeout=30)
            assert got.payload == "after"  # the broker is in memory: what was before is gone, too


@pytest.mark.parametrize("both_at_first", [True, False])
def test_the_next_of_several_brokers_takes_over_for_messages_and_results(
    name: str, both_at_first: bool
) -> None:
    with Broker() as one, Broker() as two:
        urls = ";".join(broker.url.replace("tcp", "malamute") for broker in (one, two))
        if not both_at_first:
            one.stop()
        app = celery.Celery("app", broker=urls, backend=urls, set_as_current=False)
        with app.connection() as connection, connection.SimpleQueue(name) as queue:
            if both_at_first:
                queue.put("first")
                assert queue.get(timeout=30).payload == "first"
                app.backend.store_result(name, 1, "SUCCESS")
                one.stop()
                # A connection that is lost is made again, by kombu or by the client.
                connection.ensure(queue, queue.put, max_retries=100, interval_start=0.01)("second")
            else:
                queue.put("second")
            with malamute.connect(two.url) as client:
                assert client.query("mailbox", name=name)["messages"] == 1
                app.backend.store_result(name, 2, "SUCCESS")
                assert celery.result.AsyncResult(name, app=app).get(timeout=30) == 2
        app.close()
        app.backend._connected.close()


# Results


def test_results_by_key_as_celery_wants_them(app: celery.Celery, name: str) -> None:
    backend = app.backend
    assert backend.get(name) is None
    backend.set(name, b"1")
    backend.set(f"{name}.2", b"x" * 700_000)
    backend.set(f"{name}.3", b"y" * 700_000)
    many = [f"{name}.{n}" for n in range(2500)]
    assert {*backend.mget([name, *many])} == {name, f"{name}.2", f"{name}.3"}
    assert [backend.incr(f"{name}.n") for _ in range(3)] == [1, 2, 3]
    assert backend.incr(name) == 2
    backend.expire(name, 100)
    assert 90 < backend._bucket.get(name).ttl <= 100
    backend.delete(name)
    assert backend.get(name) is None
    with pytest.raises(BackendStoreError):
        backend.set(name, b"x" * 1_100_000)


def test_a_failure_is_returned_after_a_look_for_that_of_a_parent(app: celery.Celery, name: str) -> None:
    # `AsyncResult.get` raises the error of a parent there: a chord's own one names the cause in words alone.
    looks = Mock()
    for state, value in (("SUCCESS", 7), ("FAILURE", ValueError("in the header"))):
        app.backend.store_result(f"{name}.{state}", value, state)
        app.backend.wait_for(f"{name}.{state}", timeout=30, on_interval=looks)
        assert looks.call_count == (state == "FAILURE")


def test_a_result_is_there_as_soon_as_it_is_stored_or_not_in_time(app: celery.Celery) -> None:
    result, other = celery.result.AsyncResult("one", app=app), celery.result.AsyncResult("two", app=app)
    assert result.state == "PENDING"
    with pytest.raises(ResultTimeout):
        result.get(timeout=0.05)
    app.backend.store_result("one", 7, "SUCCESS")
    assert result.get(timeout=30) == 7
    app.backend.store_result("two", ValueError("no"), "FAILURE")
    with pytest.raises(ValueError, match="no"):
        other.get(timeout=30)
    assert {task_id for task_id, _ in app.backend.get_many(["one", "two"])} == {"one", "two"}


def test_an_unknown_option_of_the_backend_is_refused(broker: Broker) -> None:
    url = broker.url.replace("tcp", "malamute")
    app = celery.Celery("app", broker=url, backend=url, set_as_current=False)
    app.conf.result_backend_transport_options = {"master_name": "x"}
    with pytest.raises(malamute.InvalidValue, match="unknown transport option 'master_name'"):
        app.backend.get("key")


def test_revoke_cancels_a_delayed_task_and_its_retries(app: celery.Celery, client: malamute.Client) -> None:
    sent = [app.send_task("later", countdown=3600, retries=retries) for retries in (0, 2)]
    queue = app.conf.task_default_queue
    assert client.query("mailbox", name=queue)["delayed"] == 2
    app.control.revoke([one.id for one in sent] + ["unknown"])
    assert client.query("mailbox", name=queue)["messages"] == 0
    assert [one.state for one in sent] == ["REVOKED", "REVOKED"]


def test_a_message_is_acknowledged_while_the_callback_of_the_next_one_runs(
    connect: Callable[..., kombu.Connection],
    client: malamute.Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As in the pool `solo`: a callback may take long, and a killed worker would do the message again.
    monkeypatch.setattr("malamute.client.link.consumers.ACK_DELAY", 1e9)
    connection, done = connect(), []
    for number in range(3):
        _send(connection, name, number)

    def work(body: int, message: kombu.Message) -> None:
        left = 3 - len(done)
        eventually(lambda: client.query("mailbox", name=name)["messages"] == left, "the last is acknowledged")
        done.append(body)
        message.ack()

    consumer = kombu.Consumer(connection.channel(), [kombu.Queue(name)], callbacks=[work], prefetch_count=10)
    with consumer:
        while len(done) < 3:
            connection.drain_events(timeout=20)
    assert done == [0, 1, 2]
