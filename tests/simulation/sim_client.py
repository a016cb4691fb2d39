"""The simulated programs: each owns a real client session and a link, and does what programs do.

A `Client` is a place at the table. Whoever sits there may crash, or lose its address to another; then a new
session with a new identity takes the place. What a program does in a step is its habit; how far it gets
depends on what has arrived. A program takes an iteration as the blocking edge does: what happened to the
connection, what came in, what there is to send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim_admin import FEEDS, changing, question, target_of
from sim_book import Book
from sim_buckets import change_key
from sim_history import History, Notes, Queue
from sim_network import Frames, Link
from sim_options import TRACKERS, wish
from sim_origin import Order, Origin, Violation, body_of, mailbox_of
from sim_plan import Setup
from sim_streams import Reader
from sim_verbs import VERBS
from sim_wants import CRITERIA, HEADERS, OFFERS, SENDERS

from malamute.client.session.outbox import Command
from malamute.client.session.receipts import OutcomeTracking
from malamute.client.session.replies import PendingRequest
from malamute.client.session.session import ClientSession, State
from malamute.client.session.sources import ConsumerSource, Item, StreamSource
from malamute.core.reports.events import EVENTS
from malamute.errors import Failed
from malamute.protocol.codec import decode
from malamute.protocol.limits import RECORD_LARGE_BYTES
from malamute.protocol.messages import CANCELLED, Recall
from malamute.protocol.names import AUDIT

ADDRESSES = ("ann", "bob", "", "cat", "")
STREAMS = ("kept", "more", "live")
SERVICES = ("print", "scan")
CLUB = "club"
"""A mailbox that is nobody's."""
OFFERED = (
    *(("service", name, OFFERS) for name in SERVICES),
    *(("mailbox", name, [criteria for criteria, _, _ in SENDERS.values()]) for name in ("ann", CLUB)),
)
"""What programs offer to consume from, mailboxes only where they share these."""
SUBJECTS = ("a.x", "a.y", "b.x", "b.y")
STARTS = ("new", "first", "last", "last-per-subject", "seq:1", "seq:9", "time", "since:2s")
FEED_KEYS = ("", "subject", "subject:1")
FEED_STARTS = ("", "", "", "", "", "", "new", "first", "last", "seq:3", "time", "since:2s")
CREDITS = (1, 2, 8, 100, -1)
CREDIT_BYTES = (30, 200, 4_000, -1)
ACK_TIMEOUTS_MS = (0, 0, 300, 1_500)
CURSORS = ("blue", "red")
TTLS_MS = (0, 0, 0, 20, 300, 2_000)
"""Times to live of messages of streams."""
SOURCES_MAX = 3

assert RECORD_LARGE_BYTES > 0

Now = Callable[[], float]


class Asked:
    """A request, and what its program has seen of the replies."""

    def __init__(self, pending: PendingRequest, body: bytes) -> None:
        self.pending = pending
        self.body = body
        self.replies: list[Origin] = []


