"""The ways through the core, traced: which files each of them touches, and how often it changes between two.

It is in steady state, with one message each. docs/architecture.md has the figures; this prints them:

    python tests/core/core_ways.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import shared_folders  # noqa: F401  # the folders of the modules below

from core_bench import Bench, ack, mail_credit, offer, publish, reply, request, subscribe

import malamute
from malamute.protocol.messages import Cancel

CORE = str(Path(malamute.__file__).parent / "core") + os.sep

WARM_STEPS = 30
"""How often a step is done before it is traced."""

FURTHER = 10
"""Messages beside the first one, to see what each further one costs."""


class Way(NamedTuple):
    """What is traced, and what is done before it each time."""

    step: Callable[[], object]
    prepare: Callable[[], object] = bool


class Trace(NamedTuple):
    """What one step touches: files of the core, and the calls and returns that lead from one to another."""

    changes: int
    files: frozenset[str]


def trace(make: Callable[[], Way]) -> Trace:
    """Do the step of a way until nothing is new, and then see what it touches."""
    way = make()
    for _ in range(WARM_STEPS):
        way.prepare()
        way.step()
    way.prepare()
    files: set[str] = set()
    changes = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal changes
        file = frame.f_code.co_filename
        if event in ("call", "return") and file.startswith(CORE):
            files.add(file.removeprefix(CORE).removesuffix(".py"))
            caller = _file_of(frame.f_back)
            changes += bool(caller) and caller != file

    sys.setprofile(seen)
    try:
        way.step()
    finally:
        sys.setprofile(None)
    return Trace(changes, frozenset(files))


def _file_of(frame: FrameType | None) -> str:
    """The nearest file of the core in which a frame is, or from which it was called."""
    while frame is not None and not frame.f_code.co_filename.startswith(CORE):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


def records(each: int = 1) -> Way:
    """Records that are published in one iteration, delivered live, committed and confirmed."""
    bench, numbers = Bench(), count(1)
    bench.open("alice", "bob")
    bench.tell("bob", subscribe())
    bench.settle()

    def step() -> None:
        for _ in range(each):
            bench.receive("alice", publish(b"x", number=next(numbers)))
        bench.settle()
        assert len(bench.got("bob")) == each
        bench.log.clear()

    return Way(step)


def requests(each: int = 1) -> Way:
    """Requests that are stored, delivered and replied to, and replies that are stored and acknowledged."""
    bench, numbers, replies = Bench(), count(1), count(1)
    bench.open("asker", "worker")
    bench.tell("asker", mail_credit())
    bench.tell("worker", offer())
    bench.settle()

    def step() -> None:
        for number in [next(numbers) for _ in range(each)]:
            bench.receive("asker", request(b"x", number=number, correlation=number))
        bench.settle()
        for task in bench.got("worker"):
            bench.receive("worker", reply(1, task.sequence, number=next(replies)))
        bench.settle()
        answers = bench.got("asker")
        assert len(answers) == each
        for answer in answers:
            bench.receive("asker", ack(0, (answer.sequence, answer.sequence)))
        bench.settle()
        bench.log.clear()

    return Way(step)


def subscribing(start: str) -> Way:
    """A subscription to a stream with one message in its journal, until it is live."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("alice", publish(b"x"))
    bench.settle()

    def step() -> None:
        bench.tell("bob", subscribe(start=start))
        bench.settle()
        assert len(bench.got("bob")) == (start == "first")

    def prepare() -> None:
        bench.tell("bob", Cancel(1))
        bench.settle()
        bench.log.clear()

    return Way(step, prepare)


WAYS: dict[str, Callable[[], Way]] = {
    "a record": records,
    "a request": requests,
    "subscribing at the head": lambda: subscribing("new"),
    "subscribing in the past": lambda: subscribing("first"),
}


def further(make: Callable[[int], Way]) -> float:
    """The changes of each further message of the same iterations."""
    alone, together = (trace(lambda messages=messages: make(messages)) for messages in (1, 1 + FURTHER))
    return (together.changes - alone.changes) / FURTHER


def main() -> None:
    for name, make in WAYS.items():
        changes, files = trace(make)
        print(f"{name}: {changes} changes, {len(files)} files: {', '.join(sorted(files))}")
    print(f"each further record: {further(records):.0f}, request: {further(requests):.0f}")


if __name__ == "__main__":
    main()
