"""Ports for brokers of the tests, of which no two tests have the same one at the same time."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle

FIRST, LAST = 15_000, 30_000
"""Below those that the system gives to outgoing connections. A client that tries to reach a dead broker on
one of those may one day reach itself."""

FOR_ONE_PROCESS = 200
"""Each process that runs tests has ports of its own: a broker that restarts must not lose its port to another
one that starts meanwhile."""


def free_port() -> int:
    """A port that nobody uses."""
    for port, _ in zip(_ports(), range(FOR_ONE_PROCESS), strict=False):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"{FOR_ONE_PROCESS} ports are all in use")


@cache
def _ports() -> Iterator[int]:
    """The ports of this process, again and again, from any of them on."""
    processes = (LAST - FIRST) // FOR_ONE_PROCESS
    first = FIRST + os.getpid() % processes * FOR_ONE_PROCESS
    start = random.SystemRandom().randrange(FOR_ONE_PROCESS)
    return cycle(first + (start + place) % FOR_ONE_PROCESS for place in range(FOR_ONE_PROCESS))
