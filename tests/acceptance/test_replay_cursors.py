"""Positions that the broker keeps, and sequences over its restarts (promises 1 and 3)."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from depth import NIGHT
from rig_daemon import Daemon
from rig_load import check_numbering, read_back
from rig_programs import Program
from rig_waiting import PATIENCE

import malamute
from malamute.client.events import Event, Gap
from malamute.client.sync.publisher import Publisher
from malamute.errors import InvalidName, InvalidValue, NotFound

Connect = Callable[..., malamute.Client]
Run = Callable[..., Program]

KILLS = 5 if NIGHT else 3

DURABLE = """
import sys
import malamute

with malamute.connect(sys.argv[1], timeout=60) as client:
    with client.subscribe("s", start="first", cursor="billing", credit=20) as messages:
        for message in messages:
            print("got", message.sequence, flush=True)
            messages.commit(message)
            print("done", message.sequence, flush=True)
"""
"""A durable reader that tells of each message, and of each position that was confirmed."""


def publish(out: Publisher, count: int) -> list[int]:
    """Publish messages, wait until they are stored, and return their sequences."""
    receipts = [out.publish("a", b"") for _ in range(count)]
    out.flush(PATIENCE)
    return [receipt.sequence for receipt in receipts]


def resumed(client: malamute.Client, count: int, cursor: str = "billing") -> list[int]:
    """What comes next for a cursor, uncommitted."""
    with client.subscribe("s", cursor=cursor) as messages:
        return [messages.receive(PATIENCE).sequence for _ in range(count)]


def positions(client: malamute.Client) -> dict[str, tuple[int, int]]:
    """Each cursor of the stream, with its lag."""
    return {row["name"]: (row["sequence"], row["lag"]) for row in client.query("cursors", stream="s")}


def test_wp29_a_named_cursor_continues_behind_what_was_committed_over_reconnect_restart_and_kill(
    daemon: Daemon, connect: Connect
) -> None:
    """WP29: as durable as a confirmed publish, and its reader need not be the same client."""
    client = connect()
    publish(client.publisher("s"), 100)
    with client.subscribe("s", start="first", cursor="billing") as messages:
        for _ in range(10):
            message = messages.receive(PATIENCE)
        messages.commit(message)
    assert resumed(client, 3) == [11, 12, 13]
    assert resumed(connect(), 3) == [11, 12, 13]
    daemon.restart()
    assert resumed(connect(), 90) == list(range(11, 101))
    with connect().subscribe("s", cursor="billing") as messages:
        messages.commit(50)
    daemon.kill()
    daemon.start()
    assert resumed(connect(), 50) == list(range(51, 101))
    assert positions(client)["billing"][0] == 50


def test_wp29_a_new_cursor_begins_at_its_start_and_is_kept_without_a_commit(
    daemon: Daemon, connect: Connect
) -> None:
    """WP29: what was published while its reader was away, before it ever had a message, is not lost."""
    client = connect()
    out = client.publisher("s")
    publish(out, 10)
    for cursor, start in (("from-now", "new"), ("from-5", "seq:5"), ("all", "first"), ("last", "last")):
        client.subscribe("s", start=start, cursor=cursor).cancel()
    client.publish("s", "a", b"", assurance="stored")
    daemon.kill()
    daemon.start()
    assert positions(client).keys() == {"from-now", "from-5", "all", "last"}
    assert {name: place for name, (place, _) in positions(client).items()} == {
        "from-now": 10,
        "from-5": 4,
        "all": 0,
        "last": 9,
    }
    assert resumed(client, 1, "from-now") == [11]
    assert resumed(client, 11, "all") == list(range(1, 12))


@pytest.mark.parametrize("victim", ["broker", "reader"])
def test_wp29_over_kills_in_the_midst_of_commits_no_confirmed_position_is_lost_and_nothing_is_skipped(
    daemon: Daemon, connect: Connect, run: Run, victim: str
) -> None:
    """WP29: of the messages, only one whose commit was under way is delivered again."""
    client, done = connect(), 0
    publish(client.publisher("s"), 1_000)
    for life in range(1, KILLS + 1):
        reader = run(DURABLE, daemon.url)
        lines = [reader.line() for _ in range(31 * life)]
        if victim == "broker":
            daemon.kill()
        reader.kill()
        lines += reader.lines()
        if victim == "broker":
            daemon.start()
        got, confirmed = numbers(lines, "got"), numbers(lines, "done")
        assert got == list(range(done + 1, done + 1 + len(got)))
        ((place, _),) = positions(client).values()
        assert confirmed[-1] <= place <= got[-1]
        done = place
    assert resumed(client, 1) == [done + 1]
    print(f"position {done} after {KILLS} kills of the {victim}")


def numbers(lines: Sequence[Sequence[str]], what: str) -> list[int]:
    """The numbers of the lines of one kind; the last line may be cut off."""
    return [int(line[1]) for line in lines if line[0] == what and len(line) == 2]


def test_wp29_a_reader_cut_off_and_resumed_behind_its_last_message_has_no_gap_and_no_duplicate(
    daemon: Daemon, connect: Connect
) -> None:
    """WP29: it keeps its place itself, over a new client for every few messages."""
    out = connect().publisher("s")
    had: list[int] = []
    for _ in range(10):
        publish(out, 50)
        reader = connect()
        messages = reader.subscribe("s", start=(had or [0])[-1] + 1, credit=30)
        had += [messages.receive(PATIENCE).sequence for _ in range(35)]
        reader.close()
    assert had == list(range(1, 351))


def test_wp29_cursors_are_listed_and_reset_and_a_dry_run_only_shows(daemon: Daemon, connect: Connect) -> None:
    """WP29: to any start of the protocol, and forgotten; all of it over a kill."""
    client = connect()
    publish(client.publisher("s"), 100)
    with client.subscribe("s", start="first", cursor="billing") as messages:
        messages.commit(60)
    client.subscribe("s", cursor="audit").cancel()
    assert positions(client) == {"billing": (60, 40), "audit": (100, 0)}
    assert client.query("stream", name="s")["cursors"] == [
        {"name": "billing", "sequence": 60, "lag": 40},
        {"name": "audit", "sequence": 100, "lag": 0},
    ]

    def reset(start: str, *, dry_run: bool = False) -> tuple[int, int]:
        reported = client.change("cursor.set", stream="s", cursor="billing", start=start, dry_run=dry_run)
        return reported["before"], reported["sequence"]

    assert reset("seq:11", dry_run=True) == (60, 10)
    assert positions(client)["billing"] == (60, 40)
    assert reset("seq:11") == (60, 10)
    assert resumed(client, 2) == [11, 12]
    assert reset("last") == (10, 99)
    assert reset("since:1d") == (99, 0)
    client.change("cursor.delete", stream="s", cursor="audit", dry_run=True)
    assert "audit" in positions(client)
    client.change("cursor.delete", stream="s", cursor="audit")
    daemon.kill()
    daemon.start()
    assert {name: place for name, (place, _) in positions(client).items()} == {"billing": 0}


def test_wp29_what_cannot_be_committed_is_refused_and_the_position_stays(
    daemon: Daemon, connect: Connect
) -> None:
    """WP29."""
    client = connect()
    publish(client.publisher("s"), 10)
    with client.subscribe("s") as plain, pytest.raises(InvalidValue, match="cursor"):
        plain.commit(1)
    with client.subscribe("s", cursor="billing") as messages, pytest.raises(InvalidValue, match="head"):
        messages.commit(11)
    for cursor, refusal in (("none", NotFound), ("", InvalidName)):
        with pytest.raises(refusal):
            client.change("cursor.delete", stream="s", cursor=cursor)
    assert positions(client) == {"billing": (10, 0)}


def test_wp32_sequences_continue_without_a_gap_over_clean_restarts_and_with_a_reported_gap_over_kills(
    daemon: Daemon, connect: Connect
) -> None:
    """WP29, WP32: as the publishers learned them, as a live subscriber saw them, and as they are stored."""
    publisher, subscriber = connect(), connect()
    gaps: list[Gap] = []

    def note(event: Event) -> None:
        if isinstance(event, Gap):
            gaps.append(event)

    subscriber.on_event = note
    live, out = subscriber.subscribe("s"), publisher.publisher("s", timeout=PATIENCE)
    reported, ends = publish(out, 10), []
    for end in (daemon.stop, daemon.kill, daemon.stop, daemon.stop, daemon.kill, daemon.kill, daemon.stop):
        end()
        daemon.start()
        ends.append((reported[-1], end == daemon.kill))
        reported += publish(out, 10)
    seen = [live.receive(PATIENCE).sequence for _ in reported]
    assert seen == reported
    check_numbering(seen, gaps)
    kills = [last for last, killed in ends if killed]
    assert [gap.first - 1 for gap in gaps] == kills
    stored, gaps_stored = read_back(daemon.url, "s")
    assert [message.sequence for message in stored] == reported
    assert [gap[1:] for gap in gaps_stored] == [gap[1:] for gap in gaps]
    clean = [last for last, killed in ends if not killed]
    assert all(b == a + 1 for a, b in pairwise(reported) if a in clean)
