"""A way between two network namespaces on which packets are lost, late, out of order, repeated, or slow.

It is two virtual devices (TUN) and a thread that reads packets from the one and writes them to the other, or
does not. Linux can do the same by itself where its kernel has `netem`; this takes `/dev/net/tun` alone.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections import Counter
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from select import select
from threading import Thread
from typing import NamedTuple

DEVICES = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""As Linux has them."""
PACKET_BYTES = 1 << 16

LOST, REPEATED, OVERTAKEN, PASSED = "lost", "repeated", "overtaken", "passed"
"""What may become of a packet, as it is counted."""


class Packets(NamedTuple):
    """What happens to packets.

    `lost` and `repeated` are parts of them. Each is late by the delay and up to so much more by itself, so
    that they overtake each other. No more than `bytes_per_second` go through each way, if that is not 0, and
    what does not find room among the `kept_bytes` that wait for it is lost.
    """

    lost: float = 0.0
    repeated: float = 0.0
    delay_seconds: float = 0.0
    more_seconds: float = 0.0
    bytes_per_second: int = 0
    kept_bytes: int = 1 << 16


class BadLink:
    """The two devices, by their names, and what passes between them until `close`."""

    def __init__(self, names: tuple[str, str], seed: float) -> None:
        """Raises OSError where there can be none."""
        self.packets = Packets()
        self.counts: Counter[str] = Counter()
        self._chance = Random(seed)
        self._numbers = count()
        self._late: list[tuple[float, int, int, bytes]] = []
        self._last_written: Counter[int] = Counter()
        one, other = (_open(name) for name in names)
        self._ways = {one: other, other: one}
        self._free_at = dict.fromkeys(self._ways, 0.0)
        self._woken, self._wake = os.pipe()
        self._thread = Thread(target=self._run, name="bad link")
        self._thread.start()

    def close(self) -> None:
        """Take the devices away."""
        os.write(self._wake, b"\0")
        self._thread.join()
        for descriptor in (*self._ways, self._woken, self._wake):
            os.close(descriptor)

    def _run(self) -> None:
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            ready, _, _ = select([*self._ways, self._woken], [], [], wait)
            if self._woken in ready:
                return
            for descriptor in ready:
                with suppress(BlockingIOError):
                    while True:
                        self._take(os.read(descriptor, PACKET_BYTES), self._ways[descriptor])
            while self._late and self._late[0][0] <= time.monotonic():
                self._write(*heappop(self._late)[1:])

    def _take(self, packet: bytes, to: int) -> None:
        link, chance, now = self.packets, self._chance, time.monotonic()
        if chance.random() < link.lost:
            self.counts[LOST] += 1
            return
        leaves = now
        if link.bytes_per_second:
            leaves = max(now, self._free_at[to])
            if (leaves - now) * link.bytes_per_second > link.kept_bytes:
                self.counts[LOST] += 1
                return
            leaves = self._free_at[to] = leaves + len(packet) / link.bytes_per_second
        again = chance.random() < link.repeated
        self.counts[REPEATED] += again
        for _ in range(1 + again):
            due = leaves + link.delay_seconds + link.more_seconds * chance.random()
            heappush(self._late, (due, next(self._numbers), to, packet))

    def _write(self, number: int, to: int, packet: bytes) -> None:
        self.counts[OVERTAKEN] += number < self._last_written[to]
        self._last_written[to] = max(number, self._last_written[to])
        with suppress(OSError):  # a device that is down, or has no room
            os.write(to, packet)
            self.counts[PASSED] += 1


def why_no_link() -> str:
    """Why there can be none here; empty if there can. The right to make devices is another matter."""
    return "" if DEVICES.exists() else f"no {DEVICES}"


def _open(name: str) -> int:
    descriptor = os.open(DEVICES, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
