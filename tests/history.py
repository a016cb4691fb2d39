"""What clients did and saw, as plain records, and a checker that says which promises these break.

A client notes what it asks for before it asks, and what came of it after. So whatever ends it, or the broker,
at any moment: what was asked and has no result may have been done, or not. Times are of one clock for all
processes of a machine. The checker is a function of the records; `check` reads nothing else.

What a promise does not hold for is a record, too: what an operator orders, what may expire, what the rig does
to the disk. So no rule has an exception for anybody who does not note one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

PUBLISH, PUBLISHED, PUBLISH_REFUSED = "publish", "published", "publish-refused"
SUBSCRIBE, SUBSCRIBED = "subscribe", "subscribed"
READ, GAP, FINISHED = "read", "gap", "finished"
COMMIT, COMMITTED = "commit", "committed"
STATE, STORED = "state", "stored"
SEND, SENT, SEND_REFUSED = "send", "sent", "send-refused"
DELIVERED, RELEASED, SETTLED, OUTCOME, LEFT = "delivered", "released", "settled", "outcome", "left"
PURGE, PURGED, PURGE_REFUSED, LOOKED = "purge", "purged", "purge-refused", "looked"
EXPIRES, REMOVED, REDRIVE, FORGOTTEN = "expires", "removed", "redrive", "forgotten"
"""What a promise does not hold for. A message that may expire. Sequences or a message that are no more: the
rig has damaged them, retention has dropped them, their sender has withdrawn them. Dead letters that are to be
sent again. A command whose session the broker has forgotten before it answered: it may be done twice."""
KILLED, BACK, DISK_FAILS, DISK_WORKS = "killed", "back", "disk-fails", "disk-works"
ANOTHER_STORE = "another-store"
RESTORED, ENDED = "restored", "ended"
"""What is done to the broker: it is about to be killed, and is back; its disk refuses, and works; its store
is lost, and a copy of an earlier time, `sequence`, takes its place. A client, the `key`, is at its end."""

DURABLE, SCATTERED = "durable", "scattered"
"""Words in the text of a SUBSCRIBE: to what is durable only, and one that begins with single messages."""

AT_ONCE = "at once"
"""The text of a PURGE that takes nothing of what its client sends behind it, as it is one commit."""

BY_CONSUMER = ("acknowledged", "reply")
"""The outcomes that only a consumer brings about."""


class Record(NamedTuple):
    """One line of a history.

    `client` is one life of a program, or one subscription of it, `name` the stream or the queue, and `key`
    what tells a message from all others. `sequence` and `last` are the first and the last of a GAP, of what
    was REMOVED, and of what a client learned that a stream has. `attempts` are those of a delivery or of what
    was settled. FINISHED is a client that came to its end by itself: a reader at the last message, a sender
    with all outcomes, or with that of one message. STATE is that what a stream has in the end was looked at:
    what is STORED.

    A SUBSCRIBE has the name of its cursor as `key`, in `sequence` the first message that it asks for if it
    knows that, and in `text` what it takes. SUBSCRIBED has the first one that the broker names. A COMMIT has
    the cursor as `key`; without a `sequence` it is set to anywhere. A PUBLISH says in `text` which choices
    take it, in words; without one all do. A SEND may have in `text` the identity that makes messages one,
    and in `last` for how many nanoseconds it does.
    """

    at_ns: int
    client: str
    kind: str
    name: str
    key: str = ""
    sequence: int = 0
    last: int = 0
    attempts: int = 0
    text: str = ""


class Recorder:
    """Notes what one client does and sees: `sink` gets each record, with the time of a clock."""

    def __init__(
        self, client: str, sink: Callable[[Record], object], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._client = client
        self._sink = sink
        self._clock = clock

    def __call__(self, kind: str, name: str, key: str = "", **fields: int | str) -> None:
        """Note that something is asked for, or what came of it."""
        self._sink(Record(self._clock(), self._client, kind, name, key, **fields))  # type: ignore[arg-type]


class FileRecorder(Recorder):
    """Appends the records to a file, each in one write: a kill leaves whole lines."""

    def __init__(self, file: Path, client: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        super().__init__(client, self._append)

    def _append(self, record: Record) -> None:
        os.write(self._file, json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_history(files: Iterable[Path]) -> list[Record]:
    """All records of these files, in the order of their times."""
    lines = (line for file in files for line in file.read_text().splitlines())
    return sorted(Record(*json.loads(line)) for line in lines)


class Violation(NamedTuple):
    """A promise that a history breaks: the rule, the stream or queue, and what is wrong."""

    rule: str
    name: str
    text: str


def check(history: Iterable[Record]) -> list[Violation]:
    """Every way in which a history breaks a promise; none for a good one."""
    found: list[Violation] = []
    by_name: defaultdict[str, list[Record]] = defaultdict(list)
    for record in sorted(history):
        by_name[record.name].append(record)
    faults = by_name.pop("", [])
    for name, records in by_name.items():
        log = Log(records, faults)
        for needed, rules in RULES:
            if log[needed]:
                for rule, broken in rules.items():
                    found += [Violation(rule, name, text) for text in broken(log)]
    return found


Span = tuple[int, int]
"""From when to when."""

_UNDONE = frozenset((PUBLISHED, COMMITTED, SENT, SETTLED, PURGED))
"""What counts as without an answer if a copy of the store took its place that is older."""


class Log:
    """The records of one stream or queue, by kind, and what was done to the broker meanwhile."""

    def __init__(self, records: Sequence[Record], faults: Sequence[Record]) -> None:
        self._by_kind: defaultdict[str, list[Record]] = defaultdict(list)
        for record in faults:
            self._by_kind[record.kind].append(record)
        self.undone = [(record.sequence, self._back(record)) for record in self[RESTORED]]
        for record in records:
            is_undone = record.kind in _UNDONE and any(a < record.at_ns < b for a, b in self.undone)
            if not is_undone:
                self._by_kind[record.kind].append(record)

    def _back(self, restored: Record) -> int:
        return next((r.at_ns for r in self[BACK] if r.at_ns > restored.at_ns), sys.maxsize)

    def __getitem__(self, kind: str) -> list[Record]:
        return self._by_kind.get(kind, [])

    def of(self, *kinds: str) -> list[Record]:
        """The records of these kinds, in order."""
        return sorted(record for kind in kinds for record in self[kind])

    def keys(self, kind: str) -> set[str]:
        """The keys of all records of a kind."""
        return {record.key for record in self[kind]}

    def by_client(self, *kinds: str) -> Iterator[tuple[str, list[Record]]]:
        """The records of these kinds, in order, of each client that has any."""
        by_client = sorted(self.of(*kinds), key=itemgetter(1))
        for client, of_client in groupby(by_client, key=itemgetter(1)):
            yield client, list(of_client)

    def spans(self, begin: str, end: str) -> Iterator[Span]:
        """From when to when something was so."""
        ends = [record.at_ns for record in self[end]]
        for record in self[begin]:
            place = bisect_left(ends, record.at_ns)
            yield record.at_ns, ends[place] if place < len(ends) else sys.maxsize

    @cached_property
    def killed(self) -> list[Span]:
        """When what was not durable is gone: over a kill, and from the making of a copy until its use."""
        return sorted([*self.spans(KILLED, BACK), *self.undone])

    @cached_property
    def asked(self) -> dict[str, Record]:
        """The record with which each message was asked to be taken for the first time."""
        return {record.key: record for kind in (SEND, PUBLISH) for record in reversed(self[kind])}

    @cached_property
    def twice(self) -> set[str]:
        """What may have been done twice."""
        return self.keys(FORGOTTEN)

    @cached_property
    def one_of_many(self) -> set[str]:
        """What has its identity with others, one of which may stand for it."""
        counts = Counter(record.text for record in self[SEND])
        return {record.key for record in self[SEND] if record.text and counts[record.text] > 1}

    @cached_property
    def purges(self) -> list[tuple[Record, int]]:
        """Each purge that may have been made, and when that was over."""
        answers = {(r.client, r.key): r for kind in (PURGED, PURGE_REFUSED) for r in self[kind]}
        found = ((record, answers.get((record.client, record.key))) for record in self[PURGE])
        return [
            (record, answer.at_ns if answer else sys.maxsize)
            for record, answer in found
            if answer is None or answer.kind == PURGED
        ]

    def is_purged(self, key: str) -> bool:
        """Whether an operator may have dropped a message."""
        asked = self.asked.get(key)
        return any(asked is None or asked.at_ns < _until(purge, over, asked) for purge, over in self.purges)

    def is_removed(self, key: str, sequence: int = 0) -> bool:
        """Whether a message is no more, and that was to be expected. It may not be known where it was."""
        return (
            self.is_purged(key)
            or any(record.key == key for record in self[REMOVED] if record.key)
            or self.is_sequence_removed(sequence)
        )

    def is_sequence_removed(self, sequence: int) -> bool:
        """Whether a sequence is no more; with 0, whether any is."""
        ranges = [(record.sequence, record.last) for record in self[REMOVED] if not record.key]
        return any(not sequence or first <= sequence <= last for first, last in ranges)


def _until(purge: Record, over: int, asked: Record) -> int:
    """Until when what is asked for may be dropped by a purge that is over some time."""
    is_behind = purge.text == AT_ONCE and purge.client == asked.client
    return purge.at_ns if is_behind else over


# Streams. STORED is what a last reader found when all was over, from the first message to the last.


def _lost(log: Log) -> Iterator[str]:
    stored = log.keys(STORED)
    for record in log[PUBLISHED]:
        if record.key not in stored and not log.is_removed(record.key, record.sequence):
            yield f"{record.key} was confirmed and is not stored"


def _never_published(log: Log) -> Iterator[str]:
    asked = log.keys(PUBLISH)
    yield from (f"{r.client} read {r.key}, never published" for r in log[READ] if r.key not in asked)


def _invented(log: Log) -> Iterator[str]:
    asked, refused = log.keys(PUBLISH), log.keys(PUBLISH_REFUSED) - log.twice
    for record in log[STORED]:
        if record.key not in asked or record.key in refused:
            yield f"{record.key} is stored, and was {'refused' if record.key in asked else 'never published'}"


def _duplicate(log: Log) -> Iterator[str]:
    counts = Counter(record.key for record in log[STORED])
    for key, count in counts.items():
        if count > 1 and key not in log.twice:
            yield f"{key} is stored {count} times"


def _reused(log: Log) -> Iterator[str]:
    """A sequence that anybody has seen is that of one message for ever."""
    keys: dict[int, str] = {}
    for record in log.of(STORED, READ, PUBLISHED):
        if record.sequence and keys.setdefault(record.sequence, record.key) != record.key:
            yield f"sequence {record.sequence} is {keys[record.sequence]}'s and {record.key}'s"


def _order(log: Log) -> Iterator[str]:
    """What one publisher publishes is stored in that order, and what was confirmed before what came later."""
    if any(a.sequence >= b.sequence for a, b in pairwise(log[STORED])):
        yield "the sequences do not ascend"
    places = {record.key: record.sequence for record in log[STORED] if record.key not in log.twice}
    for client, published in log.by_client(PUBLISH):
        own = [places[record.key] for record in published if record.key in places]
        if own != sorted(own):
            yield f"the messages of {client} are in another order"
    high = 0
    for record in log.of(PUBLISH, PUBLISHED):
        place = places.get(record.key, 0)
        if record.kind == PUBLISHED:
            high = max(high, place)
        elif place and place < high:
            yield f"{record.key} was published after {high} was confirmed, and is {place}"


def _monotonic(log: Log) -> Iterator[str]:
    for client, reads in log.by_client(READ):
        for a, b in pairwise(reads):
            if a.sequence >= b.sequence:
                yield f"{client} read {b.sequence} after {a.sequence}"


class Reader:
    """What one subscription asked for, and had."""

    def __init__(
        self, records: Iterable[Record], stored: Sequence[Record], taken_by: Mapping[str, str]
    ) -> None:
        self.reads: list[Record] = []
        self.gaps: list[Record] = []
        self.asked: Record | None = None
        self.begins = 0
        self.begun_ns = 0
        """When it was known where it begins."""
        self.has_ended = False
        for record in records:
            if record.kind == READ:
                self.reads.append(record)
                self.begun_ns = self.begun_ns or record.at_ns
            elif record.kind == GAP:
                self.gaps.append(record)
            elif record.kind == SUBSCRIBE:
                self.asked, self.begins = record, record.sequence
            elif record.kind == SUBSCRIBED:
                self.begins, self.begun_ns = self.begins or record.sequence, record.at_ns
            else:
                self.has_ended = True
        words = set(self.asked.text.split()) if self.asked else set()
        self.is_durable, self.is_scattered = DURABLE in words, SCATTERED in words
        choices = words - {DURABLE, SCATTERED}
        self.wanted = [r for r in stored if not choices or choices & {*taken_by.get(r.key, "").split()}]

    def was_told(self, sequence: int) -> bool:
        """Whether a GAP says that there is no such message."""
        return any(gap.sequence <= sequence <= gap.last for gap in self.gaps)

    def owed(self) -> list[Record]:
        """What it is to have read of what is stored: from where it begins, to the end if it came so far."""
        first = self.begins or (self.reads[0].sequence if self.reads else sys.maxsize)
        last = sys.maxsize if self.has_ended else self.reads[-1].sequence if self.reads else 0
        return [record for record in self.wanted if first <= record.sequence <= last]


def _readers(log: Log) -> Iterator[tuple[str, Reader]]:
    taken_by = {record.key: record.text for record in log[PUBLISH] if record.text}
    for client, records in log.by_client(SUBSCRIBE, SUBSCRIBED, READ, GAP, FINISHED):
        yield client, Reader(records, log[STORED], taken_by)


def _skipped(log: Log) -> Iterator[str]:
    """A reader gets all that it asked for from its first message on, to the end if it read so far."""
    may_expire = log.keys(EXPIRES)
    for client, reader in _readers(log):
        read = {record.sequence for record in reader.reads}
        missed = [
            record.sequence
            for record in reader.owed()
            if record.sequence not in read
            and record.key not in may_expire
            and not reader.was_told(record.sequence)
        ]
        if missed and not reader.is_scattered:
            yield f"{client} missed {len(missed)} messages, {missed[0]} the first"


def _false_gap(log: Log) -> Iterator[str]:
    """Nobody is notified of a gap where there are messages; a copy may have brought them back."""
    may_expire = log.keys(EXPIRES)
    for client, reader in _readers(log):
        sequences = [record.sequence for record in reader.wanted]
        for gap in reader.gaps:
            if gap.text == ANOTHER_STORE:
                # A history is of one store, or of copies of it: each position in it is one in that store,
                # unless the disk refused to reserve it. Behind such a one nothing ever comes.
                if any(read.at_ns < gap.at_ns for read in reader.reads):
                    yield f"{client} got a gap as if its position were in another store"
                continue
            covered = reader.wanted[bisect_left(sequences, gap.sequence) : bisect_right(sequences, gap.last)]
            is_brought_back = any(gap.at_ns < back for _, back in log.undone)
            if not is_brought_back and any(record.key not in may_expire for record in covered):
                yield f"{client} got a gap of {gap.sequence} to {gap.last}: {gap.text}"


def _untold(log: Log) -> Iterator[str]:
    """Who read to the end and had what is no more was notified, and nobody who asked for what is durable."""
    stored = {record.sequence for record in log[STORED]}
    for client, reader in _readers(log):
        for read in reader.reads:
            if read.sequence in stored or log.is_removed(read.key, read.sequence):
                continue
            told = reader.was_told(read.sequence)
            # What was durable is gone where a copy of before that took the place of the store.
            published = log.asked.get(read.key, read)
            was_durable = any(published.at_ns < back for _, back in log.undone)
            if (reader.is_durable and not was_durable) or (reader.has_ended and not told):
                yield f"{client} read {read.sequence}, which is not stored{', though told' if told else ''}"


def _cursor(log: Log) -> Iterator[str]:
    """A reader begins where its cursor may be: at a commit that no other one had followed by then."""
    stored = [record.sequence for record in log[STORED]]
    commits = [*_commits(log)]
    for client, reader in _readers(log):
        asked = reader.asked
        if asked is None or not asked.key or not (reader.begins or reader.reads):
            continue
        begins = reader.begins or reader.reads[0].sequence
        own = [commit for commit in commits if commit.cursor == asked.key]
        last = max((c.asked for c in own if c.is_known and c.over < asked.at_ns), default=0)
        possible = [c.sequence for c in own if c.asked < reader.begun_ns and c.over >= last]
        is_exact = reader.begins > 0
        if last and not any(_begins_at(at, begins, stored, log, is_exact=is_exact) for at in possible):
            yield f"{client} begins at {begins} with the cursor at {sorted({*possible})}"


class Commit(NamedTuple):
    """A cursor that is set, between the moment it was asked for and the one when that was over."""

    cursor: str
    sequence: int
    asked: int
    over: int
    is_known: bool
    """Whether it was done, and not only may have been."""


def _commits(log: Log) -> Iterator[Commit]:
    """The commits. One without an answer is over with the next one of its client, and with the client."""
    ended = {record.key: record.at_ns for record in log[ENDED]}
    for client, records in log.by_client(COMMIT, COMMITTED):
        answered: dict[str, Record] = {}
        for record in reversed(records):
            if record.kind == COMMITTED:
                answered[record.key] = record
            else:
                answer = answered.get(record.key)
                over = answer.at_ns if answer else ended.get(client, sys.maxsize)
                is_known = answer is not None and answer.sequence == record.sequence
                yield Commit(record.key, record.sequence, record.at_ns, over, is_known)


def _begins_at(committed: int, begins: int, stored: Sequence[int], log: Log, *, is_exact: bool) -> bool:
    """Whether a reader begins behind what was committed, and behind nothing else that there is."""
    if not committed:
        return True
    if begins <= committed:
        # What was committed may have been taken back, and then there is nothing so far ahead.
        return not (committed in stored or log.is_sequence_removed(committed))
    if is_exact:
        return begins == committed + 1
    return bisect_right(stored, committed) == bisect_left(stored, begins)


# Queues. LEFT is what was still in the queue when all was over.


def _undelivered(log: Log) -> Iterator[str]:
    had = log.keys(DELIVERED) | log.keys(LEFT) | log.keys(EXPIRES)
    had |= {record.key for record in log[OUTCOME] if record.text not in BY_CONSUMER}
    for record in log[SENT]:
        if not (record.key in had or record.key in log.one_of_many or log.is_removed(record.key)):
            yield f"{record.key} was confirmed and is nowhere"


def _unsent(log: Log) -> Iterator[str]:
    asked = Counter(record.key for record in log[SEND])
    refused = Counter(record.key for record in log[SEND_REFUSED])
    for record in log[DELIVERED]:
        if asked[record.key] <= refused[record.key] and record.key not in log.twice:
            yield f"{record.key} was delivered, and {'refused' if asked[record.key] else 'never sent'}"


def _repeated(log: Log) -> Iterator[str]:
    """A delivery is with one consumer, and the next one says that it is another attempt."""
    last: dict[tuple[str, int, int], Record] = {}
    for record in log[DELIVERED]:
        place = record.key, record.sequence, record.attempts
        before = last.get(place)
        if before is not None and not _is_forgotten(log, before, record):
            yield f"{record.key} was delivered again as attempt {record.attempts}"
        last[place] = record


def _attempts(log: Log) -> Iterator[str]:
    last: dict[tuple[str, str, int], Record] = {}
    for record in log[DELIVERED]:
        place = record.client, record.key, record.sequence
        before = last.get(place)
        if before and record.attempts <= before.attempts and not _is_forgotten(log, before, record):
            yield f"{record.key}: attempt {record.attempts} after {before.attempts}"
        last[place] = record


def _is_forgotten(log: Log, before: Record, record: Record) -> bool:
    """Whether the broker may not count a delivery at the next one.

    Whoever released it has undone it, also by a release of the attempt before that crossed its recall. Or a
    copy of before it took the place of the store. Or the broker was killed between the two. That there was a
    first delivery is durable before it is made. That there was another is stored with it, and so before
    anything that is sent after it was seen. Neither is durable where the disk has refused it.
    """
    released = [r.at_ns for r in log[RELEASED] if r.sequence in (before.sequence, record.sequence)]
    if any(before.at_ns < at < record.at_ns for at in released):
        return True
    if released and record.attempts > 1:
        recalled = [
            r.at_ns for r in log[DELIVERED] if (r.key, r.attempts) == (record.key, record.attempts - 1)
        ]
        if any(first < at < before.at_ns for at in released for first in recalled):
            return True
    if any(copied < before.at_ns < back for copied, back in log.undone):
        return True
    killed = next((k for k, back in log.killed if k < record.at_ns and before.at_ns < back), 0)
    if not killed:
        return False
    sent = {send.key: send.at_ns for send in reversed(log[SEND])}
    if any(a < killed and sent.get(record.key, 0) < b for a, b in log.spans(DISK_FAILS, DISK_WORKS)):
        return True
    # A request is answered before it is durable; who settles it waits for the disk.
    durable = log[SETTLED] or log[SENT]
    return before.attempts > 1 and not any(
        before.at_ns < sent.get(r.key, 0) and r.at_ns < killed for r in durable
    )


def _settled_twice(log: Log) -> Iterator[str]:
    for kind in (SETTLED, OUTCOME):
        counts = Counter(record.key for record in log[kind])
        for key, count in counts.items():
            # One on its way, when a copy of before it took the place of the store, may be read behind that.
            most = 1 + len(log.undone) * (kind == OUTCOME)
            if count > most and key not in log.twice:
                yield f"{key}: {kind} {count} times"


def _after_settled(log: Log) -> Iterator[str]:
    settled = {record.key: record for record in log[SETTLED] if record.key not in log.twice}
    left = log.keys(LEFT)
    yield from (f"{key} was settled and is still there" for key in settled if key in left)
    sequences = {(record.key, record.attempts): record.sequence for record in log[DELIVERED]}
    for record in log[DELIVERED]:
        end = settled.get(record.key)
        # Attempts are those of a sequence: a dead letter that is sent again has another one.
        if not end or record.sequence != sequences.get((record.key, end.attempts), record.sequence):
            continue
        if record.attempts > end.attempts and not _is_forgotten(log, record, end):
            yield f"{record.key} was settled at attempt {end.attempts}, and there is {record.attempts}"


def _no_outcome(log: Log) -> Iterator[str]:
    """A sender that came to its end has the outcome of each message that is not in the queue any more."""
    over = log.keys(OUTCOME) | log.keys(LEFT) | log.one_of_many
    finished = {(record.client, record.key) for record in log[FINISHED]}
    for record in log[SENT]:
        awaited = finished & {(record.client, ""), (record.client, record.key)}
        if awaited and record.key not in over:
            yield f"{record.key} was confirmed and has no outcome"


def _twice(log: Log) -> Iterator[str]:
    """Messages of one identity are one message, however often they were sent and confirmed."""
    if log[REDRIVE]:
        return
    sequences: defaultdict[str, set[int]] = defaultdict(set)
    for record in log[DELIVERED]:
        if record.sequence and record.key not in log.twice:
            sequences[record.key].add(record.sequence)
    yield from (f"{key} is {sorted(found)}" for key, found in sequences.items() if len(found) > 1)
    yield from _of_one_identity(log, sequences)


def _of_one_identity(log: Log, there: Iterable[str]) -> Iterator[str]:
    """Of those that were sent and seen while the identity of one counts, there is one."""
    seen: dict[str, int] = {}
    for record in log.of(DELIVERED, SENT):
        seen.setdefault(record.key, record.at_ns)
    confirmed = {record.key: record.at_ns for record in reversed(log[SENT])}
    known: defaultdict[str, list[Record]] = defaultdict(list)
    for record in log[SEND]:
        if record.text and record.key in there:
            known[record.text].append(record)
    for identity, records in known.items():
        for one, other in pairwise(records):
            first, second = sorted((one, other), key=lambda record: seen[record.key])
            # What was not confirmed may be forgotten over a kill, though it was delivered.
            is_forgotten = any(
                first.at_ns < back and killed < min(seen[second.key], confirmed.get(first.key, sys.maxsize))
                for killed, back in log.killed
            )
            if not is_forgotten and seen[second.key] < one.at_ns + one.last:
                yield f"{one.key} and {other.key} are both {identity}"


# Changes. Where one client publishes, purges and looks in turn, each purge that is made twice is seen.


def _undone(log: Log) -> Iterator[str]:
    """What was published before a purge that was confirmed is not there."""
    purged = high = 0
    asked: dict[tuple[str, str], int] = {}
    for record in log.of(PUBLISHED, PURGE, PURGED, LOOKED, STORED):
        if record.kind == PUBLISHED:
            high = max(high, record.sequence)
        elif record.kind == PURGE:
            asked[record.client, record.key] = high
        elif record.kind == PURGED:
            purged = max(purged, asked[record.client, record.key])
        elif record.sequence <= purged:
            yield f"all up to {purged} was purged, and {record.sequence} is there"


def _done_again(log: Log) -> Iterator[str]:
    """What was published after a purge was answered is there: it was not done again."""
    kept, doubt = 0, False
    for record in log.of(PUBLISHED, PURGE, PURGED, PURGE_REFUSED, LOOKED):
        if record.kind == PURGE:
            kept, doubt = 0, True
        elif record.kind in (PURGED, PURGE_REFUSED):
            doubt = False
        elif record.kind == PUBLISHED and not (doubt or kept):
            kept = record.sequence
        elif record.kind == LOOKED and kept and not record.sequence <= kept <= record.last:
            yield f"{kept} is newer than the last purge, and there are {record.sequence} to {record.last}"
    if log[STATE] and log.purges:
        yield from _lost(log)


PUBLISHED_RULES = {
    "invented": _never_published,
    "sequence used again": _reused,
    "monotonic reads": _monotonic,
}
STREAM_RULES = {
    "lost": _lost,
    "invented": _invented,
    "duplicate": _duplicate,
    "order": _order,
    "skipped": _skipped,
    "false gap": _false_gap,
    "taken back untold": _untold,
    "cursor": _cursor,
}
QUEUE_RULES = {
    "lost": _undelivered,
    "invented": _unsent,
    "repeated delivery": _repeated,
    "attempts": _attempts,
    "settled twice": _settled_twice,
    "after settlement": _after_settled,
    "no outcome": _no_outcome,
    "deduplication": _twice,
}
CHANGE_RULES = {"change undone": _undone, "change repeated": _done_again}

RULES = ((PUBLISH, PUBLISHED_RULES), (PURGE, CHANGE_RULES), (STATE, STREAM_RULES), (SEND, QUEUE_RULES))
"""Which rules a stream or queue is held against: those of the kinds of record that it has."""


def summary(history: Iterable[Record]) -> Mapping[str, int]:
    """How many records of each kind."""
    return dict(sorted(Counter(record.kind for record in history).items()))
