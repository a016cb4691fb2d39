"""A broker and its clients are killed, stopped and starved, and every item is accounted for: `make torture`.

Real processes on the default configuration. Clients of all three patterns note what they do (`torture_load`).
Meanwhile one fault follows the other, drawn from a seed, and after each of them everybody who gives has to
be confirmed something anew. After so many faults, an episode, the faults stop, everything has to come to its
end, and the checker of histories says whether a promise was broken (`history`). The next episode goes on with
the same broker and store.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import set_forkserver_preload
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))
import shared_folders  # noqa: F401  # the folders of the modules below

# isort: split
import bad_machine
import lossy_disk
from bad_link import Packets, why_no_link
from bad_machine import SPEED, Machine, true_seconds
from history import (
    BACK,
    DISK_FAILS,
    DISK_WORKS,
    ENDED,
    KILLED,
    LEFT,
    PUBLISH,
    PUBLISHED,
    PURGED,
    SENT,
    STATE,
    STORED,
    FileRecorder,
    Record,
    Violation,
    check,
    read_history,
)
from lossy_disk import LossyDisk
from real_machine import MEMORY, MIB, MemoryLimit, RealDisk, RealNetwork, why_not
from rig_daemon import Daemon, small
from rig_process import end, fork
from rig_proxy import Link, Proxy
from torture_bounds import QUIET, QUIET_OVER, Measured, exceeded, quiet_waits
from torture_hostile import ATTACK_SECONDS, attack_for_a_while, be_many, every_attack, mutated_sessions
from torture_load import (
    ENOUGH,
    GIVERS,
    LAST,
    MAILBOX,
    ONCE,
    OVER,
    PATIENCE,
    PAUSE_SECONDS,
    ROLES,
    SERVICE,
    STREAM,
    Place,
    play,
)

import malamute
from malamute.config import Config, ListenConfig

FAULTS_EACH = 25
"""Faults of an episode."""
STRIDE = 10_000
CONNECTIONS = 300
MANY_CONNECTIONS = 10_000
SPARE_MIB = 32
"""What a broker may take of memory beside what it has, when there is hardly any left."""
LOSSY_BYTES = 128 * MIB
DAYS = 24 * 3600
BAD_PACKETS = Packets(lost=0.1, repeated=0.05, delay_seconds=0.005, more_seconds=0.02)
SLOW_PACKETS = Packets(bytes_per_second=50_000, kept_bytes=20_000)
GIVEN_UP = 1
"""The exit code of a broker that has lost its store: error 804."""


class Torture:
    """A broker, its clients, and what is done to them."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        machine: Machine | None,
        missing: Mapping[str, str],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """`missing` says of a disk and a network of its own why there is none."""
        self.directory, self._pause_seconds = directory, pause_seconds
        self.chance = Random(seed)
        self.machine = machine
        self.disk = self.lossy = self.network = None
        self._around = ExitStack()
        place, config, address, namespace = directory / "broker", Config(), "127.0.0.1", ""
        if "disk" not in missing:
            self.disk = RealDisk(place / "data", directory, config.storage.size // MIB)
            self._around.callback(self.disk.close)
        if "lossy" not in missing:
            # Giving a store its room takes a call for each of its blocks there.
            config = small(LOSSY_BYTES)
            self.lossy = LossyDisk(place / "data", directory)
            self._around.callback(self.lossy.close)
        if "network" not in missing:
            self.network = RealNetwork(os.getpid())
            self._around.callback(self.network.close)
            address, namespace = self.network.address, self.network.name
            # Nobody else reaches that network.
            config = replace(config, listen=replace(ListenConfig(), insecure=True))
        self.daemon = Daemon(place, config, address, namespace)
        self.daemon.patience_seconds *= SPEED
        self.daemon.start()
        self.proxy = Proxy(self.daemon.url)
        self.counts: Counter[str] = Counter()
        self.records: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.waits: list[float] = []
        self.measured: list[Measured] = []
        self._size_mib = config.storage.size / MIB
        self._clients: dict[str, ForkServerProcess] = {}
        self._lives: Counter[str] = Counter()
        self._histories = directory
        self.episodes = 0

    # Episodes

    def episode(self, faults: Sequence[str], rest_seconds: float = 0.0) -> None:
        """A load, these faults, each with a rest behind it, and the account of it."""
        self._histories = self.directory / f"episode-{self.episodes}"
        self._histories.mkdir()
        self.note = FileRecorder(self._histories / "faults.jsonl", "faults")
        self._lives.clear()
        for role in ROLES:
            self.start(role)
        self.progress()
        for fault in faults:
            FAULTS[fault](self)
            self.counts[fault] += 1
            began = time.monotonic()
            self.progress()
            self.waits.append(time.monotonic() - began)
            self.note(BACK, "")
            if rest_seconds:
                self.rest(rest_seconds)
        self.settle()
        self.note.close()
        files = sorted(self._histories.iterdir())
        history = read_history(file for file in files if file.suffix == ".jsonl")
        self.records += Counter(record.kind for record in history)
        self.measured.append(self._measure(history))
        broken = [*check(history), *exceeded(self.measured[0], self.measured[-1], self._size_mib, SPEED)]
        self.violations += broken
        if not broken:
            shutil.rmtree(self._histories)
        self.episodes += 1

    def rest(self, seconds: float) -> None:
        """Do nothing to anybody. What was held up comes through, and then confirmations count as quiet."""
        over = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() > over - seconds / 2, "half of the rest is over")
        self.note(QUIET, "")
        self._wait(lambda: time.monotonic() > over, "the rest is over")
        self.note(QUIET_OVER, "")

    def _measure(self, history: Sequence[Record]) -> Measured:
        store = _size_mib(self.directory / "broker" / "data")
        return Measured(self.daemon.life_seconds, self.daemon.anonymous_mib, store, quiet_waits(history))

    def start(self, role: str) -> None:
        """Begin the next life of a client."""
        url = self.proxy.url if ROLES[role].far else self.daemon.url
        names, store = f"e{self.episodes}-", self.directory / "broker" / "data"
        place = Place(url, store, self._histories, names, self._pause_seconds)
        self._lives[role] += 1
        self._clients[role] = fork(play, role, self._lives[role], place)

    def kill(self, role: str) -> None:
        """End a client at once, and begin its next life."""
        self.end(role)
        self.note(ENDED, "", f"{role}-{self._lives[role]}")
        self.start(role)

    def end(self, role: str) -> None:
        """End a client at once."""
        end(self._clients.pop(role))

    def pid(self, role: str) -> int:
        """The process of a client."""
        pid = self._clients[role].pid
        assert pid is not None
        return pid

    def progress(self) -> None:
        """Wait until all who give were confirmed something from now on."""
        before = {role: self._size(role) for role in GIVERS}
        for role, size in before.items():
            self._wait(lambda r=role, s=size: self._confirmed_since(r, s), f"the {role} gets on")

    def _size(self, role: str) -> int:
        file = self._file(role)
        return file.stat().st_size if file.exists() else 0

    def _file(self, role: str) -> Path:
        return self._histories / f"{role}-{self._lives[role]}.jsonl"

    def _confirmed_since(self, role: str, size: int) -> bool:
        if not self._file(role).exists():
            return False
        with self._file(role).open("rb") as file:
            file.seek(size)
            text = file.read()
        return any(f'"{kind}"'.encode() in text for kind in (PUBLISHED, SENT, PURGED))

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = {role: p.exitcode for role, p in self._clients.items() if p.exitcode}
            assert not ended, f"clients have ended: {ended}\n{self.daemon.log[-2000:]}"
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE:.0f} s: {what}\n{self.daemon.log[-2000:]}"
            )
            time.sleep(0.01)

    # The end of an episode

    def settle(self) -> None:
        """Let everything come to its end, and note what is there then."""
        (self._histories / ENOUGH).touch()
        self._join([*GIVERS, "store reader"])
        names = f"e{self.episodes}-"
        note = FileRecorder(self._histories / "account.jsonl", "account")
        with malamute.connect(self.daemon.url, timeout=PATIENCE) as client:
            client.on_event = lambda event: None
            note(PUBLISH, names + STREAM, LAST)
            last = client.publish(names + STREAM, "a", LAST.encode(), assurance="stored", timeout=PATIENCE)
            note(PUBLISHED, names + STREAM, LAST, sequence=last)
            queues = (("mailbox", names + MAILBOX), ("mailbox", names + ONCE), ("service", names + SERVICE))
            for kind, name in queues:
                self._wait(
                    lambda k=kind, n=name: not client.query("messages", kind=k, name=n, timeout=PATIENCE),
                    f"the {kind} {name} is empty",
                )
            (self._histories / OVER).touch()
            self._join([*self._clients])
            note(STATE, names + STREAM)
            with client.subscribe(names + STREAM, start="first") as messages:
                for message in messages:
                    key = message.body.decode()
                    note(STORED, names + STREAM, key, sequence=message.sequence)
                    if key == LAST:
                        break
            for kind, name in queues:
                for row in client.query("messages", kind=kind, name=name):
                    note(LEFT, name, bytes(b"".join(row["body"])).decode())
            self._purge_all(client)
        note.close()

    def _purge_all(self, client: malamute.Client) -> None:
        """Be the operator who removes what hostile clients have sent: 12,500 requests that nobody works for.

        They take memory as long as they wait; what is still taken without them would be lost.
        """
        for kind, rows in (("mailbox", "mailboxes"), ("service", "services")):
            for row in client.query(rows, timeout=PATIENCE):
                if row["messages"]:
                    client.change("queue.purge", kind=kind, name=row["name"], timeout=PATIENCE)

    def _join(self, roles: Sequence[str]) -> None:
        for role in roles:
            process = self._clients[role]
            self._wait(lambda p=process: p.exitcode is not None, f"the {role} comes to its end")
            assert process.exitcode == 0, f"the {role} ended with {process.exitcode}"
            end(self._clients.pop(role))

    def close(self) -> None:
        """End all of it."""
        for process in self._clients.values():
            end(process)
        self.proxy.close()
        if self.machine is not None:
            self.machine.error = 0
        self.daemon.close()
        self._around.close()

    # What faults have in common

    def pause(self, most: float = 0.5) -> None:
        """As long as this fault lasts. Nothing is waited for: its moments are drawn."""
        time.sleep(self.chance.uniform(0.02, most))

    def kill_broker(self) -> None:
        """End the broker at once."""
        self.note(KILLED, "")
        self.daemon.kill()

    def end_broker(self, *codes: int) -> None:
        """End the broker at once, which may have ended by itself a moment ago, with one of these codes."""
        self.note(KILLED, "")
        code = self.daemon.end()
        assert code in (-signal.SIGKILL, *codes), f"the broker ended with {code}:\n{self.daemon.log[-2000:]}"

    def mend_disk(self) -> None:
        """Check the file system, and mount it again: nobody may use it meanwhile."""
        assert self.disk is not None
        # It gives up where it cannot open its store again.
        self.end_broker(GIVEN_UP)
        self.end("store reader")
        self.disk.mend()
        self.start("store reader")

    def start_again_if_ended(self) -> None:
        """The system may have ended the broker by now, as there was no memory left."""
        if self.daemon.has_ended:
            self.end_broker()
            self.daemon.start()

    @contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        """A process stands still meanwhile."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def bad_disk(self, error: int, then: Callable[[], None]) -> None:
        """Each write to the store fails, until something has happened."""
        assert self.machine is not None
        self.note(DISK_FAILS, "")
        self.machine.error = error
        try:
            self.pause()
            then()
        finally:
            self.machine.error = 0
            self.note(DISK_WORKS, "")


# The faults


def kill_broker(torture: Torture) -> None:
    torture.pause(0.2)
    torture.kill_broker()
    torture.daemon.start()


def stop_broker(torture: Torture) -> None:
    with torture.stopped(torture.daemon.pid):
        torture.pause(2)


def kill_client(torture: Torture) -> None:
    torture.pause(0.2)
    torture.kill(torture.chance.choice([role for role in ROLES if role != "store reader"]))


def stop_client(torture: Torture) -> None:
    with torture.stopped(torture.pid(torture.chance.choice([*ROLES]))):
        torture.pause(1)


def stop_worker_and_kill_broker(torture: Torture) -> None:
    with torture.stopped(torture.pid(torture.chance.choice(["worker a", "worker b", "recipient"]))):
        kill_broker(torture)


def kill_store_reader(torture: Torture) -> None:
    torture.pause(0.2)
    torture.kill("store reader")


def stop_store_reader(torture: Torture) -> None:
    with torture.stopped(torture.pid("store reader")):
        torture.pause(1)
        kill_broker(torture)


def failing_disk(error: int) -> Callable[[Torture], None]:
    return lambda torture: torture.bad_disk(error, lambda: None)


def failing_disk_and_kill(torture: Torture) -> None:
    torture.bad_disk(errno.EIO, torture.kill_broker)
    torture.daemon.start()


def step_clock(torture: Torture) -> None:
    assert torture.machine is not None
    torture.machine.offset_seconds = torture.chance.choice([-3600, -5, 0, 5, 3600, 3 * DAYS])
    if torture.chance.random() < 0.3:
        kill_broker(torture)


def cut_links(torture: Torture) -> None:
    if torture.chance.random() < 0.5:
        torture.proxy.cut_after(torture.chance.randrange(1, 20_000))
    torture.pause(0.2)
    torture.proxy.cut()


def half_open_links(torture: Torture) -> None:
    """Silence in one direction or in both, and then the end of the connections or not."""
    torture.chance.choice([torture.proxy.mute, torture.proxy.stall])()
    torture.pause(2)
    torture.proxy.relent()
    torture.proxy.cut()


def bad_links(link: Link) -> Callable[[Torture], None]:
    def make(torture: Torture) -> None:
        torture.proxy.impair(link)
        torture.pause(1.5)
        torture.proxy.relent()

    return make


def refused_links(torture: Torture) -> None:
    torture.proxy.refuse()
    torture.pause()
    torture.proxy.relent()


def full_disk(torture: Torture) -> None:
    """No room is left in the file system. The store has had its own from the beginning, so all get on."""
    assert torture.disk is not None
    with torture.disk.full():
        torture.progress()


def full_disk_and_kill(torture: Torture) -> None:
    """A broker that begins where no room is left gets on, too."""
    assert torture.disk is not None
    with torture.disk.full():
        torture.progress()
        kill_broker(torture)
        torture.progress()


def read_only_disk(torture: Torture) -> None:
    """The file system is read-only from now on."""
    assert torture.disk is not None
    torture.note(DISK_FAILS, "")
    torture.disk.fail()
    torture.pause(1)
    torture.mend_disk()
    torture.note(DISK_WORKS, "")
    torture.daemon.start()


def unreadable_disk(torture: Torture) -> None:
    """The disk reads nothing any more. Who looks at what is not in memory ends by that, or gives up."""
    assert torture.lossy is not None
    torture.end("store reader")
    torture.note(DISK_FAILS, "")
    torture.lossy.fail_reads(lossy_disk.ALL_BLOCKS)
    torture.pause(2)
    torture.end_broker(-signal.SIGBUS, GIVEN_UP)
    torture.lossy.fail_reads(lossy_disk.NO_BLOCKS)
    torture.note(DISK_WORKS, "")
    torture.start("store reader")
    torture.daemon.start()


def power_lost(torture: Torture) -> None:
    """All ends at once, and what the disk was not asked to sync may be gone."""
    assert torture.lossy is not None
    torture.pause(0.2)
    torture.kill_broker()
    torture.end("store reader")
    torture.lossy.lose_power(torture.chance.randrange(1 << 30))
    torture.start("store reader")
    torture.daemon.start()


def link_down(torture: Torture) -> None:
    assert torture.network is not None
    torture.network.down()
    try:
        torture.pause(2)
        if torture.chance.random() < 0.2:
            torture.kill_broker()
    finally:
        torture.network.up()
    if torture.daemon.has_ended:
        torture.daemon.start()


def swallowed_answers(torture: Torture) -> None:
    """What clients say comes, and what the broker says does not."""
    assert torture.network is not None
    torture.network.swallow_answers()
    try:
        torture.pause(2)
    finally:
        torture.network.relent()


def bad_packets(torture: Torture) -> None:
    """All get on where packets are lost, repeated and out of order."""
    assert torture.network is not None
    with torture.network.bad(BAD_PACKETS, torture.chance.random()):
        torture.progress()
        torture.pause(2)


def slow_packets(torture: Torture) -> None:
    """So little goes through that what does not find room is lost."""
    assert torture.network is not None
    with torture.network.bad(SLOW_PACKETS, torture.chance.random()):
        torture.pause(2)


def little_memory(torture: Torture) -> None:
    """Hardly any memory is left, and somebody wants more of it. The system may end the broker."""
    limit = MemoryLimit(torture.daemon.pid, SPARE_MIB * MIB)
    try:
        attack_for_a_while(torture.daemon.url, torture.chance)
    finally:
        limit.lift()
    torture.start_again_if_ended()


def ten_thousand_connections(torture: Torture) -> None:
    process = fork(be_many, torture.daemon.url, MANY_CONNECTIONS)
    process.join(ATTACK_SECONDS)
    end(process)


def every_hostile_client(torture: Torture) -> None:
    every_attack(torture.daemon.url)


def many_connections(torture: Torture) -> None:
    """Connections that say nothing, and more than the broker may open files."""
    host, _, port = torture.daemon.url.removeprefix("tcp://").partition(":")
    soft, hard = resource.prlimit(torture.daemon.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{torture.daemon.pid}/fd"))
    resource.prlimit(torture.daemon.pid, resource.RLIMIT_NOFILE, (used + CONNECTIONS // 2, hard))
    try:
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection((host, int(port)), 5))
            torture.pause()
    finally:
        resource.prlimit(torture.daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))


def hostile_client(torture: Torture) -> None:
    attack_for_a_while(torture.daemon.url, torture.chance)


def hostile_sessions(torture: Torture) -> None:
    mutated_sessions(torture.daemon.url, torture.chance)


FAULTS: Mapping[str, Callable[[Torture], None]] = {
    "broker killed": kill_broker,
    "broker stopped": stop_broker,
    "broker killed, consumer stopped": stop_worker_and_kill_broker,
    "client killed": kill_client,
    "client stopped": stop_client,
    "reader of the store killed": kill_store_reader,
    "reader of the store stopped, broker killed": stop_store_reader,
    "disk: EIO": failing_disk(errno.EIO),
    "disk: ENOSPC": failing_disk(errno.ENOSPC),
    "disk: EROFS": failing_disk(errno.EROFS),
    "disk: EIO, then broker killed": failing_disk_and_kill,
    "clock stepped": step_clock,
    "links cut": cut_links,
    "links half-open": half_open_links,
    "links slow": bad_links(Link(bytes_per_second=20_000, kept_bytes=4096)),
    "links lossy and reordering": bad_links(Link(delay_seconds=0.02, late=0.2)),
    "links refused": refused_links,
    "connections, more than files": many_connections,
    "connections, ten thousand": ten_thousand_connections,
    "disk, real: full": full_disk,
    "disk, real: full, then broker killed": full_disk_and_kill,
    "disk, real: read-only": read_only_disk,
    "power lost": power_lost,
    "disk, lossy: cannot read": unreadable_disk,
    "network, real: link down": link_down,
    "network, real: answers are swallowed": swallowed_answers,
    "network, real: packets lost and out of order": bad_packets,
    "network, real: packets slow": slow_packets,
    "memory used up": little_memory,
    "hostile client": hostile_client,
    "hostile clients, all of them": every_hostile_client,
    "mutated sessions": hostile_sessions,
}
NEEDS = {
    "disk: ": "library",
    "clock": "library",
    "disk, real": "disk",
    "power": "lossy",
    "disk, lossy": "lossy",
    "network, real": "network",
    "network, real: packets": "packets",
    "memory": "memory",
    "connections, ten": "files",
}
"""What faults need that begin so."""
ENDS_THE_BROKER = (
    "broker killed",
    "clock",
    "read-only",
    "then broker",
    "power",
    "cannot",
    "link down",
    "memory",
)
"""What has one of these words may end the broker, or ends it now and then."""
WEIGHTS = {"broker killed": 6, "client killed": 4, "power lost": 6}


def schedule(chance: Random, count: int, among: Sequence[str]) -> list[str]:
    """Draw so many faults."""
    return chance.choices(among, [WEIGHTS.get(name, 1) for name in among], k=count)


def missing_here(machine: Machine | None, *, lossy: bool) -> dict[str, str]:
    """What faults need and this machine has not, and why. The store is on a `lossy` disk, or another one."""
    found = {what: why_not(what) for what in ("disk", "network")}
    found["packets"] = found["network"] or why_no_link()
    found["lossy"] = lossy_disk.why_not() if lossy else "it takes --lossy"
    found["disk"] = "not with --lossy" if lossy else found["disk"]
    found["library"] = "no C compiler" if machine is None else ""
    if not os.access(MEMORY / "cgroup.procs", os.W_OK):
        found["memory"] = "no cgroup (version 1) for memory"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found["files"] = f"{hard} open files at the most" if hard < MANY_CONNECTIONS + 100 else ""
    return {what: why for what, why in found.items() if why}


def possible(missing: Mapping[str, str]) -> list[str]:
    """The faults that can be made here."""
    return [
        name
        for name in FAULTS
        if not any(name.startswith(begin) for begin, what in NEEDS.items() if what in missing)
    ]


def report(torture: Torture, seed: int, seconds: float, true: float) -> dict[str, object]:
    """What was done, and what came of it. All is by the clock of the rig, but for the `true_seconds`."""
    waits, measured = sorted(torture.waits), torture.measured
    return {
        "seed": seed,
        "speed": SPEED,
        "seconds": round(seconds, 1),
        "true_seconds": round(true, 1),
        "episodes": torture.episodes,
        "faults": dict(torture.counts),
        "fault_count": torture.counts.total(),
        "records": dict(torture.records),
        "longest_until_all_got_on_seconds": round(waits[-1], 2) if waits else 0.0,
        "median_until_all_got_on_seconds": round(waits[len(waits) // 2], 2) if waits else 0.0,
        "longest_life_of_a_broker_seconds": round(max(each.life_seconds for each in measured)),
        "memory_mib": [round(each.memory_mib, 1) for each in measured],
        "store_mib": round(measured[-1].store_mib, 1),
        "quiet_confirmations": sum(len(each.quiet_seconds) for each in measured),
        "quiet_p50_ms": [round(1000 * each.quiet(0.5), 1) for each in measured if each.quiet_seconds],
        "quiet_p99_ms": [round(1000 * each.quiet(0.99), 1) for each in measured if each.quiet_seconds],
        "violations": [violation._asdict() for violation in torture.violations],
    }


def _size_mib(directory: Path) -> float:
    return sum(f.stat().st_blocks * 512 for f in directory.rglob("*") if f.is_file()) / 1024 / 1024


def show(summary: dict[str, object]) -> None:
    """Print a summary for people."""
    for name, value in summary.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for one, number in sorted(value.items()):
                print(f"  {one:45}{number:>10,}" if isinstance(number, int) else f"  {one}: {number}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{name}:")
            for row in value[:20]:
                print(f"  {row['rule']}: {row['name']}: {row['text']}")
        else:
            print(f"{name}: {value}")


def run(
    options: argparse.Namespace, directory: Path, machine: Machine | None, seed: int
) -> dict[str, object]:
    """Torture a broker for as long as was asked for."""
    missing = missing_here(machine, lossy=options.lossy)
    here = possible(missing)
    among = options.only or [
        name
        for name in here
        if name not in options.without and not (options.soak and _may_end_the_broker(name))
    ]
    print(f"seed {seed}", file=sys.stderr)
    not_tried = {} if options.only else {n: _reason(n, missing) for n in FAULTS if n not in here}
    for name, why in not_tried.items():
        print(f"not tried: {name}: {why}", file=sys.stderr)
    # Who asks for some faults alone has the rest as it is.
    for what in ("disk", "lossy", "network"):
        if not _is_needed(what, among):
            missing[what] = "not asked for"
    began, truly_began = time.monotonic(), true_seconds()
    torture = Torture(directory, seed, machine, missing, options.pause)
    broker = torture.daemon.pid
    try:
        while not torture.violations and _goes_on(options, torture, began):
            chance = Random(seed * STRIDE + torture.episodes)
            each = chance.sample(among, len(among)) if options.each else None
            faults = each or schedule(chance, options.faults, among)
            torture.episode(faults, options.rest)
            assert not options.soak or torture.daemon.pid == broker, "the broker of a soak has ended"
            total, minutes = torture.counts.total(), (time.monotonic() - began) / 60
            print(
                f"{minutes:.1f} min: {total:,} faults, {len(torture.violations)} violations", file=sys.stderr
            )
        took = time.monotonic() - began, true_seconds() - truly_began
        return {**report(torture, seed, *took), "not_tried": not_tried}
    finally:
        torture.close()


def _may_end_the_broker(fault: str) -> bool:
    return any(word in fault for word in ENDS_THE_BROKER)


def _reason(fault: str, missing: Mapping[str, str]) -> str:
    return next(missing[what] for begin, what in NEEDS.items() if fault.startswith(begin) and what in missing)


def _is_needed(what: str, faults: Sequence[str]) -> bool:
    return any(fault.startswith(begin) for fault in faults for begin, need in NEEDS.items() if need == what)


def _goes_on(options: argparse.Namespace, torture: Torture, began: float) -> bool:
    return not torture.episodes or time.monotonic() - began < 60 * options.minutes


def on_bad_machine(speed: int) -> tuple[Path, Machine | None]:
    """A directory, and what all processes go by from now on; None where there is no such machine.

    Where the clocks run fast, this process begins again with them: it notes what is in the histories, too.
    """
    if bad_machine.FILE not in os.environ:
        directory = Path(tempfile.mkdtemp(prefix="malamute-torture-"))
        variables = bad_machine.build(directory, speed)
        if variables is None:
            return directory, None
        os.environ.update(variables)
        if speed > 1:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    file = Path(os.environ[bad_machine.FILE])
    return file.parent, bad_machine.machine(file)


def main() -> int:
    """Run what the arguments say. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Torture a broker, and account for every item. All durations are by the clock of the rig."
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long; an episode is ended (1)")
    parser.add_argument(
        "--speed",
        type=int,
        default=1,
        help="how many times as fast the clock runs: 720 minutes take 120 at 6 (1). Heartbeats do, too: "
        "beyond 10 a busy machine is late for them",
    )
    parser.add_argument("--seed", type=int, help="of the schedule (random)")
    parser.add_argument("--faults", type=int, default=FAULTS_EACH, help=f"in an episode ({FAULTS_EACH})")
    parser.add_argument(
        "--pause", type=float, default=PAUSE_SECONDS, help=f"between two rounds of a client ({PAUSE_SECONDS})"
    )
    parser.add_argument("--rest", type=float, default=0.0, help="seconds of load alone behind each fault (0)")
    parser.add_argument(
        "--soak", action="store_true", help="leave out what ends the broker, so that it lives as long as this"
    )
    parser.add_argument("--each", action="store_true", help="each fault once in an episode")
    parser.add_argument("--only", action="append", choices=FAULTS, help="this fault, and others so named")
    parser.add_argument("--without", action="append", default=[], choices=FAULTS, help="without this fault")
    parser.add_argument(
        "--lossy", action="store_true", help="the store is on a file system that forgets what was not synced"
    )
    parser.add_argument("--json", action="store_true", help="print the summary for programs")
    options = parser.parse_args()
    directory, machine = on_bad_machine(options.speed)
    if options.speed != SPEED:
        parser.error("--speed takes Linux and a C compiler, and is 1 or more")
    # Processes that are forked have these imported already.
    set_forkserver_preload(["malamute.server.daemon", "torture_load", "torture_hostile"])
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    summary = run(options, directory, machine, seed)
    if options.json:
        print(json.dumps(summary))
    else:
        show(summary)
    if summary["violations"]:
        print(f"the histories are in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
