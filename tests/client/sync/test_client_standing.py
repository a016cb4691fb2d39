"""The states of subscriptions and offers, and the drain of one offer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import malamute
from malamute.client.events import Gap
from malamute.errors import AddressTaken
from malamute.protocol.admin import ServiceQuery, StreamPurge
from malamute.testing import Broker

PATIENCE = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, timeout=PATIENCE) as client:
        yield client


def test_a_subscription_is_live_when_it_has_had_all_that_is_kept(client: malamute.Client) -> None:
    client.publish_batch("s", ["a"] * 3, [b"x"] * 3)
    with client.subscribe("s", start="first") as subscription:
        assert [subscription.receive(PATIENCE).sequence for _ in range(3)] == [1, 2, 3]
        assert subscription.columns(PATIENCE, enough=lambda: subscription.state == "live") is None
        assert subscription.state == "live"


@pytest.mark.parametrize("start", ["new", "first", "last", "last-per-subject", "seq:1"])
def test_the_state_of_a_subscription_says_at_once_whether_there_is_anything(
    client: malamute.Client, start: str
) -> None:
    with client.subscribe("empty", start=start) as subscription:
        assert subscription.state == "live"
    client.publish("s", "a", b"")
    with client.subscribe("s", start=start) as subscription:
        # All that is stored is here once it is live.
        timeout = 0 if subscription.state == "live" else PATIENCE
        assert len(subscription.take(9, timeout)) == (start != "new")
    with client.subscribe("s", start="seq:2") as subscription:
        assert subscription.state == "live"


def test_the_gaps_of_each_subscription_are_its_own(client: malamute.Client) -> None:
    client.publish_batch("s", ["a"] * 3, [b"x"] * 3)
    client.change(StreamPurge(stream="s"))
    client.publish_batch("s", ["a"], [b"x"])
    with client.subscribe("s", start="seq:2") as late, client.subscribe("s", start="seq:4") as later:
        assert (late.receive(PATIENCE).sequence, later.receive(PATIENCE).sequence) == (4, 4)
        [gap] = late.recent_gaps
        assert gap == Gap("s", 2, 3, gap.reason)
        assert later.recent_gaps == []


def test_a_client_that_was_taken_over_has_ended(broker: Broker) -> None:
    first = malamute.connect(broker.url, address="alice", timeout=PATIENCE)
    assert not first.ended
    with malamute.connect(broker.url, address="alice", timeout=PATIENCE):
        with pytest.raises(AddressTaken):
            first.receive(PATIENCE)
        assert first.ended
    first.close()


def test_one_offer_is_drained_while_another_goes_on(client: malamute.Client) -> None:
    with (
        client.work("one", credit=2) as one,
        client.work("two") as two,
        malamute.connect(client.url, timeout=PATIENCE) as asker,
    ):
        replies = [asker.request("one", "s", b"%d" % n) for n in range(3)]
        asker.flush()
        held = one.receive(PATIENCE)
        one.drain()
        client.flush()
        details = client.query(ServiceQuery(name="one"))
        assert (details.in_flight, details.ready) == (1, 2)
        held.reply(b"r")
        assert [reply.body for reply in replies[0]] == [b"r"]
        assert client.query(ServiceQuery(name="one")).in_flight == 0
        asker.request("two", "s", b"x")
        assert two.receive(PATIENCE).body == b"x"
