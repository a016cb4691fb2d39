"""Connections are cut again and again, at any byte: what was confirmed is there once (promise 3)."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from depth import NIGHT
from rig_daemon import MIB, Daemon, small
from rig_load import ROLES, Load, read_back
from rig_proxy import Proxy
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.client.events import Event, Gap

CUTS = 20 if NIGHT else 8
CUT_AFTER_BYTES_MAX = 10_000


@pytest.mark.parametrize("seed", [4])
def test_over_cuts_of_every_connection_all_is_stored_once_and_seen_once_in_order(
    daemon: Daemon, new_proxy: Callable[[], Proxy], seed: int
) -> None:
    """WP27, WP29, WP30, WP31, WP32: each of seven clients has a connection of its own."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    proxies = {role: new_proxy() for role in ROLES}
    with Load({role: proxy.url for role, proxy in proxies.items()}) as load:
        load.progress()
        for _ in range(CUTS):
            before = load.connections.copy()
            for proxy in proxies.values():
                proxy.cut_after(chance.randrange(1, CUT_AFTER_BYTES_MAX))
            # Only a mended connection is cut again, so that no cut is wasted.
            for role in ROLES:
                eventually(lambda r=role, n=before[role]: load.connections[r] > n, f"the {role} again")
            load.check()
        load.settle()
        stored, gaps = read_back(daemon.url)
        eventually(lambda: load.live[-1].sequence == stored[-1].sequence, "the last message, live")
    print(f"{load}; {sum(proxy.cuts for proxy in proxies.values())} cuts")

    assert all(proxy.cuts >= CUTS for proxy in proxies.values())
    load.check_all(stored)
    assert gaps == load.gaps == []
    whole_stream = list(range(1, len(stored) + 1))
    assert [message.sequence for message in stored] == whole_stream
    assert [message.sequence for message in load.live] == whole_stream


def test_a_subscriber_whose_position_was_overwritten_while_it_was_away_is_notified_of_what_is_missing(
    new_daemon: Callable[..., Daemon], new_proxy_to: Callable[[Daemon], Proxy]
) -> None:
    """WP29, WP37: what it had, and what was reported to it as missing, is the whole stream."""
    daemon = new_daemon(small(8 * MIB)).start()
    proxy = new_proxy_to(daemon)
    count = 2_000
    gaps: list[Gap] = []

    def note(event: Event) -> None:
        if isinstance(event, Gap):
            gaps.append(event)

    with malamute.connect(daemon.url) as client, malamute.connect(proxy.url, timeout=PATIENCE) as reader:
        reader.on_event = note
        with reader.subscribe("s") as messages, client.publisher("s") as out:
            out.publish("a", b"first").wait(PATIENCE)
            sequences = [messages.receive(PATIENCE).sequence]
            proxy.refuse()
            for _ in range(1, count):
                out.publish("a", bytes(8_000))
            out.flush(PATIENCE)
            proxy.relent()
            while sequences[-1] < count:
                sequences.append(messages.receive(PATIENCE).sequence)

    missing = [(a + 1, b - 1) for a, b in pairwise(sequences) if b != a + 1]
    assert sequences[0] == 1
    assert len(missing) == 1
    assert [(gap.first, gap.last, gap.reason) for gap in gaps] == [(*missing[0], "overwritten")]
