"""The book of queues: each message of a mailbox or a service, from the command that brought it to its end.

A message is in a queue once. It is with one consumer at a time, is redelivered with one attempt more, when it
is time for it and as long as it lasts, and leaves only as `sim_ends` allows. A request is over exactly once,
and if that was by a reply, the reply was stored in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from itertools import chain
from typing import Any, NamedTuple, TypeGuard

from sim_answers import Cancellation, Under
from sim_clock import MailTimes
from sim_damage import Damaged
from sim_dead import SPENT, DeadBook, Letter, base_of, is_dead, is_put, is_told, name_of, without
from sim_ends import TAKEN_BACK, Ends, Facts, Said
from sim_feeds import FeedBook, FeedCopy, fed_name, is_fed
from sim_mail import MOMENT, Holder, Mail
from sim_options import Wishes, identity_bytes
from sim_origin import Author, Key, Order, Violation, body_of
from sim_puts import PutMessage

from malamute.core.broker import Core
from malamute.core.queue.settlement import CORRUPT
from malamute.core.queue.state import DELIVERED, SETTLING
from malamute.protocol.batch import Columns
from malamute.protocol.fields import Ranges
from malamute.protocol.limits import Limits
from malamute.protocol.messages import CANCELLED
from malamute.store.commit import Append
from malamute.store.operations import (
    DeleteMessages,
    DeleteQueue,
    MarkDelivered,
    Operation,
    PutIdentity,
    PutMessages,
    Recovered,
    SetAttempts,
    StoredMessage,
    Stranded,
)
from malamute.store.policies import QueuePolicy

Name = tuple[str, str]
"""The kind and the name of a queue."""


class Deletion:
    """What an operator wants deleted, until he is answered."""

    def __init__(self, queue: Name, *, cascade: bool) -> None:
        self.queue = queue
        self.cascade = cascade
        self.done = False


_KEPT = (
    "completed",
    "finals",
    "stored_requests",
    "ever_stored",
    "identities_stored",
    "final_of",
    "last_end",
    "outcome_ends",
    "_marks",
    "_kept",
)
"""What else of the book is that of the disk."""


class QueueCopy(NamedTuple):
    """What the book says of a moment of the disk."""

    mail: dict[Key, Mail]
    letters: dict[Key, Letter]
    identities: dict[tuple[str, str, str], Mail]
    feeds: FeedCopy
    others: dict[str, Any]


class QueueBook:
    """What every queue holds, by key."""

    def __init__(self, author: Author, feeds: FeedBook, policy: QueuePolicy, times: MailTimes) -> None:
        self.author = author
        self.feeds = feeds
        self.policy = policy
        self.times = times
        self.now = times.now
        self.mail: dict[Key, Mail] = {}
        self.old: dict[Key, Mail] = {}
        """What was in queues that have been removed, as long as the disk may have it."""
        self._meant: dict[int, list[Mail]] = {}
        """What an operation is about that is not on the disk yet, by its identity."""
        self.dead = DeadBook(policy)
        self.ends = Ends(policy, times, self.dead)
        self.ever_stored: set[bytes] = set()
        self.completed: Counter[bytes] = Counter()
        self.finals: Counter[bytes] = Counter()
        self.stored_requests: Counter[bytes] = Counter()
        self.identities: dict[tuple[str, str, str], Mail] = {}
        """The last message that was taken in under each identity of a queue."""
        self.identities_bytes = Limits().identities_bytes
        """What the broker may take for identities."""
        self._unidentified: set[tuple[str, str, str]] = set()
        """Those whose messages the disk has refused since others came last."""
        self.crowded = False
        """Whether it may have forgotten some, for want of room. It may remember longer than it has to."""
        self.identities_stored: set[tuple[str, str, str]] = set()
        self.bindings: dict[tuple[Name, str], tuple[Holder, str, int]] = {}
        """Whom the keys of a service belong to, the subject of what he got, and when it was chosen."""
        self._unbound: dict[tuple[Name, str], int] = {}
        """When a key belonged to somebody for the last time who takes no more."""
        self._beside: dict[tuple[Name, str], set[Holder]] = {}
        """Who else has got what the worker of a key does not take: it may belong to one of these."""
        self.moment = 0
        self._chosen: dict[Key, tuple[Holder, int]] = {}
        """For whom the broker has chosen each message with a key, and the moment at which that was seen."""
        self.said: dict[Key, dict[str, str]] = {}
        """What the broker was sent about each message in this iteration."""
        self.purged: set[Name] = set()
        self.deletions: dict[tuple[bytes, int], Deletion] = {}
        """Those under way, by who asked for them and the number. Each takes some iterations."""
        self.withdrawn: set[tuple[Name, str, int | str]] = set()
        """What operators and senders took back in this iteration."""
        self.is_cancelled: Callable[[Under], bool] = lambda under: False
        """Whether a cancellation of the messages of a queue under an id is under way."""
        self.heard: set[bytes] = set()
        """Who said anything in this iteration, or went."""
        self._given_back: dict[Key, tuple[Holder, int, float]] = {}
        """What was given back in this iteration: who had it, and its attempts and its time before that."""
        self._behind_reply: dict[Key, Holder] = {}
        """What was released in this iteration behind a reply, by whom. It counts if the reply is refused."""
        self._noted: dict[Key, int] = {}
        self._found: dict[bytes, Key] = {}
        self._marks: dict[Name, int] = {}
        self._kept: dict[Key, int] = {}
        """What is durable of deliveries, and of the attempts of some."""
        self._in_memory: set[Key] = set()
        """What the broker had in memory when the disk had lost it."""
        self._to_store: set[tuple[str, str, int | str]] = set()
        """What of it is to be stored again in this iteration, messages and identities."""
        self._stranded_identities: set[tuple[str, str, str]] = set()
        """Those that the disk has lost while this broker runs, and does not have again."""
        self._unmarked: set[Name] = set()
        self._unnoted: set[Key] = set()
        """What the disk did not take of deliveries and of attempts."""
        self._lost: set[Key] = set()
        """What was delivered, and never stored, when the broker died."""
        self._recalled: dict[Holder, set[int]] = {}
        """What was taken back from each."""
        self._outcomes = 0
        self._began = 0.0
        """When the iteration began, or the broker."""
        self._used: dict[Name, float] = {}
        """When anything last came to a queue or left it."""
        self.sent_again: set[bytes] = set()
        self.again: set[bytes] = set()
        """What is back with a copy of the store, whoever has had it."""
        self.incarnation = 0
        """Up to where sequences may have been used before a restore."""
        self.forgotten: set[bytes] = set()
        """What was delivered and is redelivered as if for the first time: the disk would not note it."""
        self.final_of: dict[bytes, bytes] = {}
        """The final reply to a request."""
        self.last_end: dict[bytes, str] = {}
        """How a message ended, the last time if it was sent again."""
        self.called_lost: set[bytes] = set()
        """What ended as it could not be read, whatever becomes of it if it is sent again."""
        self.outcome_ends: dict[tuple[str, str], str] = {}
        """What became of an outcome, by the mailbox and the tracker."""
        self.disk_failed = False
        self._unwritten: set[Key] = set()
        """What the broker has given to consumers and the disk was not told of yet."""

    # What the disk does

    def passing(self, core: Core, appends: Sequence[Append]) -> None:
        """Note what came into queues and left them of which the disk is not told, as if it were."""
        here = {
            (table.kind, name, sequence): PutMessage(table.kind, name, entry.message)
            for table in (core.mailboxes, core.services)
            for name, queue in table.by_name.items()
            for sequence, entry in queue.unwritten.entries.items()
        }
        told: set[Key] = set()
        removed: set[Name] = set()
        for operation in chain.from_iterable(append.operations for append in appends):
            if isinstance(operation, PutMessages):
                told |= {(operation.kind, operation.queue, m.sequence) for m in operation.messages()}
            elif isinstance(operation, DeleteQueue):
                removed.add((operation.kind, operation.queue))
        for key, put in here.items():
            if key not in self._unwritten:
                self._unwritten.add(key)
                self._put(put, 0)
                del self._meant[id(put)]
        for key in self._unwritten - here.keys() - told:
            self._unwritten.discard(key)
            if key[:2] not in removed:
                mail = self.mail[key]
                self._leave(mail, Facts(Append(0, ()), ()))
                self._removed(mail)

    def handed_out(self, append: Append) -> None:
        """The broker wants to store something."""
        # What is stored again tells nothing new.
        new = append._replace(operations=[o for o in append.operations if not self._is_again(o)])
        self.dead.handed_out(new, self._purged())
        facts = Facts(new, self.dead.again)
        self._count_identities(append)
        self.feeds.begin(append)
        for operation in append.operations:
            self.feeds.handed_out(operation)
            if self._is_again(operation):
                key = operation.kind, operation.queue, operation.message.sequence
                self._meant[id(operation)] = [self.mail[key]]
                self._to_store.discard(key)
                self._unwritten.discard(key)
            elif is_put(operation):
                self._put(operation, append.token)
            elif isinstance(operation, PutIdentity):
                self._to_store.discard((operation.kind, operation.queue, operation.identity))
            elif isinstance(operation, DeleteMessages):
                self._meant[id(operation)] = named = self._named(operation)
                for mail in named:
                    self._leave(mail, facts)
            elif isinstance(operation, DeleteQueue):
                self._meant[id(operation)] = self._remove(operation)
            elif isinstance(operation, SetAttempts):
                self._noted[operation.kind, operation.queue, operation.sequence] = operation.attempts
        facts.check_used()
        self.dead.again.clear()
        self._tie(append)

    def _is_again(self, operation: Operation) -> TypeGuard[PutMessage]:
        """Whether this stores a message again that the disk cannot read any more."""
        if not is_put(operation):
            return False
        mail = self.mail.get((operation.kind, operation.queue, operation.message.sequence))
        if mail is None or not (mail.stranded or mail.key in self._unwritten):
            return False
        return operation.message._replace(record=bytes(operation.message.record)) == mail.message

    def _tie(self, append: Append) -> None:
        """A final reply is nowhere if it cannot be stored, where its request does not leave without it."""
        ends = [operation for operation in append.bound if isinstance(operation, DeleteMessages)]
        requests = {mail.body for operation in ends for mail in self._named(operation)}
        for operation in append.operations:
            if is_put(operation):
                # Its mailbox may be gone again in the same append.
                (mail,) = self._meant[id(operation)]
                origin = self.author.origins.get(mail.body)
                mail.tied |= origin is not None and origin.final and origin.order.request in requests

    def _leave(self, mail: Mail, facts: Facts) -> None:
        key = mail.key
        if mail.leaving:
            raise Violation("a message was removed twice", key=key, end=mail.leaving)
        self._check_kept(key, facts.died.get(key))
        mail.leaving = self.ends.judge(key, mail, self._said_of(mail), facts, self._began)
        self._used[key[:2]] = self.now()
        self.last_end[mail.body] = mail.leaving
        if mail.damaged and mail.leaving == "dead-lettered":
            self.called_lost.add(mail.body)
        asked = mail.message.properties or {}
        if "outcome" in asked:
            self.outcome_ends[key[1], asked["tracker"]] = mail.leaving

    def _check_kept(self, key: Key, letter: StoredMessage | None) -> None:
        """What the broker had in memory when the disk lost it is not lost, if the disk takes it again."""
        lost = letter is not None and (letter.properties or {})["dead"]["reason"] == CORRUPT
        if lost and key in self._in_memory and not self.disk_failed:
            raise Violation("a message was lost that the broker had in memory", key=key)
        self._to_store.discard(key)

    def _said_of(self, mail: Mail) -> Said:
        """What the broker was sent about a message in this iteration, by itself or with others."""
        key, sender = mail.key, mail.message.sender
        said = dict(self.said.get(key, {}))
        if mail.rejected is not None:
            said["rejected"] = mail.rejected
        if (key[:2], sender, (mail.message.properties or {}).get("correlation")) in self.withdrawn:
            said["withdrawn"] = ""
        if mail.holder is None and self.is_cancelled((key[:2], mail.wishes.identity)):
            said["withdrawn"] = ""
        if key[:2] in self._purged():
            said["purged"] = ""
        return said

    def waiting_under(self, under: Under) -> list[Key]:
        """The stored messages of a queue under an id that nobody has."""
        return [
            key
            for key, mail in self.mail.items()
            if (key[:2], mail.wishes.identity) == under
            if mail.stored and mail.holder is None and not (mail.leaving or mail.damaged or mail.stranded)
        ]

    def check_cancelled(self, wanted: Cancellation) -> None:
        """Messages that waited under an id are gone once a cancellation is confirmed."""
        here = [mail for key in wanted.waiting if (mail := self.mail.get(key)) is not None]
        left = [mail.key for mail in here if mail.holder is None and not mail.leaving]
        if left and not self.disk_failed:
            raise Violation("a cancelled message is there", keys=left)

    def _purged(self) -> set[Name]:
        """The queues, and those of dead letters, that operators empty."""
        kinds = [(d.queue, suffix) for d in self.deletions.values() for suffix in ("", "-dead")]
        return self.purged | {(kind + suffix, name) for (kind, name), suffix in kinds}

    def deletions_of(self, queue: Name) -> list[Deletion]:
        """The deletions of a queue that are under way."""
        return [deletion for deletion in self.deletions.values() if deletion.queue == queue]

    def _remove(self, removal: DeleteQueue) -> list[Mail]:
        """A private mailbox goes with its session. Another queue goes when nothing is left that needs it.

        The next one of its name counts from 1 again. What the disk has yet to remove of this one is `old`.
        """
        kind, name, now = removal.kind, removal.queue, self.now()
        if not name.startswith("$"):
            deletions = self.deletions_of((base_of(kind), name))
            for deletion in deletions:
                deletion.done = True
            if deletions:
                self._forget_identities((kind, name))
            if reason := self.need_for((base_of(kind), name)):
                raise Violation("a queue was removed that is needed", queue=(kind, name), reason=reason)
            idle_at = self._used.get((kind, name), 0.0) + self.policy.idle_seconds - MOMENT
            if now < idle_at and not deletions:
                raise Violation("a queue was removed too early", queue=(kind, name), now=now)
        if is_dead(kind):
            self.dead.removed(removal)
        gone = [mail for key, mail in self.mail.items() if key[:2] == (kind, name)]
        for mail in gone:
            mail.leaving = mail.leaving or "queue removed"
            del self.mail[mail.key]
            self.old[mail.key] = mail
        return gone + [mail for key, mail in self.old.items() if key[:2] == (kind, name) and mail not in gone]

    def _forget_identities(self, queue: Name) -> None:
        self.identities = {key: known for key, known in self.identities.items() if key[:2] != queue}

    def need_for(self, queue: Name) -> str:
        """Why a queue has to be there, whoever may be there for it; empty if it has not."""
        kind, name = queue
        if any(key[:2] == queue and not mail.leaving for key, mail in self.mail.items()):
            return "it holds messages"
        if self.dead.here((f"{kind}-dead", name)):
            return "it holds dead letters"
        if any(mail.wishes.tracker and mail.message.sender == name for mail in self.mail.values()):
            return "an outcome may come" if kind == "mailbox" else ""
        known = (known for key, known in self.identities.items() if key[:2] == queue)
        if not self.crowded and any(map(self._is_known, known)):
            return "it knows identities"
        if any(fed == name for fed, _ in self.feeds.running):
            return "a stream feeds it"
        return ""

    def _put(self, put: PutMessage, token: int) -> None:
        key = (put.kind, put.queue, put.message.sequence)
        self._check_key(key)
        again = self.dead.sent_again(name_of(put.queue, put.message))
        if again is not None and without(again, SPENT) != (put.message.properties or {}):
            raise Violation("a dead letter was changed when it was sent again", key=key)
        self._used[key[:2]] = self.now()
        if is_told(put.message):
            self._add(put, Mail(key, self._outcome(), put.message, self._wishes(put.message), tied=True))
            return
        origin = self.author.origin(put.message.record)
        fed = is_fed(put.message)
        body = fed_name(put.queue, put.message) if fed else origin.body
        tied = fed or origin.order.numbered or again is not None
        mail = Mail(key, body, put.message, self._wishes(put.message), tied=tied)
        if again is not None:
            self.sent_again.add(mail.body)
        elif fed:
            self.feeds.take(put, token)
        else:
            self._check_new(key, mail)
        if not self.times.is_now(put.message.time_ns):
            raise Violation("a message has the wrong time", key=key)
        if (put.message.subject, put.message.sender) != (origin.subject, origin.sender):
            raise Violation("a message was changed in a queue", body=origin.body, key=key)
        if mail.wishes.identity and again is None:
            # A dead letter that is sent again was accepted once, and that is when its window began.
            self.identities[*key[:2], mail.wishes.identity] = mail
        self._found[mail.body] = key
        self._add(put, mail)

    def _count_identities(self, append: Append) -> None:
        """Find out whether there is room for all of them: they are not in the order in which they came.

        Those that the disk has refused in this iteration were known when these came.
        """
        coming = {
            (operation.kind, operation.queue, identity)
            for operation in filter(is_put, append.operations)
            if (identity := (operation.message.properties or {}).get("id"))
        }
        known = self.identities.keys() | self._unidentified
        size_bytes = sum(identity_bytes(name, identity) for _, name, identity in coming | known)
        if coming:
            self._unidentified.clear()
        self.crowded |= size_bytes > self.identities_bytes

    def _check_key(self, key: Key) -> None:
        if key in self.mail:
            raise Violation("a sequence of a queue was used again", key=key)
        if key in self._lost:
            raise Violation("a sequence is another message's, which a consumer may hold", key=key)
        if key[2] <= self.incarnation:
            raise Violation("a queue goes on where a backup ends", key=key, incarnation=self.incarnation)

    def _add(self, put: PutMessage, mail: Mail) -> None:
        self.mail[mail.key] = mail
        self._meant[id(put)] = [mail]

    def _wishes(self, message: StoredMessage) -> Wishes:
        """What a message is owed that comes now."""
        return Wishes(message, self.now(), message.time_ns / 1e9 - self.now())

    def _outcome(self) -> bytes:
        self._outcomes += 1
        return b"outcome-%d" % self._outcomes

    def _check_new(self, key: Key, mail: Mail) -> None:
        origin = self.author.origins[mail.body]
        order = origin.order
        if origin.body in self._found and not order.twice:
            raise Violation("a message came into a queue twice", body=origin.body, key=key)
        if order.kind == "publish" or order.target != key[1] or self.is_publisher(order):
            raise Violation("a queue holds what was not sent to it", body=origin.body, key=key)
        if order.immediate and order.kind == "request" and not order.awaited:
            raise Violation("a message was taken in that nobody waits for", key=key)
        known = self.identities.get((*key[:2], mail.wishes.identity))
        if known is not None and self._is_known(known) and not self.crowded:
            raise Violation("an identity was taken in twice", key=key, identity=mail.wishes.identity)

    def _is_known(self, first: Mail) -> bool:
        """Whether the identity of a message must be known: its window is not over."""
        return first.wishes.came + self.policy.dedup_window_seconds > self.now() + MOMENT

    def committed(self, operations: Sequence[Operation]) -> None:
        """These are on the disk, all at once."""
        self.dead.committed(operations)
        for operation in operations:
            self.feeds.committed(operation)
            meant = self._meant.pop(id(operation), ())
            if is_put(operation):
                for mail in meant:
                    self._stored(mail)
            elif isinstance(operation, PutIdentity):
                name = (operation.kind, operation.queue, operation.identity)
                self._stranded_identities.discard(name)
            elif isinstance(operation, MarkDelivered):
                queue = (operation.kind, operation.queue)
                self._marks[queue] = max(self._marks.get(queue, 0), operation.sequence)
            elif isinstance(operation, SetAttempts):
                key = (operation.kind, operation.queue, operation.sequence)
                self._kept[key] = operation.attempts
                self._delayed(key, operation.due_ns / 1e9)
            elif isinstance(operation, DeleteMessages | DeleteQueue):
                for mail in filter(self._is_here, meant):
                    self._removed(mail)
                if isinstance(operation, DeleteQueue):
                    queue = (operation.kind, operation.queue)
                    self._marks.pop(queue, None)
                    self._kept = {key: attempts for key, attempts in self._kept.items() if key[:2] != queue}

    def _delayed(self, key: Key, until: float) -> None:
        if key in self.mail:
            self.mail[key].kept_until = until

    def _is_here(self, mail: Mail) -> bool:
        """Whether it is in a queue, or in one that is about to be removed."""
        return self.mail.get(mail.key) is mail or self.old.get(mail.key) is mail

    def _stored(self, mail: Mail) -> None:
        if not self._is_here(mail):
            return
        if self.mail.get(mail.key) is mail:
            # The disk has one under each number.
            self.old.pop(mail.key, None)
        # A number that is used again begins anew.
        self._kept.pop(mail.key, None)
        self._in_memory.discard(mail.key)
        mail.damaged = mail.stranded = False
        if not mail.stored:
            mail.stored = True
            self._newly_stored(mail)

    def _newly_stored(self, mail: Mail) -> None:
        if is_fed(mail.message):
            self.stored_requests[mail.body] += 1
        if mail.body not in self.author.origins:
            return
        self.ever_stored.add(mail.body)
        if mail.wishes.identity:
            self.identities_stored.add((*mail.key[:2], mail.wishes.identity))
        origin = self.author.origins[mail.body]
        order = origin.order
        if order.outcome is False and not order.twice:
            raise Violation("a message was refused and then stored", body=mail.body)
        if order.kind == "request":
            self.stored_requests[mail.body] += 1
        elif order.kind == "reply" and origin.final and mail.body not in self.sent_again:
            self.final_of[order.request] = mail.body
            self.finals[order.request] += 1
            if self.finals[order.request] > max(1, self.stored_requests[order.request]):
                raise Violation("a request has two final replies", request=order.request, reply=mail.body)

    def has(self, body: bytes) -> bool:
        """Whether a message has ever been in a queue."""
        return body in self._found

    def has_taken_in(self, identity: tuple[str, str, str]) -> bool:
        """Whether a message under this identity of a queue was stored, or has ended before it could be."""
        known = self.identities.get(identity)
        return identity in self.identities_stored or (known is not None and known.leaving != "")

    def _removed(self, mail: Mail) -> None:
        if (mail.key[0] == "service" or is_fed(mail.message)) and mail.stored:
            self.completed[mail.body] += 1
            if self.completed[mail.body] > self.stored_requests[mail.body]:
                raise Violation("a request was completed twice", request=mail.body)
            # Without a number, and without a disk, a reply goes out as it is, and so may be lost.
            excused = mail.replied == "unconfirmed" and self.disk_failed
            replied = mail.replied and mail.leaving == "acknowledged"
            if replied and not excused and not self.finals[mail.body] and not self._is_nobody(mail.body):
                raise Violation("a request is done and its reply is not stored", request=mail.body)
        self._forget(mail)

    def _is_nobody(self, request: bytes) -> bool:
        return request not in self.author.origins or self.author.origins[request].sender.startswith("$")

    def is_publisher(self, order: Order) -> bool:
        """Whether this answers a request that a feed has made: nobody waits for the answer."""
        return order.kind == "reply" and self.author.origins[order.request].order.kind == "publish"

    def _forget(self, mail: Mail) -> None:
        table = self.mail if self.mail.get(mail.key) is mail else self.old
        del table[mail.key]
        if self._found.get(mail.body) == mail.key and not mail.stored:
            del self._found[mail.body]

    def _unidentify(self, mail: Mail) -> None:
        self._unidentified |= {name for name, known in self.identities.items() if known is mail}
        self.identities = {name: known for name, known in self.identities.items() if known is not mail}

    def failed(self, append: Append) -> None:
        """It could not be stored. What was confirmed is not there; what was not stays in memory."""
        bound = set(map(id, append.bound))
        self.dead.failed(append, bound)
        self.feeds.failed(append)
        for operation in append.operations:
            meant = [mail for mail in self._meant.pop(id(operation), ()) if self._is_here(mail)]
            if is_put(operation):
                for mail in meant:
                    if mail.tied and not mail.stored:
                        self._unidentify(mail)
                        self._forget(mail)
            elif isinstance(operation, MarkDelivered):
                self._unmarked.add((operation.kind, operation.queue))
            elif isinstance(operation, SetAttempts):
                self._unnoted.add((operation.kind, operation.queue, operation.sequence))
            elif isinstance(operation, DeleteMessages) and id(operation) in bound:
                for mail in meant:
                    mail.spared = True
                    mail.stay()

    def _named(self, operation: DeleteMessages) -> list[Mail]:
        kind, queue, ranges = operation
        keys = [(kind, queue, s) for first, last in ranges for s in range(first, last + 1)]
        return [self.mail[key] for key in keys if key in self.mail]

    def died(self) -> None:
        """What was not committed is gone, and what was not removed for good is back."""
        self._unwritten.clear()
        self._meant.clear()
        self._in_memory.clear()
        self._to_store.clear()
        for name in self._stranded_identities:
            self.identities.pop(name, None)
        self._stranded_identities.clear()
        for mail in [*self.mail.values(), *self.old.values()]:
            mail.stay()
            mail.not_before = mail.kept_until
            mail.spared = mail.stranded = False
            if not mail.stored:
                self._forget(mail)
                if mail.attempts:
                    self._lost.add(mail.key)
        self.mail |= self.old
        self.old.clear()
        # What is over is over, though a clock that is set back may say otherwise.
        self.identities = {n: k for n, k in self.identities.items() if k.stored and self._is_known(k)}
        self.bindings.clear()
        self._unbound.clear()
        self._beside.clear()
        self._chosen.clear()
        self._recalled.clear()
        self.dead.died()
        self.feeds.died()
        self._begin()

    def started(self, recovered: Recovered) -> None:
        """What a broker finds is what was committed."""
        self.incarnation = recovered.incarnation
        self.feeds.started(recovered)
        self.check_store(recovered)
        self._begin_times(recovered)
        for (kind, name), state in recovered.queues.items():
            for message in () if is_dead(kind) else state.messages:
                key = (kind, name, message.sequence)
                # With one attempt only, each that is made is stored by itself.
                marked = int(message.sequence <= state.delivered and self.policy.attempts_max != 1)
                attempts = state.attempts.get(message.sequence, marked)
                self._remembered(key, attempts)
                # A mark may stand for others too, and an attempt is stored before it is made.
                self.mail[key].delivered |= attempts > 0

    def damaged(self, found: Damaged) -> None:
        """The disk cannot read these any more, nor knows it their identities. No broker is there.

        Of attempts it may have lost some, and when messages are redelivered, but nowhere that one was
        delivered: but for those with one attempt only, of which each is stored by itself.
        """
        self.times.forget()
        self._marks = {name: mark for name, mark in found.marks.items() if not is_dead(name[0])}
        kept, self._kept = self._kept, {key: attempts for key, (attempts, _) in found.attempts.items()}
        for key in kept.keys() & self.mail.keys():
            _, due_ns = found.attempts.get(key, (0, 0))
            self.mail[key].kept_until = self.mail[key].not_before = due_ns / 1e9
            if key not in self._kept and self.policy.attempts_max == 1:
                self._unnoted.add(key)
        for key in found.messages:
            if is_dead(key[0]):
                self.dead.letters[key].damaged = True
            else:
                self.mail[key].damaged = True
                self._unidentify(self.mail[key])

    def stranded(self, found: Stranded) -> None:
        """The disk cannot read these any more, while a broker runs, nor knows it these identities."""
        for (kind, name), sequences in found.messages.items():
            for sequence in sequences:
                key = (kind, name, sequence)
                if is_dead(kind):
                    letter = self.dead.old.get(key) or self.dead.letters[key]
                    letter.damaged = True
                else:
                    mail = self.old.get(key) or self.mail[key]
                    mail.damaged = mail.stranded = True
        self._stranded_identities |= {
            (*name, identity) for name, identities in found.identities.items() for identity in identities
        }

    def damage_found(self, found: Stranded, core: Core) -> None:
        """The broker is about to learn of that: what it has in memory, it is to store again."""
        for (kind, name), sequences in found.messages.items():
            queue = None if is_dead(kind) else core.queues[kind].by_name.get(name)
            for sequence in sequences if queue is not None else ():
                entry = queue.entries.get(sequence)
                if entry is not None and entry.record is not None and entry.state != SETTLING:
                    self._in_memory.add((kind, name, sequence))
                    self._to_store.add((kind, name, sequence))
        for (kind, name), identities in found.identities.items():
            queue = core.queues[kind].by_name.get(name)
            for identity in identities if queue is not None else ():
                known = self.identities.get((kind, name, identity))
                if known is not None and known.stored and self._is_known(known):
                    self._to_store |= {(kind, name, identity)} if identity in queue.dedup.known else set()

    def copy(self) -> QueueCopy:
        """What is on the disk now."""
        here = [mail for mail in (*self.old.values(), *self.mail.values()) if mail.stored]
        copies = {id(mail): copy(mail) for mail in (*here, *self.identities.values())}
        letters = [
            letter for letter in (*self.dead.old.values(), *self.dead.letters.values()) if letter.stored
        ]
        return QueueCopy(
            {mail.key: copies[id(mail)] for mail in here},
            {letter.key: copy(letter) for letter in letters},
            {name: copies[id(mail)] for name, mail in self.identities.items() if mail.stored},
            self.feeds.copy(),
            {name: copy(getattr(self, name)) for name in _KEPT},
        )

    def restored(self, before: QueueCopy) -> None:
        """A copy of the store takes its place, with no broker there: what came later is gone.

        What left later is back, though some may have had it.
        """
        self.times.forget()
        copies = {id(mail): copy(mail) for mail in (*before.mail.values(), *before.identities.values())}
        self.mail = {key: copies[id(mail)] for key, mail in before.mail.items()}
        self.identities = {name: copies[id(mail)] for name, mail in before.identities.items()}
        self.dead.letters = {key: copy(letter) for key, letter in before.letters.items()}
        for letter in self.dead.letters.values():
            letter.leaving = False
        self.feeds.restored(before.feeds)
        for name, value in before.others.items():
            setattr(self, name, copy(value))
        self.again |= {body_of(mail.message.record) for mail in self.mail.values()}
        self.again |= {body_of(letter.message.record) for letter in self.dead.letters.values()}
        self._found = {mail.body: key for key, mail in self.mail.items()}
        self._found |= {body: ("", "", 0) for body in self.ever_stored if body not in self._found}
        self.died()

    def check_store(self, recovered: Recovered) -> None:
        """What is on the disk is what was committed, when nothing waits to be written."""
        found = {
            (kind, name, message.sequence): None
            if message.sequence in state.damaged
            else body_of(message.record)
            for (kind, name), state in recovered.queues.items()
            for message in state.messages
        }
        here = [*self.mail.values(), *self.old.values(), *self.dead.letters.values(), *self.dead.old.values()]
        # What was confirmed to nobody goes on in memory alone if the disk refuses it.
        expected = {
            kept.key: None if kept.damaged else body_of(kept.message.record) for kept in here if kept.stored
        }
        if found != expected:
            raise Violation("the queues on the disk are not what was committed", found=found)

    def _begin_times(self, recovered: Recovered) -> None:
        """The times of what is there are those of the wall clock, which may have been set."""
        times = self.times
        times.started(recovered)
        self._began = self.now()
        self._used = {queue: min(used, self._began) for queue, used in self._used.items()}
        for mail in {*self.mail.values(), *self.identities.values()}:
            mail.wishes = Wishes(mail.message, times.came(mail.message))
            mail.not_before -= times.early(mail.message)

    def give_time_back(self, seconds: float) -> None:
        """The clock was wrong when the broker started: what was there before lasts longer."""
        self.times.check_given_back(seconds)
        for mail in self.mail.values():
            if self.times.is_old(mail.message):
                mail.wishes.expires += seconds

    def _remembered(self, key: Key, attempts: int) -> None:
        mail = self.mail[key]
        unmarked = key[:2] in self._unmarked and self._marks.get(key[:2], 0) < key[2]
        if mail.attempts and not attempts and not unmarked and key not in self._unnoted:
            raise Violation("a delivery was forgotten", key=key, attempts=mail.attempts)
        if mail.attempts and not attempts:
            self.forgotten.add(body_of(mail.message.record))
        mail.attempts = attempts

    # What the broker does

    def delivered(self, holder: Holder, queue: Name, columns: Columns, timeout: float) -> None:
        """Messages are sent to a consumer, which has so many seconds for each; 0 is for ever."""
        for sequence, _, _, subject, record, attempts, asked in columns.rows():
            key = (*queue, sequence)
            mail = self._check_delivery(key, subject, record, attempts, asked)
            if mail.holder is not None:
                raise Violation("a message was given to two", key=key, holders=(mail.holder, holder))
            mail.attempts = attempts
            mail.hold(holder, self.now(), timeout or self.policy.ack_timeout_seconds)
            mail.replied = ""
            mail.rejected = None

    def _check_delivery(self, key: Key, subject: str, record: Any, attempts: int, asked: Any) -> Mail:
        mail, now = self.mail.get(key), self.now()
        if mail is None or mail.leaving or mail.dead_lettered:
            raise Violation("a message came that is done", key=key, body=body_of(record))
        message = mail.message
        if (bytes(record), subject, asked or None) != (
            message.record,
            message.subject,
            message.properties or None,
        ):
            raise Violation("a delivery is not what the queue holds", key=key, body=body_of(record))
        if mail.tied and not mail.stored:
            raise Violation("a message was delivered before it was stored", key=key)
        if attempts != mail.attempts + 1:
            raise Violation("a message was redelivered without saying so", key=key, attempts=attempts)
        if not self._is_marked(mail):
            raise Violation("a message was sent before the disk knew that it may have been", key=key)
        if attempts > 1 and self._noted.get(key) != attempts:
            raise Violation("an attempt was not noted", key=key, attempts=attempts)
        if 0 < self.policy.attempts_max < attempts and not mail.spared:
            raise Violation("a message was tried too often", key=key, attempts=attempts)
        if now < max(mail.wishes.due, mail.not_before) - MOMENT:
            raise Violation("a message came too early", key=key, now=now, due=mail.wishes.due)
        if now >= mail.wishes.expires + MOMENT:
            raise Violation("a message came when it was over", key=key, now=now, expired=mail.wishes.expires)
        return mail

    def _is_marked(self, mail: Mail) -> bool:
        """Whether a restart would find that it may have been delivered, if the disk takes such marks."""
        key, queue = mail.key, mail.key[:2]
        if not mail.stored or queue in self._unmarked or key in self._unnoted:
            return True
        if key in self._kept:
            return self._kept[key] > 0
        return self.policy.attempts_max != 1 and self._marks.get(queue, 0) >= key[2]

    def check_binding(
        self, holder: Holder, queue: Name, columns: Columns, takes: Callable[..., bool]
    ) -> None:
        """Requests of one key go to one worker, as long as it takes them. `takes(holder, subject)`."""
        for sequence, subject in zip(columns.each_sequence(), columns.subjects, strict=True):
            key = self.mail[*queue, sequence].wishes.key
            if not key:
                continue
            chosen = self._moment_chosen((*queue, sequence), holder)
            if (queue, key) not in self.bindings and chosen < self._unbound.get((queue, key), 0):
                # It was chosen while the key was somebody else's, who did not take it.
                continue
            bound, first, since = self.bindings.setdefault((queue, key), (holder, subject, chosen))
            if bound == holder:
                continue
            beside = self._beside.setdefault((queue, key), set())
            if not takes(bound, subject):
                beside.add(holder)
                continue
            if any(not (takes(other, subject) or takes(other, first)) for other in beside - {holder}):
                continue
            # It may belong to the other one since before, if that one did not take the first that was seen.
            # And it was chosen before the key came to the other one, if the disk had to hear of it first.
            if takes(holder, first) and chosen >= since:
                raise Violation("a key went to another worker", queue=queue, key=key, holders=(bound, holder))
            if chosen >= since:
                self.bindings[queue, key] = (holder, subject, chosen)

    def note_choices(self, core: Core) -> None:
        """Note which messages with a key the broker has chosen workers for: they may be delivered later.

        From then on the key is that worker's.
        """
        chosen: dict[Key, tuple[Holder, int]] = {}
        first: dict[tuple[Name, str], dict[Holder, str]] = {}
        for name, queue in core.services.by_name.items():
            for sequence, asked in queue.options.items():
                entry = queue.entries.get(sequence)
                if asked.key and entry is not None and entry.state == DELIVERED:
                    key, holder = (
                        ("service", name, sequence),
                        (entry.consumer.session.peer, entry.consumer.source),
                    )
                    known = self._chosen.get(key)
                    chosen[key] = known if known and known[0] == holder else (holder, self.moment)
                    if chosen[key] is not known:
                        first.setdefault((key[:2], asked.key), {}).setdefault(holder, entry.subject)
        for bound, holders in first.items():
            # Which of several was the first nobody knows.
            if len(holders) == 1:
                self.bindings.setdefault(bound, (*holders.popitem(), self.moment))
        self._chosen = chosen
        self.moment += 1

    def _moment_chosen(self, key: Key, holder: Holder) -> int:
        """When a message was chosen for a worker: before this moment if the disk had to hear of it first."""
        known = self._chosen.get(key)
        return known[1] if known and known[0] == holder else self.moment

    def settled(self, holder: Holder, queue: Name, ranges: Ranges, end: str, reason: str = "") -> None:
        """Somebody says that he is done with what he holds, or will be given in this iteration."""
        # The broker refuses all if there is nothing in one of the ranges, and never was.
        gone = self._recalled.get(holder, set())
        taken = all(
            any(mail.holder == holder for _, mail in self._among(queue, [[first, last]]))
            or any(first <= sequence <= last for sequence in gone)
            for first, last in ranges
        )
        for key, mail in self._among(queue, ranges):
            if mail.holder in (None, holder) and not mail.dead_lettered and not mail.leaving:
                said = self.said.setdefault(key, {})
                # After an acknowledgement, a reply in the same iteration comes too late, and is refused.
                if end != "acknowledged" or said.get(end) != "":
                    said[end] = reason
                mail.replied = said[end] if end == "acknowledged" else ""
                if end == "rejected":
                    mail.rejected = reason
                    if taken and mail.holder == holder:
                        mail.dead_lettered = True
                        mail.holder = None

    def given_back(self, holder: Holder, queue: Name, ranges: Ranges, delay: float | None) -> None:
        """Somebody gives back what he holds, after a delay in seconds or None for the backoff."""
        for key, mail in self._among(queue, ranges):
            if mail.holder == holder and key not in self.said and not mail.leaving:
                self._given_back[key] = holder, mail.attempts, mail.not_before
                mail.holder = None
                mail.not_before = self._due(mail, delay)

    def put_back(self, holder: Holder, queue: Name, ranges: Ranges) -> None:
        """Somebody gives back what he holds as if it had never come."""
        for key, mail in self._among(queue, ranges):
            if mail.holder == holder and not mail.leaving:
                if key in self.said:
                    self._behind_reply[key] = holder
                else:
                    self._put_back(key, mail, holder)

    def _put_back(self, key: Key, mail: Mail, holder: Holder) -> None:
        self._given_back[key] = holder, mail.attempts, mail.not_before
        mail.holder = None
        mail.not_before = 0.0
        mail.attempts -= 1

    def reply_refused(self, peer: bytes) -> None:
        """A reply of this iteration had no effect: what came behind it has."""
        for key in [key for key, holder in self._behind_reply.items() if holder[0] == peer]:
            mail, holder = self.mail.get(key), self._behind_reply.pop(key)
            self.said.pop(key, None)
            if mail is not None and mail.holder == holder and not mail.leaving:
                self._put_back(key, mail, holder)

    def unbind(self, holder: Holder, queue: Name) -> None:
        """Somebody takes no more: his keys are free, but for those of what he holds."""
        for name, key in [k for k, bound in self.bindings.items() if k[0] == queue and bound[0] == holder]:
            del self.bindings[name, key]
            self._unbound[name, key] = self.moment
        for beside in self._beside.values():
            beside.discard(holder)

    def outside(self, holder: Holder, queue: Name, held: Ranges) -> list[list[int]]:
        """What somebody holds outside of these, as ranges."""
        inside = {key for key, _ in self._among(queue, held)}
        return [
            [key[2], key[2]]
            for key, mail in self.mail.items()
            if key[:2] == queue and mail.holder == holder and key not in inside
        ]

    def reported(self, holder: Holder, queue: Name, ranges: Ranges) -> None:
        """Somebody still works on what he holds."""
        for _, mail in self._among(queue, ranges):
            if mail.holder == holder:
                mail.hold(holder, self.now(), mail.timeout)

    def _due(self, mail: Mail, delay: float | None) -> float:
        """When a message is redelivered; without a delay, by the backoff."""
        if 0 < self.policy.attempts_max <= mail.attempts:
            return 0.0  # It is dead, and if the disk does not let it go, it comes at once.
        steps = self.policy.backoff_seconds
        backoff = steps[min(mail.attempts, len(steps)) - 1] if steps else 0.0
        return self.now() + (backoff if delay is None else delay)

    def held(self, holder: Holder, queue: Name, ranges: Ranges) -> list[Mail]:
        """What somebody holds of these."""
        return [mail for _, mail in self._among(queue, ranges) if mail.holder == holder]

    def _among(self, queue: Name, ranges: Ranges) -> list[tuple[Key, Mail]]:
        return [
            (key, mail)
            for key, mail in self.mail.items()
            if key[:2] == queue and any(first <= key[2] <= last for first, last in ranges)
        ]

    def recalled(self, holder: Holder, queue: Name, ranges: Ranges, reason: str) -> None:
        """The broker takes back what somebody holds."""
        for key, mail in self._among(queue, ranges):
            if key in self._given_back and self._given_back[key][0] == holder:
                # He gave it back too late in this iteration, and was refused: only its holder is notified.
                mail.holder, mail.attempts, mail.not_before = self._given_back.pop(key)
        found = [(key, mail) for key, mail in self._among(queue, ranges) if mail.holder == holder]
        if holder[0] not in self.heard and len(found) < sum(last - first + 1 for first, last in ranges):
            raise Violation("a recall of what was not delivered", holder=holder, ranges=ranges, reason=reason)
        if reason == CANCELLED:
            if wrong := [key for key, m in found if not self.is_cancelled((queue, m.wishes.identity))]:
                raise Violation("a consumer is told of what nobody has cancelled", keys=wrong)
            return
        gone = self._recalled.setdefault(holder, set())
        for key, mail in found:
            gone.add(key[2])
            if reason == "timeout" and self.now() < mail.deadline - MOMENT:
                raise Violation("a delivery was taken back too early", key=key, deadline=mail.deadline)
            if reason not in ("timeout", mail.leaving) and not self._may_be(reason, mail):
                raise Violation("a recall for another reason", key=key, reason=reason, end=mail.leaving)
            if reason == "timeout":
                mail.not_before = self._due(mail, None)
            mail.holder = mail.rejected = None

    def _may_be(self, reason: str, mail: Mail) -> bool:
        """Whether a message may have ended for this reason, though the book took another one for its end."""
        # Of several who take it back in one iteration, the book does not know who was first; an outcome does.
        guessed = mail.leaving in TAKEN_BACK and not mail.wishes.tracker
        return guessed and reason in TAKEN_BACK and self.ends.may(reason, mail, self._said_of(mail))

    def taken_back(self, peer: bytes, source: int | None = None) -> None:
        """What a peer holds, of one source or of all, is with nobody."""
        for mail in self.mail.values():
            if mail.holder and mail.holder[0] == peer and source in (None, mail.holder[1]):
                mail.holder = None
        self._recalled = {
            holder: gone
            for holder, gone in self._recalled.items()
            if holder[0] != peer or source not in (None, holder[1])
        }
        for beside in self._beside.values():
            beside -= {holder for holder in beside if holder[0] == peer and source in (None, holder[1])}
        for name, (holder, *_) in [*self.bindings.items()]:
            if holder[0] == peer and source in (None, holder[1]):
                del self.bindings[name]
                self._unbound[name] = self.moment

    def turn_over(self) -> None:
        """All of an iteration was shown."""
        self.feeds.iterated()
        self.times.iterated()
        if self._to_store:
            raise Violation("what a damaged block held is not stored again", left=self._to_store)
        now = self.now()
        for key, mail in self.mail.items():
            waits = mail.holder is not None and not mail.leaving and mail.rejected is None
            if waits and mail.deadline <= now - MOMENT:
                raise Violation("a delivery is overdue", key=key, deadline=mail.deadline, now=now)
        self._begin()

    def _begin(self) -> None:
        """An iteration begins."""
        self.said.clear()
        self.purged.clear()
        self.withdrawn.clear()
        self._began = self.now()
        self.heard.clear()
        self._noted.clear()
        self._given_back.clear()
        self._behind_reply.clear()

    @property
    def all_stored(self) -> bool:
        """Whether all that the queues hold is on the disk."""
        return all(mail.stored for mail in self.mail.values())

    def check_done(self, queues: set[Name]) -> None:
        """At the end of a run nothing is left where somebody takes everything."""
        # What a failing disk did not remove is redelivered after a restart.
        here = [*self.mail.values(), *self.old.values()]
        excused = {mail.body for mail in here if mail.leaving and self.disk_failed}
        # On a clock that was set back, a moment may be far away.
        excused |= {mail.body for mail in here if max(mail.wishes.due, mail.not_before) > self.now()}
        left = [k for k, mail in self.mail.items() if k[:2] in queues and mail.body not in excused]
        if left:
            raise Violation("messages stay in a queue that has a taker", left=left)
        for body, times in self.stored_requests.items():
            if self.completed[body] != times and body not in excused:
                raise Violation(
                    "a request has no end", request=body, stored=times, completed=self.completed[body]
                )
