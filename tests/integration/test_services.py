"""Services with real clients, a real broker and a real disk: each request is done, by one at a time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import malamute
from malamute.errors import NotOutstanding, TimedOut
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import Request
from malamute.testing import Broker

PATIENCE = 40.0
SILENCE = 0.1
"""Seconds in which nothing comes, where nothing is to come. Too short a time would only hide a fault."""

Connect = Callable[..., malamute.Client]
Work = "malamute.client.sync.consumers.Work"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(address: str = "") -> malamute.Client:
            client = malamute.connect(broker.url, address=address, timeout=PATIENCE)
            client.on_event = lambda event: None
            return stack.enter_context(client)

        yield make


def ask(
    client: malamute.Client, *bodies: bytes, subject: str = "do"
) -> list["malamute.client.sync.consumers.Replies"]:
    """Make these requests; they are in the queue when this returns."""
    replies = [client.request("svc", subject, body, timeout=PATIENCE) for body in bodies]
    client.flush()
    return replies


def nothing_to_do(requests: Work) -> bool:
    with pytest.raises(TimedOut):
        requests.receive(SILENCE)
    return True


def test_a_request_comes_to_its_worker_with_all_its_parts_and_the_replies_find_back(
    connect: Connect,
) -> None:
    """WP20, WP46, WP47."""
    alice, worker = connect("alice"), connect("worker")
    replies = alice.request("svc", "do.this", [b"one", b"two"], {"copies": 2})
    request = worker.work("svc").receive(PATIENCE)
    assert (request.sender, request.subject, request.frames) == ("alice", "do.this", [b"one", b"two"])
    assert (request.headers, request.attempts) == ({"copies": 2}, 1)
    request.reply([b"three", b"four"], {"ok": True})
    (reply,) = replies
    assert (reply.sender, reply.subject, reply.frames) == ("worker", "do.this", [b"three", b"four"])
    assert (reply.headers, reply.final, reply.properties["service"]) == ({"ok": True}, True, "svc")


def test_requests_go_to_ready_workers_first_come_first_served_and_none_waits_behind_a_slow_one(
    connect: Connect,
) -> None:
    """WP13, WP14."""
    slow = connect("slow").work("svc")
    client = connect()
    (first,) = ask(client, b"0")
    held = slow.receive(PATIENCE)
    workers = [connect(f"fast-{n}") for n in range(3)]
    fast = [worker.work("svc") for worker in workers]
    others = ask(client, *(b"%d" % n for n in range(1, 31)))

    started = []
    for number in range(30):
        # A worker has its next request when it has replied to the one before.
        request = fast[number % 3].receive(PATIENCE)
        started.append(int(request.body))
        request.reply(request.body)
        workers[number % 3].flush()
    assert started == list(range(1, 31))
    assert [[reply.body for reply in replies] for replies in others] == [[b"%d" % n] for n in range(1, 31)]
    assert nothing_to_do(slow)
    held.reply(b"0")
    assert [reply.body for reply in first] == [b"0"]


def test_a_worker_holds_no_more_requests_than_its_credit(connect: Connect) -> None:
    """WP14, WP25: the one that was there first gets one, though it could have had all."""
    client = connect()
    first = connect("first").work("svc", credit=1)
    ask(client, *(b"%d" % n for n in range(10)))
    assert first.receive(PATIENCE).body == b"0"
    assert nothing_to_do(first)
    second = connect("second").work("svc", credit=4)
    assert [second.receive(PATIENCE).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert nothing_to_do(second)


def test_partial_replies_come_in_order_and_only_the_final_one_brings_the_next_request(
    connect: Connect,
) -> None:
    """WP47."""
    client, requests = connect("alice"), connect("worker").work("svc")
    replies, _ = ask(client, b"first", b"second")
    request = requests.receive(PATIENCE)
    for part in range(3):
        request.reply(b"%d" % part, final=False)
    assert nothing_to_do(requests)
    request.reply(b"3")
    assert requests.receive(PATIENCE).body == b"second"
    assert [(reply.body, reply.final) for reply in replies] == [
        (b"0", False),
        (b"1", False),
        (b"2", False),
        (b"3", True),
    ]
    with pytest.raises(NotOutstanding):
        request.reply(b"once more")


def test_requests_without_a_worker_survive_a_restart_and_are_done_in_order(
    broker: Broker, connect: Connect
) -> None:
    """WP45: and the requester is still there to get its replies."""
    client = connect()
    replies = ask(client, *(b"%d" % n for n in range(20)))
    broker.restart()
    with connect("worker").work("svc", credit=5) as requests:
        for number in range(20):
            request = requests.receive(PATIENCE)
            assert (int(request.body), request.attempts) == (number, 1)
            request.reply(request.body)
    assert [[reply.body for reply in one] for one in replies] == [[b"%d" % n] for n in range(20)]


def test_a_restart_while_a_worker_is_busy_gives_it_the_request_again_and_the_requester_one_reply(
    broker: Broker, connect: Connect
) -> None:
    """WP27, WP31, WP48."""
    client, worker = connect(), connect("worker")
    (replies,) = ask(client, b"this")
    requests = worker.work("svc")
    request = requests.receive(PATIENCE)
    broker.restart()
    worker.query("status")  # it is connected again
    request.reply(b"late")
    client.flush()
    found = [reply.body for reply in replies]
    assert found == [b"late"]
    assert nothing_to_do(requests)


def test_replies_wait_for_a_requester_that_went_away_over_a_restart(broker: Broker, connect: Connect) -> None:
    """WP31, WP48."""
    alice = connect("alice")
    ask(alice, b"this")
    alice.close()
    with connect("worker") as worker, worker.work("svc") as requests:
        request = requests.receive(PATIENCE)
        request.reply(b"part", final=False)
        request.reply(b"whole")
    broker.restart()
    mail = connect("alice").mailbox()
    found = [mail.receive(PATIENCE) for _ in range(2)]
    assert [(m.body, m.final, m.sender, m.subject) for m in found] == [
        (b"part", False, "worker", "do"),
        (b"whole", True, "worker", "do"),
    ]
    assert {m.properties["service"] for m in found} == {"svc"}
    assert len({m.correlation for m in found}) == 1


def test_a_worker_gets_only_what_its_patterns_meet_and_the_rest_waits(connect: Connect) -> None:
    """WP40: two workers share what both can do."""
    client = connect()
    grey = connect("grey").work("svc", "bw.*", credit=10)
    ask(client, b"1", subject="bw.A4")
    ask(client, b"2", subject="color.A4")
    ask(client, b"3", subject="bw.A3")
    assert [grey.receive(PATIENCE).body for _ in range(2)] == [b"1", b"3"]
    assert nothing_to_do(grey)
    any_a4 = connect("A4").work("svc", "*.A4", credit=10)
    assert any_a4.receive(PATIENCE).body == b"2"


def test_what_a_worker_gives_back_keeps_its_place_and_counts_its_attempts(connect: Connect) -> None:
    """WP31: it gave up after a while, having done the second of three."""
    client = connect()
    replies = ask(client, *(b"%d" % n for n in range(5)))
    with connect("first").work("svc", credit=3) as requests:
        held = [requests.receive(PATIENCE) for _ in range(3)]
        held[1].reply(b"first")
    second = connect("second").work("svc", credit=10)
    found = [second.receive(PATIENCE) for _ in range(4)]
    assert [(request.body, request.attempts) for request in found] == [
        (b"0", 2),
        (b"2", 2),
        (b"3", 1),
        (b"4", 1),
    ]
    for request in found:
        request.reply(b"second")
    assert [next(iter(one)).body for one in replies] == [
        b"second",
        b"first",
        b"second",
        b"second",
        b"second",
    ]


def test_an_acknowledged_request_is_done_without_a_reply(broker: Broker, connect: Connect) -> None:
    """WP20, WP31."""
    client = connect("alice")
    ask(client, b"this")
    worker = connect("worker")
    worker.work("svc").receive(PATIENCE).ack()
    worker.flush()
    broker.restart()
    assert nothing_to_do(connect("other").work("svc"))
    assert [row["messages"] for row in client.query("services")] == [0]


def test_only_the_service_that_was_asked_replies(connect: Connect) -> None:
    """A worker knows the correlation, tells it to others, and both send what they like with it."""
    alice, worker, mallory = connect("alice"), connect("worker"), connect("mallory")
    replies = alice.request("svc", "do", b"this", timeout=PATIENCE)
    alice.flush()
    request = worker.work("svc").receive(PATIENCE)
    known = request.properties["correlation"]
    mallory.send("alice", "as mail", b"false", correlation=known, assurance="stored").wait(PATIENCE)
    options = {"correlation": known, "reply_to": "alice"}
    mine = Request("mine", 0, ["do"], [pack_record(None, b"")], [options])
    mallory._session.outbox.say(mine)
    mallory.work("mine").receive(PATIENCE).reply(b"false", assurance="stored").wait(PATIENCE)
    request.reply(b"true")
    worker.flush()
    assert [reply.body for reply in replies] == [b"true"]
    mailbox = alice.mailbox()
    assert sorted(mailbox.receive(PATIENCE).subject for _ in range(2)) == ["as mail", "do"]


@pytest.mark.parametrize("assurance", ["stored", "confirmed"])
def test_a_worker_with_one_credit_gets_all_requests_of_an_asker_that_is_idle_over_a_restart(
    broker: Broker, connect: Connect, assurance: str
) -> None:
    """The replies and outcomes wait in the mailbox of the asker, however long it does not reconnect."""
    asker = connect("asker")
    bodies = [b"%d" % number for number in range(4)]
    asked = [asker.request("svc", "do", body, assurance=assurance, timeout=PATIENCE) for body in bodies]
    asker.flush()
    broker.restart()
    with connect("worker").work("svc", credit=1) as requests:
        for body in bodies:
            request = requests.receive(PATIENCE)
            assert request.body == body
            request.reply(body)
    assert [[reply.body for reply in replies] for replies in asked] == [[body] for body in bodies]
    if assurance == "confirmed":
        assert [replies.wait(PATIENCE) for replies in asked] == ["acknowledged"] * 4


@pytest.mark.parametrize("assurance", ["stored", "confirmed"])
def test_requests_that_are_not_confirmed_are_with_their_idle_asker_until_its_next_call(
    broker: Broker, connect: Connect, assurance: str
) -> None:
    """`request` returns before the request is stored: after a restart a blocking client still has it."""
    asker, worker = connect("asker"), connect("worker")
    asked = [asker.request("svc", "do", b"%d" % n, assurance=assurance, timeout=PATIENCE) for n in (0, 1)]
    asker.flush()
    broker.stop()
    asked += [asker.request("svc", "do", b"%d" % n, assurance=assurance, timeout=PATIENCE) for n in (2, 3)]
    broker.start()
    with worker.work("svc", credit=1) as requests:
        for number in (0, 1):
            request = requests.receive(PATIENCE)
            assert request.body == b"%d" % number
            request.reply(b"done")
        row = worker.query("service", name="svc")
        assert (row["ready"], row["delayed"], row["in_flight"]) == (0, 0, 0)
        assert nothing_to_do(requests)
        asker.flush()
        for number in (2, 3):
            request = requests.receive(PATIENCE)
            assert request.body == b"%d" % number
            request.reply(b"done")
    assert [[reply.body for reply in replies] for replies in asked] == [[b"done"]] * 4
