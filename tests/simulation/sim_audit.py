"""The book of the audit: each change that takes effect has one record, in the transaction of the change.

What a change did is in the outcomes that the broker stores of a session, and some of it in what else it
stores. So each transaction must have as many records as new outcomes, and a record for each feed, retention
and history that it changes. What it changes for a session that has ended has a record and no outcome.

Refusals, and changes of cursors, are counted: `NOTES` of them have records of their own in each period, and
the others one together, later. What the disk refuses has another record as soon as the broker knows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim_admin import target_of
from sim_origin import Violation, ident_of

from malamute.core.reports.audit import DONE, FAILED, PARTIAL, REFUSED
from malamute.core.reports.refusal_log import PERIOD_SECONDS, REFUSALS_MAX
from malamute.core.session.change_outcomes import Outcomes
from malamute.core.session.refusals import TEXT as REFUSED_BEFORE
from malamute.protocol.batch import unpack_payload, unpack_record
from malamute.protocol.messages import Change, Error, Message, Ok
from malamute.protocol.names import AUDIT
from malamute.store.commit import Append
from malamute.store.operations import (
    AppendChunk,
    DeleteStream,
    DeleteValue,
    NoteRefused,
    Operation,
    PutValue,
    Recovered,
    Reserve,
    Retain,
)
from malamute.store.tables import FEEDS, OUTCOMES, RETENTIONS, SESSIONS

COUNTED = ("cursor.set", "cursor.delete")
"""Changes whose records are counted like refusals."""

AT_ONCE = {"client.disconnect", "queue.delete"}
"""Changes that are in force whatever the disk says to that."""

OUTCOMES_EVER = 100
"""As many changes as no session ever asks for in a run."""

WITHOUT_OUTCOME = frozenset((405, 421))
"""Refusals of whoever has no session, and of numbers that are out of order: they are sent again."""

Asked = tuple[str, str, str]
"""A change as a record names it: the session, the topic, and the arguments that are short."""
Known = dict[bytes, dict[int, Any]]
"""The outcomes of each session, by the numbers of the changes."""


class Record(NamedTuple):
    """A record of the audit."""

    asked: Asked
    topic: str
    arguments: Mapping[str, Any]
    outcome: str
    count: int

    @property
    def is_note(self) -> bool:
        """Whether it counts others, or may be counted by another one."""
        return self.outcome == REFUSED or self.topic in COUNTED


def _records(operations: Sequence[Operation]) -> Iterator[Record]:
    for operation in operations:
        if isinstance(operation, AppendChunk) and operation.stream == AUDIT:
            for record in unpack_payload(operation.chunk.payload, operation.chunk.large).records:
                headers, frames = unpack_record(record)
                arguments = json.loads(bytes(frames[0]))["arguments"]
                topic = headers["topic"]
                yield Record(
                    _asked(headers["client"], topic, arguments),
                    topic,
                    arguments,
                    headers["outcome"],
                    headers["count"],
                )


def _asked(ident: str, topic: str, arguments: Mapping[str, Any]) -> Asked:
    short = {name: value for name, value in arguments.items() if not isinstance(value, list | dict | str)}
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    if "password" in texts:
        texts["password"] = "…"
    return ident, topic, json.dumps(short | texts, sort_keys=True)


class AuditBook:
    """What was changed, and the records of it."""

    def __init__(
        self, now: Callable[[], float], has_failed: Callable[[], bool], unconfirmed: int, *, on: bool
    ) -> None:
        self.on = on
        self._unconfirmed = unconfirmed
        self._now = now
        self._has_failed = has_failed
        self._changes: dict[tuple[bytes, int], Change] = {}
        """What each number of a session asks for."""
        self._stored: Known = {}
        """The outcomes that the disk has, and those that the broker wants it to have."""
        self._wanted: Known = {}
        self._late: Counter[Asked] = Counter()
        """Changes that the disk has refused and that are in force, and have no record yet."""
        self._unstored: set[tuple[bytes, int]] = set()
        """Changes in force like that of which the disk has refused the outcome, and has none yet."""
        self._early: Counter[Asked] = Counter()
        """Those whose record came first: their outcomes wait for what their sessions store next."""
        self._parts: Counter[Asked] = Counter()
        """Changes of several commits that have a record of a part. The last may have come to no more."""
        self._newest: dict[bytes, int] = {}
        """The last number of each session."""
        self._ended: set[str] = set()
        """Sessions that the broker has forgotten at some time."""
        self._owed = 0
        """Refusals and changes of cursors that no record tells of yet."""
        self._refused_again = 0
        """Those of which the disk has refused the records, which are written again a little later."""
        self._notes: list[float] = []
        """When there was something to count, in the last period."""

    # What the broker does

    def received(self, peer: bytes, message: Message) -> None:
        """The broker is about to read a command."""
        number = getattr(message, "number", 0)
        self._newest[peer] = max(number, self._newest.get(peer, 0))
        if isinstance(message, Change):
            self._changes[peer, number] = message

    def ending(self, peer: bytes) -> None:
        """The broker forgets a session. The next of that name begins anew, whatever the disk has."""
        self._ended.add(ident_of(peer))
        self._stored.pop(peer, None)
        self._wanted.pop(peer, None)

    def handed_out(self, append: Append) -> None:
        """The broker wants to store something."""
        for peer, number in _new(append.operations, self._wanted):
            if self._topic(peer, number) in COUNTED and not self._is_tried(peer, number):
                self._note()
        if self.on:
            for record in _records(append.operations):
                if record.is_note or record.outcome == FAILED:
                    self._owed -= record.count

    def failed(self, append: Append) -> None:
        """It could not be stored: what it was to store of outcomes is new when it is repeated."""
        for record in _records(append.operations) if self.on else ():
            if record.outcome in (REFUSED, FAILED) or (record.is_note and record.count > 1):
                self._refused_again += record.count
        for peer, outcomes in _outcomes(append.operations).items():
            wanted = self._wanted.get(peer, {})
            for number, value in outcomes.items():
                if self._stored.get(peer, {}).get(number) != value:
                    wanted.pop(number, None)
                    if self._topic(peer, number) in AT_ONCE:
                        self._unstored.add((peer, number))

    def sent(self, peer: bytes, message: Ok | Error) -> None:
        """The broker answers a change."""
        if isinstance(message, Error):
            if message.text != REFUSED_BEFORE and message.code not in WITHOUT_OUTCOME:
                self._refused(peer, message)
        elif self._needs_record(peer, message.ref) and ident_of(peer) not in self._ended:
            known = self._stored.get(peer, {}).get(message.ref)
            excused = self._has_failed() or self._is_forgotten(peer, message.ref)
            if self.on and known != message.value and not excused:
                raise Violation("a change was confirmed that has no record", number=message.ref)

    def _refused(self, peer: bytes, message: Error) -> None:
        if message.ref in self._stored.get(peer, {}):
            raise Violation("a change was refused that is in force", number=message.ref, text=message.text)
        if not self._is_tried(peer, message.ref):
            self._note()

    def _note(self) -> None:
        if self.on:
            self._owed += 1
            self._notes.append(self._now())

    def iterated(self) -> None:
        """An iteration is over: what is to be counted has its record, unless there were many."""
        again = min(self._refused_again, max(0, -self._owed))
        self._owed, self._refused_again = self._owed + again, self._refused_again - again
        first = self._now() - PERIOD_SECONDS
        self._notes = [at for at in self._notes if at >= first]
        remembered = not self._ended and self._unconfirmed > OUTCOMES_EVER
        # The broker counts these, too, when nothing tells of them, since their outcomes are forgotten.
        unseen = 0 if remembered else sum(change.topic in COUNTED for change in self._changes.values())
        if self._owed > 0 and len(self._notes) + unseen <= REFUSALS_MAX:
            raise Violation("a refusal has no record", owed=self._owed, notes=self._notes)
        exact = remembered and not self._has_failed()
        if self._owed < 0 and exact:
            raise Violation("a record of a refusal that nobody had", owed=self._owed)

    def check_done(self) -> None:
        """At the end everything has its record."""
        if self._late:
            raise Violation("a change never got its record", late=self._late)
        if self._owed > 0 or self._refused_again > 0:
            raise Violation("a refusal has no record", owed=self._owed, again=self._refused_again)

    # What the disk does

    def committed(self, operations: Sequence[Operation]) -> None:
        """These are on the disk, all at once."""
        new = _new(operations, self._stored)
        if not self.on:
            return
        records = [record for record in _records(operations) if record.outcome in (DONE, PARTIAL)]
        found = Counter(record.asked for record in records if not record.is_note)
        # What was on its way when a session ended is stored once more behind its end.
        new = [change for change in new if ident_of(change[0]) not in self._ended]
        owed = Counter(self._key(*change) for change in new if self._needs_record(*change))
        missing = owed - found - self._early
        if missing and not (self._has_failed() and {topic for _, topic, _ in missing} <= AT_ONCE):
            raise Violation("a change has no record in its transaction", owed=owed, found=found)
        parts = Counter(record.asked for record in records if record.outcome == PARTIAL)
        late, self._late = self._late, self._late - (found - owed) + missing
        self._early -= owed - found
        self._unstored.difference_update(new)
        unstored = Counter(self._key(*change) for change in self._unstored)
        for asked, count in (found - owed - parts - self._parts - late).items():
            if self._early[asked] + count <= unstored[asked]:
                self._early[asked] += count
            elif asked[0] not in self._ended and not self._is_old(asked):
                raise Violation("a record of what was not changed", record=asked, count=count)
        for record in records:
            self._parts[record.asked] = int(record.outcome == PARTIAL)
        _check_effects(operations, records)

    def started(self, recovered: Recovered) -> None:
        """A broker starts on what the disk holds."""
        self._stored = {
            peer: dict(Outcomes.unpack(value).decided)
            for (peer, part), value in recovered.table(SESSIONS).items()
            if part == OUTCOMES
        }
        self._wanted = {peer: dict(outcomes) for peer, outcomes in self._stored.items()}
        self._parts.clear()
        self._late.clear()
        self._unstored.clear()
        self._early.clear()
        self._owed = self._refused_again = 0
        self._notes.clear()

    # What is known of a change

    def _topic(self, peer: bytes, number: int) -> str:
        change = self._changes.get((peer, number))
        return change.topic if change is not None else ""

    def _is_tried(self, peer: bytes, number: int) -> bool:
        """Whether a change is only tried. That has no record."""
        return bool(self._changes[peer, number].arguments.get("dry_run"))

    def _needs_record(self, peer: bytes, number: int) -> bool:
        """Whether a change has a record of its own."""
        return self._topic(peer, number) not in ("", *COUNTED) and not self._is_tried(peer, number)

    def _is_forgotten(self, peer: bytes, number: int) -> bool:
        """Whether the outcome of a change may be forgotten before it is stored: nobody can ask for it."""
        return number <= self._newest[peer] - self._unconfirmed

    def _is_old(self, asked: Asked) -> bool:
        """Whether a change of which only this is known may be forgotten."""
        return any(self._is_forgotten(*change) and self._key(*change) == asked for change in self._changes)

    def _key(self, peer: bytes, number: int) -> Asked:
        change = self._changes[peer, number]
        return _asked(ident_of(peer), change.topic, change.arguments)


def _outcomes(operations: Sequence[Operation]) -> Known:
    """The outcomes of sessions when all of this is stored."""
    found: Known = {}
    for operation in operations:
        if isinstance(operation, PutValue) and operation.table == SESSIONS and operation.key[1] == OUTCOMES:
            found[operation.key[0]] = dict(Outcomes.unpack(operation.value).decided)
        elif isinstance(operation, DeleteValue) and operation.table == SESSIONS:
            found[operation.key[0]] = {}
    return found


def _new(operations: Sequence[Operation], known: Known) -> list[tuple[bytes, int]]:
    """The changes whose outcomes these store anew. They are known from now on."""
    new = []
    for peer, outcomes in _outcomes(operations).items():
        before = known.get(peer, {})
        new += [(peer, n) for n, value in outcomes.items() if n not in before or before[n] != value]
        known[peer] = outcomes
    return new


def _check_effects(operations: Sequence[Operation], records: Sequence[Record]) -> None:
    """What a transaction changes of streams and feeds, it has records of."""
    told, cascades = _told(records)
    # With the history of a stream that is dropped, what stays of it is stored again.
    dropped = Counter(o.stream for o in operations if isinstance(o, DeleteStream))
    made: Counter[tuple[str, Any]] = Counter()
    for operation in operations:
        own = getattr(operation, "stream", "") == AUDIT
        if own and not isinstance(operation, AppendChunk | NoteRefused | Reserve | Retain):
            raise Violation("the audit was changed", operation=operation)
        if isinstance(operation, PutValue | DeleteValue) and operation.table in (FEEDS, RETENTIONS):
            is_put = isinstance(operation, PutValue)
            if is_put and operation.key[0] in dropped:
                continue
            made[f"{operation.table} {'put' if is_put else 'deleted'}", _one(operation.key)] += 1
    made.update({("dropped", stream): count for stream, count in dropped.items()})
    for effect, count in made.items():
        if effect[0] == f"{FEEDS} deleted":
            stream, feed = effect[1]
            told[effect] += cascades[f"stream/{stream}"] + cascades[target_of(feed)]
        if effect[0] != "dropped" and told[effect] < count:
            raise Violation("a change is in force without a record", effect=effect, operations=operations)
        if effect[0] == "dropped" and told[effect] < count and not _is_collected(operations, effect[1]):
            raise Violation("a history was dropped without a record", effect=effect)


def _told(records: Sequence[Record]) -> tuple[Counter[tuple[str, Any]], Counter[str]]:
    """What records tell of effects; and of which places a feed ends in a cascade, before they do."""
    told: Counter[tuple[str, Any]] = Counter()
    cascades: Counter[str] = Counter()
    for record in records:
        arguments = record.arguments
        feed = arguments.get("source", "").removeprefix("stream/"), arguments.get("feed")
        if record.topic == "stream.delete" and record.outcome == PARTIAL:
            cascades[f"stream/{arguments['stream']}"] += 1
        elif record.topic == "queue.delete" and record.outcome == PARTIAL:
            cascades[f"{arguments['kind']}/{arguments['name']}"] += 1
        elif what := _EFFECTS.get(record.topic):
            told[what, feed if feed[1] else arguments.get("stream")] += 1
    return told, cascades


def _is_collected(operations: Sequence[Operation], stream: str) -> bool:
    """Whether a stream goes with its last reader, since nothing ever was there. It has no journal."""
    return stream == "live"


def _one(key: Any) -> Any:
    return key[0] if len(key) == 1 else tuple(key)


_EFFECTS = {
    "stream.purge": "dropped",
    "stream.delete": "dropped",
    "feed.set": f"{FEEDS} put",
    "feed.enable": f"{FEEDS} put",
    "feed.disable": f"{FEEDS} put",
    "feed.delete": f"{FEEDS} deleted",
    "stream.retain": f"{RETENTIONS} put",
    "stream.create": f"{RETENTIONS} put",
}
"""What each change does to the disk."""
