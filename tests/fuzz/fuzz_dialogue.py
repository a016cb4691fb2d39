"""What a broker hears, in any order: commands of three clients, answers of the disk, time, crashes.

A step is a letter, the number of a client or of a choice, and what the letter needs:

    S frames   a client says this           N frames   the same, with the number and source that come next
    W wait     C commit   F fail   R read   E fail to read   A all of it   I end the iteration
    L lost     B blocked  U unblocked       K kill and start again         G stop cleanly, and start
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgpack
from core_bench import Bench, check_accounts, peer_id
from fuzz_frames import FRAME, STEP, Change, changed_frame, vary_steps

from malamute.errors import InternalError, StorageFull, StoreError
from malamute.protocol.messages import VERSION, Hello, Ping, Pong
from malamute.store.policies import QueuePolicy, StreamRetention

CLIENTS = ("ann", "bob", "cat")
WAITS = (0.1, 1.0, 2.0, 5.0, 25.0, 10_000.0)
ERRORS = (StorageFull("full"), StoreError("input/output error"), InternalError("a fault"))
STEPS_MAX = 60

NUMBERED = {2: 2, 3: 2, 4: 2, 5: 2, 11: 1, 12: 1}
"""Where a command has its number, by its opcode."""

SOURCED = (6, 7)


def dialogue(data: bytes) -> None:
    """Nothing is raised, the accounts are right, and whoever comes next is served."""
    bench = Bench(
        retention=StreamRetention(messages_max=6),
        no_journal=("live",),
        lifecycle=True,
        settled=True,
        audit=True,
        expiry=20.0,
        queues=QueuePolicy(
            ack_timeout_seconds=2.0, attempts_max=3, backoff_seconds=(1.0,), idle_seconds=30.0
        ),
    )
    for step in data.split(STEP)[:STEPS_MAX]:
        _do(bench, step[:1], step[1:2], step[2:])
    bench.settle()
    check_accounts(bench.core)
    bench.crash()
    assert bench.core.recovery.skipped == 0
    bench.open("dan")
    assert bench.ask("dan", Ping()) == [Pong()]
    bench.settle()


def _do(bench: Bench, kind: bytes, choice: bytes, rest: bytes) -> None:
    if step := STEPS.get(kind):
        step(bench, choice[0] if choice else 0, rest)


def _say(bench: Bench, number: int, rest: bytes) -> None:
    bench.receive_frames(CLIENTS[number % 3], rest.split(FRAME))


def _say_properly(bench: Bench, number: int, rest: bytes) -> None:
    name = CLIENTS[number % 3]
    _ensure_open(bench, name)
    bench.receive_frames(name, _numbered(bench, name, rest.split(FRAME)))
    bench.iterate()


def _fail_to_read(bench: Bench, number: int) -> None:
    bench.core.answered(bench.reads.popleft(), ERRORS[number % 3], bench.now)
    bench.iterate()


STEPS: Mapping[bytes, Callable[[Bench, int, bytes], object]] = {
    b"S": _say,
    b"N": _say_properly,
    b"W": lambda bench, number, _: bench.wait(WAITS[number % len(WAITS)]),
    b"C": lambda bench, number, _: bench.appends and bench.commit(),
    b"F": lambda bench, number, _: bench.appends and bench.fail(ERRORS[number % 3]),
    b"R": lambda bench, number, _: bench.reads and bench.read(),
    b"E": lambda bench, number, _: bench.reads and _fail_to_read(bench, number),
    b"A": lambda bench, number, _: bench.settle(),
    b"I": lambda bench, number, _: bench.iterate(),
    b"L": lambda bench, number, _: bench.lost(CLIENTS[number % 3]),
    b"B": lambda bench, number, _: bench.block(CLIENTS[number % 3]),
    b"U": lambda bench, number, _: bench.unblock(CLIENTS[number % 3]),
    b"K": lambda bench, number, _: bench.crash(),
    b"G": lambda bench, number, _: bench.restart(),
}


def _ensure_open(bench: Bench, name: str) -> None:
    session = bench.core.sessions.by_peer.get(peer_id(name))
    if session is None or not session.open:
        bench.receive(name, Hello([VERSION], name))


def _numbered(bench: Bench, name: str, frames: list[bytes]) -> list[bytes]:
    """The frames of a command with the number that comes next, or a source that is free."""
    session = bench.core.sessions.by_peer.get(peer_id(name))
    try:
        fields = msgpack.unpackb(frames[0], strict_map_key=False)
        place = NUMBERED.get(fields[0], 1 if fields[0] in SOURCED else 0)
        if session is None or not place or len(fields) <= place:
            return frames
        free = max(session.sources, default=0) + 1
        fields[place] = free if fields[0] in SOURCED else session.numbers.next
        return [msgpack.packb(fields), *frames[1:]]
    except (ValueError, TypeError, LookupError, msgpack.UnpackException):
        return frames


def mutate(data: bytes, size_max: int, seed: int, change: Change) -> bytes:
    """A dialogue with one step or a few changed, moved, doubled or left out."""
    return mutate_steps(data, size_max, seed, change, b"SNN", b"WWCCFRREAALBUKGI")


def mutate_steps(
    data: bytes, size_max: int, seed: int, change: Change, saying: bytes, others: bytes
) -> bytes:
    """The same for steps that say something to somebody, and others, by their letters."""
    return vary_steps(
        data,
        size_max,
        seed,
        change,
        lambda steps, place, rng: _changed_step(steps, place, rng, saying),
        lambda rng: bytes([rng.choice(others), rng.randrange(48, 54)]),
    )


def _changed_step(steps: list[bytes], place: int, rng: random.Random, saying: bytes) -> bytes:
    step = steps[place]
    if not step or step[0] not in saying:
        return step[:1] + bytes([rng.randrange(48, 54)])
    if rng.random() < 0.2:
        return bytes([rng.choice(saying), rng.randrange(48, 51)]) + step[2:]
    first, *more = step[2:].split(FRAME)
    return step[:2] + FRAME.join([changed_frame(first, rng, _values(steps, rng)), *more])


def _values(steps: list[bytes], rng: random.Random) -> list[object]:
    """What another command of the dialogue says."""
    other = rng.choice(steps)[2:].split(FRAME)[0]
    try:
        found = msgpack.unpackb(other, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return []
    return found[1:] if type(found) is list else []
