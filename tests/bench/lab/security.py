"""What security costs: rules, encryption, strangers at the door, a change of rules, and many users.

Each pair of a row alternates: a round without, and a round with. Rules, keys and accounts are made for it.
The longest hold of the loop by a change of rules is that of a core in this process, in its processor time, so
that nothing but the work itself is in it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq
from zmq.utils import z85

from lab import strangers
from lab.raw_peer import RawPeer
from malamute.access import AccessRule, Account, Accounts, Policy
from malamute.bench import workloads, workspace
from malamute.bench.figures import MEBIBYTE, elapsed_seconds, extent, middle, us_each
from malamute.bench.machine import anonymous_bytes, cpu_seconds
from malamute.bench.processes import Measured, WorkloadFunction, run_together
from malamute.bench.workloads import Begin, Workload
from malamute.client.sync.client import connect
from malamute.config.accounts import save_accounts
from malamute.core.identity.access import Principal
from malamute.protocol.admin import BrokerReload
from malamute.protocol.limits import Limits
from malamute.protocol.messages import VERSION, Hello, Ping, Pong, Subscribe
from malamute.protocol.time_units import to_ms
from malamute.server.process import BrokerProcess

if TYPE_CHECKING:
    from malamute.core.broker import Core
    from malamute.core.iteration.settings import Settings

NAME = "security"
CREDIT = 20_000

GROUPS = 10
"""Groups that the users are in."""

STORE_BYTES = 1 << 20
"""Bytes of memory that the store of the core in this process may take."""

PAUSE_SECONDS = 0.002
"""Between two signs of life that another client asks for."""


class SecurityOptions(NamedTuple):
    """What was asked for. `rate` is how many strangers connect in a second."""

    messages: int
    size_bytes: int
    batch: int
    rules: int
    rate: int
    sessions: int
    users: int
    rounds: int
    directory: Path


class SecurityRow(NamedTuple):
    """One comparison: the medians of the rounds `without` and `secured`, and by what it is more.

    `ratio` is time in parts of the time without it, and `extent` that of the rounds.
    """

    what: str
    unit: str
    without: float | None
    secured: float
    ratio: float | None
    extent: list[float] | None
    expected: str
    note: str


Round = Callable[[], tuple[float, float]]
"""A figure without, and one with."""


def measure(options: SecurityOptions) -> Iterator[SecurityRow]:
    """One after the other."""
    with workspace.temporary_directory(options.directory) as directory:
        keys = _make_keys(directory)
        yield from _rules(options, directory)
        yield _curve(options, directory, keys)
        yield from _flood(options, directory, keys)
        yield _change(options)
        yield _page(options)
        yield from _users(options, directory, keys)


# Rules


def _rules(options: SecurityOptions, directory: Path) -> Iterator[SecurityRow]:
    """Batched publish, and a round trip, with rules and without."""
    others = [f"publish stream/other{number}.#" for number in range(options.rules - 4)]
    own = ("* stream/#", "* mailbox/#", "* service/#", "view broker/#")
    config = _write(directory / "rules.toml", f"[access]\nrules = {[*own, *others]}\n")
    cases = (
        ("batched publish", "messages/s", _publish, options.messages, "<= 1.05"),
        ("round trip", "ms", _round_trip, max(options.messages // 100, 10), "<= 1.03"),
    )
    for what, unit, act, messages, expected in cases:
        found = [
            tuple(
                act(_workload(options, broker.url, messages), ())
                for broker in _each_broker(directory, (), ("--config", str(config)))
            )
            for _ in range(options.rounds)
        ]
        yield _row(f"{options.rules:,} rules, {what}", unit, found, expected)


def _each_broker(directory: Path, *all_options: Sequence[str]) -> Iterator[BrokerProcess]:
    """A broker for each of these options, one after the other."""
    for options in all_options:
        with (
            workspace.temporary_directory(directory) as own,
            BrokerProcess(own, *options) as broker,
        ):
            yield broker


def _workload(options: SecurityOptions, url: str, messages: int) -> Workload:
    return Workload(url, NAME, messages, options.size_bytes, options.batch, CREDIT)


def _publish(workload: Workload, variables: Variables) -> float:
    """Messages a second from a publisher to a subscriber, in batches."""
    sender, receiver = run_together(
        (secured, variables, workloads.publish_columns, workload),
        (secured, variables, workloads.subscribe, workload),
    )
    return workload.messages / elapsed_seconds(sender, receiver)


def _round_trip(workload: Workload, variables: Variables) -> float:
    """Milliseconds from a request to its reply, the median."""
    _, asker = run_together(
        (secured, variables, workloads.answer, workload),
        (secured, variables, workloads.ask, workload),
    )
    return to_ms(sorted(asker["latencies"])[len(asker["latencies"]) // 2])


Variables = Sequence[tuple[str, str]]


def secured(begin: Begin, variables: Variables, play: WorkloadFunction, *arguments: Any) -> Measured:
    """Play a workload as whom these variables of the environment say."""
    os.environ.update(variables)
    return play(begin, *arguments)


# Encryption


class BenchKeys(NamedTuple):
    """The options of a broker with keys, and the variables of a client that it knows."""

    options: tuple[str, ...]
    variables: Variables


def _make_keys(directory: Path) -> BenchKeys:
    for name in ("broker", "ann"):
        public, secret = (half.decode() for half in zmq.curve_keypair())
        _write(directory / f"{name}.key", f'curve\n    public-key = "{public}"\n')
        _write(
            directory / f"{name}.key_secret",
            f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n',
        )
    save_accounts(Accounts([Account("ann", key=public)]), directory / "accounts.toml")
    options = (
        *("--listen", "curve+tcp://127.0.0.1:*"),
        *workspace.set_options(
            f"access.key={directory}/broker.key_secret", f"access.accounts={directory}/accounts.toml"
        ),
    )
    variables = (
        ("MALAMUTE_CURVE", f"{directory}/ann.key_secret"),
        ("MALAMUTE_SERVER_KEY", f"{directory}/broker.key"),
    )
    return BenchKeys(options, variables)


def _curve(options: SecurityOptions, directory: Path, keys: BenchKeys) -> SecurityRow:
    """Batched publish over an open connection, and over an encrypted one, each to a new broker."""
    listeners: tuple[Variables, ...] = (), keys.variables
    found = [
        tuple(
            _publish(_workload(options, broker.endpoints[place], options.messages), listeners[place])
            for place, broker in enumerate(_each_broker(directory, keys.options, keys.options))
        )
        for _ in range(options.rounds)
    ]
    return _row(f"CURVE, {options.size_bytes} bytes, batched 1 to 1", "messages/s", found, "<= 1.3")


# Strangers


class _Flooded(NamedTuple):
    """What was published while strangers came, and what that took of the broker."""

    messages_per_second: float
    cpu_us: float
    strangers: int


def _flood(options: SecurityOptions, directory: Path, keys: BenchKeys) -> Iterator[SecurityRow]:
    """Batched publish of a known user: alone, beside a flood of another broker, and of its own listener.

    The strangers, and the system, take processor time wherever they go. Only what is beyond that is the
    broker's.
    """
    found: list[tuple[_Flooded, ...]] = []
    for _ in range(options.rounds):
        with (
            workspace.temporary_directory(directory) as own,
            BrokerProcess(own, *keys.options) as other,
        ):
            alone, beside = (
                _publish_amid(options, broker, keys, target)
                for broker, target in zip(
                    _each_broker(directory, keys.options, keys.options), (None, other), strict=True
                )
            )
            (flooded,) = (
                _publish_amid(options, broker, keys, broker)
                for broker in _each_broker(directory, keys.options)
            )
        found.append((alone, beside, flooded))
    came = f"{middle(flooded.strangers for *_, flooded in found):,.0f} strangers tried"
    what = f"{options.rate:,} strangers/s"
    rates = [tuple(one.messages_per_second for one in each) for each in found]
    costs = [tuple(one.cpu_us for one in each) for each in found]
    yield _row(f"{what} at another broker", "messages/s", [each[:2] for each in rates], "")
    yield _row(f"{what} here, beside that", "messages/s", [each[1:] for each in rates], "<= 1.1", came)
    yield _row(f"{what} here, processor time", "us a message", [each[::2] for each in costs], "")


def _publish_amid(
    options: SecurityOptions, broker: BrokerProcess, keys: BenchKeys, target: BrokerProcess | None
) -> _Flooded:
    counts: list[int] = []
    with strangers.flooding(target, dict(keys.variables)["MALAMUTE_SERVER_KEY"], options.rate, counts):
        before = cpu_seconds(broker.pid)
        rate = _publish(_workload(options, broker.endpoints[1], options.messages), keys.variables)
        cpu = us_each(cpu_seconds(broker.pid) - before, options.messages)
    return _Flooded(rate, round(cpu, 2), sum(counts))


# A change of rules


def _change(options: SecurityOptions) -> SecurityRow:
    """The longest that the core works in one piece when the rules of many sessions change."""
    from malamute.server.daemon import quiet_collector

    longest, steps = [], 0
    for _ in range(options.rounds):
        with quiet_collector():
            took = _change_rules(options.sessions)
        longest.append(to_ms(max(took)))
        steps = len(took)
    return SecurityRow(
        f"change of rules, {options.sessions:,} sessions",
        "ms",
        None,
        middle(longest),
        None,
        extent(longest),
        "<= 10",
        f"the longest of {steps:,} iterations, in processor time",
    )


def _change_rules(sessions: int) -> list[int]:
    """What each iteration of a core with so many sessions takes from a change on, in ns."""
    from malamute.core.iteration.settings import Settings

    rules = ("publish,subscribe stream/s/fx.#", "receive mailbox/{user}")
    settings = Settings(limits=Limits(sessions=sessions), access=_policy(*rules))
    core = _core(settings)
    for number in range(sessions):
        peer = b"\1" + number.to_bytes(15, "big")
        core.receive(peer, Hello([VERSION], f"u{number}"), 1.0, Principal(f"u{number}"))
        core.receive(peer, Subscribe(1, "s", [["topic", "fx.eur"]], credit=-1), 1.0)
        core.ready()
    took = [_took(lambda: core.configure(settings._replace(access=_policy(*rules, "view broker/#")), 1.0))]
    while core.effects.chores:
        took.append(_took(core.ready))
    return took


def _core(settings: Settings) -> Core:
    from malamute.core.broker import Core
    from malamute.journal.memory import MemoryStore

    store = MemoryStore(size=STORE_BYTES, counted=lambda: 0.0)
    return Core(1.0, settings, store.recover(records_bytes=0, now=1.0))


def _page(options: SecurityOptions) -> SecurityRow:
    """The longest that the core works for a page of so many stored accounts."""
    from malamute.core.admin.users import users
    from malamute.core.iteration.settings import Settings
    from malamute.protocol.admin import UsersQuery
    from malamute.server.daemon import quiet_collector

    core = _core(Settings(limits=Limits(accounts=options.users)))
    for number in range(options.users):
        core.accounts.stored.put(_account(number))
    page_of = partial(users, core.effects, core.accounts, core.quotas)
    longest = []
    with quiet_collector():
        for _ in range(options.rounds):
            took, names = [], [""]
            while names:
                query = UsersQuery(after_name=names[-1])
                names = []
                took.append(_took(lambda: names.extend(row.name for row in page_of(query))))  # noqa: B023
            longest.append(to_ms(max(took)))
    return SecurityRow(
        f"a page of {options.users:,} stored accounts",
        "ms",
        None,
        middle(longest),
        None,
        extent(longest),
        "<= 5",
        f"the longest of {len(took):,} pages, in processor time",
    )


def _policy(*rules: str) -> Policy:
    return Policy(map(AccessRule.parse, rules))


def _took(action: Callable[[], object]) -> int:
    begun = time.thread_time_ns()
    action()
    return time.thread_time_ns() - begun


# Many users


def _users(options: SecurityOptions, directory: Path, keys: BenchKeys) -> Iterator[SecurityRow]:
    """Memory, start, and reload of a broker with so many accounts beside one with a single one."""
    users = f"{options.users:,} users"
    path = directory / "users.toml"
    accounts = [_account(number) for number in range(options.users)]
    save_accounts(Accounts(accounts), path)
    rules = "".join(
        f'[[access.group]]\nname = "g{n}"\nrules = ["publish stream/g{n}.#"]\n' for n in range(GROUPS)
    )
    config = _write(directory / "groups.toml", f'[access]\nrules = ["* */#"]\n{rules}')
    many = (*keys.options, "--config", str(config), *workspace.set_options(f"access.accounts={path}"))
    memory: list[tuple[float, ...]] = []
    starts: list[tuple[float, ...]] = []
    waits: list[tuple[float, ...]] = []
    for _ in range(options.rounds):
        found = []
        begun = time.monotonic()
        for broker in _each_broker(directory, keys.options, many):
            start = time.monotonic() - begun
            size = anonymous_bytes(broker.pid) / MEBIBYTE
            save_accounts(Accounts([*accounts, _account(options.users)]), path)
            found.append((size, start, _longest_wait(broker.url)))
            begun = time.monotonic()
        for rows, pair in zip((memory, starts, waits), zip(*found, strict=True), strict=True):
            rows.append(pair)
    more = [many - one for one, many in memory]
    yield _row(f"{users}, memory", "MiB", memory, "<= 100 more", f"{middle(more):.1f} MiB more", shares=False)
    yield _row(f"{users}, start and the stop before", "s", starts, "", shares=False)
    note = "the longest wait for a sign of life"
    yield _row(f"{users}, reload", "ms", waits, "<= 10 more", note, shares=False)


def _account(number: int) -> Account:
    key = z85.encode(number.to_bytes(32, "big")).decode()
    return Account(f"user{number}", key=key, groups=(f"g{number % GROUPS}",))


def _longest_wait(url: str) -> float:
    """How long another client waits for a sign of life at the most during a reload, in ms."""

    def read_again() -> None:
        with connect(url, timeout=workloads.TIMEOUT_SECONDS) as operator:
            operator.change(BrokerReload())

    with RawPeer(url, "other") as other:
        reload = threading.Thread(target=read_again)
        reload.start()
        waits: list[int] = []
        while reload.is_alive() or not waits:
            begun = time.perf_counter_ns()
            other.send(Ping())
            other.next(Pong)
            waits.append(time.perf_counter_ns() - begun)
            time.sleep(PAUSE_SECONDS)
        reload.join()
    return to_ms(max(waits))


# Rows


def _row(
    what: str,
    unit: str,
    found: Sequence[tuple[float, ...]],
    expected: str,
    note: str = "",
    *,
    shares: bool = True,
) -> SecurityRow:
    """The row of rounds, each without and with. Of rates the ratio is that of the times."""
    ratios = [without / with_ if unit.endswith("/s") else with_ / without for without, with_ in found]
    return SecurityRow(
        what,
        unit,
        middle(pair[0] for pair in found),
        middle(pair[1] for pair in found),
        middle(ratios) if shares else None,
        extent(ratios) if shares else extent(pair[1] for pair in found),
        expected,
        note,
    )


def _write(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path
