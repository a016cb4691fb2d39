"""The guard: how many bytecode instructions fixed workloads take in the pure core, the codec and the client.

Counted (`tests/opcodes.py`) is every instruction that CPython executes in the files of `COUNTED` while peers
of the test bench do what clients do. Each message is encoded and decoded on both sides. What C code does
inside one instruction is not seen, and neither is the store: `malamute bench` measures both. The waited calls
of the client are counted in its own files, against a broker that answers from a script (`client_bench`).

The baseline beside this file has the counts for a minor version of Python, as each compiles to other
instructions. `compare` reports what has grown beyond `TOLERANCE`. After a change that is worth its price, or
one that saved something, record anew:

    python tests/bench/instruction_counts.py --record
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from itertools import count as count_up
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import shared_folders  # noqa: F401  # the folders of the modules below

from client_bench import CALLS, stepping
from core_bench import (
    Bench,
    ack,
    mail_credit,
    offer,
    subscribe,
)
from opcodes import instructions

from malamute.protocol.batch import pack_record
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import (
    Ack,
    Cancel,
    Credit,
    Deliver,
    Message,
    Offer,
    Publish,
    Reply,
    Request,
    Send,
    Stored,
    Subscribe,
)

BASELINE = Path(__file__).with_name("instruction_counts.json")
RECORD = "python tests/bench/instruction_counts.py --record"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

COUNTED = ("core/", "matching/", "protocol/", "store/", "errors.py")
"""Files of the package whose instructions count."""

TOLERANCE = 0.03
"""The part by which a count may grow."""

REPEATS = 20
"""How often the step of a workload is counted. It runs as often before, so that no cache is cold."""

BATCH = 100
"""Messages of a batch."""

SEED = "0"
"""Seed of the hashes of strings."""

HISTORY = 1_000
"""Messages that are replayed."""

HEADERS = {"unit": "C", "station": "oslo", "quality": 17}
RECORDS = [pack_record(HEADERS, b"x" * 100)] * BATCH
SUBJECTS = [f"temp.oslo.{number}" for number in range(BATCH)]

Step = Callable[[], object]
"""What is counted: the same again with each call."""


def count(make: Callable[[], Step]) -> int:
    """The instructions of so many steps of a workload."""
    return count_steps(make(), *COUNTED)


def count_steps(step: Step, *places: str) -> int:
    """The instructions of so many steps in these places."""
    for _ in range(REPEATS):
        step()
    return instructions(lambda: [step() for _ in range(REPEATS)], *places)


def count_calls() -> dict[str, int]:
    """The instructions of the client's waited calls, on both edges."""
    found: dict[str, int] = {}
    for call in CALLS:
        for edge, aio in (("blocking", False), ("asyncio", True)):
            with stepping(call, aio=aio) as step:
                found[f"{edge} client: {call}"] = count_steps(step, "client/")
    return found


# Workloads


def _publish(messages: int, number: int = 0) -> Publish:
    return Publish("s", number, SUBJECTS[:messages], RECORDS[:messages])


def publish_unconfirmed() -> Step:
    """A message without a confirmation, delivered live to one subscriber."""
    return _publishing(1, confirmed=False)


def publish_confirmed() -> Step:
    """The same with its confirmation."""
    return _publishing(1, confirmed=True)


def publish_batch() -> Step:
    """A batch, delivered live and confirmed."""
    return _publishing(BATCH, confirmed=True)


def publish_to_many() -> Step:
    """A batch to a hundred subscribers, each of its own pattern, of which one in ten wants all of it."""
    bench = Bench()
    _subscribe(bench, [f"reader-{n}" for n in range(100)], lambda n: "temp.#" if n % 10 == 0 else SUBJECTS[n])
    return _stepping(bench, lambda number: bench.tell("alice", _publish(BATCH, number)))


