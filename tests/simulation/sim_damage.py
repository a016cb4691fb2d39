"""Damage of records that are not chunks, as the store on the disk would hand it over to the next broker.

What is in one block is damaged together: messages of queues with their identities, positions of cursors, and
what is known of sessions. A damaged message is there without its record, until it has left or is stored
again. Of a value the one before comes back, if an older block has it: a session is in doubt then, and a
cursor is back there. Otherwise the session is not known any more, and the cursor is lost. Each queue leaves
out as many numbers as a block may have held. The state of a stream is rebuilt, and continues at its ceiling.

The position of a feed is a cursor as well. One that is back is where the feed was at an earlier time.

What the block said of deliveries is unknown: all messages that were there count as delivered, those that an
older block has as not delivered too. Of the attempts of a message those before come back, if there are any.

A block may also turn out to be damaged while a broker runs. It learns what was in it, and what it does
not store again is missing when the next one starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from malamute.journal.log import BLOCK_ENTRIES_MAX
from malamute.journal.memory import MemoryStore
from malamute.journal.states import CEILING_STEP
from malamute.store.operations import (
    Defect,
    DeleteStream,
    DeleteValue,
    Frame,
    Operation,
    PutMessages,
    PutValue,
    QueueKind,
    Recovered,
    SetAttempts,
    Stranded,
)
from malamute.store.tables import CURSORS, NUMBERS, SESSIONS

Name = tuple[QueueKind, str]
Key = tuple[QueueKind, str, int]

BLOCK_SIZES = (1, 3, 12, 1_000)
"""How many messages and values a block holds here."""


class Damaged(NamedTuple):
    """What a block held that is damaged now: messages, lost cursors, cursors that are back, and sessions.

    And what is known of deliveries without it.
    """

    messages: Sequence[tuple[QueueKind, str, int]] = ()
    lost: Sequence[tuple[str, str]] = ()
    back: Mapping[tuple[str, str], int] = {}
    forgotten: Sequence[bytes] = ()
    attempts: Mapping[Key, tuple[int, int]] = {}
    """The attempts that are known yet, each with the time of the redelivery in nanoseconds, or 0."""
    marks: Mapping[Name, int] = {}
    """Up to where the messages of each queue count as delivered now."""


class FlawedStore(MemoryStore):
    """A store of which anything may be found damaged when a broker starts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unreadable: dict[Name, set[int]] = {}
        self.lost: set[tuple[str, str]] = set()
        self.doubtful: set[bytes] = set()
        """Sessions that were written before what is damaged, and not since."""
        self.doubtful_cursors: set[tuple[str, str]] = set()
        """Cursors like that. They are back where they were before, or may be."""
        self.defects: list[Defect] = []
        """What was found damaged so far. There is no repair here."""
        self._writes: dict[Any, int] = {}
        """Which write has stored each value."""
        self._before: dict[tuple[str, Any], Any] = {}
        """The values that others took the places of."""
        self._attempts_before: dict[Key, tuple[int, int]] = {}

    def write(self, operations: Sequence[Operation]) -> None:
        """Carry out all of the operations, or none. What is stored again is whole."""
        before = {table: dict(rows) for table, rows in self._values.items()}
        attempts = {name: dict(queue.attempts) for name, queue in self._queues.items()}
        super().write(operations)
        for operation in operations:
            match operation:
                case SetAttempts(kind=kind, queue=queue, sequence=sequence):
                    known = attempts.get((kind, queue), {}).get(sequence, (0, 0))
                    self._attempts_before[kind, queue, sequence] = known
                case PutMessages(kind=kind, queue=queue):
                    there = range(operation.first, operation.last + 1)
                    for sequence in there:
                        self._attempts_before.pop((kind, queue, sequence), None)
                    self.unreadable.get((kind, queue), set()).difference_update(there)
                case PutValue(table=table, key=key):
                    self._writes[key] = self._lsn
                    self._before[table, key] = before.get(table, {}).get(key)
                    self._found_again(table, key)
                case DeleteValue(table=table, key=key):
                    self._found_again(table, key)
                case DeleteStream(stream=stream):
                    self.lost = {key for key in self.lost if key[0] != stream}
                    self.doubtful_cursors = {key for key in self.doubtful_cursors if key[0] != stream}
        for name, sequences in self.unreadable.items():
            sequences &= self._queues[name].messages.keys() if name in self._queues else set()

    def _found_again(self, table: str, key: Any) -> None:
        if table == CURSORS:
            self.lost.discard(key)
            self.doubtful_cursors.discard(key)
        elif table == SESSIONS:
            self.doubtful.discard(key[0])

    def fetch(self, kind: QueueKind, queue: str, sequences: Sequence[int]) -> Mapping[int, Frame]:
        """The records of messages that can be read."""
        unreadable = self.unreadable.get((kind, queue), ())
        return super().fetch(kind, queue, [s for s in sequences if s not in unreadable])

    def recover(self, *, records_bytes: int | None = None, now: float | None = None) -> Recovered:
        """What the next broker finds of all that."""
        found = super().recover(records_bytes=records_bytes, now=now)
        queues = dict(found.queues)
        for name, sequences in self.unreadable.items():
            if sequences and (state := queues.get(name)):
                queues[name] = state._replace(
                    messages=[
                        message._replace(record=b"") if message.sequence in sequences else message
                        for message in state.messages
                    ],
                    paged_out={s: size for s, size in state.paged_out.items() if s not in sequences},
                    damaged=tuple(sorted(sequences)),
                )
        return found._replace(
            queues=queues,
            lost=frozenset((CURSORS, key) for key in self.lost),
            doubtful=frozenset(
                [
                    *((SESSIONS, (peer, NUMBERS)) for peer in self.doubtful),
                    *((CURSORS, key) for key in self.doubtful_cursors),
                ]
            ),
            defects=tuple(self.defects),
        )

    def damage_block(self, a: int, b: int, c: int) -> Damaged:
        """Damage what one block may hold, with no broker there."""
        size = BLOCK_SIZES[c % len(BLOCK_SIZES)]
        messages = self._readable()
        cursors = sorted(self._values.get(CURSORS, {}))
        peers = sorted({key[0] for key in self._values.get(SESSIONS, {})})
        damaged = Damaged(
            _some(messages, a, size), _some(cursors, b, 1 + size // 4), {}, _some(peers, b, size // 3)
        )
        for kind, name, sequence in damaged.messages:
            self.unreadable.setdefault((kind, name), set()).add(sequence)
            queue = self._queues[kind, name]
            queue.identities = {i: known for i, known in queue.identities.items() if known[0] != sequence}
        self._damage_attempts(b, size, goes_back=c // 8 % 2 > 0)
        for queue in self._queues.values():
            queue.delivered = max(queue.delivered, queue.next - 1)
            queue.attempts = {s: known for s, known in queue.attempts.items() if known[0]}
            queue.next += BLOCK_ENTRIES_MAX
        marks = {name: queue.delivered for name, queue in self._queues.items()}
        attempts = {
            (*name, s): known for name, queue in self._queues.items() for s, known in queue.attempts.items()
        }
        self.doubtful.update(peers)
        back = {
            key: before
            for key in damaged.lost
            if c // 4 % 2 and (before := self._before.get((CURSORS, key))) is not None
        }
        lost = [key for key in damaged.lost if key not in back]
        self._doubt_cursors(lost)
        self._values.setdefault(CURSORS, {}).update(back)
        for key in lost:
            del self._values[CURSORS][key]
        self.lost.update(lost)
        forgotten = [peer for peer in damaged.forgotten if not self._go_back(peer)]
        self.defects.append(Defect("block", "", len(self.defects), len(self.defects), "cannot be read"))
        self.defects += [Defect("cursor", f"{s} for {n}", 0, 0, "its position is lost") for s, n in lost]
        return Damaged(damaged.messages, lost, back, forgotten, attempts, marks)

    def _damage_attempts(self, choice: int, most: int, *, goes_back: bool) -> None:
        known = [(*name, s) for name, queue in sorted(self._queues.items()) for s in sorted(queue.attempts)]
        for key in _some(known, choice, most):
            before = self._attempts_before.get(key, (0, 0)) if goes_back else (0, 0)
            self._queues[key[:2]].attempts[key[2]] = before

    def damage_running(self, a: int, b: int, c: int) -> Stranded:
        """Damage what one block may hold, with a broker there. Returns what is to be reported to it."""
        size = BLOCK_SIZES[c % len(BLOCK_SIZES)]
        messages: dict[Name, list[int]] = {}
        identities: dict[Name, list[str]] = {}
        for kind, name, sequence in _some(self._readable(), a, size):
            messages.setdefault((kind, name), []).append(sequence)
            self.unreadable.setdefault((kind, name), set()).add(sequence)
            known = self._queues[kind, name].identities
            for identity in [i for i, (place, _) in known.items() if place == sequence]:
                identities.setdefault((kind, name), []).append(identity)
                del known[identity]
        cursors, sessions = self._values.get(CURSORS, {}), self._values.get(SESSIONS, {})
        lost = _some(sorted(cursors), b, 1 + size // 4)
        peers = sorted({key[0] for key in sessions})
        forgotten = [key for key in sorted(sessions) if key[0] in _some(peers, b, size // 3)]
        for key in lost:
            del cursors[key]
        for key in forgotten:
            del sessions[key]
        self.lost.update(lost)
        self.doubtful.update(peers)
        self._doubt_cursors(lost)
        self.defects.append(Defect("block", "", len(self.defects), len(self.defects), "cannot be read"))
        values = [(CURSORS, key) for key in lost] + [(SESSIONS, key) for key in forgotten]
        return Stranded(messages, values, identities)

    def _doubt_cursors(self, lost: Sequence[tuple[str, str]]) -> None:
        """Whatever else there is was written before what is damaged."""
        self.doubtful_cursors = {*self._values.get(CURSORS, {})} - {*lost}

    def _readable(self) -> list[Key]:
        return [
            (*name, sequence)
            for name, queue in sorted(self._queues.items())
            for sequence in sorted(queue.messages.keys() - self.unreadable.get(name, set()))
        ]

    def _go_back(self, peer: bytes) -> bool:
        """Have the values of a session before the last ones. Returns whether there are any."""
        rows = self._values[SESSIONS]
        if self._before.get((SESSIONS, (peer, NUMBERS))) is not None:
            # What was stored together is lost together.
            last = self._writes[peer, NUMBERS]
            for key in [key for key in rows if key[0] == peer and self._writes[key] == last]:
                before = self._before.get((SESSIONS, key))
                if before is None:
                    del rows[key]
                else:
                    rows[key] = before
            return True
        for key in [key for key in rows if key[0] == peer]:
            del rows[key]
        self.doubtful.discard(peer)
        return False

    def damage_state(self, choice: int) -> str:
        """Damage the state of a stream, with no broker there. Returns its name, or nothing."""
        streams = [*self._ring.streams.values()]
        if not streams:
            return ""
        stream = streams[choice % len(streams)]
        self._ring.streams[stream.name] = stream._replace(reserved=stream.reserved + CEILING_STEP)
        self.defects.append(Defect("stream", stream.name, stream.first, stream.last, "was rebuilt"))
        return stream.name


def _some(things: Sequence[Any], choice: int, most: int) -> Sequence[Any]:
    """Neighbours, from anywhere on."""
    start = choice % max(1, len(things))
    return things[start : start + most]
