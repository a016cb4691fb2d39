"""Rules of a pair: who serves, who counts for a confirmation, and when roles change. Events in, actions out.

Theory. No clock makes anything safe here; it says when to try. The pair is safe by these rules alone:

- Confirmed is a number that every member of *each value that may be in force* has synced: the last known
  value, and own swaps of unknown outcome (`counts`). So a standby counts from the moment its adding is sent,
  and until its dropping is known. A standby is added once it has all that is released.
- No node serves before a swap of its own in this life: it ends those that an earlier life has under way. Each
  start begins a timeline: a standby may have records that the primary lost in a crash, before its own sync.
- Only a member in sync of the value that is replaced takes over. After a refused swap nothing is confirmed
  until the register is read; a primary that it does not name any more stops at once.

A swap that was neither done nor refused is settled by reading, and by a further swap where the version is the
same. No register is asked twice at once: an action `Read` or `Swap` is followed by its outcome. With mode
`async` a standby is never in sync, and so never takes over by itself.

An instance is one life of a node. Actions are carried out in their order before the next event.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from malamute.errors import InvalidValue, MalamuteError
from malamute.pair import state
from malamute.pair.replication import NOBODY, History, is_behind
from malamute.pair.state import Member, PairValue


class Mode(Enum):
    """The conduct of a primary without its standby."""

    SYNC = "sync"
    """Go on alone once the register says so."""
    STRICT = "strict"
    """Confirm nothing."""
    ASYNC = "async"
    """Never wait: takeovers are by hand."""


class Role(Enum):
    """The part of a node in its pair."""

    WAITING = "waiting"
    PRIMARY = "primary"
    STANDBY = "standby"


class PairTimes(NamedTuple):
    """Durations in seconds."""

    heartbeat: float = 0.5
    lease: float = 3.0
    """A primary drops a standby that has answered nothing sent since then."""
    takeover: float = 5.0
    """A standby takes over after so long without a sign of its primary."""
    refused: float = 1.0
    """The same where the primary's host refuses the connection."""
    disk: float = 10.0
    """A primary whose disk has not answered for so long hands over."""
    grace: float = 1.0
    """The time for the register to say that the standby is dropped, before clients are sent away."""
    retry: float = 0.5
    """The pause before a register that did not answer is asked again."""


LEASE_MIN = 1.0


def check_times(times: PairTimes) -> None:
    """Raise InvalidValue for durations with which a standby takes over too early."""
    least = 1.25 * times.lease + 2 * times.heartbeat
    if min(times) <= 0:
        raise InvalidValue(f"duration of a pair of {min(times):g} s: expected more than 0")
    if times.lease < max(LEASE_MIN, 2 * times.heartbeat):
        raise InvalidValue(
            f"lease of {times.lease:g} s: expected at least {LEASE_MIN:g} s, and two heartbeats"
        )
    if times.takeover < least:
        raise InvalidValue(
            f"takeover after {times.takeover:g} s: expected at least 1.25 leases and two heartbeats,"
            f" {least:g} s"
        )


class Report(NamedTuple):
    """The other node by its own word; `serves` is its timeline if it serves clients, or 0."""

    pair: bytes
    name: str
    replica: bytes
    level: state.Level
    history: History
    serves: int = 0
    is_whole: bool = True
    """Whether no catch-up of its directory is half done."""


class Read(NamedTuple):
    """Read the register: `register_read`, `register_refused` or `register_away` follows."""


class Swap(NamedTuple):
    """Swap the register's value: `swap_done`, `swap_refused` or `swap_unknown` follows."""

    value: PairValue
    version: object


class Serve(NamedTuple):
    """Note the timeline durably, open the directory, and let clients in once all in it is released.

    After a loss the directory is opened in another incarnation.
    """

    timeline: int
    incarnation: bool = False


class Follow(NamedTuple):
    """Follow the primary of this name."""

    primary: str


class StopIntake(NamedTuple):
    """Take in nothing more; `drained` follows once the standby has all."""


class StopServing(NamedTuple):
    """Confirm nothing more, and end listeners and sessions."""

    reason: str


class CloseClients(NamedTuple):
    """Send the clients away, and refuse others, until `OpenClients`."""

    reason: str


class OpenClients(NamedTuple):
    """Let clients in again."""


class Say(NamedTuple):
    """Tell people of an event; `is_loud` where somebody has to act or copies are missing."""

    text: str
    is_loud: bool = False


Action = Read | Swap | Serve | Follow | StopIntake | StopServing | CloseClients | OpenClients | Say


class _Doubt(NamedTuple):
    """An own swap whose outcome is not known; it may be done as long as the version is the same."""

    value: PairValue
    version: object


