"""Recipients that are killed with mail in their hands get it again, and it says so (promise 4)."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from depth import NIGHT
from rig_daemon import Daemon
from rig_programs import RECIPIENT, Program
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.errors import TimedOut

Connect = Callable[..., malamute.Client]
Run = Callable[..., Program]

KILLS, BATCH = 5 if NIGHT else 3, 100


def test_a_killed_recipient_gets_again_what_it_has_not_acknowledged_and_nothing_else(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """WP27, WP30: it is killed after the first of three, and the broker restarts before the third."""
    alice = connect("alice")
    for number in range(3):
        alice.send("bob", "hello", b"%d" % number)
    first = run(RECIPIENT, daemon.url, "bob")
    assert first.line() == ["got", "0", "1"]
    first.tell("ack")
    assert [first.line(), first.line()] == [["acked"], ["got", "1", "1"]]
    first.kill()

    second = run(RECIPIENT, daemon.url, "bob")
    assert second.line() == ["got", "1", "2"]
    second.tell("ack")
    # The first one had it already, within its credit.
    assert [second.line(), second.line()] == [["acked"], ["got", "2", "2"]]
    second.kill()

    daemon.restart()
    third = run(RECIPIENT, daemon.url, "bob")
    # The broker knows of both attempts before.
    assert third.line() == ["got", "2", "3"]
    third.tell("ack")
    assert third.line() == ["acked"]
    assert [row["messages"] for row in alice.query("mailboxes") if row["name"] == "bob"] == [0]


def test_a_broker_killed_right_after_a_delivery_flags_the_next_one(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """WP30: whether the mail was there before its recipient, or came while it waited."""
    alice = connect("alice")
    alice.send("bob", "hello", b"before")
    recipient = run(RECIPIENT, daemon.url, "bob")
    assert recipient.line() == ["got", "before", "1"]
    daemon.kill()
    recipient.kill()
    daemon.start()
    recipient = run(RECIPIENT, daemon.url, "bob")
    assert recipient.line() == ["got", "before", "2"]
    recipient.tell("ack")
    assert recipient.line() == ["acked"]
    alice.send("bob", "hello", b"while")
    assert recipient.line() == ["got", "while", "1"]
    daemon.kill()
    recipient.kill()
    daemon.start()
    assert run(RECIPIENT, daemon.url, "bob").line() == ["got", "while", "2"]


def test_the_newest_owner_of_an_address_gets_the_mail_of_one_that_hangs(
    daemon: Daemon, connect: Connect, run: Run
) -> None:
    """WP27, WP30: a program that comes back must not wait for its own ghost."""
    connect("alice").send("bob", "hello", b"this")
    ghost = run(RECIPIENT, daemon.url, "bob")
    assert ghost.line() == ["got", "this", "1"]
    ghost.wait_stopped()
    assert run(RECIPIENT, daemon.url, "bob").line() == ["got", "this", "2"]


def test_mail_that_bounces_comes_back_once_over_kills_of_the_broker(daemon: Daemon, connect: Connect) -> None:
    """XU4, WP27: out of one mailbox and into the other in one commit, whatever the moment of the kill."""
    alice, bob = connect("alice"), connect("bob")
    sent = Counter(b"%d.%d" % (life, number) for life in range(KILLS) for number in range(BATCH))
    mailbox = bob.mailbox(auto_ack=False, credit=BATCH)
    for life in range(KILLS):
        for number in range(BATCH):
            alice.send("bob", "hello", b"%d.%d" % (life, number))
        for _ in range(BATCH):
            mailbox.receive(timeout=PATIENCE).bounce("moved")
        # Nothing is waited for: some are on the disk, some on their way, and some were never sent.
        daemon.kill()
        daemon.start()
    # What the broker had not stored is redelivered.
    while bob.query("messages", kind="mailbox", name="bob", limit=1):
        with suppress(TimedOut):
            mailbox.receive(timeout=0.1).bounce("moved")
    back: Counter[bytes] = Counter()
    for _ in range(KILLS * BATCH):
        mail = alice.receive(timeout=PATIENCE)
        assert (mail.bounced, mail.sender, mail.properties["reason"]) == ("bob", "bob", "moved")
        back[mail.body] += 1
        mail.ack()
    assert back == sent
    alice.flush()
    eventually(lambda: alice.query("messages", kind="mailbox", name="alice") == [], "an empty mailbox")
    assert alice.query("messages", kind="mailbox", name="bob", dead=True) == []
