"""The books together: what is shown of a broker, written down in each and checked against the others.

The order in which things are shown is that of an iteration: commands read, peers found gone, operations
handed to the disk, messages sent. What the disk commits is shown in between, when it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from sim_answers import NO_OUTCOME, AnswerBook, Cancellation
from sim_audit import AuditBook
from sim_buckets import KeyBook
from sim_clock import MailTimes, Wall
from sim_credit import OFFER, SUBSCRIBE, CreditBook, Grant
from sim_damage import Damaged, FlawedStore
from sim_feeds import FeedBook, called, is_put
from sim_machine import AUDITOR, NO_JOURNAL
from sim_origin import Author, Order, Violation, body_of, mailbox_of
from sim_puts import Puts
from sim_queues import Deletion, QueueBook
from sim_streams import StreamBook
from sim_waiting import WaitingBook
from sim_wants import takes, wants_of

from malamute.core.broker import Core
from malamute.core.iteration.effects import ClockStep
from malamute.core.reports.events import EVENTS
from malamute.core.session.refusals import TEXT as REFUSED_BEFORE
from malamute.errors import Disconnected, NotFound, TryLater
from malamute.journal.memory import MemoryStore
from malamute.protocol.batch import Columns
from malamute.protocol.fields import FEED_PREFIX, Ranges
from malamute.protocol.messages import (
    EXPIRED,
    MAILBOX,
    Ack,
    Bye,
    Cancel,
    Change,
    Commit,
    Delivery,
    Drain,
    Error,
    Gap,
    Hello,
    Message,
    Nak,
    Offer,
    Ok,
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
    Welcome,
    Withdraw,
)
from malamute.protocol.names import AUDIT
from malamute.store.commit import Append
from malamute.store.operations import (
    FLOOR,
    AppendChunk,
    Defect,
    DeleteStream,
    DeleteValue,
    ForgetStream,
    Operation,
    PutValue,
    Recovered,
    Reserve,
    Stranded,
)
from malamute.store.policies import QueuePolicy, StreamRetention
from malamute.store.tables import CURSORS, FEEDS, OUTCOMES, OWNERS, RETENTIONS, SESSIONS

HELLO, REPLY, CHANGE = 1, 5, 15
NO_DISK = "write backlog is full"
"""What may be said against a final reply that comes at a bad time."""

BROKERS_OWN = (EVENTS, AUDIT, NO_JOURNAL)
"""Streams that are there without anybody's asking; the last has its auditor."""

Place = tuple[tuple[bytes, int], tuple[str, str]]


