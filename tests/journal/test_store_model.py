"""Both stores against a naive model: any operations, in any order, with restarts in between."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from depth import DEPTH
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stores import MIB, append, delete, held_to, put

from malamute.journal import ring
from malamute.journal.disk import DiskStore
from malamute.journal.format import encode_chunk
from malamute.journal.memory import MemoryStore
from malamute.store.operations import (
    DeleteQueue,
    DeleteStream,
    DeleteValue,
    ForgetIdentities,
    ForgetStream,
    MarkDelivered,
    PutIdentity,
    PutValue,
    Retain,
    SetAttempts,
    TrimByAge,
)
from malamute.store.policies import KEEP_ALL, StreamRetention
from malamute.store.tables import CURSORS, FEEDS, RETENTIONS, SESSIONS

RETENTION = {
    "short": StreamRetention(messages_max=40),
    "small": StreamRetention(bytes_max=900),
    "young": StreamRetention(age_seconds=25e-9),
}
STREAMS = ("short", "small", "young", "long")
BUDGET = 6000
SMALL = st.integers(1, 12)
COUNTS = st.lists(st.integers(1, 20), min_size=1, max_size=3)
QUEUES = st.sampled_from([("mailbox", "q"), ("mailbox-dead", "q"), ("service", "r")])


class Model:
    """The contents of a store, in the plainest words."""

    def __init__(self):
        self.chunks = {}
        self.last = {}
        self.queues = {}
        self.values = {}

    def queue(self, name):
        empty = {"next": 1, "delivered": 0, "messages": {}, "attempts": {}, "due": {}, "identities": {}}
        return self.queues.setdefault(name, empty)

    def take_out(self, kept, first, last):
        for n in [n for n in kept["messages"] if first <= n <= last]:
            del kept["messages"][n]
            kept["attempts"].pop(n, None)
            kept["due"].pop(n, None)

    def append(self, operations, budget):
        sizes = {}
        for stream, chunk, *_ in operations:
            self.chunks.setdefault(stream, []).append(chunk)
            self.last[stream] = chunk.last
            sizes.setdefault(stream, []).append(chunk)
        for stream in sizes:
            self.trim(stream)
        while self._size(*self.chunks) > budget:
            oldest = [
                (kept[0].time_ns, name)
                for name, kept in self.chunks.items()
                if kept and kept[0] not in sizes.get(name, ())
            ]
            if not oldest:
                break
            self.chunks[min(oldest)[1]].pop(0)

    def age(self, time):
        for stream, kept in self.chunks.items():
            age = self.limits(stream).age_seconds
            while age and kept and time - kept[0].time_ns > round(age * 1e9):
                kept.pop(0)

    def trim(self, stream):
        kept = self.chunks.get(stream, [])
        while len(kept) > 1 and self._over(stream):
            kept.pop(0)

    def delete(self, stream):
        if stream in self.chunks:
            self.chunks[stream] = []
        self.values = {place: v for place, v in self.values.items() if place[1][0] != stream}

    def limits(self, stream):
        put = self.values.get((RETENTIONS, (stream,)))
        return StreamRetention(*put) if put else RETENTION.get(stream, StreamRetention())

    def _size(self, *streams):
        return sum(len(encode_chunk(chunk)) for name in streams for chunk in self.chunks[name])

    def _over(self, stream):
        kept, limits = self.chunks[stream], self.limits(stream)
        return (
            (limits.bytes_max and self._size(stream) > limits.bytes_max)
            or (limits.messages_max and sum(chunk.count for chunk in kept) > limits.messages_max)
            or (limits.age_seconds and kept[-1].time_ns - kept[0].time_ns > round(limits.age_seconds * 1e9))
        )


class Stores(RuleBasedStateMachine):
    """Runs one random life of a disk store, a memory store and the model side by side."""

    budget = BUDGET
    has_log = False
    options = {}

    @initialize()
    def open(self):
        self.steps = pytest.MonkeyPatch()
        self.steps.setattr(ring, "STEP_CHUNKS", 10_000)  # the model does not know of steps
        self.directory = tempfile.TemporaryDirectory()
        self.model = Model()
        self.now = 0
        self.memory = MemoryStore(size=MIB, streams_budget=self.budget)
        self.disk = self.opened()
        self.disk.recover()

    def opened(self):
        disk = DiskStore.open(
            Path(self.directory.name),
            size=MIB,
            streams_budget=self.budget,
            preallocate=self.has_log,
            has_log=self.has_log,
            **self.options,
        )
        disk._store.log_floor = 500  # so that the log is compacted often
        return disk

    def write(self, operations):
        operations = held_to(lambda name: RETENTION.get(name, KEEP_ALL), operations)
        self.disk.write(operations)
        self.memory.write(operations)

    @rule(
        data=st.lists(
            st.tuples(st.sampled_from(STREAMS), SMALL, st.integers(0, 700), st.booleans()), max_size=5
        )
    )
    def append(self, data):
        last = dict(self.model.last)
        operations = []
        for stream, count, size, gap in data:
            self.now += 1
            first = last.get(stream, 0) + (7 if gap else 1)
            last[stream] = first + count - 1
            operations.append(append(first, stream=stream, count=count, time=self.now, payload=bytes(size)))
        self.write(operations)
        self.model.append(operations, self.budget)

    @rule(queue=QUEUES, counts=COUNTS, size=st.integers(0, 2000))
    def put(self, queue, counts, size):
        kept = self.model.queue(queue)
        operations = []
        for count in counts:
            place = {"kind": queue[0], "queue": queue[1]}
            operations.append(put(kept["next"], count=count, record=bytes(size), **place))
            kept["next"] += count
        self.write(operations)
        kept["messages"].update({m.sequence: m for o in operations for m in o.messages()})

    @rule(queue=QUEUES, first=st.integers(0, 150), wide=st.integers(0, 100))
    def remove(self, queue, first, wide):
        self.write([delete((first, first + wide), kind=queue[0], queue=queue[1])])
        kept = self.model.queues.get(queue)
        if kept:
            self.model.take_out(kept, first, first + wide)

    @rule(queue=QUEUES, to=QUEUES, count=SMALL, size=st.integers(0, 2000))
    def move(self, queue, to, count, size):
        """The oldest leave one queue for another, in one transaction, with attempts told of some."""
        kept, other = self.model.queue(queue), self.model.queue(to)
        moved = sorted(kept["messages"])[:count]
        operations = []
        for n in moved:
            operation = put(other["next"], kind=to[0], queue=to[1], record=bytes(size))
            operations += [delete((n, n), kind=queue[0], queue=queue[1]), operation]
            operations.append(SetAttempts(*to, other["next"], n))
            self.model.take_out(kept, n, n)
            (other["messages"][other["next"]],) = operation.messages()
            other["attempts"][other["next"]] = n
            other["next"] += 1
        # Queues that the model has made come to be by the identities.
        operations += [PutIdentity(*name, "moved", count, size) for name in (queue, to)]
        self.write(operations)
        kept["identities"]["moved"] = other["identities"]["moved"] = (count, size)

    @rule(queue=QUEUES, oldest=SMALL, count=SMALL, due=st.integers(0, 1))
    def attempt(self, queue, oldest, count, due):
        """Attempts of the oldest messages, and of one that was never there."""
        kept = self.model.queues.get(queue, {"messages": {}, "attempts": {}, "due": {}})
        reported = sorted(kept["messages"])[:oldest]
        self.write([SetAttempts(*queue, sequence, count, due) for sequence in (*reported, 10_000)])
        kept["attempts"].update(dict.fromkeys(reported, count))
        kept["due"] |= dict.fromkeys(reported, due)
        kept["due"] = {sequence: due for sequence, due in kept["due"].items() if due}

    @rule(queue=QUEUES, names=st.lists(st.sampled_from("abcdefgh")), until=st.integers(0, 99))
    def identify(self, queue, names, until):
        if names:
            self.write([PutIdentity(*queue, name, n, until + n) for n, name in enumerate(names)])
            known = self.model.queue(queue)["identities"]
            known.update({name: (n, until + n) for n, name in enumerate(names)})

    @rule(queue=QUEUES, time=st.integers(0, 99))
    def forget(self, queue, time):
        self.write([ForgetIdentities(*queue, time)])
        kept = self.model.queues.get(queue)
        if kept:
            kept["identities"] = {i: known for i, known in kept["identities"].items() if known[1] > time}

    @rule(
        service=st.sampled_from("fg"),
        stream=st.sampled_from(STREAMS),
        value=st.none() | st.binary(max_size=9),
    )
    def feed(self, service, stream, value):
        if value is None:
            self.write([DeleteValue(FEEDS, (stream, service))])
            self.model.values.pop((FEEDS, (stream, service)), None)
        else:
            self.write([PutValue(FEEDS, (stream, service), value)])
            self.model.values[FEEDS, (stream, service)] = value

    @rule(queue=QUEUES, sequences=st.lists(st.integers(0, 150), max_size=20))
    def fetch(self, queue, sequences):
        messages = self.model.queues.get(queue, {"messages": {}})["messages"]
        expected = {n: messages[n].record for n in sequences if n in messages}
        assert self.disk.fetch(*queue, sequences) == self.memory.fetch(*queue, sequences) == expected

    @rule(queue=QUEUES, sequence=st.integers(0, 150))
    def deliver(self, queue, sequence):
        self.write([MarkDelivered(*queue, sequence)])
        kept = self.model.queues.get(queue)
        if kept:
            kept["delivered"] = max(kept["delivered"], sequence)

    @rule(queue=QUEUES)
    def drop(self, queue):
        self.write([DeleteQueue(*queue)])
        self.model.queues.pop(queue, None)

    @rule(
        session=st.sampled_from([b"a", b"b"]),
        value=st.none() | st.binary(max_size=300),
        part=st.integers(0, 2),
    )
    def remember(self, session, value, part):
        if value is None:
            self.write([DeleteValue(SESSIONS, (session,))])
            for each in range(3):
                self.model.values.pop((SESSIONS, (session, each)), None)
        else:
            self.write([PutValue(SESSIONS, (session, part), value)])
            self.model.values[SESSIONS, (session, part)] = value

    @rule(stream=st.sampled_from(STREAMS), cursor=st.sampled_from("cd"), sequence=st.none() | SMALL)
    def point(self, stream, cursor, sequence):
        if sequence is None:
            self.write([DeleteValue(CURSORS, (stream, cursor))])
            self.model.values.pop((CURSORS, (stream, cursor)), None)
        else:
            self.write([PutValue(CURSORS, (stream, cursor), sequence)])
            self.model.values[CURSORS, (stream, cursor)] = sequence

    @rule(
        stream=st.sampled_from(STREAMS),
        size=st.sampled_from([0, 300, 3000]),
        count=st.sampled_from([0, 5, 50]),
        age=st.sampled_from([0, 1e-8]),
    )
    def limit(self, stream, size, count, age):
        self.write([PutValue(RETENTIONS, (stream,), (size, count, age))])
        self.disk.take_over()  # limits hold at the end of a transaction
        self.model.values[RETENTIONS, (stream,)] = size, count, age
        self.model.trim(stream)

    @rule(later=st.integers(0, 40))
    def age(self, later):
        self.write([TrimByAge(self.now + later)])
        self.disk.take_over()
        self.model.age(self.now + later)

    @rule(stream=st.sampled_from(STREAMS))
    def delete_stream(self, stream):
        self.write([DeleteStream(stream)])
        self.model.delete(stream)

    @rule(stream=st.sampled_from(STREAMS))
    def forget_stream(self, stream):
        self.write([DeleteStream(stream), ForgetStream(stream)])
        self.model.delete(stream)
        self.model.chunks.pop(stream, None)
        self.model.last.pop(stream, None)

    @rule(stream=st.sampled_from(STREAMS))
    def forget_stream_and_make_it_again(self, stream):
        self.now += 1
        chunk = append(1, stream=stream, time=self.now)
        self.write([DeleteStream(stream), ForgetStream(stream), chunk, PutValue(CURSORS, (stream, "c"), 1)])
        self.model.delete(stream)
        self.model.append([chunk], self.budget)
        self.model.values[CURSORS, (stream, "c")] = 1

    @rule(records=st.none() | st.integers(0, 20_000))
    def restart(self, records):
        self.end()
        self.disk = self.opened()
        found, twin = self.disk.recover(records_bytes=records), self.memory.recover(records_bytes=records)
        self.compare_cold(found, records)
        self.compare_cold(twin, records)
        found, twin = self.warmed(found, self.disk), self.warmed(twin, self.memory)
        assert found[1:] == twin[1:]
        values = {(table, key): v for table, rows in found.values.items() for key, v in rows.items()}
        assert values == self.model.values
        assert {
            name: {
                "next": q.next,
                "delivered": q.delivered,
                "messages": {m.sequence: m for m in q.messages},
                "attempts": q.attempts,
                "due": q.due_ns,
                "identities": q.identities,
            }
            for name, q in found.queues.items()
        } == self.model.queues
        # A broker says at its start what is to hold.
        self.write([Retain(name, RETENTION.get(name, KEEP_ALL)) for name in found.streams])

    def end(self):
        self.disk.close()

    def compare_cold(self, found, records):
        held = sum(len(m.record) for queue in found.queues.values() for m in queue.messages)
        assert records is None or held <= records
        for name, queue in found.queues.items():
            for sequence, size in queue.paged_out.items():
                assert len(self.model.queues[name]["messages"][sequence].record) == size > 0

    def warmed(self, found, store):
        """The records that were found, with the paged-out messages fetched."""
        queues = {}
        for name, queue in found.queues.items():
            fetched = store.fetch(*name, tuple(queue.paged_out))
            messages = [m._replace(record=fetched.get(m.sequence, m.record)) for m in queue.messages]
            queues[name] = queue._replace(messages=messages, paged_out={})
        return found._replace(queues=queues)

    @rule(stream=st.sampled_from(STREAMS), start=st.integers(0, 300), bytes_max=st.integers(1, 5000))
    def read(self, stream, start, bytes_max):
        result = self.disk.read(stream, start, bytes_max=bytes_max)
        assert result == self.memory.read(stream, start, bytes_max=bytes_max)
        kept = [chunk for chunk in self.model.chunks.get(stream, ()) if chunk.last >= start]
        assert list(result.found) == kept[: len(result.found)]
        assert bool(result.found) == bool(kept)

    @rule(stream=st.sampled_from(STREAMS), time=st.integers(0, 100))
    def find_time(self, stream, time):
        kept = [chunk.first for chunk in self.model.chunks.get(stream, ()) if chunk.time_ns >= time]
        expected = kept[0] if kept else self.model.last.get(stream, 0) + 1
        assert self.disk.find_time(stream, time) == self.memory.find_time(stream, time) == expected

    @invariant()
    def agree(self):
        if hasattr(self, "disk") and not self.has_log:
            self.compare()

    def compare(self):
        status, twin = self.disk.status(), self.memory.status()
        # The identifiers of streams that are no more are used again after a restart.
        streams, twins = (
            sorted(s._replace(identifier=0) for s in f.streams.values()) for f in (status, twin)
        )
        assert streams == twins
        assert status.queues == twin.queues
        assert (status.streams_bytes, status.sessions) == (twin.streams_bytes, twin.sessions)
        for name, kept in self.model.chunks.items():
            assert [c.first for c in self.disk.read(name, 0, bytes_max=MIB).found] == [c.first for c in kept]

    def teardown(self):
        if hasattr(self, "disk"):
            self.disk.close()
            self.directory.cleanup()
            self.steps.undo()


Stores.TestCase.settings = settings(max_examples=10 * DEPTH, stateful_step_count=40, deadline=None)
TestStores = Stores.TestCase


class LoggedStores(Stores):
    """The same with a write-ahead log, which holds what was written since the last look or restart.

    A restart is that of a process that was killed. The budget is out of reach, since what leaves for it
    depends on what is in one transaction.
    """

    budget = MIB // 2
    has_log = True

    @rule()
    def look(self):
        self.compare()

    def end(self):
        self.disk.take_over = lambda: None
        self.disk.close()


LoggedStores.TestCase.settings = settings(max_examples=10 * DEPTH, stateful_step_count=40, deadline=None)
TestLoggedStores = LoggedStores.TestCase
