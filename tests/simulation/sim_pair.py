"""Pairs in a simulated world: two nodes with the pure rules, a link, a register, and disks that lose.

    python tests/simulation/sim_pair.py --seed 7 --runs 1000
    python tests/simulation/sim_pair.py --weakness ack-before-sync     a deliberate fault, to be noticed

The store is a model: entries with a log sequence number, synced or not. All else is that of the product.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Callable
from itertools import count
from random import Random
from typing import NamedTuple

from msgspec.structs import replace
from sim_arrival import Arrival, Next

from malamute.errors import MalamuteError, Malformed
from malamute.pair import codec, rules, state
from malamute.pair.replication import Began, History, Shipment, common
from malamute.pair.rules import Mode, PairRules, PairTimes, Report, Role
from malamute.pair.state import Level, Member, PairValue

PAIR = b"p" * 16
LEVEL = Level(7, 17, codec.VERSION)
PLAYED, HEALED = 25.0, 45.0
"""Seconds with faults, and those in which all has to be well again."""
CATCH_UP_STEP = 8


class Broken(AssertionError):
    """Raised by a checker."""


class Directory:
    """A directory on a simulated disk: entries, of which the first `synced` outlive a crash."""

    def __init__(self, replica: bytes) -> None:
        self.replica = replica
        self.entries: list[int] = []
        self.synced = 0
        self.timelines: tuple[Began, ...] = ()
        self.is_whole = True

    @property
    def history(self) -> History:
        return History(self.timelines, len(self.entries))

    def crash(self, keep: int) -> None:
        """Lose some of what was not synced."""
        del self.entries[max(self.synced, min(len(self.entries), self.synced + keep)) :]
        self.synced = len(self.entries)


class Weak(PairRules):
    """The rules, and what happens if one of them is left out."""

    weakness = ""

    def _in_force(self) -> list[PairValue]:
        every = super()._in_force()
        if self.weakness == "added-when-known":
            return every[:1]
        return every[-1:] if self.weakness == "dropped-when-sent" else every

    def counts(self) -> frozenset[str]:
        if self.weakness == "added-when-known":
            self._is_candidate, was = False, self._is_candidate
            counted = super().counts()
            self._is_candidate = was
            return counted
        return super().counts()

    def _as_waiting(self, now: float) -> PairValue | None:
        wanted = super()._as_waiting(now)
        if self.weakness == "no-own-swap" and wanted is not None and wanted.primary == self.name:
            assert self.value is not None
            self._serve(self.value, now)
            return None
        return wanted

    def _as_standby(self, now: float) -> PairValue | None:
        if self.weakness == "anybody" and self.value is not None:
            self.value = replace(self.value, in_sync=tuple(self.value.members))
        return super()._as_standby(now)


class Register:
    """A register that is slow, away, loses its answer, or swaps after its time-out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.value: PairValue | None = None
        self.version = 0
        self.is_away = {"a": False, "b": False}
        self.swapped: set[tuple[int, str, str, int]] = set()
        """Timelines and primaries of values, with the node and the life that put them."""

    def ask(self, node: Node, asked: rules.Read | rules.Swap) -> None:
        random, life = self.world.random, node.life
        delay = random.choice((0.002, 0.02, 0.2, 1.5)) if self.world.is_rough else 0.002

        def answered() -> None:
            if isinstance(asked, rules.Read):
                outcome = node.rules.register_read, (self.value, self.version or None)
            elif self._swap(node, life, asked):
                outcome = node.rules.swap_done, (self.version,)
            else:
                outcome = node.rules.swap_refused, ()
            if self.world.is_rough and random.random() < 0.1:
                outcome = self._lost(node, asked)
                self.world.after(2.0, lambda: node.event(life, *outcome))
            else:
                node.event(life, *outcome)

        if self.is_away[node.name]:
            if isinstance(asked, rules.Swap) and random.random() < 0.3:
                self.world.after(random.uniform(2, 8), lambda: self._swap(node, life, asked))
            outcome = self._lost(node, asked)
            self.world.after(2.0, lambda: node.event(life, *outcome))
        else:
            self.world.after(delay, answered)

    @staticmethod
    def _lost(node: Node, asked: object) -> tuple[Callable[..., list[rules.Action]], tuple[()]]:
        return (node.rules.register_away if isinstance(asked, rules.Read) else node.rules.swap_unknown), ()

    def _swap(self, node: Node, life: int, asked: rules.Swap) -> bool:
        if asked.version != (self.version or None):
            return False
        self.value, self.version = state.decode(state.encode(asked.value)), self.version + 1
        self.swapped.add((asked.value.timeline, asked.value.primary, node.name, life))
        return True


