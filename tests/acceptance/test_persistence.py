"""Durable queues and queues in memory, side by side in a broker that is killed or stopped."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rig_daemon import Daemon, small
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.config import QueueRule, QueuesConfig
from malamute.protocol.admin import MailboxesQuery, ServicesQuery

KINDS, PERSISTENCES, ASSURANCES = ("mailbox", "service"), ("durable", "memory"), ("stored", "none")


def queue_name(persistence: str, assurance: str) -> str:
    """A queue for each: what is not confirmed has no other message whose confirmation would cover it."""
    return f"{persistence}.{assurance}"


def put(client: malamute.Client, kind: str, name: str, assurance: str) -> None:
    if kind == "mailbox":
        client.send(name, "a", b"1", assurance=assurance)
    else:
        client.request(name, "a", b"1", assurance=assurance)


def rows(client: malamute.Client) -> dict[tuple[str, str], Any]:
    """The queues that are there, by kind and name."""
    found = {("mailbox", row.name): row for row in client.query(MailboxesQuery())}
    return found | {("service", row.name): row for row in client.query(ServicesQuery())}


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.stop], ids=["SIGKILL", "SIGTERM"])
def test_what_is_durable_outlives_the_broker_and_what_is_in_memory_does_not(
    new_daemon: Callable[..., Daemon], end: Callable[[Daemon], None]
) -> None:
    """WP41, ZN16: durable or in memory, mailbox or service, confirmed or not, killed or stopped."""
    rules = (QueueRule("memory.*", persistence="memory"),)
    daemon = new_daemon(replace(small(), queues=QueuesConfig(rule=rules))).start()
    every = [
        (kind, queue_name(persistence, assurance))
        for kind in KINDS
        for persistence in PERSISTENCES
        for assurance in ASSURANCES
    ]
    with malamute.connect(daemon.url, address="alice", timeout=PATIENCE) as client:
        for kind, name in every:
            put(client, kind, name, name.partition(".")[2])
        eventually(
            lambda: sum(row.messages for queue, row in rows(client).items() if queue in every) == len(every),
            "all messages are in their queues",
        )
        assert {row.persistence for queue, row in rows(client).items() if "memory" in queue[1]} == {"memory"}
        # What is confirmed is on the disk with all that came before it, whether that was confirmed or not.
        client.publish("s", "a", b"", assurance="stored")
    end(daemon)
    daemon.start()
    durable = [queue_name("durable", assurance) for assurance in ASSURANCES]
    for name in durable:
        with malamute.connect(daemon.url, address=name, timeout=PATIENCE) as client:
            assert {queue for _, queue in rows(client) if queue.startswith(PERSISTENCES)} == {*durable}
            assert client.receive(PATIENCE).body == b"1"
            with client.work(name) as work:
                request = work.receive(PATIENCE)
                assert request.body == b"1"
                request.ack()
    lost = {
        (line["kind"], line["name"]) for line in map(json.loads, daemon.log.splitlines()) if "name" in line
    }
    assert lost == {(kind, name) for kind, name in every if name not in durable}


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.stop], ids=["SIGKILL", "SIGTERM"])
def test_a_reply_to_what_a_restart_took_away_answers_no_other_request(
    new_daemon: Callable[..., Daemon], end: Callable[[Daemon], None]
) -> None:
    """WP32: the worker still holds the request, which was in memory only. Its sequence is not another's."""
    rules = (QueueRule("sums", persistence="memory"),)
    daemon = new_daemon(replace(small(), queues=QueuesConfig(rule=rules))).start()
    connect = partial(malamute.connect, daemon.url, timeout=PATIENCE)
    with connect(address="bob") as bob, connect(address="alice") as alice, bob.work("sums", credit=2) as work:
        alice.request("sums", "a", b"2+2", assurance="stored")
        lost = work.receive(PATIENCE)
        end(daemon)
        daemon.start()
        with connect(address="carl") as carl:
            replies = carl.request("sums", "a", b"3*3", assurance="stored")
            other = work.receive(PATIENCE)
            assert other.sequence > lost.sequence
            with pytest.raises(malamute.errors.NotOutstanding):
                lost.reply(b"4", assurance="stored").wait(PATIENCE)
            other.reply(b"9")
            assert [reply.body for reply in replies] == [b"9"]
