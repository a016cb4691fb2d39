"""Wait for a second in each way that a broker and its clients wait, and tell what each clock says of it.

A program: `test_bad_machine` runs it on machines whose clocks run fast.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import uvloop
import zmq

CLOCKS: Mapping[str, Callable[[], int]] = {
    "true": lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW),
    "wall": time.time_ns,
    "counted": lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    "monotonic": time.monotonic_ns,
}


def poll(silent: socket.socket) -> None:
    poll = select.poll()
    poll.register(silent, select.POLLIN)
    poll.poll(1000)


def epoll(silent: socket.socket) -> None:
    with select.epoll() as epoll:
        epoll.register(silent, select.EPOLLIN)
        epoll.poll(1)


def receive(silent: socket.socket) -> None:
    silent.settimeout(1)
    with suppress(TimeoutError):
        silent.recv(1)


def lock(silent: socket.socket) -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire(timeout=1)


def condition(silent: socket.socket) -> None:
    condition = threading.Condition()
    with condition:
        condition.wait(1)


def interpreter(silent: socket.socket) -> None:
    """A thread that is busy gives the interpreter up when another one has waited for so long."""
    over, interval = threading.Event(), sys.getswitchinterval()

    def work() -> None:
        while not over.is_set():
            pass

    busy = threading.Thread(target=work)
    sys.setswitchinterval(1)
    busy.start()  # it has begun when this thread goes on, and that is when it gives up
    sys.setswitchinterval(interval)
    over.set()
    busy.join()


def libzmq(silent: socket.socket) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.poll(1000)


def timer_of_libzmq(silent: socket.socket) -> None:
    """It gives a peer a second to say hello, and then the connection up."""
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
        dealer.get_monitor_socket() as monitor,
    ):
        dealer.linger = 0
        dealer.handshake_ivl = 1000
        dealer.connect(f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        seen = b""
        while int.from_bytes(seen[:2], "little") != zmq.EVENT_DISCONNECTED:
            seen = monitor.recv_multipart()[0]
        dealer.disable_monitor()


WAITS: Mapping[str, Callable[[socket.socket], object]] = {
    "sleep": lambda silent: time.sleep(1),
    "poll": poll,
    "epoll": epoll,
    "select": lambda silent: select.select([silent], [], [], 1),
    "socket": receive,
    "lock": lock,
    "condition": condition,
    "interpreter": interpreter,
    "semaphore of processes": lambda silent: multiprocessing.Semaphore(0).acquire(timeout=1),
    "asyncio": lambda silent: asyncio.run(asyncio.sleep(1)),
    "uvloop": lambda silent: uvloop.run(asyncio.sleep(1)),
    "libzmq": libzmq,
    "timer of libzmq": timer_of_libzmq,
}


def measure(wait: Callable[[socket.socket], object]) -> dict[str, float]:
    """The seconds that it took by each clock: the true ones are around all others."""
    silent, peer = socket.socketpair()
    with silent, peer:
        began = {name: clock() for name, clock in CLOCKS.items()}
        wait(silent)
        ended = {name: clock() for name, clock in reversed(CLOCKS.items())}
    return {name: (ended[name] - began[name]) / 1e9 for name in CLOCKS}


if __name__ == "__main__":
    print(json.dumps({"at": time.monotonic_ns()} | {name: measure(wait) for name, wait in WAITS.items()}))
