"""The memory that docs/operations/sizing.md promises follows from the defaults."""

from __future__ import annotations

import re
from pathlib import Path

from malamute.config import Config
from malamute.server import guard, transport

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "sizing.md"
MIB = 1024 * 1024
KIB = 1024


def table() -> dict[str, int]:
    """The rows of the table, with their mebibytes."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .*? \| \**([\d,]+)\** \|$", page, re.MULTILINE)
    return {what.strip("*"): int(mebibytes.replace(",", "")) for what, mebibytes in rows}


def test_the_rows_are_those_of_the_defaults() -> None:
    limits, listen = Config().core_limits, Config().connection_limits
    command = limits.message_bytes
    expected = {
        "where queued messages": (400 + 600) * limits.queues_messages,
        "what was sent": listen.send_bytes_all + command,
        "what comes from clients": listen.receive_bytes_all,
        "queues": 13 * KIB * limits.queues,
        "connections": 30 * KIB * limits.sessions,
        "sessions": 14.2 * KIB * limits.sessions,
        "messages accepted": limits.backlog_bytes + command,
        "the same while": 2 * (limits.backlog_bytes + command),
        "selectors": limits.selectors_bytes,
        "the bodies": limits.queues_memory_bytes + limits.backlog_bytes,
        "what is kept": transport.KEPT_BYTES_ALL + command,
        "streams": 17.5 * KIB * limits.streams,
        "a command while": 2 * command,
        "what is remembered": limits.caches_bytes,
        "cursors": limits.cursors_bytes,
        "keys of buckets": limits.buckets_bytes + 2 * KIB * limits.buckets,
        "identities": limits.identities_bytes,
        "ids of published": limits.published_ids_bytes,
        "connections without": (guard.HELLO_BYTES_MIN + 4 * KIB) * listen.hello_queue,
    }
    rows = table()
    for begin, size_bytes in expected.items():
        found = [mebibytes for what, mebibytes in rows.items() if what.startswith(begin)]
        # The connections are two rows.
        assert any(abs(mebibytes - size_bytes / MIB) <= 1 for mebibytes in found), begin
    assert len(rows) == len(expected) + 3, "the process, what is seen late, and the sum have no option"


def test_the_sum_is_right_and_what_the_page_promises() -> None:
    rows = table()
    total = rows.pop("all of it")
    assert sum(rows.values()) == total
    promised = re.search(r"stays \*\*below (\d+) GiB\*\*", PAGE.read_text(encoding="utf-8"))
    assert promised is not None
    assert total <= int(promised[1]) * 1024
