"""Workers that vanish with a request in their hands, in every way: another one gets it (promise 4)."""

import time
from collections.abc import Callable, Sequence
from itertools import permutations

import pytest
from rig_daemon import Daemon
from rig_programs import REQUESTER, WORKER, Program
from rig_proxy import Proxy
from rig_waiting import PATIENCE, in_time

import malamute
from malamute.client.events import Event, Refusal
from malamute.errors import NotOutstanding

Connect = Callable[..., malamute.Client]
Run = Callable[..., Program]


def ready_worker(run: Run, url: str, address: str) -> Program:
    worker = run(WORKER, url, "svc", address)
    assert worker.line() == ["ready"]
    return worker


def test_a_request_of_a_killed_worker_is_with_another_one_long_before_its_ack_timeout(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """WP27, WP31: the end of a process ends its connection, and that alone gives its request back.

    How long it took is printed: some ten milliseconds. The ack timeout is half an hour.
    """
    assert daemon.config.queues.ack_timeout > 10 * PATIENCE
    worker = ready_worker(run, daemon.url, "first")
    client = connect()
    replies = client.request("svc", "do", b"this", timeout=PATIENCE)
    client.flush()
    assert worker.line() == ["got", "this", "1"]
    for attempt, name in enumerate(("second", "third", "last"), 2):
        other = ready_worker(run, daemon.url, name)
        killed = time.monotonic()
        worker.kill()
        assert other.line() == ["got", "this", str(attempt)]
        print(f"with the {name} worker after {time.monotonic() - killed:.3f} s")
        worker = other

    worker.tell("reply")
    assert [(reply.body, reply.sender) for reply in replies] == [(b"from last", "last")]


def test_every_kill_of_a_worker_counts_as_an_attempt(daemon: Daemon, connect: Connect, run: Run) -> None:
    """WP31."""
    client = connect()
    replies = client.request("svc", "do", b"this", timeout=PATIENCE)
    client.flush()
    for attempt in range(1, 4):
        worker = ready_worker(run, daemon.url, "doomed")
        assert worker.line() == ["got", "this", str(attempt)]
        worker.kill()
    last = ready_worker(run, daemon.url, "last")
    assert last.line() == ["got", "this", "4"]
    last.tell("reply")
    assert [reply.body for reply in replies] == [b"from last"]


@pytest.mark.parametrize("victims", [*permutations(["worker", "requester", "broker"])], ids="-".join)
def test_a_stored_request_has_one_reply_no_matter_who_is_killed_and_in_which_order(
    daemon: Daemon, connect: Connect, run: Run, victims: Sequence[str]
) -> None:
    """WP31, WP45, WP48."""
    worker = ready_worker(run, daemon.url, "doomed")
    requester = run(REQUESTER, daemon.url, "svc", "asker")
    assert requester.line() == ["stored"]
    assert worker.line() == ["got", "this", "1"]
    for victim in victims:
        if victim == "broker":
            daemon.kill()
            daemon.start()
        else:
            {"worker": worker, "requester": requester}[victim].kill()

    other = ready_worker(run, daemon.url, "other")
    what, body, attempts = other.line()
    assert (what, body) == ("got", "this")
    assert int(attempts) > 1
    other.tell("reply")
    asker = connect("asker")
    mailbox = asker.mailbox(auto_ack=False)
    reply = mailbox.receive(PATIENCE)
    assert (reply.body, reply.sender, reply.final) == (b"from other", "other", True)
    reply.ack()
    asker.flush()
    assert mailbox.waiting == 0
    left = {row["name"]: row["messages"] for topic in ("services", "mailboxes") for row in asker.query(topic)}
    assert left == {"svc": 0, "asker": 0}


def test_a_stopped_worker_is_noticed_by_its_silence_and_its_request_goes_to_another(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """WP27, WP31: the process is there, its connection stands, and it says nothing."""
    stuck = ready_worker(run, daemon.url, "stuck")
    client = connect()
    replies = client.request("svc", "do", b"this", timeout=PATIENCE)
    client.flush()
    assert stuck.line() == ["got", "this", "1"]
    stuck.wait_stopped()
    stopped = time.monotonic()
    other = ready_worker(run, daemon.url, "other")
    assert other.line() == ["got", "this", "2"]
    in_time("with the other worker", stopped)
    other.tell("reply")
    assert [reply.body for reply in replies] == [b"from other"]


def test_behind_a_half_open_connection_a_worker_loses_its_request_and_its_late_reply_is_refused(
    connect: Connect, connect_to: Connect, proxy: Proxy
) -> None:
    """WP27, WP31: packets stop in both directions, and nobody is notified that they did."""
    events: list[Event] = []
    far = connect_to(proxy.url, "far")
    far.on_event = events.append
    far_requests = far.work("svc")
    client = connect()
    replies = client.request("svc", "do", b"this", timeout=PATIENCE)
    client.flush()
    late = far_requests.receive(PATIENCE)

    proxy.stall()
    stalled = time.monotonic()
    near = connect("near")
    with near.work("svc") as requests:
        request = requests.receive(PATIENCE)
        print(f"with the other worker after {time.monotonic() - stalled:.3f} s")
        assert (request.body, request.attempts) == (b"this", 2)
        request.reply(b"from near").wait(PATIENCE)

    proxy.relent()
    proxy.cut()
    far.query("status", timeout=PATIENCE)  # the connection stands again
    late.reply(b"from far")
    far.flush(PATIENCE)
    refused = [event.error for event in events if isinstance(event, Refusal)]
    assert [type(error) for error in refused] == [NotOutstanding]
    assert [reply.body for reply in replies] == [b"from near"]


def test_a_request_moves_on_when_its_worker_says_bye_or_cancels_its_offer(
    connect: Connect,
) -> None:
    """WP31."""
    client = connect()
    replies = client.request("svc", "do", b"this", timeout=PATIENCE)
    client.flush()
    quitter = connect("quitter")
    assert quitter.work("svc").receive(PATIENCE).attempts == 1
    quitter.close()
    canceller = connect("canceller")
    with canceller.work("svc") as requests:
        assert requests.receive(PATIENCE).attempts == 2
    last = connect("last")
    request = last.work("svc").receive(PATIENCE)
    assert request.attempts == 3
    request.reply(b"done").wait(PATIENCE)
    assert [reply.body for reply in replies] == [b"done"]
