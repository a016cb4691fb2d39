"""The history of a run: what its programs did and saw, as torture records it, held against the same rules.

Nothing in it comes from inside of the broker. Programs note what they ask for, what they are answered and
what they are handed. The world notes what it does to the broker and to its disk, and what is there at last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from history import (
    AT_ONCE,
    BACK,
    COMMIT,
    COMMITTED,
    DELIVERED,
    DISK_FAILS,
    DISK_WORKS,
    DURABLE,
    ENDED,
    EXPIRES,
    FINISHED,
    FORGOTTEN,
    GAP,
    KILLED,
    LEFT,
    OUTCOME,
    PUBLISH,
    PUBLISH_REFUSED,
    PUBLISHED,
    PURGE,
    PURGE_REFUSED,
    PURGED,
    READ,
    REDRIVE,
    RELEASED,
    REMOVED,
    RESTORED,
    SCATTERED,
    SEND,
    SEND_REFUSED,
    SENT,
    SETTLED,
    STATE,
    STORED,
    SUBSCRIBE,
    SUBSCRIBED,
    Record,
    Recorder,
    check,
)
from history import Violation as BrokenPromise
from sim_admin import CHANGED
from sim_clock import Wall
from sim_dead import base_of
from sim_machine import EXPIRY
from sim_origin import Order, Violation, body_of
from sim_streams import read_all
from sim_wants import CRITERIA, HEADERS

from malamute.client.events import Connected, Event
from malamute.client.session.outbox import Command
from malamute.client.session.questions import PendingChange
from malamute.client.session.receipts import OutcomeTracking
from malamute.client.session.sources import ConsumerSource, Item, StreamSource
from malamute.errors import AddressTaken, Disconnected, Failed, NumberTooOld, Refused, UnexpectedCommand
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import unpack_payload
from malamute.protocol.messages import MAILBOX, Deliver, Message
from malamute.protocol.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from sim_world import World

NO_ANSWERS = (AddressTaken, Disconnected, NumberTooOld, UnexpectedCommand)
"""The session is over with these, and what it had asked for may have been done."""

FIRSTS = {"first": 1, "seq:1": 1, "seq:9": 9}
"""The first sequence that somebody asks for with a start."""

SENT_KINDS = ("sen", "req")
"""How the bodies begin of what programs send to queues; what feeds make begins otherwise."""

LATE_SECONDS = 1e-3
"""How much later than it was a record may be: each one has a time of its own."""

MANY_LETTERS = 1_000
"""More dead letters than a run makes."""

STREAMS_STORED = ("kept", "more")
"""The streams that have a journal."""

Queue = tuple[str, str]
"""The kind and the name of a queue."""


def queue_name(queue: Queue) -> str:
    """What the history calls a queue."""
    return "/".join(queue)


class Exemption(NamedTuple):
    """Rules that are not held against a run, or a name in it, and why."""

    rules: frozenset[str]
    applies: Callable[[World, str], bool]
    why: str


class History:
    """The records of a run, and the time of their clock."""

    def __init__(self, wall: Wall) -> None:
        self.records: list[Record] = []
        self._wall = wall
        self._last = 0
        self.note = self.recorder("world")
        self.sent_as: dict[tuple[str, Queue, str], list[str]] = {}
        """Messages sent to each queue under a correlation, by the mailbox of its sender."""
        self.withdrawn: set[tuple[str, Queue, str]] = set()
        self.sent_under: dict[tuple[Queue, str], list[str]] = {}
        """Messages sent to each queue under an id, by anybody."""
        self.cancelled: set[tuple[Queue, str]] = set()
        self.shortened: set[str] = set()
        """The streams that operators let keep less than is configured."""
        self.ended: list[str] = []
        """Programs that are no more, while their last commands may still come to the broker."""
        self._away = self._disk_fails = False

    def recorder(self, client: str) -> Recorder:
        """A recorder for a program."""
        return Recorder(client, self.records.append, self.clock)

    def clock(self) -> int:
        """The time that has gone by, in nanoseconds, and another one for each record."""
        self._last = max(self._last + 1, int(self._wall.monotonic() * 1e9))
        return self._last

    # What the world does to the broker

    def killed(self) -> None:
        """The broker is killed: no command of before comes to the next one."""
        self.note(KILLED, "")
        for client in self.ended:
            self.note(ENDED, "", client)
        self.ended.clear()
        self._away = True

    def disk_fails(self) -> None:
        """A disk will refuse something."""
        if not self._disk_fails:
            self._disk_fails = True
            self.note(DISK_FAILS, "")

    def step(self, world: World) -> None:
        """A step is over: note what has come to its end."""
        if self._away and all(client.link.is_settled for client in world.clients):
            # From now on nobody is handed anything that the broker before has sent.
            self._away = False
            self.note(BACK, "")
        if self._disk_fails and world.machine.workers.is_at_rest:
            # The broker learns late of what was refused, and hands on until then what needs that.
            self._disk_fails = False
            self.note(DISK_WORKS, "")

    def restored(self, copied_at: int) -> None:
        """A copy of the store takes its place."""
        self.note(RESTORED, "", sequence=copied_at)

    def damaged(self, stream: str, sequences: range) -> None:
        """Messages of a stream cannot be read any more."""
        if sequences:
            self.note(REMOVED, stream, sequence=sequences[0], last=sequences[-1], text="damaged")

    def block_damaged(self, world: World, messages: Iterable[tuple[str, str, int]]) -> None:
        """Some messages are gone, and cursors and sessions may be gone or be older ones."""
        for kind, name, sequence in messages:
            self.damaged(queue_name((base_of(kind), name)), range(sequence, sequence + 1))
        for stream in STREAMS_STORED:
            for cursor in CHANGED["cursor"]:
                self.note(COMMIT, stream, cursor)
        self.doubt(world)

    def doubt(self, world: World) -> None:
        """Sessions may be older ones: what they were not answered may be done again."""
        for client in world.clients:
            client.notes.forgotten()


class Notes:
    """What one program notes."""

    def __init__(self, history: History, client: str) -> None:
        self.history = history
        self.client = client
        self.note = history.recorder(client)
        self._unnumbered = history.recorder(f"{client} unconfirmed")
        self._subscriptions: dict[int, Recorder] = {}
        self._open: list[tuple[Order, str, int]] = []
        """The orders without an answer, the names of their streams or queues, and when they were given."""
        self._changes: list[tuple[PendingChange, Callable[[bool], None]]] = []
        self._replies: list[tuple[Command, str, str, tuple[int, int]]] = []
        self._unopened: list[StreamSource] = []
        self._tracked: dict[str, tuple[str, str]] = {}
        self._outcomes: set[tuple[str, int]] = set()
        self._attempts: dict[tuple[int, int], int] = {}
        """Of the last delivery of each message that came, by source and sequence."""
        self._given: dict[tuple[int, int], str] = {}
        """Requests with a final reply that is not confirmed, and their queues."""
        self._was_known = False

    # What it asks for

    def publishes(self, order: Order, subjects: Iterable[str], headers: Mapping[str, Any], ttl: int) -> None:
        """It publishes messages."""
        note = self.note if order.numbered else self._unnumbered
        for body, subject in zip(order.bodies, subjects, strict=True):
            note(PUBLISH, order.target, body.decode(), text=_choices(subject, headers))
            if ttl:
                note(EXPIRES, order.target, body.decode())
        self._await(order, order.target)

    def sends(self, order: Order, sender: str, options: Mapping[str, Any], window_seconds: float) -> None:
        """It sends messages, or one request."""
        queue = ("service" if order.kind == "request" else "mailbox"), order.target
        name, correlation = queue_name(queue), options.get("correlation", "")
        window_ns = int((window_seconds - LATE_SECONDS) * 1e9)
        identity = {"text": order.identity, "last": window_ns} if order.identity else {}
        for body in order.bodies:
            self.note(SEND, name, body.decode(), **identity)
            if "ttl" in options:
                self.note(EXPIRES, name, body.decode())
            if order.identity:
                under = self.history.sent_under
                # The newest is the last.
                under[queue, order.identity] = [*under.pop((queue, order.identity), ()), body.decode()]
                if (queue, order.identity) in self.history.cancelled:
                    self.note(REMOVED, name, body.decode(), text="withdrawn")
            if correlation:
                key = sender, queue, correlation
                self.history.sent_as.setdefault(key, []).append(body.decode())
                if key in self.history.withdrawn:
                    self.note(REMOVED, name, body.decode(), text="withdrawn")
        self._await(order, name)

    def tracks(self, tracking: OutcomeTracking, order: Order) -> None:
        """It waits for the outcome of a message to a mailbox."""
        self._tracked[tracking.tracker] = queue_name(("mailbox", order.target)), order.bodies[0].decode()

    def _await(self, order: Order, name: str) -> None:
        if order.numbered:
            self._open.append((order, name, self.history.clock()))

    def withdraws(self, sender: str, kind: str, name: str, correlation: str) -> None:
        """It takes back what it or another program of its address has sent under a correlation."""
        key = sender, (kind, name), correlation
        self.history.withdrawn.add(key)
        for body in self.history.sent_as.get(key, ()):
            self.note(REMOVED, queue_name((kind, name)), body, text="withdrawn")

    def cancels(self, kind: str, name: str, identity: str) -> None:
        """It takes back what anybody has sent under an id."""
        queue = kind, name
        self.history.cancelled.add((queue, identity))
        for body in self.history.sent_under.get((queue, identity), ()):
            self.note(REMOVED, queue_name(queue), body, text="withdrawn")

    def commits(self, order: Order) -> None:
        """It commits a cursor."""
        stream, cursor = order.target.split(" ")
        self.note(COMMIT, stream, cursor, sequence=order.position)
        self._await(order, stream)

    def subscribes(self, source: StreamSource, start: str, choice: str, *, committed: bool) -> None:
        """It subscribes."""
        note = self.history.recorder(f"{self.client}/{source.number}")
        self._subscriptions[source.number] = note
        words = [DURABLE] * committed + [SCATTERED] * (start == "last-per-subject") + [choice]
        first = 0 if source.cursor else FIRSTS.get(start, 0)
        note(SUBSCRIBE, source.stream, source.cursor, sequence=first, text=" ".join(words))
        self._unopened.append(source)

    def changes(self, pending: PendingChange, topic: str, arguments: Mapping[str, Any]) -> None:
        """It asks for a change, as an operator."""
        if arguments.get("dry_run"):
            return
        stream = arguments.get("stream", "")
        if topic in ("stream.purge", "stream.delete"):
            # A deletion may take several commits, and the last one takes all that is there by then.
            self._purges(pending, stream, AT_ONCE if topic == "stream.purge" else "")
        elif topic in ("queue.purge", "queue.delete"):
            self._purges(pending, queue_name((arguments["kind"], arguments["name"])))
        elif topic == "queue.redrive":
            self.note(REDRIVE, queue_name((arguments["kind"], arguments["name"])))
        elif topic in ("stream.create", "stream.retain"):
            self.history.shortened.add(stream)
        cursors = CHANGED["cursor"] if topic == "stream.delete" else [arguments.get("cursor", "")]
        for cursor in cursors if topic in ("stream.delete", "cursor.set", "cursor.delete") else ():
            self._sets(pending, stream, cursor)

    def _purges(self, pending: PendingChange, name: str, how: str = "") -> None:
        key = str(pending.number)
        self.note(PURGE, name, key, text=how)
        self._changes.append((pending, lambda done: self.note(PURGED if done else PURGE_REFUSED, name, key)))

    def _sets(self, pending: PendingChange, stream: str, cursor: str) -> None:
        self.note(COMMIT, stream, cursor)
        self._changes.append((pending, lambda done: self.note(COMMITTED, stream, cursor) if done else None))

    # What it sees

    def reads(self, source: StreamSource, sequence: int, body: bytes) -> None:
        """It takes a message of a stream."""
        if not source.stream.startswith(RESERVED_PREFIX):
            self._subscriptions[source.number](READ, source.stream, body.decode(), sequence=sequence)

    def got_gap(self, source: StreamSource) -> None:
        """It is notified of a gap."""
        gap = source.recent_gaps[-1]
        note = self._subscriptions[source.number]
        note(GAP, source.stream, sequence=gap.first, last=gap.last, text=gap.reason)

    def finished(self, source: StreamSource) -> None:
        """It has read to the end."""
        self._subscriptions[source.number](FINISHED, source.stream)

    def has_all_outcomes(self) -> None:
        """It has every outcome that it will ever have."""
        for name, body in self._tracked.values():
            self.note(FINISHED, name, body)

    def is_handed(self, queue: Queue, item: Item) -> None:
        """It takes mail, or a request, into the hand."""
        body = body_of(item.record).decode()
        if body[:3] in SENT_KINDS:
            at = {"sequence": item.sequence, "attempts": item.attempts}
            self.note(DELIVERED, queue_name(queue), body, **at)

    def releases(self, queue: Queue, sequence: int) -> None:
        """It gives something back as if it had not been delivered."""
        self.note(RELEASED, queue_name(queue), sequence=sequence)

    def replies(self, command: Command | None, offer: ConsumerSource, item: Item) -> None:
        """It gives the final reply to a request, which may have to be confirmed."""
        body, place = body_of(item.record).decode(), (offer.number, item.sequence)
        if body[:3] in SENT_KINDS:
            self._given[place] = name = queue_name(("service", offer.name))
            if command is not None:
                self._replies.append((command, name, body, place))

    def drains(self, source: ConsumerSource | None = None) -> None:
        """It lets go of what it does not hold, at one source or at all: its replies may have been refused."""
        for (number, sequence), name in self._given.items():
            if source is None or source.number == number:
                self.note(RELEASED, name, sequence=sequence)

    def is_answered(self, service: str, body: bytes, how: str) -> None:
        """It takes the last reply to a request."""
        self.note(OUTCOME, queue_name(("service", service)), body.decode(), text=how)

    def arrives(self, message: Message) -> None:
        """Something comes in, before the session sees whether it is news."""
        if not isinstance(message, Deliver) or message.source in self._subscriptions:
            return
        for item in map(Item._make, unpack_payload(message.payload, message.large).rows()):
            self._attempts[message.source, item.sequence] = item.attempts
            outcome = (item.properties or {}).get("outcome") if message.source == MAILBOX else None
            if outcome is not None:
                self._outcome(str((item.properties or {})["tracker"]), item.sequence, outcome)

    def _outcome(self, tracker: str, sequence: int, outcome: str) -> None:
        tracked = self._tracked.get(tracker)
        if tracked is not None and (tracker, sequence) not in self._outcomes:
            self._outcomes.add((tracker, sequence))
            self.note(OUTCOME, *tracked, text=outcome)

    def ends(self) -> None:
        """It is no more, and looks at nothing from now on."""
        self.looks(())
        for order, name, given_ns in self._open:
            self._doubt(order, name, given_ns)
        self.history.ended.append(self.client)

    def looks(self, events: Iterable[Event]) -> None:
        """It looks at what has been answered."""
        for event in events:
            if isinstance(event, Connected):
                if self._was_known and not event.resumed:
                    self.forgotten()
                self._was_known = True
        self._open = [entry for entry in self._open if not self._is_answered(*entry)]
        if self._unopened:
            self._unopened = [source for source in self._unopened if not self._is_opened(source)]
        if self._changes:
            self._changes = [entry for entry in self._changes if not _is_made(*entry)]
        if self._replies:
            self._replies = [entry for entry in self._replies if not self._is_settled(*entry)]

    def forgotten(self) -> None:
        """The broker has forgotten its session: what it was not answered may be done again."""
        for order, name, _ in self._open:
            self._forgotten(order, name)

    def _doubt(self, order: Order, name: str, given_ns: int) -> None:
        """After so long it may not have learned that its session had expired, and another took its place."""
        if self.history.clock() - given_ns > EXPIRY * 1e9:
            self._forgotten(order, name)

    def _forgotten(self, order: Order, name: str) -> None:
        for body in order.bodies:
            self.note(FORGOTTEN, name, body.decode())

    def _is_answered(self, order: Order, name: str, given_ns: int) -> bool:
        command = order.command
        if command is None or not command.done:
            return False
        self._doubt(order, name, given_ns)
        if not isinstance(command.error, NO_ANSWERS):
            _ANSWERS[order.kind](self, order, name, command)
        return True

    def _published(self, order: Order, name: str, command: Command) -> None:
        kind = PUBLISHED if command.error is None else PUBLISH_REFUSED
        if isinstance(command.error, Refused | Failed | None):
            for place, body in enumerate(order.bodies):
                self.note(kind, name, body.decode(), sequence=command.sequence and command.sequence + place)

    def _sent(self, order: Order, name: str, command: Command) -> None:
        kind = SENT if command.error is None else SEND_REFUSED
        if isinstance(command.error, Refused | Failed | None):
            for body in order.bodies:
                self.note(kind, name, body.decode())

    def _committed(self, order: Order, name: str, command: Command) -> None:
        if command.error is None:
            self.note(COMMITTED, name, order.target.split(" ")[1], sequence=order.position)

    def _is_opened(self, source: StreamSource) -> bool:
        if source.first is not None:
            self._subscriptions[source.number](SUBSCRIBED, source.stream, sequence=source.first)
        return source.ended or source.first is not None

    def _is_settled(self, command: Command, name: str, body: str, place: tuple[int, int]) -> bool:
        if command.done and command.error is None:
            # A reply counts for the last delivery, though that may have come behind it.
            self.note(SETTLED, name, body, attempts=self._attempts[place])
            self._given.pop(place, None)
        return command.done


def _is_made(pending: PendingChange, answered: Callable[[bool], None]) -> bool:
    if (
        pending.done
        and isinstance(pending.error, Refused | Failed | None)
        and not isinstance(pending.error, NO_ANSWERS)
    ):
        answered(pending.error is None and not _has_ended_feeds_only(pending))
    return pending.done


def _has_ended_feeds_only(pending: PendingChange) -> bool:
    """The deletion of a stream has come no further; that of a queue, if partial, has dropped some of it."""
    return pending.asking.topic == "stream.delete" and pending.value.get("partial", False)


_ANSWERS = {
    "publish": Notes._published,
    "send": Notes._sent,
    "request": Notes._sent,
    "commit": Notes._committed,
}

_CHOICES: dict[tuple[str, int], str] = {}


def _choices(subject: str, headers: Mapping[str, Any]) -> str:
    """The names of the criteria that take such a message."""
    key = subject, next(place for place, known in enumerate(HEADERS) if known is headers)
    if key not in _CHOICES:
        about = _About(subject, headers)
        _CHOICES[key] = " ".join(name for name, (_, _, wants) in CRITERIA.items() if wants(about))
    return _CHOICES[key]


class _About(NamedTuple):
    subject: str
    headers: Mapping[str, Any]


def note_state(world: World, store: MemoryStore) -> None:
    """Note what there is in the end, and who has come so far."""
    history = world.history
    for client in world.clients:
        client.notes.looks(())
        for reader in client.readers.values():
            if not (reader.source.ended or reader.source.waiting):
                client.notes.finished(reader.source)
        client.notes.has_all_outcomes()
    states = store.recover()
    for stream in STREAMS_STORED:
        first = states.streams[stream].first if stream in states.streams else 1
        if first > 1 and world.may_drop(stream):
            history.note(REMOVED, stream, sequence=1, last=first - 1, text="retention")
        history.note(STATE, stream)
        for sequence, (_, record) in read_all(store, stream).items():
            history.note(STORED, stream, body_of(record).decode(), sequence=sequence)
    for (kind, name), queue in states.queues.items():
        for message in queue.messages:
            body = body_of(message.record).decode() if message.record else ""
            history.note(LEFT, queue_name((base_of(kind), name)), body)


def broken_promises(world: World) -> Iterator[BrokenPromise]:
    """What the history of a run that is over breaks, and is not exempted here."""
    for found in check(world.history.records):
        if not any(found.rule in e.rules and e.applies(world, found.name) for e in EXEMPTIONS):
            yield found


def check_history(world: World) -> None:
    """Hold the history of a run that is over against the rules."""
    for found in broken_promises(world):
        raise Violation(f"history: {found.rule}", name=found.name, text=found.text)


EXEMPTIONS = (
    Exemption(
        frozenset({"lost"}),
        lambda world, name: _is_queue(name) and _drops_letters(world),
        "a message may be delivered as often as it may be and never be taken into the hand, and its dead "
        "letter be dropped as the oldest of too many",
    ),
    Exemption(
        frozenset({"deduplication"}),
        lambda world, name: "identities_bytes" in world.setup.tight or world.setup.clocks,
        "the oldest identities are forgotten before their time where all have hardly any room, and a start "
        "believes a wall clock that was set",
    ),
    Exemption(
        frozenset({"no outcome"}),
        lambda world, name: world.setup.shared or world.setup.flaws or world.setup.queues.attempts_max > 0,
        "an outcome is mail: another consumer of the mailbox may have it, the disk may lose it, and so may a "
        "program that has died with it as often as it is delivered",
    ),
)


def _is_queue(name: str) -> bool:
    return "/" in name


def _drops_letters(world: World) -> bool:
    policy = world.setup.queues
    return policy.attempts_max > 0 and policy.dead_letters_max < MANY_LETTERS
