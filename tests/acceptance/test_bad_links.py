"""Links that are bad and not cut: late, losing, reordering, narrow. Nothing is lost, or there twice."""

import time
from collections.abc import Callable

import pytest
from rig_daemon import Daemon
from rig_load import ROLES, Load, read_back
from rig_proxy import Link, Proxy
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Event, Gap
from malamute.protocol.admin import StreamQuery

NARROW = Link(bytes_per_second=10_000, kept_bytes=4_096)


@pytest.mark.parametrize(
    "link",
    [
        Link(delay_seconds=0.05),
        Link(delay_seconds=0.01, late=0.05),
        Link(delay_seconds=0.02, bytes_per_second=200_000, kept_bytes=16_384),
    ],
    ids=["delayed", "losing and reordering", "narrow"],
)
def test_wp27_over_bad_links_all_is_stored_once_and_seen_once_in_order(
    daemon: Daemon, new_proxy: Callable[[], Proxy], link: Link
) -> None:
    """WP27: each of seven clients has a link of its own, in which TCP hides what is lost or out of order."""
    proxies = {role: new_proxy() for role in ROLES}
    with Load({role: proxy.url for role, proxy in proxies.items()}) as load:
        load.progress()
        for proxy in proxies.values():
            proxy.impair(link)
        for _ in range(2):
            load.progress()
        for proxy in proxies.values():
            proxy.relent()
        load.settle()
        stored, gaps = read_back(daemon.url)
        eventually(lambda: load.live[-1].sequence == stored[-1].sequence, "the last message, live")
    load.check_all(stored)
    assert gaps == load.gaps == []
    assert all(proxy.cuts == 0 for proxy in proxies.values())
    whole_stream = list(range(1, len(stored) + 1))
    assert [message.sequence for message in stored] == whole_stream
    assert [message.sequence for message in load.live] == whole_stream


def test_wp27_a_reader_behind_10_kb_a_second_costs_nobody_anything_and_loses_nothing(
    daemon: Daemon, proxy: Proxy
) -> None:
    """WP3, WP27: the publisher goes on, another reader has all, and the broker keeps nothing for it."""
    count, body = 2_000, bytes(4_000)
    gaps: list[Event] = []
    with (
        malamute.connect(daemon.url) as client,
        malamute.connect(proxy.url, timeout=PATIENCE) as behind,
        client.publisher("s") as out,
        client.subscribe("s") as fast,
        behind.subscribe("s", credit=100) as slow,
    ):
        behind.on_event = gaps.append
        out.publish("a", body).wait(PATIENCE)
        assert slow.receive(PATIENCE).sequence == fast.receive(PATIENCE).sequence == 1
        proxy.impair(NARROW)
        before, begin, carried = daemon.anonymous_mib, time.monotonic(), proxy.carried
        for _ in range(count):
            out.publish("a", body)
        out.flush(PATIENCE)
        assert [fast.receive(PATIENCE).sequence for _ in range(count)] == [*range(2, count + 2)]
        assert daemon.anonymous_mib - before < 32
        readers = client.query(StreamQuery(name="s")).readers
        assert sorted(reader.lag > count / 2 for reader in readers) == [False, True]
        # What it gets on the way is no more than the link carries, and not nothing.
        had = [slow.receive(PATIENCE).sequence for _ in range(3)]
        most = NARROW.bytes_per_second * (time.monotonic() - begin) * 2 + 4 * NARROW.kept_bytes
        assert 0 < proxy.carried - carried <= most
        proxy.relent()
        had += [slow.receive(PATIENCE).sequence for _ in range(count - 3)]
    assert had == [*range(2, count + 2)]
    assert not any(isinstance(event, Gap) for event in gaps)
