"""The loop: poll, drain the socket, work, flush once, and again.

One thread runs the core and the socket. An iteration receives the available commands, up to a bound, lets the
core work, and carries out its effects at the end: appends go to the writer thread, reads to the reader
thread, messages to the socket. So the price of a commit, of an encoding and of a system call is paid for an
iteration, not for a message, and the busier the broker is, the larger its iterations are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import ceil, inf
from operator import itemgetter
from time import monotonic
from typing import Any

import zmq

from malamute.core.broker import Core
from malamute.core.iteration.effects import LoadConfiguration, Notice
from malamute.core.iteration.settings import ConfigurationLoaded
from malamute.errors import MalamuteError
from malamute.journal.store import Store
from malamute.protocol.messages import Hello, Message
from malamute.server.clock import Clock
from malamute.server.edge import Edge
from malamute.server.release import ReleaseGate
from malamute.server.store_threads import StoreThreads
from malamute.server.supervisor import Supervisor
from malamute.server.worker import (
    Crashed,
    DamageFound,
    Faulty,
    Load,
    ReadDone,
    Results,
    Trimmed,
    no_configuration,
)

SUSPENDED_SECONDS = 2.0
"""Delay past which the host or this process stood still, so that commands of that time are still unread."""

WAKING_SECONDS = 1.0
"""Seconds that libzmq's threads get to read the input of the time in which the host stood still."""

WAKING_SECONDS_MAX = 10.0
"""Seconds to wait for the end of that input."""

IDLE_SECONDS = 1.0
"""Most seconds that the loop waits for work."""

LOOK_SECONDS = 0.01
"""Most seconds that the loop waits while it reads input of before its wake-up: nothing is due then."""

INTAKE_SECONDS = 0.004
"""Seconds that an iteration reads commands, before it flushes their effects. The rest stays in the socket."""

COSTLY_SECONDS = 0.001
"""Seconds past which a command is the last of its iteration: two would delay all clients twice as long."""

DRAIN_MS = 10
"""Seconds between two retries of full pipes during the shutdown."""

READING_SECONDS = 2.0
"""Seconds of waiting for the readers at the end. A disk may hang, and unconfirmed commands were not
promised."""

LINGER_MS = 2_000
"""Milliseconds that the last messages have to leave when the broker stops."""

OnStoreError = Callable[[MalamuteError], None]
"""Called with the reason why something was not stored."""

OnNotice = Callable[[Notice], None]
OnLoaded = Callable[[ConfigurationLoaded], None]


