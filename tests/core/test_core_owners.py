"""Nobody takes what is another's: the broker's own stream, and the secret that a session is known by."""

from __future__ import annotations

from itertools import product

import pytest
from core_bench import Bench, mail_credit, offer, peer_id, publish, reply, request, send, subscribe

from malamute.core.reports.events import EVENTS
from malamute.core.session.session import session_name
from malamute.protocol.admin import CHANGES, QUERIES
from malamute.protocol.admin.topic import arguments_of
from malamute.protocol.codec import encode
from malamute.protocol.messages import Change, Hello, Query, Welcome

VALUES = {
    "stream": EVENTS,
    "service": EVENTS,
    "start": "first",
    "cursor": "mine",
    "link": "edge",
    "remote": "s",
    "generation": 1,
    "after": "",
    "upto": "1",
    "reason": "r",
    "urls": ["tcp://edge:9999"],
    "bytes": 1,
    "count": 1,
    "age": 1.0,
    "criteria": [["all", ""]],
    "where": "",
    "source": f"stream/{EVENTS}",
    "feed": "f",
    "target": "service/w",
}
"""What each argument holds beside the name of the broker's own stream."""

READERS = {"cursor.set", "cursor.delete"}
"""Changes of a position that a reader keeps; the stream stays as it is."""

OF_STREAMS = [
    topic for topic, kind in CHANGES.items() if {"stream", "source"} & arguments_of(kind).rules.keys()
]


def test_there_are_changes_of_streams_to_try():
    assert {"stream.create", "stream.retain", "stream.purge", "stream.delete", "feed.set"} < {*OF_STREAMS}


@pytest.mark.parametrize(("topic", "dry_run"), [*product(OF_STREAMS, [False, True])])
def test_no_client_changes_the_stream_of_the_broker(topic, dry_run):
    bench = Bench(lifecycle=True)
    bench.open("alice")
    bench.settle()
    bench.sent("alice")
    stream = bench.core.streams.by_name[EVENTS]
    before = stream.progress.first_kept, stream.progress.last, stream.retention
    assert stream.progress.last >= 1
    given = {name: VALUES[name] for name in arguments_of(CHANGES[topic]).required} | {"dry_run": dry_run}
    bench.tell("alice", Change(0, topic, given))
    bench.settle()
    (answer,) = bench.sent("alice")
    if topic not in READERS:
        assert getattr(answer, "code", 0) in (401, 404), answer
    assert (stream.progress.first_kept, stream.retention) == (before[0], before[2])
    assert stream.progress.last >= before[1]
    assert not bench.core.feeds.by_name


def secrets_of(name: str) -> list[bytes]:
    """The routing id of a peer and its halves, as they are and in hex."""
    secret = peer_id(name)
    parts = [secret, secret[:8], secret[8:]]
    return [*parts, *(part.hex().encode() for part in parts)]


def test_what_is_sent_to_anybody_never_reveals_a_routing_id():
    """Not to the peer itself either: WELCOME tells the name that others know it by."""
    bench = Bench(lifecycle=True, settled=True)
    names = "peer-one", "peer-two"
    bench.tell("peer-one", Hello([2], ""))
    bench.tell("peer-two", Hello([2], "two"))
    (welcome,) = [m for name, m in bench.log if name == "peer-one" and isinstance(m, Welcome)]
    assert welcome.session.hex() == session_name(peer_id("peer-one"))
    bench.tell("peer-two", subscribe(1, stream=EVENTS, criteria=[["all", ""]], start="first"))
    bench.tell("peer-two", subscribe(2), offer(3, service="svc"), mail_credit(10))
    bench.tell(
        "peer-one",
        publish(b"a"),
        send("two", b"a"),
        request(b"b", service="svc", correlation="c"),
        mail_credit(10),
    )
    bench.settle()
    bench.tell("peer-two", reply(3, 1))
    place = {"source": "stream/s", "feed": "f"}
    access = {"user": "two", "action": "publish", "target": "stream/s/a"}
    values = {
        "name": "svc",
        "stream": "s",
        "kind": "service",
        "id": "two",
        "sequence": 1,
        "number": 1,
        "link": "edge",
        "generation": 1,
        **access,
        **place,
    }
    for ref, (topic, kind) in enumerate(QUERIES.items(), 1):
        arguments = arguments_of(kind)
        details = {"details": True} if "details" in arguments.optional else {}
        bench.tell("peer-two", Query(ref, topic, {n: values[n] for n in arguments.required} | details))
        bench.tell("peer-one", Query(ref, topic, {"no": "such argument"}))
    bench.tell("peer-one", Hello([1], "$bad"), Hello([2], "two"))
    bench.settle()
    sent = b"\n".join(bytes(frame) for _, message in bench.log for frame in encode(message))
    assert session_name(peer_id("peer-one")).encode() in sent
    for name in names:
        for secret in secrets_of(name):
            assert secret not in sent
    assert not any(
        secret.decode() in event for event in bench.events for secret in secrets_of("peer-one")[3:]
    )
