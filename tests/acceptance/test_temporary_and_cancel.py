"""Temporary mailboxes and cancellations over SIGKILLs of the broker and of clients."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from rig_daemon import Daemon, small
from rig_process import end, fork
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Recalled
from malamute.config import SessionConfig
from malamute.errors import ConnectionLost

EXPIRY_SECONDS = 2.0
KILLS = 2


def consume_for_ever(url: str, mailbox: str) -> None:
    """Consume from a temporary mailbox, and acknowledge nothing."""
    with malamute.connect(url, timeout=PATIENCE) as client:
        consumer = client.consume(mailbox, temporary=True, auto_ack=False, credit=1)
        client.send("main", "here", consumer.receive(PATIENCE).body, assurance="stored")
        while True:
            consumer.receive()


def cancelled_there(client: malamute.Client, identity: str) -> bool:
    """Cancel a message, again if the answer is lost. Returns whether it was there at the first attempt."""
    for attempt in range(10):
        try:
            found = client.cancel("mailbox", "bob", id=identity)
        except ConnectionLost:
            continue
        return found == (1, 0) or (attempt > 0 and found == (0, 0))
    return False


def mailboxes(client: malamute.Client) -> set[str]:
    return {row["name"] for row in client.query("mailboxes")}


def test_a_temporary_mailbox_is_there_over_kills_and_goes_with_its_last_consumer(
    new_daemon: Callable[..., Daemon],
) -> None:
    daemon = new_daemon(replace(small(), session=SessionConfig(expiry=EXPIRY_SECONDS))).start()
    with malamute.connect(daemon.url, address="main", timeout=PATIENCE) as main:
        with malamute.connect(daemon.url, timeout=PATIENCE) as other:
            consumer = other.consume("live", temporary=True)
            for number in range(KILLS):
                main.send("live", "n", b"%d" % number, assurance="stored")
                daemon.kill()
                daemon.start()
                # What was not acknowledged before the kill is redelivered.
                while int(consumer.receive(PATIENCE).body) < number:
                    pass
            assert "live" in mailboxes(main)
        assert "live" not in mailboxes(main)
        # A consumer that is killed takes its mailbox along once its session is over, with what it holds.
        victim = fork(consume_for_ever, daemon.url, "dead")
        eventually(lambda: "dead" in mailboxes(main), "the mailbox of the process")
        for number in range(3):
            main.send("dead", "n", b"%d" % number, assurance="stored")
        assert main.receive(PATIENCE).body == b"0"
        end(victim)
        daemon.kill()
        daemon.start()
        assert "dead" in mailboxes(main)
        eventually(lambda: "dead" not in mailboxes(main), "the end of the mailbox")
        # The removal is durable by then.
        main.send("main", "later", b"", assurance="stored")
        daemon.kill()
        daemon.start()
        assert "dead" not in mailboxes(main)


def test_a_cancelled_message_stays_away_over_kills_and_the_others_are_there(
    new_daemon: Callable[..., Daemon],
) -> None:
    daemon = new_daemon().start()
    with ExitStack() as stack:
        alice, bob, carol = (
            stack.enter_context(malamute.connect(daemon.url, address=name, timeout=PATIENCE))
            for name in ("alice", "bob", "carol")
        )
        events: list[object] = []
        bob.on_event = events.append
        cancelled: set[int] = set()
        for number in range(10 * KILLS):
            alice.send("bob", "n", b"%d" % number, assurance="stored", id=f"id-{number}", delay=30.0)
            if number % 10 == 9:
                daemon.kill()
                daemon.start()
                carol.flush()
                for place in range(number - 9, number + 1, 2):
                    assert cancelled_there(carol, f"id-{place}")
                    cancelled.add(place)
                daemon.kill()
                daemon.start()
        alice.send("bob", "n", b"last", assurance="stored", id="last")
        mailbox = bob.mailbox(auto_ack=False)
        mail = mailbox.receive(PATIENCE)
        left = {
            int(row["body"]) for row in alice.query("messages", kind="mailbox", name="bob", state="delayed")
        }
        assert (mail.body, left) == (b"last", {*range(10 * KILLS)} - cancelled)
        carol.query("status")
        assert carol.cancel("mailbox", "bob", id="last") == (0, 1)
        bob.flush()
        assert [event.reason for event in events if isinstance(event, Recalled)] == ["cancelled"]
        mail.ack()
        bob.flush()
        assert carol.cancel("mailbox", "bob", id="last") == (0, 0)
