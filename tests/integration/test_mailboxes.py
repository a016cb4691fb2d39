"""Mailboxes with real clients, a real broker and a real disk: nothing is lost, and repetitions say so."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import malamute
from malamute.config import Config, LimitsConfig, StorageConfig
from malamute.errors import TimedOut, TryLater
from malamute.testing import Broker

PATIENCE = 40.0
KIB = 1024
SILENCE = 0.1
"""Seconds in which nothing comes, where nothing is to come. Too short a time would only hide a fault."""

Connect = Callable[[str], malamute.Client]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    limits = LimitsConfig(message_bytes=64 * KIB)
    overrides = {"queue_bytes": 256 * KIB, "queues_bytes": 512 * KIB}
    config = Config(storage=StorageConfig(size=16 * KIB * KIB), limits=limits, overrides=overrides)
    with Broker(tmp_path, config=config) as broker:
        yield broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    with ExitStack() as stack:

        def make(address: str) -> malamute.Client:
            client = malamute.connect(broker.url, address=address, timeout=PATIENCE)
            client.on_event = lambda event: None
            return stack.enter_context(client)

        yield make


def send(client: malamute.Client, address: str, count: int, first: int = 0) -> None:
    with client.sender(address, batch=7) as out:
        for number in range(first, first + count):
            out.publish("hello", b"%d" % number)


def bodies(mailbox: "malamute.client.sync.consumers.Mailbox", count: int) -> list[tuple[int, int]]:
    """The next mails, with their attempts; they are acknowledged as the mailbox is set to."""
    return [(int(mail.body), mail.attempts) for mail in (mailbox.receive(PATIENCE) for _ in range(count))]


def nothing_waits(mailbox: "malamute.client.sync.consumers.Mailbox") -> bool:
    with pytest.raises(TimedOut):
        mailbox.receive(SILENCE)
    return True


def test_mail_for_somebody_never_seen_before_waits_with_all_its_parts(
    broker: Broker, connect: Connect
) -> None:
    """WP42, WP43: also over a restart; the sender is the broker's word, not the client's."""
    alice, headers = connect("alice"), {"n": 1, "s": "x", "nothing": None}
    alice.send("bob", "first", [b"one", b"", b"three"], headers, correlation="c-1")
    alice.send("bob", "second", b"")
    broker.restart()
    mail = connect("bob").mailbox()
    first, second = mail.receive(PATIENCE), mail.receive(PATIENCE)
    assert (first.sender, first.subject, first.frames) == ("alice", "first", [b"one", b"", b"three"])
    assert first.headers == headers
    assert (first.correlation, second.correlation) == ("c-1", None)
    assert (second.subject, second.body, second.redelivered) == ("second", b"", False)
    assert first.time <= second.time
    assert nothing_waits(mail)


def test_mail_is_removed_by_its_acknowledgement_and_by_nothing_else(broker: Broker, connect: Connect) -> None:
    """WP30."""
    send(connect("alice"), "bob", 6)
    bob = connect("bob")
    mail = bob.mailbox(auto_ack=False)
    held = [mail.receive(PATIENCE) for _ in range(6)]
    for one in (held[1], held[4]):
        one.ack()
    bob.close()
    again = connect("bob")
    assert bodies(again.mailbox(auto_ack=False), 4) == [(0, 2), (2, 2), (3, 2), (5, 2)]
    again.close()
    broker.restart()
    last = connect("bob").mailbox()
    assert bodies(last, 4) == [(0, 3), (2, 3), (3, 3), (5, 3)]
    assert nothing_waits(last)


def test_after_a_restart_only_what_may_have_been_delivered_is_flagged(
    broker: Broker, connect: Connect
) -> None:
    """WP30: of nine, three were delivered, and the rest waited for credit."""
    send(connect("alice"), "bob", 9)
    bob = connect("bob")
    mail = bob.mailbox(auto_ack=False, credit=3)
    assert bodies(mail, 3) == [(0, 1), (1, 1), (2, 1)]
    bob.close()
    broker.restart()
    later = connect("bob").mailbox()
    assert bodies(later, 9) == [(number, 1 + (number < 3)) for number in range(9)]


def test_what_came_while_its_recipient_waited_is_flagged_after_a_restart(
    broker: Broker, connect: Connect
) -> None:
    """WP30: these were marked in the transaction that stored them."""
    alice, bob = connect("alice"), connect("bob")
    mail = bob.mailbox(auto_ack=False)
    bob.flush()
    send(alice, "bob", 3)
    assert bodies(mail, 3) == [(0, 1), (1, 1), (2, 1)]
    bob.close()
    broker.restart()
    send(alice, "bob", 2, first=3)
    assert bodies(connect("bob").mailbox(), 5) == [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1)]


def test_no_more_is_outstanding_than_the_recipient_has_granted(connect: Connect) -> None:
    """WP25, WP44."""
    alice, bob = connect("alice"), connect("bob")
    send(alice, "bob", 250)
    mail = bob.mailbox(auto_ack=False, credit=100)
    held = [mail.receive(PATIENCE) for _ in range(100)]
    assert nothing_waits(mail)
    for one in held:
        one.ack()
    assert [int(mail.receive(PATIENCE).body) for _ in range(100)] == list(range(100, 200))
    assert nothing_waits(mail)


def test_a_full_mailbox_refuses_and_loses_nothing_and_has_room_again_after_acks(
    broker: Broker, connect: Connect
) -> None:
    """WP4, WP10: at the limit of bytes of one mailbox."""
    alice = connect("alice")
    body = bytes(32 * KIB)
    for number in range(7):
        alice.send("bob", "hello", body, {"n": number})
    with pytest.raises(TryLater, match="mailbox 'bob' is full"):
        alice.send("bob", "hello", body)
    # Others have room, until all of them together have none.
    for number in range(8):
        alice.send("carol" if number % 2 else "dave", "hello", body)
    with pytest.raises(TryLater, match="queues are full: all together"):
        alice.send("erin", "hello", body)
    assert "erin" not in {row["name"] for row in alice.query("mailboxes")}

    broker.restart()
    with pytest.raises(TryLater):
        alice.send("bob", "hello", body)
    mail = connect("bob").mailbox()
    assert [mail.receive(PATIENCE).headers["n"] for _ in range(7)] == list(range(7))
    mail.acknowledge()
    alice.send("bob", "hello", b"at last")
    assert mail.receive(PATIENCE).body == b"at last"


def test_a_mailbox_has_a_limit_of_messages_too(tmp_path: Path) -> None:
    """WP4, WP10: tested at the limit and one past it, one by one and in a batch."""
    limits = LimitsConfig(message_bytes=KIB)
    overrides = {"queue_bytes": 64 * KIB, "queues_bytes": KIB * KIB, "queue_messages": 10}
    config = Config(storage=StorageConfig(size=16 * KIB * KIB), limits=limits, overrides=overrides)
    with Broker(tmp_path, config=config) as broker, malamute.connect(broker.url, address="alice") as alice:
        send(alice, "one-by-one", 10)
        with pytest.raises(TryLater):
            alice.send("one-by-one", "hello", b"11")
        with alice.sender("batch", batch=10) as out:
            out.publish_many(["hello"] * 10, [b""] * 10)
        before = alice.query("status")["queue_bytes"]
        out = alice.sender("another", batch=11)
        out.publish_many(["hello"] * 11, [b""] * 11)
        with pytest.raises(TryLater):
            out.close()
        assert alice.query("status")["queue_bytes"] == before
        assert sorted(row["name"] for row in alice.query("mailboxes")) == ["batch", "one-by-one"]


def test_a_client_forgets_the_shared_mailboxes_that_it_has_closed(connect: Connect) -> None:
    client = connect("ann")
    for _ in range(3):
        with client.consume("orders") as mailbox:
            pass
    assert client._shared == [mailbox]