class Client:
    """A program, or one after another, at one place."""

    def __init__(self, place: int, book: Book, history: History, setup: Setup, now: Now) -> None:
        self.place = place
        self.book = book
        self.history = history
        self.setup = setup
        self.now = now
        self.generation = 0
        self.orders: list[Order] = []
        self.renew()

    def renew(self, address: str | None = None) -> None:
        """A new program takes the place; the link of the old one is no longer read."""
        self.generation += 1
        self.address = ADDRESSES[self.place] if address is None else address
        identity = bytes((1, self.place, self.generation >> 8, self.generation & 255)).ljust(16, b"-")
        self.session = ClientSession(identity, address=self.address)
        self.notes = Notes(self.history, f"{self.place}.{self.generation}")
        self.link = Link(identity)
        self.readers: dict[int, Reader] = {}
        self.letters: list[Item] = []
        self.tasks: list[tuple[ConsumerSource, Item]] = []
        self.asked: list[Asked] = []
        self.subscriptions: list[StreamSource] = []
        self.offers: list[ConsumerSource] = []
        self.held: set[tuple[int, int, bytes]] = set()
        self.serves_all = False
        self.answers: list[tuple[Command, ConsumerSource, Item]] = []
        self.trackings: list[OutcomeTracking] = []
        self.settled: list[tuple[ConsumerSource, int]] = []
        self.correlations: list[tuple[str, str, str]] = []
        """What it may take back: kind, queue and correlation."""

    @property
    def peer(self) -> bytes:
        """The routing id."""
        return self.session.identity

    @property
    def mailbox(self) -> str:
        """The name of its mailbox."""
        return mailbox_of(self.peer, self.address)

    @property
    def name(self) -> str:
        """A name for people."""
        return f"client {self.place}.{self.generation} ({self.address or 'anonymous'})"

    # Iterations

    def iterate(self, most: int, choice: int = 0, *, late: bool = False) -> int:
        """One iteration of the edge. Returns how many commands came in.

        If it is `late`, the monitor has not told yet what happened to the connection.
        """
        session, link = self.session, self.link
        while link.changes and not late:
            session.connected() if link.changes.popleft() else session.disconnected()
        self.send()
        taken = 0
        while taken < most and (frames := link.receive(choice)) is not None:
            self._receive(frames)
            taken += 1
        session.look_at_clock(self.now())
        self.notes.looks(session.pop_events())
        self.send()
        return taken

    def _receive(self, frames: Frames) -> None:
        message = decode(frames)
        number = getattr(message, "source", getattr(message, "ref", 0))
        self.notes.arrives(message)
        reader = self.readers.get(number)
        gaps = 0 if reader is None else reader.source.gaps
        # One of an earlier connection counts for nothing: the broker may have died before it was durable.
        is_open = self.session.state is State.READY
        self.session.receive(frames)
        if is_open and isinstance(message, Recall) and message.reason not in ("timeout", CANCELLED):
            self._recalled(message)
        if reader is not None:
            if reader.source.gaps > gaps:
                self.notes.got_gap(reader.source)
            reader.look(message)

    def _recalled(self, recall: Recall) -> None:
        """Let go of what is over. After a timeout a program may go on, since it may be redelivered."""
        for source, item in [*((self.session.inbox.mailbox, item) for item in self.letters), *self.tasks]:
            over = any(first <= item.sequence <= last for first, last in recall.ranges)
            if over and source and source.number == recall.source:
                self.drop(source, item)

    def send(self) -> None:
        """Send what the session has to say, as far as the link takes it."""
        session, link = self.session, self.link
        while (frames := session.outbox.next_to_send()) is not None and link.send(frames):
            session.outbox.sent()

    # Habits. Each takes three numbers, and says what it did, or nothing if it could not.

    def publish(self, a: int, b: int, c: int) -> str:
        """Publish some messages, confirmed or not."""
        stream = STREAMS[b % 3]
        order = self._order("publish", stream, numbered=c % 4 > 0)
        if order is None:
            return ""
        subjects = [SUBJECTS[(b // 3 + i * c) % 4] for i in range(1 + a % 4)]
        headers = HEADERS[(a // 2 + c) % len(HEADERS)]
        records = [self.book.author.write(order, s, self.address, headers) for s in subjects]
        # In a run in which mail has options, messages of streams may expire.
        ttl = TTLS_MS[(a // 4 + b + c) % len(TTLS_MS)] if self.setup.wishes else 0
        self.notes.publishes(order, subjects, headers, ttl)
        if len(records) == 1:
            self.session.sending.publish_single(stream, subjects[0], records[0], order.command, ttl)
        else:
            self.session.sending.publish(stream, subjects, records, order.command, ttl)
        return self._given(order)

    def send_mail(self, a: int, b: int, c: int) -> str:
        """Send to somebody who may be there."""
        targets = [*(name for name in ADDRESSES if name), *([CLUB] * self.setup.shared)]
        target = targets[b % len(targets)]
        tracked = bool(self.address) and (a // 2 + b + c) % 100 < self.setup.wishes
        order = self._order("send", target, numbered=tracked or c % 4 > 0)
        if order is None:
            return ""
        subjects = [SUBJECTS[(c + i) % 4] for i in range(1 if tracked else 1 + a % 4)]
        records = [self.book.author.write(order, s, self.address) for s in subjects]
        options = self._wish(order, a, b, c)
        if options and a // 4 % 2:
            options["correlation"] = f"c{b // 3 % 3}"
            self.correlations.append(("mailbox", target, options["correlation"]))
        self._notes_mail(order, options)
        if tracked:
            assert order.command is not None
            options |= self._tracker(a)
            command = order.command
            tracking = self.session.sending.send_tracked(target, subjects[0], records[0], command, options)
            self.trackings.append(tracking)
            self.notes.tracks(tracking, order)
        else:
            self.session.sending.send(target, subjects, records, order.command, options)
        return self._given(order)

    def _wish(self, order: Order, a: int, b: int, c: int) -> dict[str, Any]:
        options = wish(self.setup.wishes, self.now(), a, b, c)
        order.identity = options.get("id", "")
        order.immediate = options.get("immediate", False)
        return options

    def _notes_mail(self, order: Order, options: Mapping[str, Any]) -> None:
        self.notes.sends(order, self.mailbox, options, self.setup.queues.dedup_window_seconds)

    def _tracker(self, a: int) -> dict[str, str]:
        """A tracker that no message has that it waits for, or none: the session makes one."""
        tracker = f"t{a % TRACKERS}"
        used = a % 2 == 0 or any(t.tracker == tracker and not t.done for t in self.trackings)
        return {} if used else {"tracker": tracker}

    def request(self, a: int, b: int, c: int) -> str:
        """Ask a service."""
        service, subject = SERVICES[a % 2], SUBJECTS[b % 4]
        order = self._order("request", service, numbered=c % 4 > 0)
        if order is None:
            return ""
        record = self.book.author.write(order, subject, self.mailbox)
        options = self._wish(order, a, b, c)
        # Outcomes that have their room leave none for replies in a mailbox of three: see docs/reliability.md.
        roomy = self.setup.queue_messages > 3
        if roomy and self.address and (a // 2 + b + c) % 100 < self.setup.wishes:
            options["tracker"] = f"r{len(self.orders)}.{self.generation}.{a % TRACKERS}"
        pending = self.session.sending.request(
            service, subject, record, numbered=order.numbered, options=options
        )
        self.correlations.append(("service", service, pending.correlation))
        order.command = pending.command if order.numbered else None
        self._notes_mail(order, {**options, "correlation": pending.correlation})
        self.asked.append(Asked(pending, order.bodies[0]))
        return self._given(order)

    def reply(self, a: int, b: int, c: int) -> str:
        """Answer a task that is held: in part, or for good, or by no more than an ack."""
        if not self.tasks:
            return ""
        offer, item = self.tasks[a % len(self.tasks)]
        kind = b % 6
        if offer.ended:
            self.tasks.remove((offer, item))
            return ""
        if kind == 0 or self._is_mail(offer):
            self.tasks.remove((offer, item))
            self._let_go(offer.number, item)
            offer.finish(item.sequence)
            self.session.inbox.refill(offer)
            return f"acknowledges task {item.sequence}"
        return self._reply(offer, item, c, final=kind > 1)

    def _reply(self, offer: ConsumerSource, item: Item, c: int, *, final: bool) -> str:
        order = self._order("reply", item.sender, numbered=c % 4 > 0)
        if order is None:
            return ""
        order.request = body_of(item.record)
        record = self.book.author.write(order, item.subject, self.address)
        self.book.author.origins[order.bodies[0]].final = final
        if final and (offer, item) in self.tasks:
            self.tasks.remove((offer, item))
            self._let_go(offer.number, item)
        self.session.sending.reply(offer, item.sequence, record, order.command, final=final)
        if final and order.command is not None:
            self.answers.append((order.command, offer, item))
        if final:
            self.notes.replies(order.command, offer, item)
        return self._given(order)

    def reply_again(self, a: int, b: int, c: int) -> str:
        """A worker at fault: it gives the final reply twice."""
        if not self.tasks:
            return ""
        offer, item = self.tasks[a % len(self.tasks)]
        if offer.ended or self._is_mail(offer) or not self._reply(offer, item, c, final=True):
            return ""
        return self._reply(offer, item, c, final=True)

    def queue_of(self, source: ConsumerSource) -> Queue:
        """The queue that an offer, or the mailbox, consumes from."""
        # Not by `command`: that is a new OFFER, with the whole window.
        asked = source._offer
        return ("mailbox", self.mailbox) if asked is None else (asked.kind, asked.service)

    def _is_mail(self, offer: ConsumerSource) -> bool:
        """Whether what an offer brings is mail, to which there is no reply."""
        return self.queue_of(offer)[0] == "mailbox"

    def commit(self, a: int, b: int, c: int) -> str:
        """Commit what a subscription has had."""
        sources = [s for s in self.subscriptions if s.cursor and s.last]
        if not sources:
            return ""
        source = sources[a % len(sources)]
        order = self._order("commit", f"{source.stream} {source.cursor}", numbered=True)
        if order is None:
            return ""
        assert order.command is not None
        order.position = source.last or 0
        self.notes.commits(order)
        self.session.sending.commit(source.stream, source.cursor, order.position, order.command)
        return self._given(order)

    def subscribe(self, a: int, b: int, c: int) -> str:
        """Subscribe."""
        if len(self.subscriptions) >= SOURCES_MAX:
            return ""
        stream, start = self._readable(a), self._start(STARTS[b % len(STARTS)])
        choice, (criteria, where, wants) = list(CRITERIA.items())[b // 8 % len(CRITERIA)]
        credit, size_bytes = CREDITS[c % 5], CREDIT_BYTES[c // 5 % 4]
        cursor = CURSORS[c // 20 % 2] if a // 3 % 2 == 0 else ""
        committed = b // 80 % 3 == 0
        existing = self.setup.existing and b // 240 % 2 == 0
        source = self.session.inbox.subscribe(
            stream,
            criteria,
            where=where,
            start=start,
            credit=credit,
            credit_bytes=size_bytes,
            cursor=cursor,
            committed=committed,
            existing=existing,
        )
        self.subscriptions.append(source)
        self.notes.subscribes(source, STARTS[b % len(STARTS)], choice, committed=committed)
        reader = Reader(self.book.streams, source, wants, start, self.peer)
        self.readers[source.number] = reader
        wanted = f"{criteria} {where} {start} {credit}/{size_bytes} {cursor}"
        wanted += " committed" * committed + " existing" * existing
        return f"subscribes {source.number} to {stream} {wanted}"

    def _readable(self, a: int) -> str:
        """A stream to read: where the broker tells of events or of changes, that of its own too."""
        own = (EVENTS,) * self.setup.events + (AUDIT,) * self.setup.audit
        streams = (*STREAMS, *own)
        return streams[a % len(streams)]

    def take(self, a: int, b: int, c: int) -> str:
        """Take messages out of a window, and go on."""
        sources = [source for source in self.subscriptions if source.waiting]
        if not sources:
            return ""
        source = sources[a % len(sources)]
        taken = []
        for message in source.pop_messages():
            taken.append(message.sequence)
            self.notes.reads(source, message.sequence, message.body)
        self.readers[source.number].taken(taken)
        source.consume()
        self.session.inbox.refill(source)
        return f"takes {taken} from {source.number}"

    def cancel(self, a: int, b: int, c: int) -> str:
        """End a subscription or an offer."""
        sources = [*self.subscriptions, *self.offers]
        if not sources:
            return ""
        source = sources[a % len(sources)]
        if isinstance(source, ConsumerSource):
            self.notes.drains(source)
        self.session.inbox.cancel(source)
        self.readers.pop(source.number, None)
        self.subscriptions = [s for s in self.subscriptions if s is not source]
        self.offers = [s for s in self.offers if s is not source]
        return f"cancels {source.number}"

    def offer(self, a: int, b: int, c: int) -> str:
        """Offer to work, or to consume from a mailbox that others have, too."""
        if len(self.offers) >= SOURCES_MAX:
            return ""
        offered = OFFERED if self.setup.shared else OFFERED[: len(SERVICES)]
        kind, name, wanted = offered[a % len(offered)]
        criteria = wanted[b % len(wanted)]
        credit, size_bytes = CREDITS[c % 5], CREDIT_BYTES[c // 5 % 4]
        offer = self.session.inbox.offer(
            name,
            criteria,
            credit=credit,
            credit_bytes=size_bytes,
            ack_timeout=ACK_TIMEOUTS_MS[b // 8 % 4],
            kind=kind,
        )
        self.offers.append(offer)
        return f"offers {offer.number} for {kind}/{name} {criteria} {credit}/{size_bytes}"

    def open_mailbox(self, a: int, b: int, c: int) -> str:
        """Begin to take mail, or take no more."""
        if c % 4 == 3:
            self.session.inbox.close_mailbox()
            return "closes its mailbox"
        credit, size_bytes = CREDITS[a % 5], CREDIT_BYTES[b % 4]
        self.session.inbox.open_mailbox(credit, size_bytes)
        return f"opens its mailbox for {credit}/{size_bytes}"

    def take_mail(self, a: int, b: int, c: int) -> str:
        """Take a letter into the hand."""
        mailbox = self.session.inbox.mailbox
        if mailbox is None or mailbox.closed or not mailbox.waiting:
            return ""
        item = mailbox.hand_out()
        self._hold(0, item)
        self.notes.is_handed(("mailbox", self.mailbox), item)
        self.letters.append(item)
        return f"takes letter {item.sequence}"

    def _hold(self, number: int, item: Item) -> None:
        key = (number, item.sequence, body_of(item.record))
        if key in self.held:
            self._check_held(item, key)
        self.held.add(key)
        self.book.had.setdefault(self.peer, set()).add(body_of(item.record))

    def _check_held(self, item: Item, key: tuple[int, int, bytes]) -> None:
        if not self._is_forgotten(item):
            raise Violation("a program was handed what it holds", client=self.name, message=key)

    def _is_forgotten(self, item: Item) -> bool:
        """Whether it comes as if for the first time, since the disk did not take that it was delivered."""
        body, queues = body_of(item.record), self.book.queues
        return body in queues.again or (item.attempts == 1 and body in queues.forgotten)

    def _let_go(self, number: int, item: Item) -> None:
        self.held.discard((number, item.sequence, body_of(item.record)))

    def drop(self, source: ConsumerSource, item: Item) -> None:
        """Let a letter or a task out of the hands."""
        self._let_go(source.number, item)
        if source is self.session.inbox.mailbox:
            self.letters.remove(item)
        else:
            self.tasks.remove((source, item))

    def some_queue(self, a: int) -> tuple[str, str]:
        """A mailbox or a service: kind and name."""
        queues = [*(("service", name) for name in SERVICES), *(("mailbox", n) for n in ADDRESSES if n)]
        return queues[a % len(queues)]

    def change(self, topic: str, **arguments: Any) -> str:
        """Ask for a change, if there is room for one more. Returns its number in words, or nothing."""
        if not self.session.questions.may_change:
            return ""
        pending = self.session.questions.change(topic, arguments)
        self.notes.changes(pending, topic, arguments)
        return str(pending.number)

    def feed(self, a: int, b: int, c: int) -> str:
        """Have a stream feed a service or a mailbox, with others than before, or from elsewhere on."""
        name, stream = FEEDS[a % 3], STREAMS[min(a // 3 % 5 // 2, 2)]
        criteria, where, _ = list(CRITERIA.values())[b % len(CRITERIA)]
        feed = {"source": f"stream/{stream}", "feed": name, "target": target_of(name)}
        arguments = {**feed, "criteria": criteria, "where": where}
        if self.setup.keyed and c % 3:
            arguments["key"] = FEED_KEYS[c % 3]
        start = self._start(FEED_STARTS[c % len(FEED_STARTS)])
        done = self.change("feed.set", **arguments, **({"start": start} if start else {}))
        return done and f"has {stream} feed {name} with {criteria} {where} {start}"

    def unfeed(self, a: int, b: int, c: int) -> str:
        """Have it make no more."""
        name, stream = FEEDS[a % 3], STREAMS[b % 2]
        done = self.change("feed.delete", source=f"stream/{stream}", feed=name)
        return done and f"has {stream} feed {name} no more"

    def administer(self, a: int, b: int, c: int) -> str:
        """Change anything that can be changed."""
        topic, arguments = changing(a, b, c)
        done = self.change(topic, **arguments)
        return done and f"asks for {topic} {arguments}"

    def _start(self, start: str) -> str:
        return f"time:{int((self.now() - 1) * 1e9)}" if start == "time" else start

    def acknowledge(self, a: int, b: int, c: int) -> str:
        """Be done with a letter. The acknowledgement may go at once, or with others."""
        mailbox = self.session.inbox.mailbox
        if mailbox is None:
            return ""
        said = ""
        if self.letters:
            item = self.letters.pop(a % len(self.letters))
            self._let_go(0, item)
            mailbox.finish(item.sequence)
            self.session.inbox.refill(mailbox)
            said = f"is done with letter {item.sequence}"
        if b % 3:
            self.session.inbox.acknowledge_all()
        return said

    def take_request(self, a: int, b: int, c: int) -> str:
        """Take a task into the hand."""
        offers = [offer for offer in self.offers if offer.waiting]
        if not offers:
            return ""
        offer = offers[a % len(offers)]
        item = offer.hand_out()
        self._hold(offer.number, item)
        self.notes.is_handed(self.queue_of(offer), item)
        self.tasks.append((offer, item))
        return f"takes task {item.sequence} of {offer.number}"

    def take_reply(self, a: int, b: int, c: int) -> str:
        """Take a reply to a request."""
        waiting = [asked for asked in self.asked if asked.pending.waiting]
        if not waiting:
            return ""
        asked = waiting[a % len(waiting)]
        item = self.session.sending.pop_reply(asked.pending)
        if "outcome" in (item.properties or {}):
            return f"takes the outcome of {asked.body!r}"
        if not body_of(item.record):
            self._check_lost(asked)
            self.notes.is_answered(asked.pending.service, asked.body, "lost")
            return f"takes the last word on {asked.body!r}"
        origin = self.book.author.origin(item.record)
        if origin in asked.replies and self._is_sent_again(item, origin):
            return f"takes reply {origin.body!r} once more"
        self._check_reply(asked, origin)
        asked.replies.append(origin)
        if origin.final:
            self.notes.is_answered(asked.pending.service, asked.body, "reply")
            # As the edges do: a request that a crash has brought back may be answered once more.
            self.session.sending.forget(asked.pending)
        return f"takes reply {origin.body!r}"

    def _check_lost(self, asked: Asked) -> None:
        # Where the session was forgotten with it, the same request was redelivered, and may be done by
        # now.
        if asked.body not in self.book.queues.called_lost:
            raise Violation("a request is called lost that is not", body=asked.body)

    def _is_sent_again(self, item: Item, origin: Origin) -> bool:
        # An operator may have sent it again, if it died in the mailbox though the program had it.
        return origin.body in self.book.queues.sent_again or self._is_forgotten(item)

    def _check_reply(self, asked: Asked, origin: Origin) -> None:
        if origin.order.request != asked.body:
            raise Violation("a reply came for another request", body=asked.body, reply=origin.body)
        if origin in asked.replies:
            raise Violation("a program was handed a reply twice", body=asked.body, reply=origin.body)
        # What a restore brought back is done again, and nobody keeps a book of unconfirmed commands.
        twice = self.book.author.origins[asked.body].order.twice or asked.body in self.book.queues.again
        if any(reply.final for reply in asked.replies) and not twice:
            raise Violation("a reply came behind the final one", body=asked.body, reply=origin.body)

    def forget(self, a: int, b: int, c: int) -> str:
        """Care no more for the replies to a request."""
        if not self.asked:
            return ""
        asked = self.asked.pop(a % len(self.asked))
        self.session.sending.forget(asked.pending)
        return f"forgets {asked.body!r}"

    def ask(self, a: int, b: int, c: int) -> str:
        """Ask the broker about itself."""
        topic, arguments = question(a, b, c)
        self.session.questions.query(topic, arguments)
        return f"asks for {topic} {arguments}"

    def leave(self, a: int, b: int, c: int) -> str:
        """Say goodbye, with nothing left unsaid."""
        if len(self.session.outbox) or self.tasks:
            return ""
        self.notes.drains()
        self.session.close()
        return "leaves"

    def _order(self, kind: str, target: str, *, numbered: bool) -> Order | None:
        if not self.session.outbox.room(numbered=numbered):
            return None
        order = Order(kind, self.peer, target, numbered=numbered)
        order.command = Command() if numbered else None
        return order

    def _given(self, order: Order) -> str:
        number = 0
        if order.numbered:
            self.book.numbered(order)
            self.orders.append(order)
            assert order.command is not None
            number = order.command.number
        return f"gives {order.kind} {number} to {order.target}: {order.bodies}"

    def look_again(self) -> bool:
        """Do again what the broker could not take at the time. Returns whether there was anything."""
        refused = [a for a in self.answers if isinstance(a[0].error, Failed) and not a[1].ended]
        self.answers = [answer for answer in self.answers if not answer[0].done]
        for _, offer, item in refused:
            self.tasks.append((offer, item))
        return bool(refused)

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self.session.state is State.ENDED


HABITS: dict[str, Callable[[Client, int, int, int], str]] = {
    "publish": Client.publish,
    "subscribe": Client.subscribe,
    "take": Client.take,
    "cancel": Client.cancel,
    "commit": Client.commit,
    "send": Client.send_mail,
    "open_mailbox": Client.open_mailbox,
    "take_mail": Client.take_mail,
    "acknowledge": Client.acknowledge,
    "request": Client.request,
    "offer": Client.offer,
    "take_request": Client.take_request,
    "reply": Client.reply,
    "reply_again": Client.reply_again,
    "take_reply": Client.take_reply,
    "forget": Client.forget,
    "feed": Client.feed,
    "unfeed": Client.unfeed,
    "administer": Client.administer,
    "ask": Client.ask,
    "leave": Client.leave,
    "change_key": change_key,
    **VERBS,
}
