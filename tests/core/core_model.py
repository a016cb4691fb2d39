"""What a broker has to do, in the plainest words, and what its clients saw it do.

The model knows each message by its body, which no other message has. It follows every command into the
state that the broker should have, keeps beside it what is durable, and checks each message that the
broker sends against both. `World` is a bench with this model around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

from core_bench import Bench, Item, chunks, items, peer_id

from malamute.core.queue.waiters import rank_of
from malamute.core.session import Numbers, Session
from malamute.journal.store import Retention
from malamute.protocol.batch import pack_record
from malamute.protocol.messages import (
    Ack,
    Cancel,
    Credit,
    Deliver,
    Error,
    Gap,
    Hello,
    Nak,
    Offer,
    Ok,
    Ping,
    Progress,
    Publish,
    Recall,
    Reject,
    Release,
    Reply,
    Request,
    Send,
    Stored,
    Subscribe,
    Switch,
    Welcome,
    Withdraw,
)
from malamute.store.policies import QueuePolicy
from malamute.store.tables import NUMBERS, SESSIONS

NAMES = ("ann", "bob", "cat", "nobody")
STREAMS = ("kept", "live")
SERVICE = ("service", "work")
KEPT = 12
SUBJECTS = ("x.1", "y.1")
PATTERNS = ("#", "x.*", "y.*")
PRIORITY_STEP = 2
BACKOFF = 3.0
POLICY = QueuePolicy(ack_timeout=0, max_deliver=0, backoff=(BACKOFF,), priority_step=PRIORITY_STEP, idle=0)


def matches(pattern: str, subject: str) -> bool:
    return pattern == "#" or pattern[0] == subject[0]


def mailbox_of(name: str) -> tuple[str, str]:
    return ("mailbox", name)


def address_of(name: str) -> str:
    return "" if name == "nobody" else name


@dataclass
class Message:
    """A message of a stream or a queue."""

    subject: str
    body: bytes
    sender: str = ""
    ready: bool = True
    done: bool = False
    """Completed by a reply that is not stored yet."""
    holder: tuple[str, int] | None = None
    since: float = 0.0
    """When its holder got it, or reported on it."""
    due: float = 0.0
    """It is not delivered before."""
    kept_due: float = 0.0
    """The same, as far as the disk knows."""
    properties: dict[str, Any] | None = None
    deliveries: int = 0
    most: int = 0
    sent: float = 0.0
    before: int = 0
    """As often as this, at the most, it may have been delivered by brokers that died."""


@dataclass
class Source:
    """A subscription, or a consumer of a queue, as the client knows it."""

    name: str
    of: tuple[str, str]
    pattern: str
    credit: float = 0
    bytes: float = 0
    position: int | None = None
    quiet: bool = False
    """It is not told of what is gone before the first message that it gets."""
    head: int = 0
    """Where the stream was when it began."""
    timeout: float = inf
    """How long a delivery may be neither settled nor reported on."""

    def grant(self, messages: int, size_bytes: int) -> None:
        self.credit = inf if messages < 0 else self.credit + messages
        self.bytes = inf if size_bytes < 0 else self.bytes + size_bytes

    def take(self, item: Item) -> None:
        assert self.credit > 0, "a message came without credit"
        assert self.bytes > 0, "a message came without credit in bytes"
        self.credit -= 1
        self.bytes -= len(item.subject) + len(pack_record(None, item.body))


@dataclass
class Client:
    """A client that keeps the rules of the protocol."""

    name: str
    open: bool = False
    blocked: bool = False
    number: int = 1
    unsettled: dict[int, Any] = field(default_factory=dict)
    sent: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    awaited: set[int] = field(default_factory=set)
    """Numbers sent on this connection and not answered on it."""
    outcome: dict[int, bool] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    parted: dict[int, Source] = field(default_factory=dict)
    """What it had when the connection broke, to be had again."""


Effect = tuple[Any, ...]
Grant = tuple[int, int]


class World:
    """A bench, its clients, and the model of what the broker holds."""

    def __init__(self) -> None:
        self.bench = Bench(retention=Retention(count=KEPT), no_journal=("live",), queues=POLICY)
        self.clients = {name: Client(name) for name in NAMES}
        self.streams: dict[str, dict[int, Message]] = {name: {} for name in STREAMS}
        self.queues: dict[tuple[str, str], dict[int, Message]] = {
            kind: {} for kind in (SERVICE, *map(mailbox_of, NAMES))
        }
        self.next = Counter({key: 1 for key in (*STREAMS, *self.queues)})
        self.executed = Counter({name: 1 for name in NAMES})
        self.durable_stream: dict[int, bytes] = {}
        self.durable_queues: dict[tuple[str, str], dict[int, Message]] = {key: {} for key in self.queues}
        self.durable_executed = Counter(self.executed)
        self.dead: dict[tuple[str, str], set[bytes]] = {key: set() for key in self.queues}
        """The bodies of the dead letters on the disk."""
        self.withdrawn: dict[str, list[int | None]] = {name: [] for name in NAMES}
        """How many each is to be told of, in order; None is a refusal."""
        self.effects: list[Effect] = []
        self.handed: list[Effect] = []
        """Those of the last turn."""
        self.pending: dict[int, list[Effect]] = {}
        self.seen = Counter({name: 0 for name in STREAMS})
        """The last sequence that any client was told of."""
        self.forced: set[str] = set()
        """Streams that use sequences which could not be reserved."""
        self.unordered = False
        self.given: set[tuple[tuple[str, str], int]] = set()
        self.private = False
        """Whether the anonymous client has its mailbox."""
        self.delivered: list[tuple[tuple[str, str], Source, int]] = []
        self._bodies = (b"m%d" % number for number in count(1))

    # One turn

    def tell(self, name: str, message: Any) -> None:
        self.bench.receive(name, message)
        self.turn()

    def turn(self) -> None:
        """End the turn, and look at all that came of it."""
        self.bench.turn()
        self.look()

    def look(self) -> None:
        tokens = [append.token for append in self.bench.appends if append.token not in self.pending]
        assert len(tokens) <= 1
        assert tokens or not self.effects, "something was accepted and is not stored"
        for token in tokens:
            self.pending[token] = self.effects
        self.handed, self.effects = self.effects, []
        log, self.bench.log = self.bench.log, []
        self.delivered = []
        for name, message in log:
            self._see(self.clients[name], message)
        if not self.unordered:
            self._check_first_come_first_served()
        self.unordered = False
        self.given = self._given()
        if not self.bench.appends:
            self._check_nobody_waits_for_nothing()

    # What the clients do

    def hello(self, client: Client) -> None:
        unsettled = min(client.unsettled, default=client.number)
        self.leave(client)
        sources, client.parted = client.parted, {}
        client.open = True
        self.executed[client.name] = max(self.executed[client.name], unsettled)
        self.tell(client.name, Hello([2], address_of(client.name), "", unsettled))
        for source_id, source in sources.items():
            if source.of[0] == "stream":
                assert source.position is not None
                start = f"seq:{source.position + 1}"
                self.subscribe(client, source_id, source.of[1], source.pattern, start)
            else:
                self.offer(client, source_id, source.pattern)
        for number, message in sorted(client.unsettled.items()):
            self.command(client, message, number)

    def leave(self, client: Client) -> None:
        """All that belongs to the connection is taken back."""
        client.open = client.blocked = False
        # What two offers of one client held is ready again offer by offer.
        self.unordered = sum(source.of == SERVICE for source in client.sources.values()) > 1
        client.parted |= {source_id: source for source_id, source in client.sources.items() if source_id}
        client.sources = {}
        client.awaited = set()
        for queue in self.queues.values():
            for message in queue.values():
                if message.holder and message.holder[0] == client.name:
                    message.holder = None

    def new_command(self, client: Client, message: Any, *, numbered: bool) -> None:
        number = 0
        if numbered:
            number = client.number
            client.number += 1
            message = message._replace(number=number)
            client.unsettled[number] = message
        self.command(client, message, number)

    def command(self, client: Client, message: Any, number: int) -> None:
        if number:
            client.sent[number] += 1
            client.awaited.add(number)
        if not number or number == self.executed[client.name]:
            accepted = self._execute(client, message)
            if number:
                self.executed[client.name] += 1
            if number and accepted:
                self.effects.append(("executed", client.name, number + 1))
        self.tell(client.name, message)

    def _execute(self, client: Client, message: Any) -> bool:
        if isinstance(message, Reply) and not self._may_reply(client, message):
            return False
        handler = {Publish: self._publish, Send: self._send, Request: self._request, Reply: self._reply}
        handler[type(message)](client, message)
        return True

    def _publish(self, client: Client, message: Publish) -> None:
        for subject, record in zip(message.subjects, message.records, strict=True):
            self._add(message.stream, Message(subject, body_of(record), address_of(client.name)))

    def _add(self, stream: str, message: Message) -> None:
        sequence = self.next[stream]
        self.next[stream] += 1
        self.streams[stream][sequence] = message
        if stream == "kept":
            self.effects.append(("append", stream, sequence, message.body))

    def _send(self, client: Client, message: Send) -> None:
        self._put(mailbox_of(message.address), client, message)

    def _request(self, client: Client, message: Request) -> None:
        self._put(SERVICE, client, message)
        self.private |= client.name == "nobody"

    def _put(self, key: tuple[str, str], client: Client, message: Any) -> None:
        # Whether a message of the queue waits for the disk is asked before the command adds its own.
        ready = not message.number and all(m.ready for m in self.queues[key].values())
        options = message.properties or [None] * len(message.records)
        for subject, record, asked in zip(message.subjects, message.records, options, strict=True):
            due = self.bench.now + (asked or {}).get("delay", 0) / 1000
            added = Message(
                subject, body_of(record), client.name, ready, due=due, sent=self.bench.now, properties=asked
            )
            self._enqueue(key, added, message.number > 0)

    def _enqueue(self, key: tuple[str, str], message: Message, confirmed: bool) -> None:
        sequence = self.next[key]
        self.next[key] += 1
        self.queues[key][sequence] = message
        self.effects.append(("put", key, sequence, message, confirmed))

    def _may_reply(self, client: Client, message: Reply) -> bool:
        requests = [self.queues[SERVICE].get(sequence) for sequence in message.sequences]
        holder = (client.name, message.source)
        return all(r is not None and r.holder == holder and not r.done for r in requests)

    def _reply(self, client: Client, message: Reply) -> None:
        held = self.queues[SERVICE]
        ready = {
            key: not message.number and all(m.ready for m in self.queues[key].values()) for key in self.queues
        }
        for sequence, final, record in zip(message.sequences, message.finals, message.records, strict=True):
            request = held[sequence]
            key = mailbox_of(request.sender)
            answer = Message(request.subject, body_of(record), client.name, ready[key])
            if request.sender != "nobody" or self.private:
                self._enqueue(key, answer, message.number > 0)
            if final:
                self._complete(SERVICE, sequence, bound=message.number > 0)

    def _complete(self, key: tuple[str, str], sequence: int, *, bound: bool) -> None:
        self.effects.append(("delete", key, sequence, bound))
        if bound:
            self.queues[key][sequence].holder = None
            self.queues[key][sequence].done = True
        else:
            del self.queues[key][sequence]

    def ack(self, client: Client, source_id: int, sequences: list[int]) -> None:
        for sequence in sequences:
            self._complete(client.sources[source_id].of, sequence, bound=False)
        self.tell(client.name, Ack(source_id, [[s, s] for s in sequences]))

    def nak(self, client: Client, source_id: int, sequences: list[int], delay: int) -> None:
        wait = BACKOFF if delay < 0 else delay / 1000
        self._give_back(client.sources[source_id].of, sequences, self.bench.now + wait)
        self.tell(client.name, Nak(source_id, [[s, s] for s in sequences], delay))

    def _give_back(self, key: tuple[str, str], sequences: list[int], due: float) -> None:
        for sequence in sequences:
            self.queues[key][sequence].holder = None
            self.queues[key][sequence].due = due
            if due > self.bench.now:
                self.effects.append(("due", key, sequence, due))
        # They are ready one after the other, and so may be given in another order than that of all.
        self.unordered |= len(sequences) > 1

    def release(self, client: Client, source_id: int, sequences: list[int]) -> None:
        key = client.sources[source_id].of
        for sequence in sequences:
            self.queues[key][sequence].deliveries -= 1
        self._give_back(key, sequences, 0.0)
        self.tell(client.name, Release(source_id, [[s, s] for s in sequences]))

    def reject(self, client: Client, source_id: int, sequences: list[int]) -> None:
        key = client.sources[source_id].of
        for sequence in sequences:
            self._complete(key, sequence, bound=True)
            self.effects.append(("bury", key, self.queues[key][sequence].body, False))
        self.tell(client.name, Reject(source_id, [[s, s] for s in sequences], "no"))

    def progress(self, client: Client, source_id: int, sequences: list[int]) -> None:
        for sequence in sequences:
            self.queues[client.sources[source_id].of][sequence].since = self.bench.now
        self.tell(client.name, Progress(source_id, [[s, s] for s in sequences]))

    def withdraw(self, client: Client, key: tuple[str, str], correlation: int) -> None:
        found = [
            sequence
            for sequence, message in self.queues[key].items()
            if message.sender == client.name
            and (message.properties or {}).get("correlation") == correlation
            and message.ready
            and not message.done
        ]
        if key != SERVICE and not address_of(client.name):
            found = []
        for sequence in found:
            self._complete(key, sequence, bound=True)
        if found:
            self.effects.append(("withdrawn", client.name, len(found), False))
        else:
            self.withdrawn[client.name].append(None)
        self.tell(client.name, Withdraw(1, key[0], key[1], correlation))
        assert found or not self.withdrawn[client.name], "a withdrawal of nothing was not refused"

    def wait(self, seconds: float) -> None:
        """Let time go by: whoever held something for too long loses it."""
        self.bench.wait(seconds)
        self.look()
        now = self.bench.now
        for queue in self.queues.values():
            for sequence, message in queue.items():
                if message.holder:
                    client = self.clients[message.holder[0]]
                    late = message.since + client.sources[message.holder[1]].timeout <= now
                    assert not late, f"{sequence} is held for too long"

    def subscribe(
        self, client: Client, source_id: int, stream: str, pattern: str, start: str, credit: Grant = (0, 0)
    ) -> None:
        client.sources[source_id] = Source(
            client.name, ("stream", stream), pattern, quiet=start == "first", head=self.next[stream]
        )
        client.sources[source_id].grant(*credit)
        self.tell(client.name, Subscribe(source_id, stream, [["topic", pattern]], "", start, *credit))

    def offer(
        self, client: Client, source_id: int, pattern: str, credit: Grant = (0, 0), timeout: int = 0
    ) -> None:
        client.sources[source_id] = Source(client.name, SERVICE, pattern, timeout=timeout / 1000 or inf)
        client.sources[source_id].grant(*credit)
        self.tell(client.name, Offer(source_id, "work", [["topic", pattern]], *credit, timeout))

    def credit(self, client: Client, source_id: int, messages: int, size_bytes: int) -> None:
        if source_id == 0:
            client.sources.setdefault(0, Source(client.name, mailbox_of(client.name), "#"))
            self.private |= client.name == "nobody"
        client.sources[source_id].grant(messages, size_bytes)
        self.tell(client.name, Credit(source_id, messages, size_bytes))

    def cancel(self, client: Client, source_id: int) -> None:
        del client.sources[source_id]
        for message in self.queues[SERVICE].values():
            if message.holder == (client.name, source_id):
                message.holder = None
        self.tell(client.name, Cancel(source_id))

    def lost(self, client: Client) -> None:
        self.leave(client)
        self.bench.lost(client.name)
        self.look()

    def block(self, client: Client) -> None:
        client.blocked = True
        self.bench.block(client.name)

    def unblock(self, client: Client) -> None:
        client.blocked = False
        self.bench.unblock(client.name)
        self.look()

    # What the disk does

    def commit(self) -> None:
        effects = self.pending.pop(self.bench.appends[0].token)
        for effect in effects:
            self._make_durable(*effect)
        self._settle(effects, failed=False)
        self.bench.commit()
        self.look()
        self._check_store()

    def fail(self) -> None:
        reserved = {name: state.reserved for name, state in self.bench.store.recover().streams.items()}
        self.forced |= {name for name in STREAMS if self.next[name] - 1 > reserved.get(name, 0)}
        effects = self.pending.pop(self.bench.appends[0].token)
        for effect in effects:
            if effect[0] == "due" or (effect[0] == "delete" and not effect[3]):
                self._make_durable(*effect)
        self._settle(effects, failed=True)
        # The broker notes at once which numbers failed.
        told = {effect[1] for effect in effects if effect[0] == "executed"}
        self.effects = [("executed", name, self.executed[name]) for name in told]
        self.bench.fail()
        self.look()
        self._check_store()
        # If the broker died before it has noted which numbers failed, it would take them for stored.
        while self.bench.appends:
            self.commit()

    def read(self) -> None:
        self.bench.read()
        self.look()

    def crash(self) -> None:
        """Kill the broker. What was not committed is gone, and what was is there."""
        self.bench.crash()
        self.pending.clear()
        recovered = self.bench.store.recover()
        for name in STREAMS:
            self._lose(name, recovered.streams[name].reserved + 1 if name in recovered.streams else 1)
        for key, queue in self.durable_queues.items():
            again = {
                s: Message(
                    m.subject,
                    m.body,
                    m.sender,
                    due=max(asked_due(m), m.kept_due),
                    kept_due=m.kept_due,
                    sent=m.sent,
                    properties=m.properties,
                    before=max(m.before + m.most, 1),
                )
                for s, m in queue.items()
            }
            self.queues[key], self.durable_queues[key] = again, dict(again)
            state = recovered.queues.get(stored_name(key))
            self.next[key] = state.next if state else 1
        for client in self.clients.values():
            self.leave(client)
            self.executed[client.name] = self.durable_executed[client.name]
        waiting = any(request.sender == "nobody" for request in self.queues[SERVICE].values())
        known = self.durable_executed["nobody"] > 1
        self.private = stored_name(mailbox_of("nobody")) in recovered.queues or (known and waiting)

    def _lose(self, stream: str, following: int) -> None:
        if stream not in self.forced:
            assert following > self.seen[stream], "a sequence would be used again"
        self.forced.discard(stream)
        self.seen[stream] = min(self.seen[stream], following - 1)
        self.streams[stream] = {s: m for s, m in self.streams[stream].items() if s < following}
        self.next[stream] = following

    def _make_durable(self, kind: str, key: Any, *rest: Any) -> None:
        if kind == "append" and key == "kept":
            self.durable_stream[rest[0]] = rest[1]
        elif kind == "put":
            self.durable_queues[key][rest[0]] = rest[1]
        elif kind == "delete":
            self.durable_queues[key].pop(rest[0], None)
        elif kind == "due" and rest[0] in self.durable_queues[key]:
            self.durable_queues[key][rest[0]].kept_due = rest[1]
        elif kind == "bury":
            self.dead[key].add(rest[0])
        elif kind == "executed":
            self.durable_executed[key] = max(self.durable_executed[key], rest[0])

    def _settle(self, effects: list[Effect], *, failed: bool) -> None:
        for kind, key, *rest in effects:
            if kind == "put" and rest[0] in self.queues[key]:
                if failed and rest[2]:
                    del self.queues[key][rest[0]]
                else:
                    rest[1].ready = True
            elif kind == "delete" and rest[1]:
                if failed:
                    self.queues[key][rest[0]].done = False
                else:
                    del self.queues[key][rest[0]]
            elif kind == "withdrawn":
                self.withdrawn[key].append(None if failed else rest[0])

    def settle(self) -> None:
        """Commit and read until there is nothing left to do."""
        while self.bench.appends or self.bench.reads:
            self.commit() if self.bench.appends else self.read()

    def drain(self) -> None:
        """Let everybody take all there is, and look that all have it."""
        for client in self.clients.values():
            if not client.open:
                self.hello(client)
            if client.blocked:
                self.unblock(client)
            for source_id in [*client.sources]:
                self.credit(client, source_id, -1, -1)
        self.settle()
        recovered = self.bench.store.recover().streams
        for client in self.clients.values():
            assert not client.awaited, "a number was never answered"
            assert not client.unsettled
            for source in client.sources.values():
                if source.of[0] == "stream":
                    # Of what could not be reserved nobody is told before there is something behind it.
                    state = recovered.get(source.of[1])
                    following = state.reserved + 1 if state else 1
                    missing = list(self._between(source, source.position, following))
                    assert not missing, f"{source} never got {missing}"

    # What the clients see

    def _see(self, client: Client, message: Any) -> None:
        handlers = {
            Ok: self._see_ok,
            Stored: self._see_stored,
            Error: self._see_error,
            Gap: self._see_gap,
            Deliver: self._see_delivery,
            Recall: self._see_recall,
        }
        if not client.open:
            assert isinstance(message, Stored | Error | Ok), "a client that has left is given something"
            self._see_withdrawal(client, message)
        elif type(message) in handlers:
            handlers[type(message)](client, message)
        else:
            assert isinstance(message, Welcome | Switch | Ping)

    def _see_ok(self, client: Client, ok: Ok) -> None:
        self._see_withdrawal(client, ok)
        if ok.about == 6:
            client.sources[ok.ref].position = ok.value - 1

    def _see_withdrawal(self, client: Client, message: Any) -> None:
        if isinstance(message, Ok | Error) and message.about == 20:
            told = self.withdrawn[client.name].pop(0)
            assert told == (message.value if isinstance(message, Ok) else None)

    def _see_recall(self, client: Client, recall: Recall) -> None:
        source = client.sources[recall.source]
        now = self.bench.now
        for first, last in recall.ranges:
            for sequence in range(first, last + 1):
                message = self.queues[source.of][sequence]
                if recall.reason == "withdrawn":
                    assert message.done
                else:
                    assert recall.reason == "timeout"
                    assert message.holder == (client.name, recall.source)
                    message.holder = None
                    message.due = now + BACKOFF
                    self.handed.append(("due", source.of, sequence, message.due))

    def _see_stored(self, client: Client, stored: Stored) -> None:
        for first, last, sequence in stored.ranges:
            for number in range(first, last + 1):
                command = self._settled(client, number, True)
                sequence = sequence and self._follow(command, sequence)

    def _follow(self, command: Any, sequence: int) -> int:
        if command is None:
            return 0
        place = self.streams[command.stream][sequence]
        self.seen[command.stream] = max(self.seen[command.stream], sequence + len(command.records) - 1)
        assert place.body == body_of(command.records[0]), "STORED tells another sequence"
        return sequence + len(command.records)

    def _see_error(self, client: Client, error: Error) -> None:
        assert error.code in (404, 420, 507), error  # 404: a reply sent again whose offer is cancelled
        self._see_withdrawal(client, error)
        if error.ref and error.about != 20:
            self._settled(client, error.ref, False)

    def _settled(self, client: Client, number: int, stored: bool) -> Any:
        client.answered[number] += 1
        assert client.answered[number] <= client.sent[number], f"number {number} was answered too often"
        assert client.outcome.setdefault(number, stored) == stored, f"number {number} has two outcomes"
        client.awaited.discard(number)
        return client.unsettled.pop(number, None)

    def _see_gap(self, client: Client, gap: Gap) -> None:
        source = client.sources[gap.source]
        stream = source.of[1]
        assert gap.first <= gap.last
        assert not list(self._between(source, source.position, gap.first)), "a hole before a gap"
        if stream == "kept":
            kept = [s for s, _ in chunks(self.bench.store, stream) if gap.first <= s <= gap.last]
            assert not [s for s in kept if matches(source.pattern, self.streams[stream][s].subject)], gap
        source.position = gap.last
        source.quiet = False

    def _between(self, source: Source, first: int | None, last: int) -> Iterator[int]:
        """The sequences between two that the subscription was to have."""
        assert first is not None
        stream = source.of[1]
        if source.quiet:
            oldest = next(chunks(self.bench.store, stream), (source.head,))[0]
            first = max(first, (oldest if stream == "kept" else source.head) - 1)
        for sequence in range(first + 1, min(last, self.next[stream])):
            message = self.streams[stream].get(sequence)
            if message and matches(source.pattern, message.subject):
                yield sequence

    def _see_delivery(self, client: Client, delivery: Deliver) -> None:
        source = client.sources[delivery.source]
        # A queue may have given it something before, and sends it once the disk knows.
        assert not client.blocked or source.of[0] != "stream", "the broker sends into a full pipe"
        for item in items(delivery):
            source.take(item)
            if source.of[0] == "stream":
                self._see_stream_message(source, delivery, item)
                delivery = delivery._replace(after=item.sequence)
            else:
                self._see_queue_message(client, delivery.source, source, item)

    def _see_stream_message(self, source: Source, delivery: Deliver, item: Item) -> None:
        message = self.streams[source.of[1]][item.sequence]
        assert (message.subject, message.body, message.sender) == item[1:4]
        assert matches(source.pattern, item.subject)
        self.seen[source.of[1]] = max(self.seen[source.of[1]], item.sequence)
        assert delivery.after == source.position, "`after` is not the position of the client"
        assert item.sequence > source.position
        holes = list(self._between(source, source.position, item.sequence))
        assert not holes, f"{holes} are missing without a word"
        source.quiet = False
        source.position = item.sequence

    def _see_queue_message(self, client: Client, source_id: int, source: Source, item: Item) -> None:
        message = self.queues[source.of].get(item.sequence)
        assert message is not None, "a message came that is done, or was never there"
        assert (message.subject, message.body) == item[1:3]
        assert matches(source.pattern, item.subject)
        assert message.ready, "a numbered message was delivered before it was stored"
        assert message.holder is None, "a message was given to two"
        assert not message.done
        assert message.due <= self.bench.now, "a message came before its time"
        message.holder = (client.name, source_id)
        message.since = self.bench.now
        message.deliveries += 1
        message.most = max(message.most, message.deliveries)
        assert message.deliveries <= item.attempt <= message.deliveries + message.before
        self.delivered.append((source.of, source, item.sequence))

    # What holds at all times

    def _check_first_come_first_served(self) -> None:
        for key, source, sequence in self.delivered:
            queue = self._queue(key)
            for earlier, entry in queue.entries.items() if (key, sequence) not in self.given else ():
                if entry.state != "waiting":
                    continue
                message = self.queues[key][earlier]
                order, mine = self._order(key, earlier), self._order(key, sequence)
                assert order > mine or not matches(source.pattern, message.subject), (
                    f"{key}: {sequence} went before {earlier}"
                )

    def _order(self, key: tuple[str, str], sequence: int) -> int:
        priority = (self.queues[key][sequence].properties or {}).get("priority", 0)
        return rank_of(sequence, priority, PRIORITY_STEP)

    def _queue(self, key: tuple[str, str]) -> Any:
        queues = self.bench.core.services if key == SERVICE else self.bench.core.mailboxes
        return queues.by_name.get(stored_name(key)[1])

    def _given(self) -> set[tuple[tuple[str, str], int]]:
        """What the broker has given to somebody. It sends it once the disk knows of it."""
        return {
            (key, sequence)
            for key in self.queues
            if (queue := self._queue(key))
            for consumer in queue.consumers.values()
            for sequence in consumer.outstanding
        }

    def _check_nobody_waits_for_nothing(self) -> None:
        for client in self.clients.values():
            for source in client.sources.values() if client.open and not client.blocked else ():
                if source.of[0] != "stream" and source.credit > 0 and source.bytes > 0:
                    for sequence, message in self.queues[source.of].items():
                        due = message.due <= self.bench.now
                        assert not (due and waits(message) and matches(source.pattern, message.subject)), (
                            f"{source.of}: {sequence} waits though {source} has credit"
                        )

    def _check_store(self) -> None:
        recovered = self.bench.store.recover()
        stored = dict(chunks(self.bench.store, "kept"))
        durable = self.durable_stream
        assert stored.items() <= durable.items(), "the store holds what was not committed"
        lost = [sequence for sequence in durable if sequence not in stored]
        assert len(stored) >= min(KEPT - 3, len(durable))
        assert max(lost, default=0) < min(stored, default=1 << 62)
        assert len(set(durable.values())) == len(durable), "a message is stored twice"
        for key, queue in self.durable_queues.items():
            state = recovered.queues.get(stored_name(key))
            found = {m.sequence: body_of(m.record) for m in state.messages} if state else {}
            assert found == {sequence: message.body for sequence, message in queue.items()}
            found_dead = recovered.queues.get((f"{key[0]}-dead", stored_name(key)[1]))
            bodies = {body_of(m.record) for m in found_dead.messages} if found_dead else set()
            assert bodies == self.dead[key]
        for name in NAMES:
            value = recovered.table(SESSIONS).get((peer_id(name), NUMBERS))
            assert (Numbers.unpack(value).next if value else 1) == self.durable_executed[name]

    # Material

    def bodies(self, number: int) -> list[bytes]:
        return [pack_record(None, next(self._bodies)) for _ in range(number)]


def stored_name(key: tuple[str, str]) -> Any:
    """The name of a queue in the store."""
    if key == mailbox_of("nobody"):
        return ("mailbox", Session(peer_id("nobody"), Numbers(), 0.0).mailbox)
    return key


def asked_due(message: Message) -> float:
    """Before when its sender did not want it to be delivered."""
    return message.sent + (message.properties or {}).get("delay", 0) / 1000


def waits(message: Message) -> bool:
    """Whether a queued message is ready for anybody."""
    return message.ready and not message.done and message.holder is None


def body_of(record: bytes) -> bytes:
    return bytes(record[bytes(record).index(b"m") :])
