"""Bodies of every shape and size arrive byte for byte, by every way, over a restart (WP34)."""

import random
from collections.abc import Callable, Iterator

import pytest
from rig_daemon import MIB, Daemon
from rig_waiting import PATIENCE

import malamute
from malamute.client.session.batch import record_of
from malamute.config import Config, StorageConfig
from malamute.protocol.limits import RECORD_LARGE_BYTES

Connect = Callable[..., malamute.Client]

MAIL_BYTES = 64_000_000


def noise(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


RECORD_OVERHEAD = len(record_of(None, bytes(RECORD_LARGE_BYTES - 100))) - (RECORD_LARGE_BYTES - 100)

BODIES: dict[str, list[bytes]] = {
    "no frame": [],
    "an empty frame": [b""],
    "one byte": [b"\0"],
    "many frames, some of them empty": [b"", b"a", b"", noise(300), b""] * 50,
    "the largest record inside a batch": [noise(RECORD_LARGE_BYTES - 1 - RECORD_OVERHEAD)],
    "the smallest record with a frame of its own": [noise(RECORD_LARGE_BYTES - RECORD_OVERHEAD)],
    "one more byte": [noise(RECORD_LARGE_BYTES - RECORD_OVERHEAD + 1)],
    "large frames beside small ones": [noise(100_000), b"x", noise(200_000)],
    "three megabytes": [noise(3_000_000)],
}


def test_the_bodies_stand_on_both_sides_of_the_limit_for_large_records() -> None:
    sizes = [len(record_of(None, body)) for body in BODIES.values()]
    assert {RECORD_LARGE_BYTES - 1, RECORD_LARGE_BYTES, RECORD_LARGE_BYTES + 1} <= set(sizes)


def take(messages: "malamute.client.sync.consumers.Subscription", count: int) -> Iterator[list[bytes]]:
    for _ in range(count):
        yield messages.receive(PATIENCE).frames


@pytest.mark.parametrize("batch", [1, 1000])
def test_streams_carry_them_live_and_in_replay_and_over_a_restart(
    daemon: Daemon, connect: Connect, batch: int
) -> None:
    """WP34, WP39: alone, and all in one batch."""
    expected = [*BODIES.values()]
    client = connect()
    with client.subscribe("s") as live, client.publisher("s", batch=batch, linger=60) as out:
        for body in expected:
            out.publish("a", body, {"length": len(body)})
        out.flush()
        assert [*take(live, len(expected))] == expected
    for _ in range(2):
        with client.subscribe("s", start="first", credit=2) as replayed:
            assert [*take(replayed, len(expected))] == expected
        daemon.restart()


def test_mailboxes_carry_them_over_a_restart(daemon: Daemon, connect: Connect) -> None:
    """WP34, WP42, WP43."""
    expected = [*BODIES.values()]
    alice = connect("alice")
    for body in expected:
        alice.send("bob", "hello", body)
    bob = connect("bob")
    mail = bob.mailbox(auto_ack=False, credit=100)
    assert [mail.receive(PATIENCE).frames for _ in expected] == expected
    bob.close()
    daemon.restart()
    again = connect("bob").mailbox()
    assert [again.receive(PATIENCE).frames for _ in expected] == expected


def test_services_carry_them_there_and_back_over_a_restart(daemon: Daemon, connect: Connect) -> None:
    """WP34, WP45, WP47."""
    expected = [*BODIES.values()]
    client = connect()
    exchanges = [client.request("echo", "a", body, timeout=PATIENCE) for body in expected]
    client.flush()
    daemon.restart()
    with connect("worker").work("echo", credit=3) as requests:
        for body in expected:
            request = requests.receive(PATIENCE)
            assert request.frames == body
            request.reply(request.frames)
        assert [[reply.frames for reply in replies] for replies in exchanges] == [[body] for body in expected]


def test_a_mail_of_64_megabytes_waits_for_an_absent_recipient_over_a_restart(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP9."""
    config = Config(storage=StorageConfig(size=256 * MIB, streams_share=0.3))
    daemon = new_daemon(config).start()
    body = noise(MAIL_BYTES)
    connect_to(daemon.url, "alice").send("bob", "large", body, timeout=PATIENCE)
    daemon.restart()
    mail = connect_to(daemon.url, "bob").receive(PATIENCE)
    assert (mail.sender, mail.subject, mail.redelivered) == ("alice", "large", False)
    assert mail.body == body
