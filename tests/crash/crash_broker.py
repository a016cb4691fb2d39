"""The broker, with a mark in the log of its disk for each command that comes and each frame that leaves.

`python crash_broker.py CONFIG` with disk_recorder.c preloaded. Frames are marked before they leave, so a
confirmation stands behind the writes and syncs for it. `CRASH_FAULT=early` makes it confirm what is
not written yet.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from malamute.config import Config
from malamute.core.commands import ClientCommands
from malamute.journal.disk import DiskStore
from malamute.protocol.codec import PROTOCOL_2
from malamute.protocol.messages import Message
from malamute.server.daemon import run
from malamute.server.transport import Transport
from malamute.store.operations import Operation

TAKEN, LEAVES = 0, 1
"""Which way frames went."""


def mark(way: int, peer: bytes, frames: Sequence[Any]) -> None:
    """Put frames of a peer into the log."""
    packed = msgpack.packb([way, peer, [bytes(frame) for frame in frames]])
    ctypes.CDLL(None).disk_mark(packed, ctypes.c_size_t(len(packed)))


def record() -> None:
    """Have this process mark what its broker takes in and sends."""
    receive, transmit = ClientCommands.receive, Transport._transmit

    def received(commands: ClientCommands, peer: bytes, message: Message, *about: Any) -> None:
        if isinstance(message, tuple):
            mark(TAKEN, peer, PROTOCOL_2.encode(message))
        receive(commands, peer, message, *about)

    def transmitted(transport: Transport, peer: bytes, frames: Sequence[Any]) -> bool:
        mark(LEAVES, peer, frames)
        return transmit(transport, peer, frames)

    ClientCommands.receive, Transport._transmit = received, transmitted  # type: ignore[method-assign]


def confirm_early() -> None:
    """Have the store return before it has written: it does so with the next write."""
    write = DiskStore.write
    waiting: list[Sequence[Operation]] = []

    def later(store: DiskStore, operations: Sequence[Operation]) -> None:
        for one in waiting:
            write(store, one)
        waiting[:] = [operations]

    DiskStore.write = later  # type: ignore[method-assign]


if __name__ == "__main__":
    record()
    if os.environ.get("CRASH_FAULT") == "early":
        confirm_early()
    config = Config.load(Path(sys.argv[1]), {})
    run(config, partial(print, flush=True), lambda: config)