class Book:
    """Everything that was promised, and whether it was kept."""

    def __init__(
        self,
        store: MemoryStore,
        has_failed: Callable[[], bool],
        policy: QueuePolicy,
        wall: Wall,
        *,
        audit: bool = False,
        unconfirmed: int = 0,
    ) -> None:
        self.keys = KeyBook()
        self.has_failed = has_failed
        self.audit = AuditBook(lambda: wall.now, has_failed, unconfirmed, on=audit)
        self.author = Author()
        self.streams = StreamBook(self.author, store, NO_JOURNAL, wall)
        self.feeds = FeedBook(self.author, self.streams, NO_JOURNAL)
        self.queues = QueueBook(self.author, self.feeds, policy, MailTimes(wall))
        self._puts = Puts()
        self.waiting = WaitingBook(policy)
        self.offers: dict[tuple[bytes, int], Offer] = {}
        """Those that may stand."""
        self.credit = CreditBook()
        self._answers = AnswerBook()
        self.queues.is_cancelled = self._answers.is_cancelled
        self.orders: dict[bytes, dict[int, list[Order]]] = {}
        """The orders of each number; publishes that were coalesced have one."""
        self.cursors: dict[tuple[str, str], int] = {}
        self.cursors_stored: dict[tuple[str, str], int] = {}
        self.owners_stored: dict[tuple[str, str], str] = {}
        self.set_back: dict[tuple[str, str], int] = {}
        """Where feeds begin that the disk has beyond the last message, or in doubt, until it takes that."""
        self.cursors_ever: set[tuple[str, str, int]] = set()
        self.had: dict[bytes, set[bytes]] = {}
        """What each program has had in its hands."""
        self.careless: set[bytes] = set()
        """Who speaks of what he has settled before, whatever has the number now."""
        self.mailboxes: dict[bytes, str] = {}
        self.ended: set[bytes] = set()
        """The sessions that the broker has forgotten at some time."""
        self.answers: dict[tuple[bytes, int], Any] = {}
        """What changes were answered."""
        self._answered: dict[tuple[bytes, int], Any] = {}
        """The last answer of all to each: a broker may know it though it has not resumed the session."""
        self._dismissed: set[bytes] = set()
        """Whose sessions an operator has ended. There may have been two with the same numbers, and what both
        were to be answered comes now."""
        self._unnoted: set[bytes] = set()
        """Sessions whose outcomes of changes the disk has refused, and does not have since."""
        self.lost_cursors: set[tuple[str, str]] = set()
        """Those of which nobody knows where they are."""
        self._unlearned = False
        """Whether the disk has lost something that this broker has not learned of."""
        self._to_store: set[tuple[str, Any]] = set()
        """Values that the disk has lost while this broker runs, and is to have again with this iteration."""
        self.retentions: dict[str, tuple[int, int, float]] = {}
        """Those on the disk."""
        self.recent: dict[tuple[str, str], set[int | None]] = {}
        """What was committed in this iteration; None is anywhere."""
        self.asked: dict[tuple[bytes, int], set[int | None]] = {}
        """Where the cursor of a subscription may have been when it was asked for."""
        self.ends: dict[tuple[bytes, int], int] = {}
        """Where its stream ended then."""

        self._there: dict[tuple[bytes, int], str] = {}
        """Subscriptions that were asked for to streams that are there."""
        self._deleted: set[str] = set()
        """Streams that operators want deleted from this broker, now or then."""
        self._readers: dict[tuple[bytes, int], set[tuple[bytes, int]]] = {}
        """Who read a stream when an operator wanted it deleted with what hangs on it."""
        self._absent: set[bytes] = set()
        """Whose connection is lost, and what they read has ended with it."""
        self.reads_nothing: set[tuple[bytes, int]] = set()
        """Whose stream is deleted, and who was not told yet."""
        self._named: set[str] = set()
        """The streams that somebody may have made."""

    def numbered(self, order: Order) -> None:
        """A client has given a command a number."""
        assert order.command is not None
        self.orders.setdefault(order.peer, {}).setdefault(order.command.number, []).append(order)

    # What is shown of the broker

    def started(self, recovered: Recovered) -> None:
        """A broker starts on what the disk holds."""
        self.streams.started(recovered)
        self.queues.started(recovered)
        self.audit.started(recovered)
        retentions = {name: value for (name,), value in recovered.table(RETENTIONS).items()}
        self._named = {*BROKERS_OWN, *recovered.streams, *retentions}
        self._named |= {stream for table in (FEEDS, CURSORS) for stream, _ in recovered.table(table)}
        if retentions != self.retentions:
            raise Violation("a retention was lost", found=retentions)
        if dict(recovered.table(CURSORS)) != self.cursors_stored:
            raise Violation("a committed cursor was lost", found=dict(recovered.table(CURSORS)))
        self.owners_stored = dict(recovered.table(OWNERS))
        self.cursors = dict(self.cursors_stored)
        feeds = self.queues.feeds.feeds.items()
        positions = {(n, FEED_PREFIX + s): f.course.position for (s, n), f in feeds if f.course is not None}
        self.set_back = {key: at for key, at in positions.items() if at < self.cursors_stored.get(key, 0)}
        self.lost_cursors = {key for table, key in recovered.lost if table == CURSORS}
        self._named |= {stream for stream, _ in self.lost_cursors}
        for table, (peer, _) in recovered.doubtful:
            if table == SESSIONS:
                self._may_come_again(peer)

    def damaged(self, found: Damaged) -> None:
        """The next broker finds something damaged on the disk."""
        self.queues.damaged(found)
        self.feeds.damaged(found)
        for key in found.lost:
            del self.cursors_stored[key]
        self.cursors_stored |= found.back
        for peer in found.forgotten:
            self._may_come_again(peer)

    def stranded(self, found: Stranded) -> None:
        """The disk has lost this while a broker runs, which has not learned of it yet."""
        self._unlearned = True
        self.queues.stranded(found)
        cursors = [key for table, key in found.values if table == CURSORS]
        self.feeds.stranded(cursors)
        for key in cursors:
            del self.cursors_stored[key]

    def damage_found(self, defects: Sequence[Defect], core: Core) -> None:
        """The broker is about to learn of it."""
        self._unlearned = False
        for defect in defects:
            stranded = defect.stranded or Stranded({})
            self.queues.damage_found(stranded, core)
            self._to_store.update(
                (table, key) for table, key in stranded.values if _is_known(core, table, key)
            )

    def _may_come_again(self, peer: bytes) -> None:
        """What a session has had no answer for may be executed a second time."""
        for order in chain.from_iterable(self.orders.get(peer, {}).values()):
            if order.command is None or not order.command.done:
                order.twice = True

    def died(self) -> None:
        """The broker is killed."""
        self.streams.died()
        self.queues.died()
        self._puts = Puts()
        self.credit.died()
        self._answers.died()
        self.offers.clear()
        self.waiting.died()
        self.recent.clear()
        self._to_store.clear()
        self._there.clear()
        self._deleted.clear()
        self._readers.clear()
        self.reads_nothing.clear()
        self._unlearned = False
        # A change that could not be taken back is answered, and made again if nobody knows of it any more.
        self.answers = {key: value for key, value in self.answers.items() if key[0] not in self._unnoted}
        self._unnoted.clear()
        for order in self.each_order():
            if order.command is None or order.command.done:
                continue
            # A refusal is remembered beside what is stored; one that nobody heard of may be forgotten.
            if order.outcome is False:
                order.outcome = None
            # Nothing is stored of what is in memory only: it is published again.
            elif order.kind == "publish" and order.target == NO_JOURNAL:
                order.twice = True

    def each_order(self) -> Iterator[Order]:
        """Every order that has a number."""
        for orders in self.orders.values():
            yield from chain.from_iterable(orders.values())

    def received(self, peer: bytes, message: Message) -> None:
        """The broker is about to read a command."""
        if not peer[0]:
            # It comes from a connection that has lost its routing id to a newer one, and is refused.
            return
        self.credit.received(peer, message)
        self._answers.received(peer, message)
        self.audit.received(peer, message)
        self.queues.heard.add(peer)
        if isinstance(message, Publish):
            self._named.add(message.stream)
        if handler := _READ.get(type(message)):
            handler(self, peer, message)

    def _hello(self, peer: bytes, message: Hello) -> None:
        self._taken_back(peer)
        self._opened(peer, mailbox_of(peer, message.address))

    def _offer(self, peer: bytes, message: Offer) -> None:
        self.offers[peer, message.source] = message
        self.waiting.offered.add((message.kind, message.service))

    def _withdraw(self, peer: bytes, message: Withdraw) -> None:
        if message.id:
            under = ((message.kind, message.name), message.id)
            wanted = Cancellation(under, self.queues.waiting_under(under))
            self._answers.cancellations[peer, message.ref] = wanted
            return
        sender = self.mailboxes.get(peer, "")
        asked = ((message.kind, message.name), sender, message.correlation)
        self.queues.withdrawn.add(asked)
        self._answers.withdraws(peer, message, asked)

    def _change(self, peer: bytes, message: Change) -> None:
        if message.arguments.get("dry_run"):
            # Behind the end of its session a client asks only what its change would do now.
            self.queues.deletions.pop((peer, message.number), None)
            self._readers.pop((peer, message.number), None)
            return
        self._named |= {place.split("/")[-1] for name in _PLACES if (place := message.arguments.get(name))}
        if message.topic == "queue.purge":
            kind = message.arguments["kind"] + ("-dead" if message.arguments.get("dead") else "")
            self.queues.purged.add((kind, message.arguments["name"]))
        elif message.topic == "queue.delete":
            queue = message.arguments["kind"], message.arguments["name"]
            deletion = Deletion(queue, cascade=message.arguments.get("cascade", False))
            self.queues.deletions.setdefault((peer, message.number), deletion)
        elif message.topic == "feed.set":
            self.feeds.asked(message.arguments)
        elif message.topic in ("cursor.set", "cursor.delete"):
            cursor = message.arguments["stream"], message.arguments["cursor"]
            self.recent.setdefault(cursor, set()).add(None)
        elif message.topic == "stream.delete":
            self._deleted.add(message.arguments["stream"])
            if message.arguments.get("cascade"):
                readers = self.credit.readers(message.arguments["stream"])
                self._readers[peer, message.number] = {r for r in readers if r[0] not in self._absent}
            for cursor in [*self.cursors, *self.cursors_stored, *self.lost_cursors, *self.recent]:
                if cursor[0] == message.arguments["stream"]:
                    self.recent.setdefault(cursor, set()).add(None)

    def _changed(self, peer: bytes, number: int, value: Any) -> None:
        """A change is answered: always with the same, however often it is asked for."""
        again = number > 0 and self._answered.get((peer, number)) == value
        self._answered[peer, number] = value
        known = self.answers.get((peer, number)) if peer in self._dismissed else None
        if number and self.answers.setdefault((peer, number), value) != value and known is None:
            before = self.answers[peer, number]
            raise Violation("a change was made twice", number=number, before=before, now=value)
        readers = self._readers.pop((peer, number), set())
        if not (again or value.get("partial")):
            self.reads_nothing |= {reader for reader in readers if self.credit.newest(*reader)}
        deletion = self.queues.deletions.pop((peer, number), None)
        if deletion is not None and not (deletion.done or value.get("partial") or again):
            raise Violation("a queue that was deleted is there", queue=deletion.queue)

    def _cancel(self, peer: bytes, message: Cancel) -> None:
        self._taken_back(peer, message.source)

    def _commit(self, peer: bytes, message: Commit) -> None:
        self.recent.setdefault((message.stream, message.cursor), set()).add(message.sequence)

    def _subscribe(self, peer: bytes, message: Subscribe) -> None:
        if not message.existing:
            self._named.add(message.stream)
        elif message.stream not in self._deleted and self.streams.has_any(message.stream):
            self._there[peer, message.source] = message.stream
        key = (message.stream, message.cursor)
        # What the disk refuses, the broker takes back when it learns that.
        known = {self.cursors.get(key), self.cursors_stored.get(key), *self.recent.get(key, ())}
        # What the cursor tells of may never have been stored: then there is only the head to begin at.
        last = self.streams.last(message.stream)
        is_lost = key in self.lost_cursors and None not in self.recent.get(key, ())
        # Whoever reads with a lost one is refused.
        self.asked[peer, message.source] = (
            set() if is_lost else {None if p is None or p > last else p for p in known}
        )
        self.ends[peer, message.source] = last

    def _opened(self, peer: bytes, mailbox: str) -> None:
        for older, name in self.mailboxes.items():
            if name == mailbox and older != peer:
                # Its address is taken over, and what it held is with nobody.
                self.queues.heard.add(older)
                self._taken_back(older)
        self.mailboxes[peer] = mailbox
        self._absent.discard(peer)

    def _taken_back(self, peer: bytes, source: int | None = None) -> None:
        self.queues.taken_back(peer, source)
        if source is None:
            self._absent.add(peer)
        for readers in (self.reads_nothing, *self._readers.values()):
            readers -= {reader for reader in readers if reader[0] == peer and source in (None, reader[1])}
        gone = [(p, s) for p, s in self.offers if p == peer and source in (None, s)]
        for offer in gone:
            del self.offers[offer]

    def _asked(self, peer: bytes, message: Request) -> None:
        """Whether anybody may be there for a request: this is more than the broker can know.

        What it acknowledges is done whatever becomes of it. A client does not say that twice.
        """
        if message.acks:
            self._settled(peer, Ack(MAILBOX, message.acks))
        origin = self.author.origin(message.records[0] or b"")
        origin.order.awaited |= any(
            (offer.kind, offer.service) == ("service", message.service)
            and takes(offer, origin.subject, origin.sender)
            for offer in self.offers.values()
        )

    def _place(self, peer: bytes, source: int) -> Place | None:
        """Which source it is that speaks of deliveries, and from which queue they are."""
        grant = self.credit.newest(peer, source)
        if grant is None or isinstance(grant.began, Subscribe):
            return None
        return (peer, source), self._queue(peer, grant)

    def _settled(self, peer: bytes, message: Ack | Reject) -> None:
        if place := self._place(peer, message.source):
            end, reason = (
                ("rejected", message.reason) if isinstance(message, Reject) else ("acknowledged", "")
            )
            self._check_had(*place, message.ranges)
            self.queues.settled(*place, message.ranges, end, reason)

    def _check_had(self, holder: tuple[bytes, int], queue: tuple[str, str], ranges: Ranges) -> None:
        """Nobody is done with what he has never seen, though he may have known the number before."""
        had = self.had.get(holder[0], ())
        for mail in self.queues.held(holder, queue, ranges):
            body = body_of(mail.message.record)
            origin = self.author.origins.get(body)
            letter = origin is not None and origin.order.kind != "reply"
            if letter and body not in had and holder[0] not in self.careless:
                raise Violation("a program is done with what it never had", key=mail.key, body=body)

    def _replied(self, peer: bytes, message: Reply) -> None:
        if place := self._place(peer, message.source):
            finals = [[s, s] for s, final in zip(message.sequences, message.finals, strict=True) if final]
            confirmed = "confirmed" if message.number else "unconfirmed"
            self._check_had(*place, finals)
            self.queues.settled(*place, finals, "acknowledged", confirmed)

    def _given_back(self, peer: bytes, message: Nak) -> None:
        if place := self._place(peer, message.source):
            delay = None if message.delay < 0 else message.delay / 1000
            self.queues.given_back(*place, message.ranges, delay)

    def _released(self, peer: bytes, message: Release) -> None:
        if place := self._place(peer, message.source):
            self.queues.put_back(*place, message.ranges)

    def _drained(self, peer: bytes, message: Drain) -> None:
        if place := self._place(peer, message.source):
            self.queues.unbind(*place)
            back = self.queues.outside(*place, message.held)
            if back:
                self.queues.put_back(*place, back)

    def _reported(self, peer: bytes, message: Progress) -> None:
        if place := self._place(peer, message.source):
            self.queues.reported(*place, message.ranges)

    def event(self, subject: str, details: Mapping[str, Any]) -> None:
        """The broker tells of itself."""
        if subject == "clock.corrected":
            self.queues.give_time_back(details["seconds"])
            self.streams.give_time_back(details["seconds"])
        kind, what, name = subject.split(".", 2) if subject.count(".") > 1 else ("", "", "")
        if (kind, what) == ("feed", "gap"):
            self.feeds.missed(
                name, details["source"].removeprefix("stream/"), details["first"], details["last"]
            )

    def clock(self, step: ClockStep) -> None:
        """The broker is about to learn of the wall clock."""
        self.queues.times.ahead = step.ahead

    def gone(self, peer: bytes) -> None:
        """The broker is about to learn that a peer cannot be reached."""
        self.queues.heard.add(peer)
        self._taken_back(peer)

    def closed(self, peer: bytes) -> None:
        """All was sent that a session that has ended is sent."""
        self.credit.closed(peer)

    def ending(self, peer: bytes) -> None:
        """The broker forgets a session: what it had no answer for may be executed again.

        What was taken back from it before, in this iteration, is reported to it all the same.
        """
        self.queues.heard.add(peer)
        self._taken_back(peer)
        self.ended.add(peer)
        self.audit.ending(peer)
        self._may_come_again(peer)

    def passing(self, core: Core, appends: Sequence[Append]) -> None:
        """The broker has messages that consumers have, and that it stores later or never."""
        self.queues.passing(core, appends)

    def handed_out(self, append: Append) -> None:
        """The broker wants to store something."""
        self.audit.handed_out(append)
        self.queues.times.handed_out(append)
        self._to_store = {value for value in self._to_store if not _covers(append.operations, *value)}
        for operation in append.operations:
            if isinstance(operation, AppendChunk):
                self.streams.handed_out(operation)
            elif is_put(operation, CURSORS):
                self.cursors[operation.key] = operation.value
            elif isinstance(operation, DeleteValue) and operation.table == CURSORS:
                self.cursors.pop(operation.key, None)
            elif isinstance(operation, Reserve) and operation.stream == FLOOR:
                self.streams.floor = max(self.streams.floor, operation.reserved)
            elif isinstance(operation, DeleteStream):
                self.cursors = _without(self.cursors, operation.stream)
            elif isinstance(operation, ForgetStream):
                self.streams.begin_to_forget(operation.stream)
        self.queues.handed_out(self._puts.of(append))
        self._answers.handed_out(self.queues.ends.withdrawn, self.queues.ends.cancelled)
        self.queues.ends.withdrawn.clear()
        self.queues.ends.cancelled.clear()

    def committed(self, operations: Sequence[Operation]) -> None:
        """The disk has committed something."""
        self.queues.disk_failed = self.has_failed()
        self.audit.committed(operations)
        self.queues.times.committed(operations)
        for operation in operations:
            if is_put(operation, SESSIONS) and operation.key[1] == OUTCOMES:
                self._unnoted.discard(operation.key[0])
            elif isinstance(operation, AppendChunk):
                self.streams.committed(operation)
            elif is_put(operation, CURSORS):
                self.cursors_stored[operation.key] = operation.value
                self.set_back.pop(operation.key, None)
                self.lost_cursors.discard(operation.key)
                self.cursors_ever.add((*operation.key, operation.value))
            elif isinstance(operation, DeleteValue) and operation.table == CURSORS:
                self.cursors_stored.pop(operation.key, None)
                self.lost_cursors.discard(operation.key)
            elif is_put(operation, OWNERS):
                self.owners_stored[operation.key] = operation.value
            elif isinstance(operation, DeleteValue) and operation.table == OWNERS:
                self.owners_stored.pop(operation.key, None)
            elif is_put(operation, RETENTIONS):
                self.retentions[operation.key[0]] = operation.value
                self.streams.retained(operation.key[0], StreamRetention(*operation.value))
            elif isinstance(operation, DeleteStream):
                self.streams.purged(operation.stream)
                self.cursors_stored = _without(self.cursors_stored, operation.stream)
                self.owners_stored = _without(self.owners_stored, operation.stream)
                self.lost_cursors = {key for key in self.lost_cursors if key[0] != operation.stream}
                self.retentions.pop(operation.stream, None)
        self.queues.committed(self._puts.single(operations))
        self._puts.forget(operations)

    def failed(self, append: Append) -> None:
        """The broker is about to learn that something could not be stored."""
        self.audit.failed(append)
        self.queues.times.failed(append)
        for operation in append.operations:
            if isinstance(operation, AppendChunk | Reserve):
                self.streams.failed(operation)
            elif is_put(operation, SESSIONS) and operation.key[1] == OUTCOMES:
                self._unnoted.add(operation.key[0])
        self.queues.failed(self._puts.of(append))
        self._puts.forget(append.operations)

    def sends(self, sends: Sequence[tuple[bytes, Message]], blocked: frozenset[bytes]) -> None:
        """The broker sends messages, in this order."""
        for peer, message in sends:
            # What the auditor reads gives messages their sequences.
            if peer == AUDITOR and isinstance(message, Delivery):
                self.streams.assign(NO_JOURNAL, message.part.columns)
            elif peer == AUDITOR and isinstance(message, Gap) and message.reason == EXPIRED:
                self.streams.unseen.update(range(message.first, message.last + 1))
        for peer, message in sends:
            if not peer[0] and not isinstance(message, Error):
                raise Violation("a connection that has lost its routing id was heard", message=message)
            if peer != AUDITOR:
                self.credit.sent(peer, message)
                self._answers.sent(peer, message)
                if handler := _SENT.get(type(message)):
                    handler(self, peer, message, peer in blocked)
        self.streams.sent()
        self.recent.clear()

    def _deliver(self, peer: bytes, message: Delivery, blocked: bool) -> None:
        columns = message.part.columns
        grant = self.credit.grant(peer, message.source)
        grant.take(columns)
        if isinstance(grant.began, Subscribe):
            grant.move(message.after, columns.each_sequence()[-1])
            self.streams.told(grant.began.stream, columns.each_sequence()[-1])
            self.streams.check_fresh(grant.began.stream, columns.each_sequence())
            if grant.began.committed:
                self.streams.check_committed(grant.began.stream, columns.each_sequence())
            if blocked:
                raise Violation("a delivery went into a full pipe", peer=peer, source=message.source)
        else:
            queue = self._queue(peer, grant)
            timeout = grant.began.ack_timeout / 1000 if isinstance(grant.began, Offer) else 0.0
            self.queues.delivered((peer, message.source), queue, columns, timeout)
            self._check_taken(grant.began, columns)
            if queue[0] == "service":
                self.queues.check_binding((peer, message.source), queue, columns, self._takes)

    def _check_taken(self, offer: Offer | None, columns: Columns) -> None:
        for subject, sender in zip(columns.subjects, columns.all_senders(), strict=True):
            if not takes(offer, subject, sender):
                raise Violation("a message came to who does not take it", subject=subject, sender=sender)

    def _takes(self, holder: tuple[bytes, int], subject: str) -> bool:
        offer = self.offers.get(holder)
        return offer is not None and takes(offer, subject, "")

    def _recall(self, peer: bytes, message: Recall, blocked: bool) -> None:
        grant = self.credit.grant(peer, message.source)
        self.queues.recalled((peer, message.source), self._queue(peer, grant), message.ranges, message.reason)

    def choosing(self, core: Core) -> None:
        """A moment is over: what was chosen for somebody stays so, whoever goes now."""
        self.queues.note_choices(core)

    def iterated(self, core: Core) -> None:
        """An iteration is over, and the broker stands as it stands."""
        if self._to_store:
            raise Violation("what a damaged block held is not stored again", left=self._to_store)
        self.audit.iterated()
        if core.idle and not self._unlearned:
            self.check_values(core)
        self.queues.turn_over()
        for cancellation in self._answers.cancelled:
            self.queues.check_cancelled(cancellation)
        self._answers.iterated(self._has, {*core.sessions.by_peer})
        self.choosing(core)
        self.waiting.iterated(core, lambda peer, source: self.credit.began(peer, source))

    def check_values(self, core: Core) -> None:
        """What a broker with nothing on its way to the disk goes by is what is there, and nothing refused."""
        feeds = self.queues.feeds
        if {*map(called, core.feeds.values)} != set(feeds.feeds):
            raise Violation("other feeds are known", feeds=[*core.feeds.values])
        if {*map(called, core.feeds.by_name)} != feeds.running:
            raise Violation("other feeds are there", feeds=[*core.feeds.by_name])
        cursors = {(s.name, c): at for s in core.streams.by_name.values() for c, at in s.cursors.items()}
        if self.has_failed() and isinstance(self.streams.store, FlawedStore):
            # What was found damaged and could not be stored again is reported by the next start.
            cursors = {key: at for key, at in cursors.items() if key not in self.streams.store.lost}
        begin_at = {
            key: at for key, at in self.set_back.items() if self.has_failed() and cursors.get(key) == at
        }
        if cursors != self.cursors_stored | begin_at:
            raise Violation("cursors are not where the disk has them", cursors=cursors)
        streams = core.streams.by_name.values()
        owners = {(s.name, c): who for s in streams for c, who in s.cursors.owners.stored()}
        if owners != self.owners_stored and not isinstance(self.streams.store, FlawedStore):
            raise Violation("cursors have other owners than the disk has them", owners=owners)
        if core.recovery.skipped != len(feeds.lost):
            raise Violation("other feeds are reported as lost", count=core.recovery.skipped, lost=feeds.lost)
        lost = {(s.name, cursor) for s in core.streams.by_name.values() for cursor in s.cursors.lost}
        if lost != self.lost_cursors:
            raise Violation("other cursors are lost", found=lost, lost=self.lost_cursors)
        if dict(core.streams.retentions) != self.retentions:
            raise Violation("retentions are not those on the disk", retentions=core.streams.retentions)

    def _has(self, message: Publish | Send | Request, place: int) -> bool:
        """Whether a message of a command is in its stream or its queue, or need not be.

        It need not where an earlier one had its identity. The stream without a journal may have to wait.
        """
        body = body_of(message.records[place])
        if isinstance(message, Publish):
            return message.stream == NO_JOURNAL or self.streams.has(body)
        asked = message.properties[place] if message.properties else None
        return "id" in (asked or {}) or self.queues.has(body)

    def _queue(self, peer: bytes, grant: Grant) -> tuple[str, str]:
        if isinstance(grant.began, Offer):
            return (grant.began.kind, grant.began.service)
        return ("mailbox", self.mailboxes[peer])

    def _welcome(self, peer: bytes, message: Welcome, blocked: bool) -> None:
        self._dismissed.discard(peer)
        if not message.resumed:
            # What an earlier session was answered is forgotten, and its numbers begin anew.
            self.answers = {key: value for key, value in self.answers.items() if key[0] != peer}

    def _ok(self, peer: bytes, message: Ok, blocked: bool) -> None:
        if message.about == CHANGE:
            self._changed(peer, message.ref, message.value)
            self.audit.sent(peer, message)
        began = self.credit.began(peer, message.ref) if message.about == SUBSCRIBE else None
        if began is None:
            return
        self._there.pop((peer, message.ref), None)
        if began.existing and began.stream not in self._named:
            raise Violation("a subscription has made a stream that was to be there", stream=began.stream)
        self.credit.grant(peer, message.ref).position = message.value - 1
        self.streams.heads[peer, message.ref] = self.streams.last(began.stream) + 1
        # A subscription that goes on where it was begins neither at a cursor nor at its start.
        cursor, start = ("", "") if began.resume else (began.cursor, began.start)
        if start.startswith("time:") and not cursor:
            there = range(self.streams.first_kept(began.stream), self.ends[peer, message.ref] + 1)
            self.streams.times.began(began.stream, int(start[5:]), message.value, there)
        known = self.asked.get((peer, message.ref), {None}) if cursor else {None}
        if None not in known and message.value - 1 not in known:
            raise Violation("a cursor begins elsewhere", cursor=cursor, value=message.value, known=known)

    def _gap(self, peer: bytes, message: Gap, blocked: bool) -> None:
        grant = self.credit.grant(peer, message.source)
        grant.position, began = max(message.last, grant.position or 0), grant.began
        assert isinstance(began, Subscribe)
        self.streams.told(began.stream, message.last)
        self.streams.check_gap(began.stream, wants_of(began), message, began.resume)

    def _stored(self, peer: bytes, message: Stored, blocked: bool) -> None:
        for first, last, sequence in message.ranges:
            for number in range(first, last + 1):
                for order in self._orders(peer, number):
                    self._outcome(order, number, stored=True)
                    self._check_stored(order, sequence)
                    sequence += len(order.bodies) if sequence else 0

    def _error(self, peer: bytes, message: Error, blocked: bool) -> None:
        if message.about == HELLO and message.code == Disconnected.code:
            self._dismissed.add(peer)
        if message.about == CHANGE and message.code not in NO_OUTCOME:
            self.queues.deletions.pop((peer, message.ref), None)
        if message.about == REPLY and not message.ref:
            self.queues.reply_refused(peer)
        if message.about == SUBSCRIBE:
            self.reads_nothing.discard((peer, message.ref))
        not_found = message.about == SUBSCRIBE and message.code == NotFound.code
        there = self._there.pop((peer, message.ref), None) if not_found else None
        # It may have been deleted since, before it was known where to begin.
        if there is not None and there not in self._deleted:
            raise Violation("a subscription is refused to a stream that is there", source=message.ref)
        if message.about == OFFER and self.credit.newest(peer, message.ref) is None:
            self._offer_ended(peer, message)
        if message.ref and message.about == CHANGE:
            self.audit.sent(peer, message)
        if message.ref and message.about in _NUMBERED and message.code not in NO_OUTCOME:
            for order in self._orders(peer, message.ref):
                self._refused(peer, order, message)

    def _offer_ended(self, peer: bytes, message: Error) -> None:
        """An offer is refused, or ends with its queue."""
        offer = self.offers.get((peer, message.ref))
        self._taken_back(peer, message.ref)
        if offer is not None and message.code == NotFound.code:
            deletions = self.queues.deletions_of((offer.kind, offer.service))
            if not any(deletion.cascade for deletion in deletions):
                raise Violation("an offer has ended with no queue", peer=peer, service=offer.service)

    def _refused(self, peer: bytes, order: Order, message: Error) -> None:
        self._outcome(order, message.ref, stored=False)
        kept = self.streams.ever_stored if order.kind == "publish" else self.queues.ever_stored
        stored = [body for body in order.bodies if body in kept]
        if stored and not order.twice:
            raise Violation("a command was refused that is stored", kind=order.kind, bodies=stored)
        finals = order.kind == "reply" and all(self.author.origins[body].final for body in order.bodies)
        no_disk = message.text.startswith(NO_DISK) or message.text == REFUSED_BEFORE
        if finals and message.code == TryLater.code and not no_disk:
            raise Violation("a final reply has no room", text=message.text, bodies=order.bodies)
        if order.kind == "reply":
            self.queues.reply_refused(peer)

    def _orders(self, peer: bytes, number: int) -> list[Order]:
        try:
            return self.orders[peer][number]
        except KeyError:
            raise Violation("an answer to a number that was never given", peer=peer, number=number) from None

    def _outcome(self, order: Order, number: int, *, stored: bool) -> None:
        if order.outcome not in (None, stored) and not order.twice:
            raise Violation("a number has two outcomes", kind=order.kind, number=number, now=stored)
        order.outcome = stored

    def _check_stored(self, order: Order, sequence: int) -> None:
        if order.kind == "commit":
            stream, cursor = order.target.split(" ")
            if (stream, cursor, order.position) not in self.cursors_ever:
                raise Violation("a commit was confirmed before it was stored", cursor=cursor)
        lost = [body for body in order.bodies if not self._is_stored(order, body)]
        if lost and order.target != NO_JOURNAL:
            raise Violation("a command was confirmed that is not stored", kind=order.kind, bodies=lost)
        if sequence:
            self.streams.told(order.target, sequence + len(order.bodies) - 1)
            if order.target == NO_JOURNAL and sequence in self.streams.unseen:
                return
            place = self.streams.places[order.target].get(sequence)
            if place is None or place.origin.body != order.bodies[0]:
                raise Violation("STORED tells another sequence", sequence=sequence, body=order.bodies[0])

    def _is_stored(self, order: Order, body: bytes) -> bool:
        if order.kind == "publish":
            return body in self.streams.ever_stored
        # A reply to somebody who is gone, or to a publisher, is dropped, and confirmed nevertheless.
        gone = order.kind == "reply" and order.target.startswith("$") and order.outcome is True
        gone |= self.queues.is_publisher(order)
        # One that came under the identity of another is taken for it.
        double = bool(order.identity) and self.queues.has_taken_in(
            (_KINDS.get(order.kind, ""), order.target, order.identity)
        )
        return gone or double or body in self.queues.ever_stored


