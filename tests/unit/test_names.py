"""Names: a class has one meaning, and the edges of the client have the same files and calls."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import malamute
import malamute.aio

PACKAGE = Path(malamute.__file__).parent

EDGES = ("client/sync/", "client/aio/")
"""The edges of the client have equal names on purpose: a program changes between them by its import."""

SAME_THING = {
    # Django finds the class of a command by this name.
    "Command": {"client/session/outbox.py", "integrations/django/management/commands/malamute_worker.py"},
    "DeadLetters": {"core/queue/dead_letters.py", "integrations/taskiq.py"},  # who makes them, and their list
    "Gap": {"client/events.py", "protocol/messages.py"},  # the event is made of the message
    "Request": {"client/sync/consumers.py", "protocol/messages.py"},  # what a worker gets, and how it came
    "Stateful": {
        "core/queue/state.py",
        "core/session/state.py",
        "core/stream/reader_state.py",
    },  # what has one
    "Subscription": {"client/sync/consumers.py", "core/stream/subscription.py"},  # the two ends of one
    "Transport": {"integrations/kombu.py", "server/transport.py"},  # kombu wants that name
}
"""Names that two classes have for the same thing. A class of both edges is named by its blocking one."""


def test_each_class_name_has_one_meaning() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        path = file.relative_to(PACKAGE).as_posix()
        for name in re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE):
            places[name].add(path.replace(EDGES[1], EDGES[0]))
    assert {name: found for name, found in places.items() if len(found) > 1} == SAME_THING


def test_the_edges_of_the_client_have_equal_files() -> None:
    sync, aio = ({path.name for path in (PACKAGE / edge).glob("*.py")} for edge in EDGES)
    assert sync == aio


def test_the_edges_of_the_client_have_equal_calls() -> None:
    for_other_loops = {"fileno", "dispatch", "next_timeout"}
    assert _public(malamute.Client) - for_other_loops == _public(malamute.aio.Client)


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}