class Node:
    """One node: its directory, its rules, and what the threads of a node do with them."""

    def __init__(self, world: World, name: str, replica: bytes) -> None:
        self.world, self.name = world, name
        self.directory = Directory(replica)
        self.offset = world.random.uniform(0, 1e6)
        self.life = 0
        self.is_up = self.is_refusing = False
        self.paused_until = 0.0
        self.disk_until = 0.0
        self.waiting: list[Callable[[], None]] = []
        self.start()

    # Life

    @property
    def now(self) -> float:
        return self.world.now + self.offset

    @property
    def other(self) -> Node:
        return self.world.nodes["b" if self.name == "a" else "a"]

    def start(self) -> None:
        self.life += 1
        self.is_up, self.is_refusing = True, False
        self.shipment: Shipment | None = None
        self.arrival: Arrival | None = None
        self.is_copying = False
        self.is_open = self.is_following = self.is_sending = self.is_draining = False
        self.sync_since: float | None = None
        self.syncing = 0
        self.answer_at = 0.0
        self.rules = Weak(
            self.name,
            self.member,
            PAIR,
            self.directory.history,
            mode=self.world.mode,
            times=PairTimes(),
            fresh=lambda: self.world.random.randbytes(16),
        )
        self.rules.weakness = self.world.weakness
        self.event(self.life, self.rules.started)
        life = self.life
        self.greet()
        self.world.after(self.world.random.uniform(0, 0.5), lambda: self.beat(life))

    @property
    def member(self) -> Member:
        return Member(self.directory.replica, LEVEL, f"tcp://{self.name}:1")

    def kill(self, *, refuses: bool) -> None:
        self.is_up, self.is_refusing = False, refuses
        self.life += 1
        self.waiting.clear()
        self.directory.crash(self.world.random.randrange(3))

    def event(self, life: int, event: Callable[..., list[rules.Action]], arguments: tuple = ()) -> None:
        """Let the rules take in an event, when the process runs, and do what they say."""

        def take() -> None:
            if self.rules.role is not Role.PRIMARY:
                self.rules.history = self.directory.history
            self.rules.is_whole = self.directory.is_whole
            for action in event(*arguments, self.now):
                self.act(action)

        self.run(life, take)

    def run(self, life: int, act: Callable[[], None]) -> None:
        if life != self.life or not self.is_up:
            return
        if self.world.now < self.paused_until:
            self.waiting.append(lambda: self.run(life, act))
        else:
            act()
            self.release()

    def resume(self) -> None:
        waiting, self.waiting = self.waiting, []
        for act in waiting:
            act()

    # Actions of the rules

    def act(self, action: rules.Action) -> None:
        match action:
            case rules.Read() | rules.Swap():
                self.world.register.ask(self, action)
            case rules.Serve(timeline):
                self.serve(timeline)
            case rules.Follow():
                self.greet()
            case rules.StopServing():
                self.shipment = None
                self.is_open = self.is_sending = self.is_draining = False
                self.greet()
            case rules.StopIntake():
                self.is_draining, self.was_drained = True, False

    def serve(self, timeline: int) -> None:
        directory = self.directory
        if (timeline, self.name, self.name, self.life) not in self.world.register.swapped:
            raise Broken(f"{self.name} serves in timeline {timeline} without a swap of its own")
        if not directory.is_whole:
            raise Broken(f"{self.name} serves half a catch-up")
        self.world.check_whole(self)
        directory.timelines = (*directory.timelines, Began(timeline, len(directory.entries) + 1))
        directory.synced = len(directory.entries)
        self.arrival, self.is_following = None, False
        self.shipment = Shipment(self.name, len(directory.entries))
        self.greet()

    # The primary

    def publish(self) -> None:
        if self.is_open and not self.is_draining and self.rules.announces and not self.shipment.is_full:
            item = next(self.world.items)
            self.directory.entries.append(item)
            lsn = len(self.directory.entries)
            self.ship(lsn)
            self.sync()

    def ship(self, lsn: int) -> None:
        assert self.shipment is not None
        self.shipment.lsn = max(self.shipment.lsn, lsn)
        if self.is_sending:
            self.shipment.sent(lsn, 100, self.now)
            data = self.directory.entries[lsn - 1].to_bytes(8, "big")
            self.send(codec.RecordFrame(self.rules.serves, lsn - 1, lsn, data))

    def release(self) -> None:
        """Report outcomes, let clients in, and let one of them read."""
        shipment = self.shipment
        if shipment is None:
            return
        released = shipment.released(self.rules.counts())
        if not self.is_open:
            self.is_open = released >= shipment.began
        if not self.is_open:
            return
        self.world.confirm(self, released)
        if not self.rules.is_closed and self.world.random.random() < 0.1:
            bound = len(self.directory.entries) if self.world.weakness == "read-without-bound" else released
            self.world.read(self, bound)
        is_empty = released == len(self.directory.entries) == shipment.synced(self.other.name)
        if self.is_draining and is_empty and not self.was_drained:
            self.was_drained = True
            self.event(self.life, self.rules.drained)

    def ask_begin(self, greeting: codec.Greeting) -> None:
        """Send the tail to a standby that has this history; it asks for a catch-up otherwise."""
        shared = common(self.directory.history, greeting.history)
        self.is_sending = greeting.is_whole and shared == greeting.lsn
        if self.is_sending:
            self.send_from(greeting.lsn)

    def send_from(self, synced: int) -> None:
        assert self.shipment is not None
        self.is_sending = True
        self.shipment.joined(self.other.name, synced)
        for lsn in range(synced + 1, len(self.directory.entries) + 1):
            self.ship(lsn)

    # The disk

    def sync(self) -> None:
        """Make all entries durable, in one go after the one under way."""
        if self.sync_since is None:
            self.sync_since = self.now
            self.syncing = len(self.directory.entries)
            life, directory = self.life, self.directory
            delay = max(0.0, self.disk_until - self.world.now) + self.world.random.choice((0.001, 0.01))

            def durable() -> None:
                if life == self.life and directory is self.directory:
                    directory.synced = max(directory.synced, min(self.syncing, len(directory.entries)))
                    self.run(life, self.synced)

            self.world.after(delay, durable)

    def synced(self) -> None:
        self.sync_since = None
        directory = self.directory
        if self.shipment is not None:
            self.shipment.acked(self.name, directory.synced)
        if self.arrival is not None and self.is_following:
            self.arrival.durable(applied=directory.synced, synced=directory.synced)
            self.acknowledge()
        if directory.synced < len(directory.entries):
            self.sync()

    # The link

    def beat(self, life: int) -> None:
        def act() -> None:
            self.send(codec.Heartbeat(self.rules.announces, self.now, len(self.directory.entries), 0))
            if not self.other.is_up and self.other.is_refusing and not self.world.cut[self.name]:
                self.event(life, self.rules.connection_refused)
            waits = 0.0 if self.sync_since is None else self.now - self.sync_since
            self.event(life, self.rules.disk_waits, (waits,))
            unsynced = self.shipment.unsynced_since if self.shipment else None
            self.event(life, lambda now: self.rules.tick(now, unsynced))
            if self.rules.role is Role.STANDBY and not self.is_following:
                self.greet()

        self.run(life, act)
        if life == self.life:
            self.world.after(0.5, lambda: self.beat(life))

    def send(self, frame: codec.Frame) -> None:
        self.world.carry(self, codec.encode(frame))

    def greet(self) -> None:
        directory = self.directory
        self.send(
            codec.Greeting(
                PAIR, self.name, directory.replica, LEVEL, directory.timelines, directory.synced,
                directory.synced, self.rules.announces, directory.is_whole, 1,
            )
        )  # fmt: skip

    def acknowledge(self) -> None:
        assert self.arrival is not None
        synced = self.arrival.synced
        if self.world.weakness == "ack-before-sync":
            synced = len(self.directory.entries)
        self.send(codec.Synced(self.arrival.timeline, synced, synced, self.answer_at))

    def arrived(self, data: bytes) -> None:
        frame = codec.decode(data)
        getattr(self, f"on_{type(frame).__name__.lower()}")(frame)

    def on_greeting(self, frame: codec.Greeting) -> None:
        report = Report(
            frame.pair, frame.name, frame.replica, frame.level, frame.history, frame.serves, frame.is_whole
        )
        if self.rules.refusal(report):
            return
        is_new = self.rules._peer != report
        self.event(self.life, self.rules.peer_greeted, (report,))
        if self.shipment is not None:
            self.ask_begin(frame)
            self.greet()
        elif frame.serves and self.rules.role is Role.STANDBY:
            self.follow(frame)
        elif is_new:
            self.greet()

    def follow(self, greeting: codec.Greeting) -> None:
        directory = self.directory
        if self.arrival is not None and self.arrival.timeline == greeting.serves and self.is_following:
            return
        shared = common(directory.history, greeting.history)
        if directory.is_whole and shared == len(directory.entries):
            directory.timelines = greeting.history.timelines
            directory.synced = len(directory.entries)
            self.arrival = Arrival(greeting.serves, directory.synced, directory.synced)
            self.is_following = True
            self.greet()
        else:
            self.is_following, self.is_copying = False, True
            if self.world.weakness != "catch-up-not-marked":
                directory.is_whole = False
            # Compared by keys, so some of what is shared is missing until the end.
            del directory.entries[max(0, shared - self.world.random.randrange(6)) :]
            directory.synced = len(directory.entries)
            directory.timelines = greeting.history.timelines
            self.send(codec.CatchUp(greeting.serves, f"{directory.synced}".encode()))

    def on_catchup(self, frame: codec.CatchUp) -> None:
        directory = self.directory
        if self.shipment is not None:
            if frame.timeline == self.rules.serves:
                self.is_sending = False
                self.event(self.life, self.rules.peer_catches_up)
                if self.shipment is None:
                    return
                start = int(frame.data)
                part = directory.entries[start : start + CATCH_UP_STEP]
                is_last = start + len(part) == len(directory.entries)
                text = " ".join(map(str, (start, int(is_last), *part)))
                self.send(codec.CatchUp(frame.timeline, text.encode()))
            return
        if self.is_following or self.rules.role is not Role.STANDBY:
            return
        if self.world.weakness != "catch-up-not-marked" and directory.is_whole:
            return
        start, *rest = map(int, frame.data.split())
        if not rest:
            return  # asked of the primary that this node was
        is_last, *part = rest
        if not directory.timelines or frame.timeline != directory.timelines[-1].timeline:
            return
        if start == len(directory.entries):
            directory.entries += part
            directory.synced = len(directory.entries)
            if is_last:
                directory.is_whole, self.is_copying = True, False
                self.arrival = Arrival(frame.timeline, directory.synced, directory.synced)
                self.is_following = True
                self.greet()
                return
        life = self.life
        asked = codec.CatchUp(frame.timeline, f"{directory.synced}".encode())
        self.world.after(self.world.catch_up_pause, lambda: self.run(life, lambda: self.send(asked)))

    def on_recordframe(self, frame: codec.RecordFrame) -> None:
        if self.arrival is None or not self.is_following:
            return
        match self.arrival.record(frame.timeline, frame.after, frame.lsn):
            case Next.TAKE:
                self.directory.entries.append(int.from_bytes(frame.data, "big"))
                self.sync()
                if self.world.weakness == "ack-before-sync":
                    self.acknowledge()
            case Next.REPEATED:
                self.acknowledge()
            case Next.MISSING:
                self.begin_again()
            case Next.OTHER_TIMELINE:
                if frame.timeline > self.arrival.timeline:
                    self.begin_again()

    def begin_again(self) -> None:
        self.is_following, self.arrival = False, None
        self.greet()

    def on_heartbeat(self, frame: codec.Heartbeat) -> None:
        self.event(self.life, self.rules.peer_heard, (frame.serves,))
        self.answer_at = max(self.answer_at, frame.at)
        if self.shipment is None:
            timeline = self.arrival.timeline if self.arrival and self.is_following else 1
            synced = self.arrival.synced if self.arrival and self.is_following else 0
            self.send(codec.Synced(timeline, synced, synced, self.answer_at))
            is_behind = self.is_following and frame.lsn > len(self.directory.entries)
            if is_behind or (frame.serves and self.arrival and frame.serves != self.arrival.timeline):
                self.begin_again()

    def on_synced(self, frame: codec.Synced) -> None:
        if self.shipment is None:
            return
        self.event(self.life, self.rules.peer_answered, (frame.at,))
        if self.shipment is not None and frame.timeline == self.rules.serves:
            if not self.is_sending:  # its greeting was lost
                self.send_from(frame.synced)
            try:
                self.shipment.acked(self.other.name, frame.synced)
            except Malformed as error:
                raise Broken(error.text) from error
            released = self.shipment.released(self.rules.counts())
            synced = self.shipment.synced(self.other.name)
            self.event(self.life, self.rules.peer_synced, (synced, released))


