"""What operators ask of the broker: every topic of QUERY and of CHANGE, as its own tables have them.

The arguments mean something here, or not. What a topic of CHANGE may be given that has another meaning than
in a question is in `CHANGED`; `LEFT_OUT` says what it is never given, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim_machine import NO_JOURNAL
from sim_wants import CRITERIA

from malamute.core.reports.events import EVENTS
from malamute.protocol import admin
from malamute.protocol.admin.topic import arguments_of
from malamute.protocol.fields import MESSAGE_STATES
from malamute.protocol.names import AUDIT

QUERIES, CHANGES = (
    {topic: kind for topic, kind in topics.items() if not topic.startswith("link")}
    for topics in (admin.QUERIES, admin.CHANGES)
)
"""The topics, but for those of links: two brokers have a simulation of their own (tests/core)."""

FEEDS = ("print", "scan", "ann")
"""The names of feeds, which are those of their queues."""

VALUES: Mapping[str, tuple[Any, ...]] = {
    "name": ("kept", "more", "live", EVENTS, "print", "scan", "ann", "bob", "nobody"),
    "stream": ("kept", "more", "live", EVENTS, "nothing"),
    "kind": ("service", "mailbox"),
    "id": ("ann", "cat", "nobody"),
    "subject": ("a.x", "b.y", ""),
    "headers": ({}, {"n": 1}, {"n": None}),
    "sender": ("", "ann"),
    "where": ("", "n = 1", "subject = 'a.x'"),
    "state": ("", *MESSAGE_STATES),
    "after": (0, 1, 3),
    "number": (1, 2, 7),
    "after_name": ("", "kept", "m"),
    "limit": (1, 2, 1000),
    "dead": (True, False),
    "sequence": (1, 2, 7),
    "details": (True, False),
    "user": ("ann", "nobody", ""),
    "action": ("publish", "admin", "dance"),
    "target": ("stream/kept/a.x", "mailbox/bob", "broker/status", "nothing"),
    "source": ("stream/kept", "stream/more", "service/print", "mailbox/bob"),
    "feed": FEEDS,
}
"""Values of each argument, by its name."""


def question(a: int, b: int, c: int) -> tuple[str, dict[str, Any]]:
    """A topic with the arguments that it needs, and some of those that it may have."""
    topic, kind = [*QUERIES.items()][a % len(QUERIES)]
    takes = arguments_of(kind)
    wanted = [*takes.required, *(name for place, name in enumerate(takes.optional) if b >> place & 1)]
    bits = a // len(QUERIES) + c
    return topic, {
        name: VALUES[name][(bits >> place) % len(VALUES[name])] for place, name in enumerate(wanted)
    }


CHANGED: Mapping[str, tuple[Any, ...]] = {
    "stream": ("kept", "more", "live", "kept", AUDIT, EVENTS, "made"),
    "cursor": ("blue", "red"),
    "owner": ("ann", "bob"),
    "start": ("new", "first", "last", "seq:3", "since:2s"),
    "bytes": (0, 1_000_000),
    "count": (0, 3, 1_000_000),
    "age": (0, 1e6),
    "expect_bytes": (0, 1_000_000),
    "expect_count": (0, 3),
    "expect_age": (0, 1e6),
    "kind": ("service", "mailbox"),
    "name": ("print", "scan", "ann", "bob", "nobody"),
    "dead": (True, False),
    "sequences": ([1], [1, 2, 3]),
    "sequence": (1, 2, 5),
    "subject": ("a.x", "*.y", "#"),
    "up_to": (1, 4, 9),
    "state": ("", *MESSAGE_STATES),
    "limit": (1, 2, 1000),
    "id": ("ann", "cat", "nobody"),
    "directory": ("monday", "../elsewhere"),
    "password": ("", f"scrypt$16384$8$1$c2FsdA==${'QUFB' * 10}QUE=", "nonsense"),
    "key": ("a" * 40, "b" * 40, ""),
    "uid": (0, 7),
    "groups": ([], ["staff"]),
    "access_rules": ([], ["view broker/#"]),
    "added_rules": ([], ["view broker/#"]),
    "removed_rules": ([], ["view broker/#"]),
    "disabled": (True, False),
    "source": ("stream/kept", "stream/live", "stream/more"),
    "feed": FEEDS,
    "target": ("",),
    "operation": ("copy",),
    "when": ("match",),
    "cascade": (True, False),
    "attempts": (0, 20, 1_000),
    "backoff": ([1.0, 5.0],),
    "ack_timeout": (1800.0,),
    "reset": (True, False),
    "journal": (True,),  # the book goes by the rule of a stream
    "dry_run": (False, False, True),
}
"""Values of each argument of a change, by its name. The criteria of a feed go with its condition."""


def target_of(feed: str) -> str:
    """Where a feed goes: the book knows it by the queue of its name."""
    return f"mailbox/{feed}" if feed == "ann" else f"service/{feed}"


LEFT_OUT = {("queue.purge", "where"), ("queue.redrive", "where"), ("queue.redrive", "body")}
"""What only the disk can tell is decided in a later iteration, and the book dates a purge by its own; and it
knows a message by its body."""


def changing(a: int, b: int, c: int) -> tuple[str, dict[str, Any]]:
    """A topic of CHANGE with the arguments that it needs, and some of those that it may have."""
    topic, kind = [*CHANGES.items()][a % len(CHANGES)]
    takes = arguments_of(kind)
    wanted = [*takes.required, *(name for place, name in enumerate(takes.optional) if b >> place & 1)]
    bits = a // len(CHANGES) + c
    arguments = {
        name: CHANGED[name][(bits >> place) % len(CHANGED[name])]
        for place, name in enumerate(wanted)
        if name not in ("criteria", "where", "body")
    }
    if "criteria" in takes.optional:
        criteria, arguments["where"], _ = [*CRITERIA.values()][b % len(CRITERIA)]
        arguments["criteria"] = [[*criterion] for criterion in criteria]
    if "target" in arguments:
        arguments["target"] = target_of(arguments["feed"])
    if arguments.get("stream") == NO_JOURNAL and "cascade" in arguments:
        # The book knows of its messages by one who reads it, and a cascade would end that.
        arguments["cascade"] = False
    if topic == "queue.set":
        # The book goes by one policy for all queues of a run.
        arguments["dry_run"] = True
    return topic, arguments
