"""Many connections come and go, in every way, and leave nothing behind (promise 6)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from depth import NIGHT
from rig_daemon import Daemon, small
from rig_peer import Peer, peers
from rig_waiting import eventually

import malamute
from malamute.errors import NotFound, TooMany
from malamute.protocol.messages import Bye, Credit, Offer, Ok, Publish, Request, Stored, Subscribe

Connect = Callable[..., malamute.Client]

CONNECTIONS = 300 if NIGHT else 100
CONNECTION_KIB_MAX = 100
"""Memory of the broker for a connection with a session, a mailbox, a subscription and an offer, at most."""


def daemon_with(new_daemon: Callable[..., Daemon], **options: float) -> Daemon:
    config = small()
    return new_daemon(replace(config, session=replace(config.session, **options)))


def settle_in(visitors: list[Peer]) -> None:
    """Give each of them a session with an own subscription, an own offer, and a mailbox."""
    for number, visitor in enumerate(visitors):
        visitor.open(f"visitor-{number}")
        visitor.send(Credit(0, 10, 10_000))
        assert isinstance(visitor.ask(Subscribe(1, "s", [["topic", f"to.{number}"]], credit=10)), Ok)
        assert isinstance(visitor.ask(Offer(2, "svc", [["exact", f"to.{number}"]], 1)), Ok)


def counts(client: malamute.Client) -> tuple[int, int]:
    status = client.query("status")
    return status["clients"], status["sessions"]


def assert_no_stream(watcher: malamute.Client) -> None:
    """The stream that was there for its readers alone has gone with the last of them."""
    with pytest.raises(NotFound):
        watcher.query("stream", name="s")


def test_many_that_say_bye_leave_nothing_behind_again_and_again(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP4, WP12: sessions, subscriptions, offers and memory."""
    daemon = new_daemon().start()
    watcher = connect_to(daemon.url)
    before = daemon.anonymous_mib
    highest = []
    for _ in range(3):
        with peers(daemon.url, CONNECTIONS) as visitors:
            settle_in(visitors)
            assert counts(watcher) == (CONNECTIONS + 1, CONNECTIONS + 1)
            assert watcher.query("stream", name="s")["selectors"] == CONNECTIONS
            highest.append(daemon.anonymous_mib)
            for visitor in visitors:
                assert isinstance(visitor.ask(Bye()), Ok)
        assert counts(watcher) == (1, 1)
        assert_no_stream(watcher)
        assert watcher.query("services")[0]["consumers"] == 0
    print(
        f"{(highest[0] - before) * 1024 / CONNECTIONS:.0f} KiB a connection; "
        f"{[round(mib, 1) for mib in highest]} MiB"
    )
    assert highest[0] - before < CONNECTIONS * CONNECTION_KIB_MAX / 1024
    # The first rounds fill caches and what the collector of garbage lets stand.
    assert highest[-1] - highest[1] < CONNECTIONS * CONNECTION_KIB_MAX / 1024 / 2


def test_many_that_vanish_are_noticed_and_their_sessions_expire(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP4, WP12, WP27: without a word."""
    daemon = daemon_with(new_daemon, expiry=1.0).start()
    watcher = connect_to(daemon.url)
    with peers(daemon.url, CONNECTIONS) as visitors:
        settle_in(visitors)
        assert counts(watcher) == (CONNECTIONS + 1, CONNECTIONS + 1)
    eventually(lambda: counts(watcher)[0] == 1, "the notice of their absence")
    eventually(lambda: counts(watcher) == (1, 1), "the end of their sessions")
    assert_no_stream(watcher)
    assert watcher.query("services")[0]["consumers"] == 0


def test_private_mailboxes_go_with_their_sessions_and_are_not_there_after_a_restart(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP41: anonymous requesters, whose replies nobody could ever ask for again."""
    daemon = daemon_with(new_daemon, expiry=1.0).start()
    watcher = connect_to(daemon.url)
    with peers(daemon.url, 50) as visitors:
        for visitor in visitors:
            visitor.open()
            assert isinstance(visitor.ask(Request("svc", 1, ["a"], [b"\x92\xc0\xc4\x00"])), Stored)
        assert watcher.query("status")["mailboxes"] == 50
        for visitor in visitors[:25]:
            visitor.ask(Bye())
        assert watcher.query("status")["mailboxes"] == 25
    daemon.restart()
    eventually(lambda: watcher.query("status")["mailboxes"] == 0, "the end of the other sessions")
    daemon.restart()
    assert watcher.query("status")["mailboxes"] == 0
    assert watcher.query("services")[0]["messages"] == 50


def test_at_the_limit_of_sessions_the_next_one_is_refused_and_one_that_leaves_makes_room(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP4: at the limit, and one past it."""
    config = small()
    daemon = new_daemon(replace(config, listen=replace(config.listen, connections=20))).start()
    first = connect_to(daemon.url)
    with peers(daemon.url, 19) as visitors:
        settle_in(visitors)
        with pytest.raises(TooMany, match="expected at most 20"):
            connect_to(daemon.url)
        visitors[0].ask(Bye())
        assert connect_to(daemon.url).query("status")["sessions"] == 20
        assert first.query("status")["sessions"] == 20, "whoever was there before is served"


def test_a_session_without_a_connection_keeps_its_numbers_over_a_restart(
    new_daemon: Callable[..., Daemon], connect_to: Connect
) -> None:
    """WP29: a publish that is sent again by the same session, after both ends were away, is stored once."""
    daemon = new_daemon().start()
    identity = b"\1" + b"x" * 15
    publish = Publish("s", 1, ["a"], [b"\x92\xc0\xc4\x00"])
    for expected in ([[1, 1, 1]], [[1, 1, 0]]):
        with peers(daemon.url, 1, identity=identity) as (visitor,):
            visitor.open()
            assert visitor.ask(publish) == Stored(expected)
        daemon.kill()
        daemon.start()
    assert connect_to(daemon.url).query("stream", name="s")["stored"] == 1