def _publishing(messages: int, *, confirmed: bool) -> Step:
    bench = Bench()
    _subscribe(bench, ["bob"], lambda n: "temp.#")
    return _stepping(
        bench, lambda number: bench.tell("alice", _publish(messages, number if confirmed else 0))
    )


def _subscribe(bench: Bench, names: list[str], pattern: Callable[[int], str]) -> None:
    bench.open("alice", *names)
    for place, name in enumerate(names):
        bench.tell(name, subscribe(criteria=[["topic", pattern(place)]]))
    bench.settle()


def _stepping(bench: Bench, do: Callable[[int], object]) -> Step:
    """A step that does it with the next number, until the broker has nothing left to do."""
    numbers = count_up(1)

    def step() -> None:
        do(next(numbers))
        bench.settle()
        bench.log.clear()

    return step


def ask_a_service(*, stored: bool = True) -> Step:
    """A request without options, its reply, and the acknowledgement of that."""
    bench = Bench()
    bench.open("asker", "worker")
    bench.tell("asker", mail_credit())
    bench.tell("worker", offer())
    bench.settle()

    def ask(number: int) -> None:
        numbered = number if stored else 0
        bench.tell("asker", Request("w", numbered, ["a"], RECORDS[:1], [{"correlation": number}]))
        if stored:
            bench.settle()
        (task,) = bench.got("worker")
        bench.tell("worker", Reply(1, numbered, [task.sequence], [True], RECORDS[:1]))
        if stored:
            bench.settle()
        (answer,) = bench.got("asker")
        bench.tell("asker", ack(0, (answer.sequence, answer.sequence)))

    return _stepping(bench, ask)


def ask_in_passing() -> Step:
    """The same of a request that is not stored: it passes the queue, and so does its reply."""
    return ask_a_service(stored=False)


def send_to_a_mailbox() -> Step:
    """A message to a mailbox whose owner is there, and its acknowledgement."""
    return _sending(1)


def send_in_passing() -> Step:
    """The same of a message that is not stored."""
    return _sending(1, stored=False)


def send_a_batch() -> Step:
    """A batch to a mailbox, acknowledged as one range."""
    return _sending(BATCH)


def _sending(messages: int, *, stored: bool = True) -> Step:
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", mail_credit())
    bench.settle()

    def send_and_ack(number: int) -> None:
        numbered = number if stored else 0
        bench.tell("alice", Send("bob", numbered, SUBJECTS[:messages], RECORDS[:messages]))
        if stored:
            bench.settle()
        mail = bench.got("bob")
        bench.tell("bob", ack(0, (mail[0].sequence, mail[-1].sequence)))

    return _stepping(bench, send_and_ack)


