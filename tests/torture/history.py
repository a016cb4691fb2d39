"""What clients did and saw, as plain records, and a checker that says which promises these break.

A client notes what it asks for before it asks, and what came of it after. So whatever ends it, or the broker,
at any moment: what was asked and has no result may have been done, or not. Times are of one clock for all
processes of a machine. The checker is a function of the records; `check` reads nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

PUBLISH, PUBLISHED, PUBLISH_REFUSED = "publish", "published", "publish-refused"
READ, GAP, FINISHED = "read", "gap", "finished"
COMMIT, COMMITTED = "commit", "committed"
STORED = "stored"
SEND, SENT, SEND_REFUSED = "send", "sent", "send-refused"
DELIVERED, SETTLED, OUTCOME, LEFT = "delivered", "settled", "outcome", "left"
PURGE, PURGED, PURGE_REFUSED, LOOKED = "purge", "purged", "purge-refused", "looked"
KILLED, BACK, DISK_FAILS, DISK_WORKS = "killed", "back", "disk-fails", "disk-works"
"""What is done to the broker: it is about to be killed, and is back; its disk refuses, and works."""

DURABLE, CURSOR = "durable", "cursor"
"""The text of a READ: of a subscription to what is durable only, and of one that begins at a cursor."""


class Record(NamedTuple):
    """One line of a history.

    `client` is one life of a program, `name` the stream or the queue, and `key` what tells a message from all
    others. `sequence` and `last` are the first and the last of a GAP, and of what a client learned that a
    stream has. `attempts` are those of a delivery or of what was settled. FINISHED is a client that came to
    its end by itself: a reader at the last message, a sender with all outcomes.
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
    """Appends records of one life of a client to a file, each in one write: a kill leaves whole lines."""

    def __init__(self, file: Path, client: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._client = client

    def __call__(self, kind: str, name: str, key: str = "", **fields: int | str) -> None:
        """Note that something is asked for, or what came of it."""
        record = Record(time.monotonic_ns(), self._client, kind, name, key, **fields)  # type: ignore[arg-type]
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
        kinds = {record.kind for record in records}
        for needed, rules in RULES:
            if needed in kinds:
                for rule, broken in rules.items():
                    found += [Violation(rule, name, text) for text in broken(Log([*records, *faults]))]
    return found


class Log:
    """The records of one stream or queue, by kind."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._by_kind: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            self._by_kind[record.kind].append(record)

    def __getitem__(self, kind: str) -> list[Record]:
        return self._by_kind.get(kind, [])

    def keys(self, kind: str) -> set[str]:
        """The keys of all records of a kind."""
        return {record.key for record in self[kind]}

    def by_client(self, *kinds: str) -> Iterator[tuple[str, list[Record]]]:
        """The records of these kinds, in order, of each client that has any."""
        records = sorted(record for kind in kinds for record in self[kind])
        for client, of_client in groupby(sorted(records, key=itemgetter(1)), key=itemgetter(1)):
            yield client, list(of_client)


# Streams. STORED is what a last reader found when all was over, from the first message to the last.


def _lost(log: Log) -> Iterator[str]:
    stored = log.keys(STORED)
    yield from (f"{r.key} was confirmed and is not stored" for r in log[PUBLISHED] if r.key not in stored)


def _invented(log: Log) -> Iterator[str]:
    asked, refused = log.keys(PUBLISH), log.keys(PUBLISH_REFUSED)
    for record in log[STORED]:
        if record.key not in asked or record.key in refused:
            yield f"{record.key} is stored, and was {'refused' if record.key in asked else 'never published'}"
    yield from (f"{r.client} read {r.key}, never published" for r in log[READ] if r.key not in asked)


def _duplicate(log: Log) -> Iterator[str]:
    counts = Counter(record.key for record in log[STORED])
    yield from (f"{key} is stored {count} times" for key, count in counts.items() if count > 1)


def _reused(log: Log) -> Iterator[str]:
    """A sequence that anybody has seen is that of one message for ever."""
    keys: dict[int, str] = {}
    for record in sorted([*log[STORED], *log[READ], *log[PUBLISHED]]):
        if record.sequence and keys.setdefault(record.sequence, record.key) != record.key:
            yield f"sequence {record.sequence} is {keys[record.sequence]}'s and {record.key}'s"


def _order(log: Log) -> Iterator[str]:
    """What one publisher publishes is stored in that order, and what was confirmed before what came later."""
    if any(a.sequence >= b.sequence for a, b in pairwise(log[STORED])):
        yield "the sequences do not ascend"
    places = {record.key: record.sequence for record in log[STORED]}
    for client, published in log.by_client(PUBLISH):
        own = [places[record.key] for record in published if record.key in places]
        if own != sorted(own):
            yield f"the messages of {client} are in another order"
    high = 0
    for record in sorted([*log[PUBLISH], *log[PUBLISHED]]):
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


def _skipped(log: Log) -> Iterator[str]:
    """A reader gets all from the first message on, or where its cursor is, to the end if it read so far."""
    stored = [record.sequence for record in log[STORED]]
    to_the_end = {record.client for record in log[FINISHED]}
    for client, reads in log.by_client(READ):
        read = {record.sequence for record in reads}
        first = bisect_left(stored, min(read)) if reads[0].text == CURSOR else 0
        last = len(stored) if client in to_the_end else bisect_right(stored, max(read))
        among = stored[first:last]
        missed = [sequence for sequence in among if sequence not in read]
        if missed:
            yield f"{client} missed {len(missed)} messages, {missed[0]} the first"


def _false_gap(log: Log) -> Iterator[str]:
    stored = [record.sequence for record in log[STORED]]
    for gap in log[GAP]:
        place = bisect_left(stored, gap.sequence)
        if place < len(stored) and stored[place] <= gap.last:
            yield f"{gap.client} got a gap of {gap.sequence} to {gap.last}: {gap.text}"


def _untold(log: Log) -> Iterator[str]:
    """Who read to the end and had what is no more was notified, and nobody who asked for what is durable."""
    stored = {record.sequence for record in log[STORED]}
    ended = {record.client for record in log[FINISHED]}
    gaps = dict(log.by_client(GAP))
    for client, reads in log.by_client(READ):
        for read in reads:
            told = any(gap.sequence <= read.sequence <= gap.last for gap in gaps.get(client, ()))
            if read.sequence not in stored and (read.text == DURABLE or (client in ended and not told)):
                yield f"{client} read {read.sequence}, which is not stored{', though told' if told else ''}"


def _cursor(log: Log) -> Iterator[str]:
    """A reader with a cursor begins behind what was committed, and not behind what nobody committed."""
    stored = [record.sequence for record in log[STORED]]
    confirmed = asked = 0
    seen: set[str] = set()
    for record in sorted([*log[COMMIT], *log[COMMITTED], *(r for r in log[READ] if r.text == CURSOR)]):
        if record.kind == COMMIT:
            asked = max(asked, record.sequence)
        elif record.kind == COMMITTED:
            confirmed = max(confirmed, record.sequence)
        elif record.client not in seen and log[COMMIT]:
            seen.add(record.client)
            between = stored[bisect_right(stored, asked) : bisect_left(stored, record.sequence)]
            if record.sequence <= confirmed or between:
                yield f"{record.client} begins at {record.sequence} with the cursor at {confirmed} or {asked}"


# Queues. LEFT is what was still in the queue when all was over.


def _undelivered(log: Log) -> Iterator[str]:
    had = log.keys(DELIVERED) | log.keys(LEFT)
    yield from (f"{r.key} was confirmed and is nowhere" for r in log[SENT] if r.key not in had)


def _unsent(log: Log) -> Iterator[str]:
    asked = Counter(record.key for record in log[SEND])
    refused = Counter(record.key for record in log[SEND_REFUSED])
    for record in log[DELIVERED]:
        if asked[record.key] <= refused[record.key]:
            yield f"{record.key} was delivered, and {'refused' if asked[record.key] else 'never sent'}"


def _repeated(log: Log) -> Iterator[str]:
    """A delivery is with one consumer, and the next one says that it is another attempt."""
    last: dict[tuple[str, int], Record] = {}
    for record in log[DELIVERED]:
        before = last.get((record.key, record.attempts))
        if before is not None and not _is_forgotten(log, before, record):
            yield f"{record.key} was delivered again as attempt {record.attempts}"
        last[record.key, record.attempts] = record


def _attempts(log: Log) -> Iterator[str]:
    last: dict[tuple[str, str], Record] = {}
    for record in log[DELIVERED]:
        before = last.get((record.client, record.key))
        if before and record.attempts <= before.attempts and not _is_forgotten(log, before, record):
            yield f"{record.key}: attempt {record.attempts} after {before.attempts}"
        last[record.client, record.key] = record


def _is_forgotten(log: Log, before: Record, record: Record) -> bool:
    """Whether the broker may not know of a delivery, since it was killed between that and the next one.

    That there was a first delivery is durable before it is made. That there was another is stored with it,
    and so before anything that is sent after it was seen. Neither is durable where the disk has refused it.
    """
    killed = next((k for k, back in _spans(log, KILLED, BACK) if k < record.at_ns and before.at_ns < back), 0)
    if not killed:
        return False
    sent = {send.key: send.at_ns for send in reversed(log[SEND])}
    if any(a < killed and sent.get(record.key, 0) < b for a, b in _spans(log, DISK_FAILS, DISK_WORKS)):
        return True
    # A request is answered before it is durable; who settles it waits for the disk.
    durable = log[SETTLED] or log[SENT]
    return before.attempts > 1 and not any(
        before.at_ns < sent.get(r.key, 0) and r.at_ns < killed for r in durable
    )


def _spans(log: Log, begin: str, end: str) -> Iterator[tuple[int, int]]:
    """From when to when something was so."""
    ends = [record.at_ns for record in log[end]]
    for record in log[begin]:
        place = bisect_left(ends, record.at_ns)
        yield record.at_ns, ends[place] if place < len(ends) else sys.maxsize


def _settled_twice(log: Log) -> Iterator[str]:
    for kind in (SETTLED, OUTCOME):
        counts = Counter(record.key for record in log[kind])
        yield from (f"{key}: {kind} {count} times" for key, count in counts.items() if count > 1)


def _after_settled(log: Log) -> Iterator[str]:
    settled = {record.key: record for record in log[SETTLED]}
    left = log.keys(LEFT)
    yield from (f"{key} was settled and is still there" for key in settled if key in left)
    for record in log[DELIVERED]:
        end = settled.get(record.key)
        if end and record.attempts > end.attempts and not _is_forgotten(log, record, end):
            yield f"{record.key} was settled at attempt {end.attempts}, and there is {record.attempts}"


def _no_outcome(log: Log) -> Iterator[str]:
    """A sender that came to its end has the outcome of each message that is not in the queue any more."""
    over = log.keys(OUTCOME) | log.keys(LEFT)
    finished = {record.client for record in log[FINISHED]}
    for record in log[SENT]:
        if record.client in finished and record.key not in over:
            yield f"{record.key} was confirmed and has no outcome"


def _twice(log: Log) -> Iterator[str]:
    """Messages of one identity are one message, however often they were sent and confirmed."""
    sequences: defaultdict[str, set[int]] = defaultdict(set)
    for record in log[DELIVERED]:
        if record.sequence:
            sequences[record.key].add(record.sequence)
    yield from (f"{key} is {sorted(found)}" for key, found in sequences.items() if len(found) > 1)


# Changes. One client publishes, purges and looks in turn, so that each purge that is made twice is seen.


def _undone(log: Log) -> Iterator[str]:
    """What was published before a purge that was confirmed is not there."""
    purged = high = asked = 0
    for record in _changes(log):
        if record.kind == PUBLISHED:
            high = max(high, record.sequence)
        elif record.kind == PURGE:
            asked = high
        elif record.kind == PURGED:
            purged = asked
        elif record.kind == LOOKED and record.sequence <= purged:
            yield f"all up to {purged} was purged, and {record.sequence} is there"


def _done_again(log: Log) -> Iterator[str]:
    """What was published after a purge was answered is there: it was not done again."""
    kept, doubt = 0, False
    for record in _changes(log):
        if record.kind == PURGE:
            kept, doubt = 0, True
        elif record.kind in (PURGED, PURGE_REFUSED):
            doubt = False
        elif record.kind == PUBLISHED and not (doubt or kept):
            kept = record.sequence
        elif record.kind == LOOKED and kept and not record.sequence <= kept <= record.last:
            yield f"{kept} is newer than the last purge, and there are {record.sequence} to {record.last}"


def _changes(log: Log) -> list[Record]:
    kinds = (PUBLISHED, PURGE, PURGED, PURGE_REFUSED, LOOKED)
    return sorted(record for kind in kinds for record in log[kind])


STREAM_RULES = {
    "lost": _lost,
    "invented": _invented,
    "duplicate": _duplicate,
    "sequence used again": _reused,
    "order": _order,
    "monotonic reads": _monotonic,
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

RULES = ((STORED, STREAM_RULES), (SEND, QUEUE_RULES), (PURGE, CHANGE_RULES))
"""Which rules a stream or queue is held against: those of the kind of record that it has."""


def summary(history: Iterable[Record]) -> Mapping[str, int]:
    """How many records of each kind."""
    return dict(sorted(Counter(record.kind for record in history).items()))