class Run(NamedTuple):
    """Counts of a run."""

    confirmed: int
    serves: int


class World:
    """The world of one run, and its checkers."""

    def __init__(self, seed: int, weakness: str = "") -> None:
        self.seed = seed
        self.random = Random(seed)
        self.weakness = weakness
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.items = count(1)
        self.is_rough = self.random.random() < 0.7
        self.loss = self.random.choice((0.0, 0.0, 0.02, 0.2))
        self.catch_up_pause = self.random.choice((0.0, 0.3, 1.0)) if self.is_rough else 0.0
        self.mode = Mode.STRICT if self.random.random() < 0.1 else Mode.SYNC
        self.cut = {"a": False, "b": False}
        self.confirmed: dict[int, int] = {}
        self.done: dict[tuple[str, int], int] = {}
        self.seen: set[int] = set()
        self.by_timeline: dict[int, tuple[str, int]] = {}
        self.serves = 0
        self.register = Register(self)
        self.nodes: dict[str, Node] = {}
        self.nodes["a"] = Node.__new__(Node)
        self.nodes["b"] = Node.__new__(Node)
        first = state.created(PAIR, "a", Member(b"a" * 16, LEVEL, "tcp://a:1"), 1, b"0" * 16)
        member = Member(b"b" * 16, LEVEL, "tcp://b:1")
        self.register.value, self.register.version = state.joined(first, "b", member, b"1" * 16), 1
        for name, node in self.nodes.items():
            node.is_up = False
            node.is_refusing = True
            node.__init__(self, name, name.encode() * 16)  # type: ignore[misc]

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + seconds, next(self.order), act))

    def carry(self, sender: Node, data: bytes) -> None:
        """Bring a frame to the other node: late, twice, damaged or never."""
        target = sender.other
        if self.cut[sender.name] or (self.is_rough and self.random.random() < self.loss):
            return
        times = 2 if self.is_rough and self.random.random() < 0.02 else 1
        for _ in range(times):
            delay = 0.001 if self.random.random() < 0.95 or not self.is_rough else self.random.uniform(0, 0.3)
            self.after(delay, lambda: target.run(target.life, lambda: target.arrived(data)))

    # Checkers

    def check_whole(self, node: Node) -> None:
        self.serves += 1
        for lsn, item in self.confirmed.items():
            if node.directory.entries[lsn - 1 : lsn] != [item]:
                raise Broken(f"{node.name} serves without item {item}, which was confirmed as number {lsn}")
        if missing := self.seen - {*node.directory.entries}:
            raise Broken(f"{node.name} serves without {sorted(missing)[:3]}, which were read")

    def confirm(self, node: Node, released: int) -> None:
        key = (node.name, node.life * 1000 + node.rules.serves)
        since = self.done.get(key, 0)
        if released > since:
            self.done[key] = released
            owner = self.by_timeline.setdefault(node.rules.serves, (node.name, node.life))
            if owner != (node.name, node.life):
                raise Broken(f"{owner} and {node.name} confirm in timeline {node.rules.serves}")
            for lsn in range(since + 1, released + 1):
                item = node.directory.entries[lsn - 1]
                if self.confirmed.setdefault(lsn, item) != item:
                    raise Broken(f"number {lsn} is confirmed for {self.confirmed[lsn]} and for {item}")

    def read(self, node: Node, bound: int) -> None:
        self.seen.update(node.directory.entries[max(0, bound - 3) : bound])

    # Faults

    def fault(self) -> None:
        random = self.random
        node = self.nodes[random.choice("ab")]
        choice = random.choice(
            (
                "kill",
                "kill",
                "pause",
                "pause",
                "cut",
                "cut",
                "both",
                "away",
                "away",
                "apart",
                "hang",
                "switch",
            )
        )
        seconds = random.choice((0.3, 1.5, 4.0, 7.0, 12.0, 20.0))
        if choice == "kill" and node.is_up:
            node.kill(refuses=random.random() < 0.7)
            self.after(min(seconds, 12), lambda: self.start(node))
        elif choice == "pause":
            node.paused_until = max(node.paused_until, self.now + seconds)
            self.after(seconds + 1e-6, node.resume)
        elif choice in ("cut", "both", "apart"):
            names = [node.name] if choice == "cut" else ["a", "b"]
            if choice == "apart":
                self.register.is_away[node.name] = True
                self.after(seconds / 2, lambda: self.register.is_away.update({node.name: False}))
            self.cut.update(dict.fromkeys(names, True))
            self.after(seconds, lambda: self.cut.update(dict.fromkeys(names, False)))
        elif choice == "away":
            names = random.choice((["a"], ["b"], ["a", "b"]))
            self.register.is_away.update(dict.fromkeys(names, True))
            self.after(seconds, lambda: self.register.is_away.update(dict.fromkeys(names, False)))
        elif choice == "hang":
            node.disk_until = max(node.disk_until, self.now + seconds)
        elif choice == "switch" and node.is_up:
            node.event(node.life, node.rules.switch_asked)

    def start(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    def kill_twice(self) -> None:
        """Kill a primary, and once more when its standby copies, with the register away."""
        node = next((one for one in self.nodes.values() if one.shipment is not None), None)
        if node is None or not node.is_up:
            return
        node.kill(refuses=False)
        self.after(0.3, lambda: self.start(node))

        def again(left: int) -> None:
            if not node.other.is_copying:
                if left:
                    self.after(0.002, lambda: again(left - 1))
            elif node.is_up:
                node.kill(refuses=True)
                self.after(9.0, lambda: self.start(node))

        again(1500)

    def lose_directory(self) -> None:
        """Lose a directory, or set it back, while the other one has all; nothing else fails for a while."""
        value = self.register.value
        node = self.nodes[self.random.choice("ab")]
        both = all(one.is_up and one.now and self.now >= one.paused_until for one in self.nodes.values())
        if value is None or len(value.in_sync) < 2 or not both or any(self.cut.values()):
            return
        if self.random.random() < 0.5:
            node.kill(refuses=True)
            keep = self.random.randrange(len(node.directory.entries) + 1)
            timelines = node.directory.timelines
            del node.directory.entries[keep:]
            node.directory.synced = keep
            node.directory.timelines = tuple(one for one in timelines if one.lsn <= keep + 1)
            self.after(self.random.choice((0.1, 3.0)), lambda: self.start(node))
        else:
            node.kill(refuses=True)
            node.directory = Directory(self.random.randbytes(16))
            self.join(node)

    def join(self, node: Node) -> None:
        """An operator joins the new directory, once the other node is the primary."""
        assert self.register.value is not None
        try:
            joined = state.joined(self.register.value, node.name, node.member, self.random.randbytes(16))
        except MalamuteError:
            self.after(1.0, lambda: self.join(node))
            return
        self.register.value, self.register.version = joined, self.register.version + 1
        self.start(node)

    # The run

    def until(self, end: float) -> None:
        while self.queue and self.queue[0][0] <= end:
            self.now, _, act = heapq.heappop(self.queue)
            act()
        self.now = end

    def play(self) -> Run:
        publishing = [self.random.uniform(0.1, 0.6)]
        played = self.random.uniform(4.0, PLAYED)

        def publish() -> None:
            for node in self.nodes.values():
                if node.shipment is not None:
                    node.run(node.life, node.publish)
            self.after(publishing[0], publish)

        publish()
        if self.random.random() < 0.15:
            self.is_rough = False
            self.after(self.random.uniform(4, 10), self.lose_directory)
        else:
            for _ in range(self.random.randrange(1, 9)):
                self.after(self.random.uniform(0.2, played), self.fault)
            if Random(-self.seed).random() < 0.1:
                self.after(played / 2, self.kill_twice)
        self.until(played)
        self.heal()
        return Run(len(self.confirmed), self.serves)

    def heal(self) -> None:
        self.is_rough = False
        self.catch_up_pause = 0.0  # a copy that is slower than what is published would never end
        self.cut.update(a=False, b=False)
        self.register.is_away.update(a=False, b=False)
        for node in self.nodes.values():
            node.paused_until = node.disk_until = 0.0
            node.resume()
            self.start(node)
        before = len(self.confirmed)
        a, b = self.nodes.values()
        for _ in range(round(HEALED)):
            self.until(self.now + 1.0)
            value = self.register.value
            assert value is not None
            if len(value.in_sync) == 2 and len(self.confirmed) > before + 2:
                break
        else:
            raise Broken(
                f"after {HEALED:g} s in sync are {value.in_sync}, {len(self.confirmed) - before} confirmed:"
                f" {a.rules.role.value} {a.rules.reason!r}, {b.rules.role.value} {b.rules.reason!r}"
            )
        shortest = min(a.directory.synced, b.directory.synced)
        if a.directory.entries[:shortest] != b.directory.entries[:shortest]:
            raise Broken("equal numbers have other contents")


def simulate(seed: int, weakness: str = "") -> Run:
    """Play a run. Raises Broken."""
    return World(seed, weakness).play()


WEAKNESSES = (
    "added-when-known",
    "dropped-when-sent",
    "no-own-swap",
    "anybody",
    "ack-before-sync",
    "read-without-bound",
    "catch-up-not-marked",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--weakness", choices=WEAKNESSES, default="")
    options = parser.parse_args()
    failed: list[int] = []
    confirmed = serves = 0
    for seed in range(options.seed, options.seed + options.runs):
        try:
            run = simulate(seed, options.weakness)
            confirmed, serves = confirmed + run.confirmed, serves + run.serves
        except AssertionError as error:
            failed.append(seed)
            print(f"seed {seed}: {error}", flush=True)
    told = f"{confirmed:,} confirmed, {serves:,} starts of a primary"
    print(
        f"{options.runs:,} runs of a pair, {told}: {len(failed)} failed"
        + (f": {failed[:20]}" if failed else "")
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
