"""Frames in one run of bytes, and how they are changed so that they stay frames.

What separates is a byte that no msgpack has, so that bytes may come and go without moving what stands behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

FRAME, STEP = b"\xc1\xc2", b"\xc1\xc1"
"""What stands between frames, and between the steps of a dialogue."""

Change = Callable[[bytes, int], bytes]
"""How the fuzzer itself changes bytes; the number is of bytes that there may be."""

ODD: Sequence[Any] = (
    *(
        0,
        1,
        2,
        3,
        -1,
        127,
        128,
        255,
        256,
        1000,
        65_535,
        2**31,
        2**32,
        2**53,
        2**63 - 1,
        2**63,
        2**64 - 1,
        -(2**63),
    ),
    *(None, True, False, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "a", "a.b", "#", "*", "$", "$sys", "\0", "ann", "bob", "cat", "s", "w", "kept", "live", "x" * 256),
    *("new", "first", "last", "seq:1", "time:0", "since:1s", "last-per-subject", "stream/s", "service/w"),
    *(b"", b"x", b"\x92\xc0\xc4\x01x", [], {}, [[]], [1], [[1, 1]], [None], {"a": 1}, {"id": "i"}),
    *(
        ["all", ""],
        ["topic", "#"],
        [["all", ""]],
        {"correlation": 1},
        {"ttl": 1},
        {"delay": 1000},
        {"key": "k"},
    ),
)


def frames_of(data: bytes) -> list[bytes]:
    """The frames in some bytes."""
    return data.split(FRAME)


def changed_frame(frame: bytes, rng: random.Random, pool: Sequence[Any] = ()) -> bytes:
    """A frame of msgpack with one value in it replaced, doubled, or left out."""
    try:
        value = msgpack.unpackb(frame, strict_map_key=False)
        return bytes(msgpack.packb(changed_value(value, rng, pool)))
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return frame


def changed_value(value: Any, rng: random.Random, pool: Sequence[Any] = ()) -> Any:
    """A value with one in it replaced, doubled, or left out."""
    if type(value) is list and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        match rng.randrange(12):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value[:place], value[place], *value[place:]]
            case _:
                return [*value[:place], changed_value(value[place], rng, pool), *value[place + 1 :]]
    if type(value) is dict and value and rng.random() < 0.9:
        name = rng.choice([*value])
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: changed_value(value[name], rng, pool)}
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 7))
    return rng.choice(pool) if pool and rng.random() < 0.5 else rng.choice(ODD)


def mutate_frames(data: bytes, size_max: int, seed: int, mutate: Change) -> bytes:
    """Frames with one of them changed: as a value, or as the fuzzer changes any bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        return mutate(data, size_max)
    frames = frames_of(data)
    place = rng.randrange(len(frames)) if rng.random() < 0.3 else 0
    frames[place] = changed_frame(frames[place], rng)
    return FRAME.join(frames)[:size_max]


def vary_steps(
    data: bytes,
    size_max: int,
    seed: int,
    change: Change,
    changed: Callable[[list[bytes], int, random.Random], bytes],
    other: Callable[[random.Random], bytes] | None = None,
) -> bytes:
    """Steps with one or a few of them changed, moved, doubled or left out, or another one among them.

    `changed` makes one out of that at a place. Now and then all is changed as any bytes are.
    """
    rng = random.Random(seed)
    if rng.random() < 0.15:
        return change(data, size_max)
    steps = data.split(STEP)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(steps))
        match rng.randrange(10):
            case 0 if len(steps) > 1:
                del steps[place]
            case 1:
                steps.insert(rng.randrange(len(steps) + 1), steps[place])
            case 2:
                steps.insert(place, steps.pop(rng.randrange(len(steps))))
            case 3 | 4 if other is not None:
                steps.insert(place, other(rng))
            case _:
                steps[place] = changed(steps, place, rng)
    return STEP.join(steps)[:size_max]
