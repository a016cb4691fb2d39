"""The broker's process: the real core in a loop whose iterations are single steps, killed after any.

An iteration does what an iteration of the server's loop does, in the same order. What it takes in, and what
comes of it, is shown to the `Watch`: the books, which know what a broker has promised.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from random import Random
from threading import get_ident
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

from sim_clock import AGE_SECONDS, HOLD_SECONDS, Wall
from sim_disk import Disk, PowerLost, Workers
from sim_network import PING_BYTES, Router
from sim_origin import Violation
from sim_plan import Setup

from malamute.core.broker import Core
from malamute.core.iteration.effects import ClockStep
from malamute.core.iteration.settings import Settings
from malamute.errors import MalamuteError
from malamute.matching.cache import UNCHARGED_BYTES
from malamute.protocol.fields import FEED_PREFIX
from malamute.protocol.limits import Limits
from malamute.protocol.messages import VERSION, Bye, Cancel, Drain, Hello, Message, Subscribe
from malamute.server import clock
from malamute.server.worker import DamageFound, ReadDone, Trimmed
from malamute.store.commit import Append, Written
from malamute.store.operations import Defect, Recovered
from malamute.store.policies import StreamPolicy, StreamRetention
from malamute.store.tables import CURSORS

START = 1_700_000_000.0
EXPIRY = 60.0
NO_JOURNAL = "live"
AUDITOR = b"\xff" * 16
"""A peer of the simulation's own, which learns everything and has no connection that could break."""
KEPT_FOR_PEER = 12

ELSEWHERE = "more"
SESSIONS_MAX = 100
QUEUES_BYTES = 4_000


CUT_THROUGH = {"on": True, "off": False, "mixed": property(lambda queue: queue.next_sequence % 2 == 0)}
"""Whether a plain message passes, by `Setup.cut_through`."""


class Watch(Protocol):
    """What a broker is sent."""

    def started(self, recovered: Recovered) -> None: ...
    def died(self) -> None: ...
    def received(self, peer: bytes, message: Message) -> None: ...
    def clock(self, step: ClockStep) -> None: ...
    def event(self, subject: str, details: Mapping[str, Any]) -> None: ...
    def choosing(self, core: Core) -> None: ...
    def gone(self, peer: bytes) -> None: ...
    def damage_found(self, defects: Sequence[Defect], core: Core) -> None: ...
    def passing(self, core: Core, appends: Sequence[Append]) -> None: ...
    def handed_out(self, append: Append) -> None: ...
    def failed(self, append: Append) -> None: ...
    def sends(self, sends: Sequence[tuple[bytes, Message]], blocked: frozenset[bytes]) -> None: ...
    def iterated(self, core: Core) -> None: ...
    def ending(self, peer: bytes) -> None: ...
    def closed(self, peer: bytes) -> None: ...


