"""What the broker tells of itself, and streams that make requests, over kills of who takes part."""

from collections import Counter
from collections.abc import Callable

from depth import NIGHT
from rig_daemon import Daemon
from rig_programs import WORKER, Program
from rig_waiting import PATIENCE

import malamute
from malamute.core.reports.events import EVENTS

Connect = Callable[..., malamute.Client]
Run = Callable[..., Program]

KILLS = 5 if NIGHT else 3
BATCH = 200


def test_who_comes_and_goes_is_reported_live_and_to_those_who_ask_later(
    new_daemon: Callable[..., Daemon], connect_to: Connect, run: Run
) -> None:
    """WP12."""
    daemon = new_daemon().start()
    watch = connect_to(daemon.url).subscribe(EVENTS, "client.#", "service.#", start="first")
    worker = run(WORKER, daemon.url, "svc", "doomed")
    assert worker.line() == ["ready"]
    worker.kill()
    reported = []
    while not reported or reported[-1] != "client.left.doomed":
        reported.append(watch.receive(timeout=PATIENCE).subject)
    mine = [subject for subject in reported if "doomed" in subject or "svc" in subject]
    assert mine == [
        "client.connected.doomed",
        "service.worker-joined.svc",
        "service.worker-left.svc",
        "client.left.doomed",
    ]
    later = connect_to(daemon.url).subscribe(EVENTS, "client.*.doomed", start="first")
    subjects = [later.receive(timeout=PATIENCE).subject for _ in range(2)]
    assert subjects == ["client.connected.doomed", "client.left.doomed"]


def test_a_killed_broker_says_that_it_started_again_and_not_that_it_stopped(
    new_daemon: Callable[[], Daemon], connect_to: Connect
) -> None:
    daemon = new_daemon().start()
    connect_to(daemon.url).publish("s", "a", b"", assurance="stored")
    daemon.kill()
    daemon.start()
    daemon.stop()
    daemon.start()
    watch = connect_to(daemon.url).subscribe(EVENTS, "broker.*", start="first")
    subjects = [watch.receive(timeout=PATIENCE).subject for _ in range(4)]
    assert subjects == ["broker.started", "broker.started", "broker.stopped", "broker.started"]


def test_each_message_of_a_stream_is_one_request_over_kills_of_the_broker(
    new_daemon: Callable[[], Daemon], connect_to: Connect
) -> None:
    """XU4, WP27, WP30: MOVE is exactly once into the queue, whatever the moment of the kill."""
    daemon = new_daemon().start()
    publisher = connect_to(daemon.url, "publisher")
    publisher.change(
        "feed.set", source="stream/s", feed="svc", target="service/svc", criteria=[["topic", "x.#"]]
    )
    publisher.change(
        "feed.set", source="stream/s", feed="copy", target="stream/t", criteria=[["prefix", "x."]]
    )
    for life in range(KILLS):
        with publisher.publisher("s") as out:
            for number in range(BATCH):
                out.publish(f"x.{life}", b"%d" % (life * BATCH + number))
                out.publish("y", b"not this one")
            daemon.kill()
            daemon.start()
    wanted = [b"%d" % number for number in range(KILLS * BATCH)]
    worker = connect_to(daemon.url, "worker")
    done: Counter[bytes] = Counter()
    with worker.work("svc", credit=100) as requests:
        while len(done) < len(wanted):
            request = requests.receive(timeout=PATIENCE)
            done[request.body] += 1
            request.reply(b"done")
        worker.flush()
    assert done == Counter(wanted)
    with publisher.subscribe("t", start="first") as copies:
        assert Counter(copies.receive(timeout=PATIENCE).body for _ in wanted) == done
        publisher.publish("t", "end", b"nothing came between")
        assert copies.receive(timeout=PATIENCE).body == b"nothing came between"
    assert publisher.query("stream", name="t")["last"] >= len(wanted)
    assert publisher.query("service", name="svc")["messages"] == 0
    assert publisher.query("mailboxes") == []


def test_what_a_feed_moves_is_in_one_place_and_answered_once_over_kills_of_the_broker(
    new_daemon: Callable[[], Daemon], connect_to: Connect
) -> None:
    """XU4, WP27: out of the source and into the target in one commit, whatever the moment of the kill."""
    daemon = new_daemon().start()
    client = connect_to(daemon.url, "client")
    for name, source, target in (
        ("on", "service/asked", "service/doing"),
        ("away", "mailbox/box", "stream/archive"),
    ):
        client.change("feed.set", source=source, feed=name, target=target, criteria=[["prefix", "x."]])
    awaited = []
    for life in range(KILLS):
        for number in range(BATCH // 4):
            body = b"%d.%d" % (life, number)
            awaited.append(client.request("asked", "x.1", body, timeout=10 * PATIENCE))
            client.send("box", "x.1", body)
        daemon.kill()
        daemon.start()
    client.send("box", "y", b"nobody moves this")
    client.flush()
    done: Counter[bytes] = Counter()
    worker = connect_to(daemon.url, "worker")
    with worker.work("doing", credit=100) as requests:
        while len(done) < len(awaited):
            request = requests.receive(timeout=PATIENCE)
            done[request.body] += 1
            request.reply(request.body)
        worker.flush()
    replies = Counter(reply.body for each in awaited for reply in each)
    assert set(done.values()) == {1}
    assert done == replies
    with client.subscribe("archive", start="first") as archive:
        assert Counter(archive.receive(timeout=PATIENCE).body for _ in awaited) == done
    assert client.query("stream", name="archive")["last"] >= len(awaited)
    assert [row["messages"] for row in client.query("services")] == [0, 0]
    assert [row["messages"] for row in client.query("mailboxes") if row["name"] == "box"] == [1]
