"""Clients that mean harm, on default settings: the others get what is theirs, and memory has its limits.

Each attack that the benchmark knows, and all of them together, beside a normal load of publishers, workers
and requests from others. How long that takes is in the report. It is judged here by what no busy machine
explains; `make bench ARGS="hostile"` measures it on a quiet one.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread

import pytest
import zmq
from depth import NIGHT, nightly, some
from lab.attacks import ATTACKS, READERS, attack
from lab.raw_peer import RawPeer
from rig_daemon import MIB, Daemon
from rig_load import ROLES, Load, read_back
from rig_process import FORKS, end, fork
from rig_waiting import PATIENCE

from malamute.bench.figures import percentile_ms
from malamute.config import Config
from malamute.door.files import raise_file_limit
from malamute.protocol.messages import Ping, Pong

SIZING = Path(__file__).parents[2] / "docs" / "operations" / "sizing.md"

DEPTH = 20_000
"""Requests in the queues that are attacked."""

CROWD = 5_000 if NIGHT else 2_000
"""Peers that connect at the same time."""

PAUSE_SECONDS = 0.02
"""The others do what is usual, not all they can: an attack lasts as long as the machine is busy with it."""

LOOK_SECONDS = 0.01

HELD_UP_MS = 2_500
"""How long nobody is ever held up by one attack: what was an attack once took seconds of the broker."""

OTHERS_MIB = 64
"""What the normal load itself takes, and what the allocator keeps of what is free again."""


def strike(url: str, what: str, depth: int, ready: Connection, go: Connection) -> None:
    """Attack a broker, as the process that this is."""

    def begin() -> None:
        ready.send("ready")
        go.recv()

    attack(begin, url, what, depth)
    ready.send("done")


class Striker:
    """An attacker in a process of its own."""

    def __init__(self, url: str, what: str, depth: int) -> None:
        self.what = what
        self._said, ready = FORKS.Pipe(duplex=False)
        go, self._go = FORKS.Pipe(duplex=False)
        with ready, go:
            self._process = fork(strike, url, what, depth, ready, go)

    def _hear(self, word: str) -> None:
        # All of them begin at the same time, each as a process of its own.
        assert self._said.poll(len(ATTACKS) * PATIENCE), f"{self.what}: not {word}"
        assert self._said.recv() == word

    def prepare(self) -> None:
        """Wait until it is ready."""
        self._hear("ready")

    def begin(self) -> None:
        """Let it begin."""
        self._go.send("go")

    def finish(self) -> None:
        """Wait until it has done its worst."""
        self._hear("done")

    def close(self) -> None:
        """End its process."""
        end(self._process)
        self._said.close()
        self._go.close()


class Witness(Thread):
    """Sees how long a sign of life takes, and how much memory the broker has at the most."""

    def __init__(self, broker: Daemon) -> None:
        super().__init__(name="witness")
        self.most_mib = broker.anonymous_mib
        self.latencies: list[int] = []
        self._broker = broker
        self._over = Event()

    def run(self) -> None:
        with RawPeer(self._broker.url, "witness") as peer:
            while not self._over.wait(LOOK_SECONDS):
                begun = time.perf_counter_ns()
                peer.send(Ping())
                peer.next(Pong)
                self.latencies.append(time.perf_counter_ns() - begun)
                self.most_mib = max(self.most_mib, self._broker.anonymous_mib)

    def __enter__(self) -> Witness:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.join()


def allowed_mib(broker: Daemon, attacks: Sequence[str]) -> float:
    """What these attacks may take of memory, after the table in `docs/operations/sizing.md`."""
    limits, connections = broker.config.core_limits, broker.config.connection_limits
    each = {
        "send": READERS * (connections.send_bytes + limits.answers_bytes),
        "answers": limits.answers_bytes,
        "selectors": limits.session_selector_bytes,
        "caches": limits.caches_bytes,
    }
    used = {(limit, what if limit != "caches" else "") for what in attacks for limit in ATTACKS[what].limits}
    return sum(each[limit] for limit, _ in used) / MIB


def promised_mib() -> float:
    """What `docs/operations/sizing.md` says of all clients together, and of those that read nothing."""
    found = re.search(r"\| \*\*([\d,]+)\*\* \|", SIZING.read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1].replace(",", "")) + READERS / 2


def attack_beside_a_load(broker: Daemon, attacks: Sequence[str]) -> None:
    """Nobody else notices: no error, no loss, no memory beyond the limits."""
    with ExitStack() as stack:
        load = stack.enter_context(Load(dict.fromkeys(ROLES, broker.url), PAUSE_SECONDS))
        load.progress()
        depth = DEPTH // max(len(attacks), 1)
        strikers = [stack.enter_context(striking(broker.url, what, depth)) for what in attacks]
        for striker in strikers:
            striker.prepare()
        before = broker.anonymous_mib
        with Witness(broker) as witness:
            for striker in strikers:
                striker.begin()
            load.progress()
            for striker in strikers:
                striker.finish()
            load.progress()
            load.settle()
        stored, gaps = read_back(broker.url)
        load.check_all(stored)
        assert not [*gaps, *load.gaps]
        assert all(load.connections[role] <= 1 for role in ROLES), "somebody lost the connection"
    taken = witness.most_mib - before
    p99, longest = (percentile_ms(sorted(witness.latencies), part) or 0.0 for part in (0.99, 1.0))
    print(f"{', '.join(attacks)}: others' p99 {p99}, longest {longest} ms, {taken:.1f} MiB, {load}")
    if len(attacks) == 1:
        assert longest < HELD_UP_MS
    assert taken <= allowed_mib(broker, attacks) + OTHERS_MIB
    assert witness.most_mib <= promised_mib()


@contextmanager
def striking(url: str, what: str, depth: int) -> Iterator[Striker]:
    """An attacker."""
    striker = Striker(url, what, depth)
    try:
        yield striker
    finally:
        striker.close()


ALONE = (
    "a purge of the queue",
    "100 selectors with not, one batch",
    "a NAK of 1,000 ranges",
    "frames without end before HELLO",
)
"""One attack on a queue, on selectors, on deliveries, and by a stranger."""


@pytest.mark.parametrize("what", some(ATTACKS, *ALONE))
def test_an_attack_costs_the_others_nothing(broker: Daemon, what: str) -> None:
    attack_beside_a_load(broker, [what])


@nightly
def test_all_attacks_together_cost_the_others_nothing(broker: Daemon) -> None:
    attack_beside_a_load(broker, list(ATTACKS))


def test_connections_without_hello_leave_files_for_the_others(new_daemon: Callable[..., Daemon]) -> None:
    broker = new_daemon(Config()).start(files=400)
    host, _, port = broker.url.removeprefix("tcp://").partition(":")
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
        attack_beside_a_load(broker, [])


def test_thousands_who_connect_at_once_all_get_in(broker: Daemon) -> None:
    """As after a restart of the broker. None is turned away, so nobody has to try again."""
    raise_file_limit()
    with ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, linger=0)
        context.set(zmq.MAX_SOCKETS, 2 * CROWD)
        peers = [RawPeer(broker.url, "", context=context) for _ in range(CROWD)]
        for peer in peers:
            stack.enter_context(peer)
