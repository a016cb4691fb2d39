"""What waits for the disk is shared: who leaves least to the others is refused first."""

from __future__ import annotations

import pytest
from core_bench import Bench, publish, request, send

from malamute.core.queue.entry import ENTRY_BYTES
from malamute.core.stream.chunk import MESSAGE_BYTES, chunk_bytes
from malamute.protocol.batch import pack_record
from malamute.protocol.limits import Limits
from malamute.protocol.messages import Error, Message, Stored

BODY = bytes(1_000)
SIZE = len(pack_record(None, BODY))
HELD = chunk_bytes(1, SIZE, ())
"""What one message of such a body is for the session that has sent it."""


@pytest.fixture
def backlog_bytes() -> int:
    """What one message of such a body takes of the backlog: its chunk has a few bytes of its own."""
    bench = Bench()
    bench.open("hog")
    bench.tell("hog", publish(BODY))
    return bench.core.effects.stage.backlog_bytes


def codes(messages: list[Message]) -> list[int]:
    return [message.code for message in messages if isinstance(message, Error)]


def sharing(most: int, *names: str) -> Bench:
    """A broker whose disk hangs."""
    bench = Bench(Limits(backlog_bytes=most))
    bench.open(*names)
    return bench


def test_a_session_may_have_as_much_as_it_leaves_to_others(backlog_bytes):
    """At its share, and one byte past it."""
    for most, code in ((3 * HELD + backlog_bytes, []), (3 * HELD + backlog_bytes - 1, [503])):
        bench = sharing(most, "hog")
        assert codes(bench.ask("hog", publish(BODY))) == []
        assert codes(bench.ask("hog", publish(BODY))) == code


def test_others_get_through_whatever_one_session_sends(backlog_bytes):
    bench = sharing(20 * backlog_bytes, "hog", "alice", "bob")
    for _ in range(100):
        bench.tell("hog", publish(BODY))
    taken = bench.core.effects.stage.backlog_bytes
    assert 9 * backlog_bytes <= taken <= 10 * backlog_bytes
    assert set(codes(bench.sent("hog"))) == {503}
    asked = bench.ask("alice", publish(b"1", number=1), send("bob", b"2", number=2), request(b"3", number=3))
    assert codes(asked) == []
    bench.settle()
    assert [message.ranges[-1][1] for message in bench.sent("alice") if isinstance(message, Stored)][-1] == 3


def test_many_who_take_all_they_can_leave_something_to_each_other(backlog_bytes):
    names = [f"hog{number}" for number in range(4)]
    bench = sharing(50 * backlog_bytes, *names, "alice")
    for _ in range(50):
        for name in names:
            bench.tell(name, publish(BODY))
    counts = [bench.core.sessions.by_peer[peer].backlog_bytes // HELD for peer in bench.core.sessions.by_peer]
    assert counts == [10, 10, 10, 9, 0] or counts == [10, 10, 10, 10, 0]
    assert codes(bench.ask("alice", publish(BODY))) == []


def test_who_has_nothing_there_may_send_one_command_however_large(backlog_bytes):
    bench = sharing(2 * backlog_bytes, "alice", "bob")
    assert codes(bench.ask("alice", publish(bytes(10_000)))) == []
    # It was not full before; now it is for everybody.
    assert codes(bench.ask("bob", publish(b"1"))) == [503]


@pytest.mark.parametrize("end", ["stored", "refused by the disk"])
def test_what_is_settled_is_given_back(end, backlog_bytes):
    bench = sharing(20 * backlog_bytes, "hog")
    bench.tell("hog", publish(BODY), publish(BODY))
    bench.tell("hog", publish(BODY), send("bob", BODY))
    (session,) = bench.core.sessions.by_peer.values()
    assert session.backlog_bytes == 3 * HELD + SIZE + ENTRY_BYTES
    while bench.appends:
        bench.commit() if end == "stored" else bench.fail()
    assert session.backlog_bytes == bench.core.effects.stage.backlog_bytes == 0
    assert not bench.core.effects.stage.backlog_shares


def test_what_needs_no_disk_counts_for_nobody():
    bench = Bench(Limits(backlog_bytes=3 * HELD), no_journal=("live",), unjournaled=True)
    bench.settle()
    bench.open("hog")
    for _ in range(100):
        bench.tell("hog", publish(BODY, stream="live"))
    assert codes(bench.sent("hog")) == []
    (session,) = bench.core.sessions.by_peer.values()
    assert session.backlog_bytes <= HELD
    bench.settle()
    assert session.backlog_bytes == 0


def test_a_stream_without_a_journal_continues_while_the_backlog_is_full(backlog_bytes):
    bench = Bench(Limits(backlog_bytes=2 * backlog_bytes), no_journal=("live",), unjournaled=True)
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"1", stream="live"))
    bench.settle()
    bench.tell("bob", publish(bytes(10_000)))
    assert codes(bench.ask("alice", publish(b"1"))) == [503]
    assert codes(bench.ask("alice", publish(b"1", stream="live"))) == []


def test_a_message_counts_as_what_it_takes_of_memory():
    assert chunk_bytes(2, 100, ()) == 200 + 2 * MESSAGE_BYTES
    assert chunk_bytes(2, 100, (b"x" * 60,)) == 140 + 2 * MESSAGE_BYTES