def _is_known(core: Core, table: str, key: Any) -> bool:
    """Whether a broker has in memory what the disk has lost. A feed stores its position when it can.

    It does not have the newest of a session in doubt, and must not store that as if it were.
    """
    if table == SESSIONS:
        session = core.sessions.by_peer.get(key[0])
        return session is not None and not session.doubtful
    stream = core.streams.by_name.get(key[0])
    return stream is not None and key[1] in stream.cursors and not key[1].startswith(FEED_PREFIX)


def _covers(operations: Sequence[Operation], table: str, key: Any) -> bool:
    """Whether a value is stored or deleted by these, or all of its owner."""
    return any(
        (
            isinstance(operation, PutValue | DeleteValue)
            and operation.table == table
            and operation.key in (key, key[:1])
        )
        or (isinstance(operation, DeleteStream) and (table, operation.stream) == (CURSORS, key[0]))
        for operation in operations
    )


def _without(cursors: dict[tuple[str, str], int], stream: str) -> dict[tuple[str, str], int]:
    return {key: at for key, at in cursors.items() if key[0] != stream}


_READ: dict[type[Any], Any] = {
    Hello: Book._hello,
    Bye: lambda book, peer, message: book._taken_back(peer),
    Offer: Book._offer,
    Request: Book._asked,
    Withdraw: Book._withdraw,
    Change: Book._change,
    Cancel: Book._cancel,
    Commit: Book._commit,
    Subscribe: Book._subscribe,
    Ack: Book._settled,
    Reject: Book._settled,
    Reply: Book._replied,
    Nak: Book._given_back,
    Release: Book._released,
    Drain: Book._drained,
    Progress: Book._reported,
}
_KINDS = {"send": "mailbox", "request": "service"}
_SENT: dict[type[Any], Any] = {
    Delivery: Book._deliver,
    Welcome: Book._welcome,
    Ok: Book._ok,
    Gap: Book._gap,
    Recall: Book._recall,
    Stored: Book._stored,
    Error: Book._error,
}
_PLACES = ("stream", "source", "target")
"""Arguments of changes that name a stream which the change may make."""
_NUMBERED = frozenset((2, 3, 4, 5, 14))