class Loop:
    """Loop of a broker: `run` until `stop`."""

    def __init__(
        self,
        core: Core,
        store: Store,
        edges: Sequence[Edge],
        *,
        clock: Clock,
        timer: Callable[[], float] = monotonic,
        on_store_error: OnStoreError = lambda error: None,
        on_notice: OnNotice = lambda notice: None,
        load: Load = no_configuration,
        on_loaded: OnLoaded = lambda loaded: None,
        supervisor: Supervisor | None = None,
        release: ReleaseGate | None = None,
    ) -> None:
        self.core = core
        self.store = store
        self.edges = edges
        self.clock = clock
        self._timer = timer
        self._on_store_error = on_store_error
        self._on_notice = on_notice
        self._on_loaded = on_loaded
        self._supervisor = supervisor or Supervisor()
        self._release = release
        self._results = Results()
        self._threads = StoreThreads(store, self._results, load, release)
        self._poller = zmq.Poller()
        self._poller.register(self._results.fileno(), zmq.POLLIN)
        self._inputs = [frozenset(edge.inputs) for edge in edges]
        for source in chain.from_iterable(self._inputs):
            self._poller.register(source, zmq.POLLIN)
        self._wake_fd = self._results.fileno()
        self._settling: deque[tuple[int, MalamuteError | None]] = deque()
        """Outcomes of appends that were not passed on yet: one commit may have very many."""
        self._stopping = self._abandoned = False
        self._reloading = False
        self._again = False
        self._due = -inf
        """Time of the next work of the core, as of before the wait."""
        self._seen = clock()
        self._woken: float | None = None
        self._drained = True
        """Whether all edges were drained by the last read."""

    @property
    def endpoints(self) -> list[str]:
        """Return the endpoints of all edges."""
        return [endpoint for edge in self.edges for endpoint in edge.endpoints]

    def stop(self) -> None:
        """End `run` soon. For any thread, and for a signal handler."""
        self._stopping = True
        self._results.wake()

    def abandon(self) -> None:
        """End `run` soon, and answer nothing more: another broker may serve already. For any thread."""
        self._abandoned = True
        self.stop()

    def reload(self) -> None:
        """Reload the configuration soon. For any thread, and for a signal handler."""
        self._reloading = True
        self._results.wake()

    def run(self, on_stopping: Callable[[], None] = lambda: None) -> None:
        """Serve until stopped; then store and confirm the accepted commands, and close everything.

        `on_stopping` is called between the two.
        """
        self._threads.start()
        try:
            self._supervisor.ready()
            while not self._stopping:
                self._iterate()
                self._supervisor.iterated()
            on_stopping()
            if not self._abandoned:
                self._supervisor.stopping()
                self._drain()
        finally:
            self._close()

    def _iterate(self) -> None:
        before = self._look_at_clock(0.0)
        timeout_ms = self._timeout_ms(before)
        ready = self._wait(timeout_ms)
        begun = self._timer()
        now = self._look_at_clock(timeout_ms / 1000)
        self._drained = True
        for edge, inputs in zip(self.edges, self._inputs, strict=True):
            edge.watch(now, ready)
            # Lost peers are of connections before any HELLO that is to be read now.
            self._handle_peers(edge, now)
            # A thread or a deadline may have woken the loop, and a read without input is expensive.
            if not inputs.isdisjoint(ready):
                self._take_in(edge, now)
                self._drained &= edge.drained
        if self._results.done or self._settling:
            self._handle_results(now)
        if (step := self.clock.look(now)) is not None:
            self.core.clock(step, now)
        if self._reloading:
            self._reloading = False
            self._supervisor.reloading()
            self.core.reload(now)
        if (self._woken is None or self._awake(now)) and self._due <= now:
            self.core.tick(now)
        self._flush(now)
        self.core.effects.counters.iterations.add(self._timer() - begun, now)

    def _take_in(self, edge: Edge, now: float) -> None:
        """Read commands from the peers of an edge, until the time is over.

        The socket has one command of each peer in turn. So the rest is that of peers that sent more than
        others; a peer with one command waits for one of each of them at the most.
        """
        core, effects, timer = self.core, self.core.effects, self._timer
        at = timer()
        ends = at + INTAKE_SECONDS / len(self.edges)
        for peer, message in edge.receive():
            if type(message) is Hello:
                core.receive(peer, message, now, edge.principal(peer), edge.origin(peer))
            elif not isinstance(message, Exception):
                core.receive(peer, message, now)
            elif isinstance(message, MalamuteError):
                core.refuse(peer, message, now)
            else:
                core.refuse(peer, effects.fault("decoding", message), now)
            before, at = at, timer()
            if effects.work <= 0 or at >= ends or at - before > COSTLY_SECONDS:
                return

    def _look_at_clock(self, expected: float) -> float:
        """Return the time now. Notes a standstill: many more seconds than expected since the last look."""
        now = self.clock()
        if now - self._seen > expected + SUSPENDED_SECONDS:
            self._woken = now
        self._seen = now
        return now

    def _awake(self, now: float) -> bool:
        """Whether all input of a standstill was read: only then is a peer late."""
        assert self._woken is not None, "the host did not stand still"
        awake = now - self._woken
        if awake >= WAKING_SECONDS_MAX or (awake >= WAKING_SECONDS and self._drained):
            self._woken = None
        return self._woken is None

    def _wait(self, timeout_ms: float) -> list[Any]:
        """Wait for work. Returns the sockets with input."""
        resting: dict[int, Edge] = {}
        for edge in self.edges:
            if (arrivals := edge.arrivals()) >= 0:
                resting[arrivals] = edge
        if resting:
            timeout_ms = self._rest(resting, timeout_ms)
        ready = [*map(_source, self._poller.poll(int(timeout_ms)))]
        if self._wake_fd in ready:
            self._results.clear()
        return ready

    def _rest(self, resting: Mapping[int, Edge], timeout_ms: float) -> float:
        """Wait for work, or for bytes at an edge that rests.

        Returns the milliseconds to wait for the rest of a command: an incomplete one is no reason for an
        iteration.
        """
        begun = self.clock()
        for arrivals in resting:
            self._poller.register(arrivals, zmq.POLLIN)
        try:
            found = [source for source, _ in self._poller.poll(int(timeout_ms))]
        finally:
            for arrivals in resting:
                self._poller.unregister(arrivals)
        if not any(source in resting for source in found):
            return 0
        now = self.clock()
        waits_ms = min(resting[source].arrived(now) for source in found if source in resting) * 1000
        if all(source in resting for source in found):
            return max(0.0, min(timeout_ms - (now - begun) * 1000, waits_ms))
        return 0

    def _timeout_ms(self, now: float) -> float:
        self._due = due = self.core.next_deadline()
        if self._again or self._settling or self._results.done:
            return 0
        until = now + (IDLE_SECONDS if self._woken is None else LOOK_SECONDS)
        if due < until and self._woken is None:
            until = due
        if self._threads.holds and self._threads.held_until < until:
            until = self._threads.held_until
        for edge in self.edges:
            check = edge.next_check(now)
            if check is not None and check < until:
                until = check
        # libzmq counts whole milliseconds: a part of one before the time rounds up, a time that is due is 0.
        return ceil((until - now) * 1000) if until > now else 0

    def _handle_results(self, now: float) -> None:
        """Pass on results of the threads, until the time is over; the rest in the next iteration."""
        ends = self._timer() + INTAKE_SECONDS
        while self._settling or self._results.done:
            if self._settling:
                self._settle(*self._settling.popleft(), now)
                if self._timer() >= ends:
                    return
                continue
            result = self._results.done.popleft()
            if isinstance(result, ReadDone):
                self._answered(result, now)
            elif isinstance(result, Trimmed):
                self.core.streams.trimmed(result.firsts)
            elif isinstance(result, DamageFound):
                self.core.damaged(result.defects, now)
            elif isinstance(result, Faulty):
                self.core.effects.fault(f"a thread that was {result.what}", result.error)
            elif isinstance(result, Crashed):
                # Without this thread there is no broker.
                raise result.error
            else:
                if result.error is not None:
                    self._on_store_error(result.error)
                self._settling.extend((token, result.error) for token in result.tokens)

    def _answered(self, found: ReadDone, now: float) -> None:
        question, result = found
        self.core.answered(question, result, now)
        if isinstance(question, LoadConfiguration) and not question.dry_run:
            # After the core, which uses the previous configuration until here.
            if isinstance(result, ConfigurationLoaded):
                self._on_loaded(result)
            self._supervisor.reloaded()

    def _settle(self, token: int, error: MalamuteError | None, now: float) -> None:
        if error is None:
            self.core.stored(token, now)
        else:
            self.core.store_failed(token, error, now)

    def _handle_peers(self, edge: Edge, now: float) -> None:
        for peer in edge.retry():
            self.core.unblocked(peer, now)
        if edge.lost:
            for peer in edge.pop_lost():
                self.core.lost(peer, now)

    def _flush(self, now: float) -> None:
        ready = self.core.ready()
        self._send_all(ready.sends, now)
        # Behind the sends, none of which waits for them: a thread that wakes takes the interpreter's lock.
        if ready.appends or self._threads.holds:
            self._threads.put(ready.appends, now, at_once=self._stopping)
        for question in ready.reads:
            self._threads.ask(question)
        for notice in ready.notices:
            self._on_notice(notice)
        for peer in ready.closed:
            # A client may have begun anew already.
            if peer not in self.core.sessions.by_peer:
                self._edge_of(peer).forget(peer)
        # The work of lost peers goes to others now, not after the next message.
        self._again = False
        for edge in self.edges:
            self._again |= bool(edge.lost)

    def _send_all(self, sends: Sequence[tuple[bytes, Message]], now: float) -> None:
        send = self.edges[0].send if len(self.edges) == 1 else self._send
        for peer, message in sends:
            try:
                if send(peer, message):
                    self.core.blocked(peer)
            except (TypeError, ValueError, OverflowError) as error:  # it cannot be encoded
                self.core.unsent(peer, message, error, now)

    def _send(self, peer: bytes, message: Message) -> bool:
        return self._edge_of(peer).send(peer, message)

    def _edge_of(self, peer: bytes) -> Edge:
        """Return the edge that owns a peer; the first one has all others."""
        return next((edge for edge in self.edges[1:] if edge.owns(peer)), self.edges[0])

    def _drain(self) -> None:
        """Read no more commands; store and confirm all that were accepted.

        The listeners stay until the end: libzmq would end their connections with them.
        """
        # Unread commands of peers would end each wait at once.
        for source in chain.from_iterable(self._inputs):
            self._poller.unregister(source)
        self.core.close()
        self._flush(self.clock())
        while not (self.core.idle or self._abandoned):
            if self._poller.poll(0 if self._settling or self._results.done else DRAIN_MS):
                self._results.clear()
            for edge in self.edges:
                # The core is not notified of peers with room: it would begin to send messages that can wait.
                edge.retry()
            now = self.clock()
            self._handle_results(now)
            self._flush(now)
            self._supervisor.iterated()

    def _close(self) -> None:
        self._threads.finish()
        ends = self._timer() + READING_SECONDS

        def waits() -> bool:
            self._supervisor.iterated()
            return self._timer() < ends

        self._threads.join(until=waits, wait_seconds=READING_SECONDS / 10)
        self._results.close()
        if self._release is not None:
            self._release.close()
        for edge in self.edges:
            edge.close(LINGER_MS)
        if self._threads.is_idle:
            self.store.close()
        self._supervisor.close()


_source = itemgetter(0)


def socket_options(
    *, heartbeat_ms: int, heartbeat_timeout_ms: int, send_queue: int, receive_queue: int, frame_bytes_max: int
) -> dict[int, Any]:
    """Return the options of the ROUTER socket for these settings."""
    return {
        zmq.HEARTBEAT_IVL: heartbeat_ms,
        zmq.HEARTBEAT_TIMEOUT: heartbeat_timeout_ms,
        zmq.SNDHWM: send_queue,
        zmq.RCVHWM: receive_queue,
        zmq.MAXMSGSIZE: frame_bytes_max,
        zmq.BACKLOG: 1024,
    }
