"""A change is made once, though the broker is killed between its commit and its answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from rig_daemon import Daemon
from rig_proxy import Proxy
from rig_waiting import PATIENCE, eventually

import malamute

BEFORE, BETWEEN = 20, 10


def publish(client: malamute.Client, name: bytes) -> None:
    client.publish("weather", "a", name, assurance="stored")


def send(client: malamute.Client, name: bytes) -> None:
    client.send("bob", "a", name, assurance="stored")


def history(client: malamute.Client) -> list[bytes]:
    """What the stream holds."""
    row = client.query("stream", name="weather")
    with client.subscribe("weather", start="first", credit=100) as messages:
        return [message.body for message in islice(messages, row["last"] - row["first"] + 1)]


def mail(client: malamute.Client) -> list[bytes]:
    """What waits in the mailbox."""
    rows = client.query("messages", kind="mailbox", name="bob")
    return [b"".join(row["body"]) if isinstance(row["body"], list) else row["body"] for row in rows]


def stream_is_empty(client: malamute.Client) -> bool:
    row = client.query("stream", name="weather")
    return bool(row["first"] > row["last"])


def mailbox_is_empty(client: malamute.Client) -> bool:
    return not client.query("messages", kind="mailbox", name="bob")


CHANGES: dict[
    str, tuple[dict[str, Any], Callable[..., None], Callable[..., bool], Callable[..., list[bytes]]]
]
CHANGES = {
    "stream.purge": ({"stream": "weather"}, publish, stream_is_empty, history),
    "queue.purge": ({"kind": "mailbox", "name": "bob"}, send, mailbox_is_empty, mail),
}


@pytest.mark.parametrize("topic", CHANGES)
def test_a_change_whose_answer_a_kill_took_is_not_made_again(
    daemon: Daemon, proxy: Proxy, connect_to: Callable[..., malamute.Client], topic: str
) -> None:
    arguments, store, is_made, held = CHANGES[topic]
    other = connect_to(daemon.url)
    for place in range(BEFORE):
        store(other, b"before %d" % place)

    def ask() -> Any:
        with malamute.connect(proxy.url, timeout=PATIENCE) as operator:
            proxy.mute()
            return operator.change(topic, timeout=PATIENCE, **arguments)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        eventually(lambda: is_made(other), "the change is made")
        for place in range(BETWEEN):
            store(other, b"between %d" % place)
        assert not answer.done()
        daemon.kill()
        daemon.start()
        proxy.relent()
        value = answer.result(PATIENCE)
    made = value["messages"] if topic == "queue.purge" else value["last"] - value["first"] + 1
    assert made == BEFORE
    assert held(other) == [b"between %d" % place for place in range(BETWEEN)]