class Machine:
    """A broker that runs on a disk. After a crash another one starts there."""

    def __init__(
        self,
        setup: Setup,
        disk: Disk,
        watch: Watch,
        wall: Wall,
        killed: Callable[[], None],
    ) -> None:
        self._killed = killed
        self._setup = setup
        self.wall = wall
        self.disk = disk
        self.watch = watch
        self.deaths = 0
        age_seconds = AGE_SECONDS if setup.clocks else setup.age_seconds
        retention = StreamRetention(messages_max=setup.kept_messages, age_seconds=age_seconds)
        self.settings = Settings(
            limits=Limits(
                unconfirmed=setup.unconfirmed,
                sessions=SESSIONS_MAX,
                queue_messages=setup.queue_messages,
                queues_bytes=QUEUES_BYTES if setup.queue_messages > 100 else Limits().queues_bytes,
                queues_memory_bytes=setup.memory_bytes,
                backlog_bytes=setup.backlog_bytes,
                **setup.tight,
            ),
            session_expiry=EXPIRY,
            streams=lambda stream: StreamPolicy(
                stream != NO_JOURNAL,
                retention=retention,
            ),
            queues=lambda kind, name: setup.queues,
            lifecycle_events=setup.events,
            settled_events=setup.events,
            audit=setup.audit,
        )
        self.start()

    def start(self) -> None:
        """Start a broker on what the disk holds."""
        self.wall.begin()
        with self._time():
            self._clock = clock.Clock()
        records_bytes = self.settings.limits.queues_memory_bytes // 2
        recovered = self.disk.store.recover(records_bytes=records_bytes, now=self.now)
        self.core = Core(self.now, self.settings, recovered)
        if self.core.health.damages != len(recovered.defects):
            raise Violation("damage is not reported", defects=recovered.defects)
        feeds = [key for key in recovered.lost_keys(CURSORS) if key[1].startswith(FEED_PREFIX)]
        if self.core.recovery.skipped != len(feeds):
            raise Violation("a feed whose position is lost is not reported", feeds=feeds)
        # Events are looked at where they are made, whether there is a stream of them or not.
        self._tell = self.core.effects.event
        self.core.effects.event = self._event  # type: ignore[method-assign]
        self.router = Router()
        self.workers = Workers(self.disk)
        self._appends: dict[int, Append] = {}
        self.watch.started(self.disk.store.recover())
        self.core.receive(AUDITOR, Hello([VERSION], ""), self.now)
        self.core.receive(AUDITOR, Subscribe(1, NO_JOURNAL, [["all", ""]], credit=-1), self.now)

    def _event(self, subject: str, body: bytes = b"", /, **details: Any) -> None:
        self.watch.event(subject, details)
        self._tell(subject, body, **details)

    @property
    def now(self) -> float:
        """The time as the broker counts it."""
        return self.wall.now

    @now.setter
    def now(self, now: float) -> None:
        self.wall.now = now

    def _time(self) -> AbstractContextManager[object]:
        return patch.multiple(clock, time=self.wall, counted=self.wall.monotonic)

    def widen(self) -> None:
        """Lift the limits that are small, as an operator does while the broker runs."""
        wide = {name: getattr(Limits(), name) for name in self._setup.tight}
        self.settings = self.settings._replace(limits=self.settings.limits._replace(**wide))
        self.core.configure(self.settings, self.now)

    def kill(self) -> None:
        """Kill the broker: what it had in memory is gone."""
        self.deaths += 1
        self.disk.writes_left = None
        self._killed()
        self.watch.died()

    def die(self) -> None:
        """Kill the broker, and start another one."""
        self.kill()
        self.start()

    def iterate(self, choice: int, most: int) -> bool:
        """One iteration of the loop. Returns whether there was anything to do."""
        core, router = self.core, self.router
        busy = bool(router.waiting or router.blocked or core.streams.active)
        busy |= self.workers.has_results
        for peer in router.retry():
            core.unblocked(peer, self.now)
        for peer in router.pop_lost():
            self.watch.choosing(core)
            self.watch.gone(peer)
            core.lost(peer, self.now)
        for peer, message in router.receive_from(choice, most):
            if isinstance(message, MalamuteError):
                core.refuse(peer, message, self.now)
            else:
                if isinstance(message, Hello | Bye | Cancel | Drain):
                    self.watch.choosing(core)
                # Whose session was ended in this iteration is refused whatever he says but HELLO.
                ended = peer in core.effects.closed and peer not in core.sessions.by_peer
                if not ended or isinstance(message, Hello):
                    self.watch.received(peer, message)
                core.receive(peer, message, self.now)
            if core.effects.work <= 0:
                break
        self._handle_results()
        with self._time():
            step = self._clock.look(self.now)
        if step is not None:
            self.watch.clock(step)
            core.clock(step, self.now)
        core.tick(self.now)
        busy |= self.flush()
        self.watch.iterated(core)
        return busy

    def _handle_results(self) -> None:
        for result in self.workers.take_results():
            if isinstance(result, ReadDone):
                self.core.answered(result.question, result.result, self.now)
            elif isinstance(result, Trimmed):
                self.core.streams.trimmed(result.firsts)
            elif isinstance(result, DamageFound):
                self._damaged(result)
            else:
                self._settle(result)

    def _damaged(self, found: DamageFound) -> None:
        damages = self.core.health.damages
        self.watch.damage_found(found.defects, self.core)
        self.core.damaged(found.defects, self.now)
        if self.core.health.damages != damages + len(found.defects):
            raise Violation("damage is not reported", defects=found.defects)

    def _settle(self, written: Written) -> None:
        for token in written.tokens:
            append = self._appends.pop(token)
            if written.error is None:
                self.core.stored(token, self.now)
            else:
                self.watch.failed(append)
                self.core.store_failed(token, written.error, self.now)

    def flush(self) -> bool:
        """Do what the core says. Returns whether there was anything."""
        blocked = frozenset(peer for peer, s in self.core.sessions.by_peer.items() if s.blocked)
        ready = self.core.ready()
        # The broker would go on: here each is a fault to be found.
        assert not self.core.effects.faults.count, [notice.details for notice in ready.notices]
        for peer in ready.closed:
            self.watch.ending(peer)
        self.watch.passing(self.core, ready.appends)
        for append in ready.appends:
            self._appends[append.token] = append
            self.watch.handed_out(append)
        self.watch.sends(ready.sends, blocked)
        for peer, message in ready.sends:
            if peer != AUDITOR and self.router.send(peer, message):
                self.core.blocked(peer)
        self.workers.appends.extend(ready.appends)
        self.workers.questions.extend(ready.reads)
        for peer in ready.closed:
            if peer not in self.core.sessions.by_peer:
                self.watch.closed(peer)
                self.router.forget(peer)
        return bool(ready.sends or ready.appends or ready.reads or self.router.lost)

    def write(self, most: int) -> int:
        """Let the writer work on up to `most` appends. It may be the end of the broker."""
        try:
            return self.workers.write(most)
        except PowerLost:
            self.die()
            return 1


def _tokens() -> Callable[[int], int]:
    """Tokens that nobody can guess, but the same in each run of a seed, whatever other threads do."""
    chance, here = Random(0), get_ident()
    return lambda bits: chance.getrandbits(bits) if get_ident() == here else secrets.randbits(bits)


@contextmanager
def narrowed(setup: Setup) -> Iterator[None]:
    """The fixed limits of the broker made so small that a short run meets them."""
    grace = HOLD_SECONDS if setup.clocks or setup.restores else 600.0
    limits = {
        "malamute.core.stream.stream.RESERVE": setup.reserve,
        "malamute.core.stream.replay.READ_BYTES": setup.read_bytes,
        "malamute.core.stream.replay.READS_MAX": 2,
        "malamute.core.queue.queue.Queue.cut_through": CUT_THROUGH[setup.cut_through],
        "malamute.core.queue.waiters.STALE_MIN": 2,
        "malamute.matching.cache.UNCHARGED_BYTES": 0 if "caches_bytes" in setup.tight else UNCHARGED_BYTES,
        "malamute.server.transport.KEPT_MESSAGES": KEPT_FOR_PEER,
        "malamute.server.flow.PING_BYTES": PING_BYTES,
        "malamute.server.clock.HOLD_SECONDS": HOLD_SECONDS,
        "malamute.core.iteration.grace_period.GRACE_SECONDS": grace,
        "malamute.server.flow.secrets": SimpleNamespace(randbits=_tokens()),
    }
    with ExitStack() as stack:
        for name, value in limits.items():
            stack.enter_context(patch(name, value))
        yield