def replay() -> Step:
    """A subscription from the first message on, replayed out of the store until it is live, and cancelled."""
    bench = Bench()
    bench.open("alice", "bob")
    for _ in range(HISTORY // BATCH):
        bench.tell("alice", _publish(BATCH))
        bench.settle()

    def subscribe_and_cancel(number: int) -> None:
        bench.tell("bob", subscribe(number, start="first"))
        bench.settle()
        assert sum(isinstance(m, Deliver) for _, m in bench.log)
        bench.tell("bob", Cancel(number))

    return _stepping(bench, subscribe_and_cancel)


def publish_to_filters() -> Step:
    """A batch to a hundred subscriptions, each with a filter by header of its own; one takes all of it."""
    bench = Bench()
    bench.open("alice", "bob")
    bench.tell("bob", *[subscribe(n + 1, where=f"quality = {n}") for n in range(100)])
    bench.settle()
    return _stepping(bench, lambda number: bench.tell("alice", _publish(BATCH, number)))


def replay_to_filters() -> Step:
    """The same of history: ten subscriptions from the first message on."""
    bench = Bench()
    bench.open("alice", "bob")
    for _ in range(HISTORY // BATCH):
        bench.tell("alice", _publish(BATCH))
        bench.settle()

    def subscribe_and_cancel(number: int) -> None:
        bench.tell("bob", *[subscribe(n + 1, where=f"quality = {n}", start="first") for n in range(10)])
        bench.settle()
        bench.tell("bob", *[Cancel(n + 1) for n in range(10)])

    return _stepping(bench, subscribe_and_cancel)


HEADLINE: dict[str, Message] = {
    "publish": Publish("weather", 1, SUBJECTS[:1], RECORDS[:1]),
    "publish of a batch": Publish("weather", 1, SUBJECTS, RECORDS),
    "send": Send("bob", 1, SUBJECTS[:1], RECORDS[:1]),
    "request": Request("printer", 1, SUBJECTS[:1], RECORDS[:1], [{"correlation": 1}]),
    "reply": Reply(1, 1, [1], [True], RECORDS[:1]),
    "subscribe": Subscribe(1, "weather", [["topic", "temp.#"]], credit=1000),
    "offer": Offer(1, "printer", [["all", ""]], credit=1000),
    "credit": Credit(1, 1000),
    "ack": Ack(1, [[1, 1000]]),
    "stored": Stored([[1, 1, 1]]),
    "deliver": Deliver(1, 0, b"payload"),
}
"""The commands that come once a message or a batch, and those that begin with them."""


def _coding(message: Message) -> Callable[[], Step]:
    def make() -> Step:
        return lambda: decode([bytes(frame) for frame in encode(message)])

    return make


WORKLOADS: dict[str, Callable[[], Step]] = {
    "publish one, unconfirmed": publish_unconfirmed,
    "publish one, confirmed": publish_confirmed,
    f"publish a batch of {BATCH}": publish_batch,
    f"publish a batch of {BATCH} to 100 subscribers": publish_to_many,
    f"publish a batch of {BATCH} to 100 filters by header": publish_to_filters,
    "request, reply and acknowledge": ask_a_service,
    "request, reply and acknowledge, not stored": ask_in_passing,
    "send one and acknowledge": send_to_a_mailbox,
    "send one and acknowledge, not stored": send_in_passing,
    f"send a batch of {BATCH} and acknowledge": send_a_batch,
    f"subscribe and replay {HISTORY:,}": replay,
    f"replay {HISTORY:,} to 10 filters by header": replay_to_filters,
    **{f"encode and decode {name}": _coding(message) for name, message in HEADLINE.items()},
}


# The baseline


def measure() -> dict[str, int]:
    """The count of each workload."""
    return {**{name: count(make) for name, make in WORKLOADS.items()}, **count_calls()}


def recorded() -> dict[str, dict[str, int]]:
    """The baseline: for each minor version of Python the count of each workload."""
    found: dict[str, dict[str, int]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    return found


def compare(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """A line for each workload that takes more than it did, or that only one of the two has."""
    lines = [
        f"{name}: {now[name]:,} instructions in {REPEATS} steps, "
        f"{now[name] / before[name] - 1:+.1%} of {before[name]:,}"
        for name in before
        if name in now and now[name] > before[name] * (1 + TOLERANCE)
    ]
    lines += [f"{name}: not in the baseline" for name in now if name not in before]
    lines += [f"{name}: in the baseline, and no workload" for name in before if name not in now]
    return lines


def main() -> None:
    """Print the counts beside the baseline; with --record, make them the baseline of this Python."""
    if os.environ.get("PYTHONHASHSEED") != SEED:  # the order of a set is that of hashes
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": SEED})
    counts, everything = measure(), recorded()
    before = everything.get(VERSION, {})
    for name, counted in counts.items():
        change = f"{counted / before[name] - 1:+8.1%}" if name in before else ""
        print(f"{name:45}{counted:>12,}{counted // REPEATS:>10,} a step {change}")
    if "--record" in sys.argv[1:]:
        BASELINE.write_text(json.dumps({**everything, VERSION: counts}, indent=1) + "\n")
    elif "--json" in sys.argv[1:]:
        print(json.dumps(counts))


if __name__ == "__main__":
    main()