class PairRules:
    """The rules of one node in one life; `fresh` returns 128 random bits at each call.

    `counts`, the shipment's `released` and the events belong under one lock: a member that counts from now on
    may not miss a number that is released now.
    """

    def __init__(
        self,
        name: str,
        member: Member,
        pair: bytes | None,
        history: History,
        *,
        mode: Mode,
        times: PairTimes,
        fresh: Callable[[], bytes],
    ) -> None:
        check_times(times)
        self.name = name
        self.member = member
        self.pair = pair
        self.history = history
        """How far the own directory has come: to be kept current while the node does not serve."""
        self.is_whole = True
        """Whether the own directory is no half of a catch-up, which never serves: to be kept current, too."""
        self.mode = mode
        self.times = times
        self.role = Role.WAITING
        self.value: PairValue | None = None
        """The register's value, if this node may act on it."""
        self.reason = "the register was not read yet"
        """Why a node waits, or a standby does not take over."""
        self.is_closed = False
        """Whether clients are sent away."""
        self.is_draining = False
        self.serves = 0
        """The timeline in which the node is primary, or 0."""
        self.register_answers: bool | None = None
        self._fresh = fresh
        self._served = 0
        self._version: object = None
        self._doubts: list[_Doubt] = []
        self._is_busy = False
        self._is_stale = False
        """Whether the register has another value than the last known one."""
        self._must_read = True
        self._ask_at = 0.0
        self._read_at: float | None = None
        self._out: list[Action] = []
        self._peer: Report | None = None
        self._since = 0.0
        """Begin of the role."""
        self._answered = self._heard = 0.0
        self._unsynced: float | None = None
        self._refused_at: float | None = None
        self._is_candidate = False
        """Whether the standby gets all in its order: it counts, and is added when it may."""
        self._peer_has = self._released = 0
        self._has_left = self._catches_up = False
        self._disk_waits = 0.0
        self._is_drained = False
        self._promotes = False

    # Questions

    @property
    def announces(self) -> int:
        """The timeline that heartbeats tell: 0 while the node does not serve, or has no clients."""
        return 0 if self.is_closed else self.serves

    def counts(self) -> frozenset[str]:
        """Return the members whose disks have to have all that is confirmed now."""
        if self.role is not Role.PRIMARY or self.value is None or self._is_stale:
            return frozenset((self.name, NOBODY))
        counted = {self.name}
        for value in self._in_force():
            counted.update(value.in_sync)
        other = self.value.other(self.name)
        if self.mode is Mode.STRICT:
            counted.add(other or NOBODY)
        elif self._is_candidate and other and self.mode is Mode.SYNC:
            counted.add(other)
        return frozenset(counted)

    def refusal(self, report: Report) -> str:
        """Return why the other node's greeting is refused, or nothing."""
        if report.replica == self.member.replica:
            return "it is a copy of this directory, or this node itself: `malamute pair join --new` there"
        if report.name == self.name:
            return f"both nodes are {self.name}: expected two names"
        if self.pair is not None and report.pair != self.pair:
            return f"it is of pair {report.pair.hex()}: expected {self.pair.hex()}"
        return self._stranger(report) if self.value is not None else ""

    def _stranger(self, report: Report) -> str:
        assert self.value is not None
        if report.name not in self.value.members:
            return f"{report.name} is no member of the pair: expected `malamute pair join` there"
        if not self.value.has(report.name, report.replica):
            return f"{report.name} has another directory: expected `malamute pair join --new` there"
        if self.role is Role.PRIMARY and not report.level.reads(self.member.level):
            return f"its version has {report.level}: expected {self.member.level} or newer"
        return ""

    # Events

    def started(self, now: float) -> list[Action]:
        """Begin the life."""
        self._since = self._heard = now
        return self._go(now)

    def tick(self, now: float, unsynced_since: float | None = None) -> list[Action]:
        """Look at the time; the oldest part that the standby has not synced was sent at `unsynced_since`."""
        self._unsynced = unsynced_since
        return self._go(now)

    def register_read(self, value: PairValue | None, version: object, now: float) -> list[Action]:
        """Take in the register's value; `version` is None without a value."""
        self._register_answered()
        self._must_read = False
        self._read_at = now
        self._learn(value, version, now)
        return self._go(now)

    def register_refused(self, text: str, now: float) -> list[Action]:
        """Take in that the register has something that is no value of a pair."""
        self._register_answered()
        self._read_at, self._must_read = now, False
        self._disown(text, now)
        return self._go(now)

    def register_away(self, now: float) -> list[Action]:
        """Take in that a read had no answer."""
        self._is_busy = False
        self._ask_at = now + self.times.retry
        if self.register_answers is not False:
            self._say("the register does not answer: no change of role, and no start", is_loud=True)
        self.register_answers = False
        if self.role is Role.WAITING and self.value is None:
            self.reason = "the register does not answer"
        return self._go(now)

    def swap_done(self, version: object, now: float) -> list[Action]:
        """Take in that the swap was done, with its new version."""
        self._register_answered()
        self._learn(self._doubts[-1].value, version, now)
        return self._go(now)

    def swap_refused(self, now: float) -> list[Action]:
        """Take in that the register has another version: nothing is confirmed until it is read."""
        self._register_answered()
        self._doubts.pop()
        self._is_stale = self._must_read = True
        return self._go(now)

    def swap_unknown(self, now: float) -> list[Action]:
        """Take in that the swap may be done, now or later."""
        self._must_read = True
        return self.register_away(now)

    def peer_greeted(self, report: Report, now: float) -> list[Action]:
        """Take in a greeting of the other node that was not refused."""
        self._peer, self._refused_at = report, None
        self._has_left = self._is_candidate = False
        # One that lacks confirmed numbers, since its disk was set back, may not take over.
        self._catches_up = report.history.lsn < self._released
        if self.role is Role.WAITING and self._may_follow(report):
            self._follow(report.name, now)
        return self.peer_heard(report.serves, now)

    def peer_heard(self, serves: int, now: float) -> list[Action]:
        """Take in a sign of life; `serves` is the timeline in which the other node serves clients, or 0."""
        self._refused_at = None
        if self.role is Role.PRIMARY and serves > self.serves:
            self._stop(f"the other node serves in timeline {serves}", now)
            self._must_read = True
        if serves and serves >= self.history.timeline:
            self._heard = now
        return self._go(now)

    def peer_answered(self, sent_at: float, now: float) -> list[Action]:
        """Take in an answer to a frame that was sent at `sent_at`."""
        self._refused_at = None
        self._answered = max(self._answered, sent_at)
        return self._go(now)

    def peer_synced(self, synced: int, released: int, now: float) -> list[Action]:
        """Take in the last number of a standby that gets all in order from now on, and the released one."""
        self._catches_up = False
        if not self._is_lost(now):
            self._is_candidate = True
        self._peer_has, self._released = synced, released
        return self._go(now)

    def peer_left(self, now: float, reason: str = "it stops") -> list[Action]:
        """Take in that the standby said goodbye, or that its disk refuses."""
        if self.role is Role.PRIMARY:
            self._say(f"the standby leaves: {reason}")
            self._has_left, self._is_candidate = True, False
        return self._go(now)

    def peer_catches_up(self, now: float) -> list[Action]:
        """Take in that the standby copies: until it gets all in order again, nobody waits for it."""
        self._catches_up, self._is_candidate = True, False
        return self._go(now)

    def connection_refused(self, now: float) -> list[Action]:
        """Take in that nobody listens at the other node's host."""
        if self._refused_at is None:
            self._refused_at = now
        return self._go(now)

    def handed_over(self, now: float) -> list[Action]:
        """Take in that the primary says it handed over."""
        self._must_read, self._ask_at = True, now
        return self._go(now)

    def disk_waits(self, seconds: float, now: float) -> list[Action]:
        """Take in for how long the own disk has not answered."""
        self._disk_waits = seconds
        return self._go(now)

    def switch_asked(self, now: float) -> list[Action]:
        """Take in that the primary is to hand over, or is to stop."""
        if self.role is Role.PRIMARY and not self.is_draining:
            if self._heir() is None or self._is_lost(now):
                self._say("no switch-over: no standby is in sync")
            else:
                self.is_draining = True
                self._out.append(StopIntake())
        return self._go(now)

    def drained(self, now: float) -> list[Action]:
        """Take in that the standby has all, and nothing more comes."""
        self._is_drained = self.is_draining
        return self._go(now)

    def promote_asked(self, now: float) -> list[Action]:
        """Take in that an operator wants this node to serve, with all losses."""
        if self.role is not Role.PRIMARY:
            self._promotes = self._must_read = True
        return self._go(now)

    # Knowledge

    def _register_answered(self) -> None:
        self._is_busy = False
        if self.register_answers is False:
            self._say("the register answers again")
        self.register_answers = True

    def _in_force(self) -> list[PairValue]:
        """Each value that may be in the register."""
        return [one for one in (self.value, *(doubt.value for doubt in self._doubts)) if one is not None]

    def _learn(self, value: PairValue | None, version: object, now: float) -> None:
        """Take in the value in force, with its consequences for the role."""
        own = any(value and doubt.value.change == value.change for doubt in self._doubts)
        self._doubts = [one for one in self._doubts if one.version == version]
        self._version, self._is_stale = version, False
        try:
            timeline = max(self.history.timeline, self._served)
            known = state.check(value, self.pair, timeline, self.name, self.member.replica)
        except MalamuteError as error:
            self._disown(error.text, now)
            return
        if self.value is not None and self.value.timeline != known.timeline:
            self._heard = now  # its primary was there to swap
        self.value, self.pair = known, known.pair
        if self.role is Role.PRIMARY:
            self._learn_as_primary(known, own, now)
        elif known.primary == self.name:
            self._learn_named(known, own, now)
        if self.role is not Role.PRIMARY and known.primary != self.name:
            self._follow(known.primary, now)

    def _learn_as_primary(self, known: PairValue, own: bool, now: float) -> None:
        if known.primary != self.name or known.timeline != self.serves:
            self._stop(f"{known.primary} is primary in timeline {known.timeline}", now)
        elif own and known.other(self.name) in known.in_sync:
            self._say("the standby is in sync")
        elif own:
            self._say("no standby is in sync: there is one copy", is_loud=True)

    def _learn_named(self, known: PairValue, own: bool, now: float) -> None:
        if own and known.timeline > self._served:
            self._serve(known, now)
        elif self.role is Role.STANDBY:
            self.role, self._since, self.reason = Role.WAITING, now, "the register names this node"

    def _disown(self, reason: str, now: float) -> None:
        """Note that this node may not act on the register's value. A standby goes on following."""
        self.value = None
        if self.role is Role.PRIMARY:
            self._stop(reason, now)
        self._tell(reason)

    def _serve(self, value: PairValue, now: float) -> None:
        self.role, self._since, self.reason = Role.PRIMARY, now, ""
        self.serves = self._served = value.timeline
        self._answered = now
        self._unsynced = None
        self._disk_waits = 0.0
        self._is_candidate = self._has_left = self._catches_up = False
        self._peer_has = self._released = 0
        self.is_draining = self._is_drained = self.is_closed = False
        self._out.append(Serve(value.timeline, self._promotes))
        self._promotes = False

    def _stop(self, reason: str, now: float) -> None:
        self.role, self.serves, self._since, self._heard = Role.WAITING, 0, now, now
        self.is_draining = self._is_drained = self._is_candidate = self.is_closed = False
        # How far the standby has come is asked anew: it may have records that the own disk refused.
        self._peer = None
        self._ask_at = now
        self.reason = reason
        self._out.append(StopServing(reason))

    def _follow(self, primary: str, now: float) -> None:
        if self.role is not Role.STANDBY:
            self.role, self._since, self._heard, self.reason = Role.STANDBY, now, now, ""
            self._out.append(Follow(primary))

    def _may_follow(self, report: Report) -> bool:
        """Return whether a primary is followed by its word: a member that comes back needs no register."""
        known = self.value.timeline if self.value is not None else self.history.timeline
        is_newest = report.serves > known or (self.value is None and report.serves == known > 0)
        return is_newest and report.pair == self.pair and not self._promotes

    def _tell(self, reason: str) -> None:
        if self.reason != reason:
            self.reason = reason
            self._say(reason, is_loud=True)

    def _say(self, text: str, *, is_loud: bool = False) -> None:
        self._out.append(Say(text, is_loud))

    # Decisions

    def _go(self, now: float) -> list[Action]:
        if self.role is Role.PRIMARY:
            self._guard(now)
        if not self._is_busy and now >= self._ask_at:
            self._ask(now)
        out, self._out = self._out, []
        return out

    def _ask(self, now: float) -> None:
        """Send the register one question, if there is one now."""
        if self._must_read or self._read_at is None:
            self._read()
            return
        by_role = {
            Role.PRIMARY: self._as_primary,
            Role.STANDBY: self._as_standby,
            Role.WAITING: self._as_waiting,
        }
        wanted = by_role[self.role](now)
        pause = self.times.retry if self.role is Role.WAITING else self.times.lease
        if wanted is not None:
            self._swap(wanted)
        elif self._must_read or now >= self._read_at + pause:
            self._read()

    def _read(self) -> None:
        self._is_busy = True
        self._out.append(Read())

    def _swap(self, value: PairValue) -> None:
        members = {**value.members, self.name: self.member}
        value = replace(value, members=members, change=self._fresh())
        self._is_busy = True
        self._doubts.append(_Doubt(value, self._version))
        self._out.append(Swap(value, self._version))

    def _heir(self) -> str | None:
        """Return the member to whom a primary may hand over: a follower that has all, or will."""
        assert self.value is not None
        other = self.value.other(self.name)
        is_able = other in self.value.in_sync or self.mode is Mode.ASYNC
        return other if self._is_candidate and is_able else None

    def _is_lost(self, now: float) -> bool:
        """Return whether no answer came to anything sent more than a lease ago."""
        is_away = self._has_left or self._catches_up
        return is_away or now - self._oldest() > self.times.lease

    def _oldest(self) -> float:
        return self._answered if self._unsynced is None else min(self._answered, self._unsynced)

    def _guard(self, now: float) -> None:
        """Send clients away when another one may serve, and let them in again."""
        assert self.value is not None
        if self._is_lost(now):
            self._is_candidate = False
        other = self.value.other(self.name)
        counts = any(other in one.in_sync for one in self._in_force())
        closes = counts and now - self._oldest() > self.times.lease + self.times.grace
        if closes and not self.is_closed:
            self._out.append(CloseClients("the standby does not answer, and nor does the register"))
        elif self.is_closed and not closes:
            self._out.append(OpenClients())
        self.is_closed = closes

    def _as_primary(self, now: float) -> PairValue | None:
        value = self.value
        assert value is not None
        other = value.other(self.name)
        if self.is_draining and self._is_lost(now):
            self._stop("the standby is gone in a switch-over", now)
            self._must_read = True
            return None
        if other is None:
            return value if self._doubts else None
        handed = self._hand_over(value, now)
        if handed is not None:
            return handed
        wanted = self._wanted(value, other, now)
        return replace(value, in_sync=wanted) if self._doubts or {*wanted} != {*value.in_sync} else None

    def _hand_over(self, value: PairValue, now: float) -> PairValue | None:
        heir = self._heir()
        if heir is None or self._is_lost(now):
            return None
        following = replace(value, timeline=value.timeline + 1, primary=heir)
        if self._is_drained:
            return replace(following, in_sync=(heir, self.name) if self.mode is not Mode.ASYNC else (heir,))
        if self._disk_waits >= self.times.disk:
            return replace(following, in_sync=(heir,))
        return None

    def _wanted(self, value: PairValue, other: str, now: float) -> tuple[str, ...]:
        """Return who is to be in sync."""
        if self._is_lost(now) and self.mode is not Mode.STRICT:
            return (self.name,)
        peer = self._peer
        is_ready = self._is_candidate and self._peer_has >= self._released and self.mode is not Mode.ASYNC
        is_able = peer is not None and value.has(other, peer.replica) and peer.level.reads(self.member.level)
        return (self.name, other) if is_ready and is_able else value.in_sync

    def _is_gone(self, now: float) -> bool:
        """Return whether the other node's host has refused connections long enough."""
        began = self._refused_at
        return began is not None and now - max(began, self._since) > self.times.refused

    def _as_standby(self, now: float) -> PairValue | None:
        value = self.value
        is_silent = self._is_gone(now) or now - self._heard > self.times.takeover
        if value is None or not (is_silent or self._promotes):
            return None
        assert self._read_at is not None
        if self._read_at < max(self._heard, self._since):
            self._must_read = True
            return None
        taken = replace(value, timeline=value.timeline + 1, primary=self.name, in_sync=(self.name,))
        if not self.is_whole:
            self._tell(f"{value.primary} is gone in the middle of a catch-up: this directory is not whole")
            return None
        if self._promotes:
            return taken
        if self.name not in value.in_sync:
            self._tell(f"{value.primary} is gone, and this node was not in sync: start the primary again")
            return None
        if not self.member.level.reads(value.members[value.primary].level):
            self._tell(f"{value.primary} is gone, and had a newer version: update this node")
            return None
        return taken

    def _as_waiting(self, now: float) -> PairValue | None:
        """Return the swap of one's own before serving, or the one that hands over to who has more."""
        value = self.value
        if value is None or value.primary != self.name:
            return None
        if not self.is_whole:
            self._tell("this directory is not whole, and the register names this node")
            return None
        other, peer = value.other(self.name), self._peer
        following = replace(value, timeline=value.timeline + 1)
        alone = replace(following, in_sync=(self.name,))
        if self._promotes or other is None or other not in value.in_sync:
            return alone
        if peer is None or not value.has(other, peer.replica):
            waited = self._is_gone(now) or now - self._since > self.times.lease
            return following if waited else None
        if is_behind(self.history, peer.history) and peer.is_whole:
            return replace(following, primary=other, in_sync=(other,))
        keeps = peer.level.reads(self.member.level) and self.mode is not Mode.ASYNC
        return following if keeps else alone
