"""The book of dead letters: each carries why and when it died, and leaves in a way that somebody chose."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Any, TypeGuard

from sim_feeds import fed_name, is_fed
from sim_mail import Mail
from sim_origin import Key, Violation, body_of
from sim_puts import PutMessage

from malamute.core.queue.dead_letters import UNREADABLE
from malamute.store.commit import Append
from malamute.store.operations import DeleteMessages, DeleteQueue, Operation, StoredMessage
from malamute.store.policies import QueuePolicy

SPENT = ("dead", "tracker", "delay", "at", "immediate")
"""Options that a dead letter does not have when it is sent again."""


def is_dead(kind: str) -> bool:
    """Whether this is a kind of dead letters."""
    return kind.endswith("-dead")


def is_put(operation: Operation) -> TypeGuard[PutMessage]:
    """Whether this puts a message into a queue, and not among the dead letters."""
    return isinstance(operation, PutMessage) and not is_dead(operation.kind)


def is_told(message: StoredMessage) -> bool:
    """Whether the broker has made a message: an outcome, or the last word on a request that is lost."""
    asked = message.properties or {}
    return "outcome" in asked or ("final" in asked and not body_of(message.record))


def base_of(kind: str) -> Any:
    """The kind of queue that dead letters come from."""
    return kind.removesuffix("-dead")


def name_of(queue: str, message: StoredMessage) -> bytes:
    """What names a message over all queues: its body, or for an outcome whom it tells of what.

    Two senders may have chosen the same tracker.
    """
    asked = message.properties or {}
    if is_told(message) and "outcome" not in asked:
        return f"{queue} {asked['service']} {asked['correlation']}".encode()
    if "outcome" in asked:
        return f"{queue} {asked['kind']} {asked['name']} {asked.get('tracker')}".encode()
    return fed_name(queue, message) if is_fed(message) else body_of(message.record)


def without(message: StoredMessage, spent: Sequence[str]) -> dict[str, Any]:
    """The properties without some of them. An outcome tells of a tracker, and keeps it."""
    asked = message.properties or {}
    kept = ("tracker",) if "outcome" in asked else ()
    return {name: value for name, value in asked.items() if name not in spent or name in kept}


class Letter:
    """A dead letter."""

    __slots__ = ("damaged", "key", "leaving", "message", "stored")

    def __init__(self, key: Key, message: StoredMessage) -> None:
        self.key = key
        self.message = message
        self.stored = self.leaving = self.damaged = False


class DeadBook:
    """All dead letters, by key; the kind in the key ends in -dead."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.letters: dict[Key, Letter] = {}
        self.old: dict[Key, Letter] = {}
        """Those of queues that have been removed, as long as the disk may have them."""
        self._meant: dict[int, list[Letter]] = {}
        """What an operation is about that is not on the disk yet, by its identity."""
        self.again: dict[bytes, list[StoredMessage]] = {}
        """Those that are sent again by the append that is looked at, by what names them."""

    def check(
        self, key: Key, mail: Mail, letter: StoredMessage, reason: str, when: tuple[float, float]
    ) -> None:
        """A dead letter has all that its message had, and tells how it died, and when: between two times."""
        asked = without(mail.message, ("tracker",))
        time = (letter.properties or {})["dead"]["died"]
        died: dict[str, Any] = {
            "reason": reason,
            "attempts": mail.attempts,
            "sequence": key[2],
            "time": mail.message.time_ns,
            "died": min(max(time, int(when[0] * 1e9)), int(when[1] * 1e9)),
        }
        # By the mark: an outcome has nothing in its record, either.
        is_marked = "damaged" in (letter.properties or {})["dead"]
        unreadable = mail.damaged and (not mail.stranded or is_marked)
        if unreadable:
            died["damaged"] = True
        record = UNREADABLE if unreadable else mail.message.record
        expected = mail.message._replace(
            sequence=letter.sequence, record=record, properties={**asked, "dead": died}
        )
        if letter._replace(record=bytes(letter.record)) != expected:
            raise Violation("a dead letter is not what died", key=key, letter=letter, expected=expected)

    def handed_out(self, append: Append, purged: Container[tuple[str, str]]) -> None:
        """The broker stores some, and removes some: an operator said so, or there are too many.

        What is sent again leaves with the append that puts it into the queue, or not at all. What is dropped
        leaves in any case, even if a feed makes a request of the same name beside it.
        """
        bound = {id(operation) for operation in append.bound}
        sent = {name_of(o.queue, o.message) for o in append.operations if is_put(o)}
        for operation in append.operations:
            if isinstance(operation, PutMessage) and is_dead(operation.kind):
                self._put(operation)
        for operation in append.operations:
            if isinstance(operation, DeleteMessages):
                self._meant[id(operation)] = named = self._named(operation)
                for letter in named:
                    self._leave(letter, letter.key[:2] in purged, sent if id(operation) in bound else ())

    def _put(self, put: PutMessage) -> None:
        key = (put.kind, put.queue, put.message.sequence)
        if key in self.letters:
            raise Violation("a sequence of a queue was used again", key=key)
        self.letters[key] = letter = Letter(key, put.message._replace(record=bytes(put.message.record)))
        self._meant[id(put)] = [letter]

    def removed(self, removal: DeleteQueue) -> None:
        """A queue is removed, with what is in it. The next one of its name counts from 1 again."""
        name = (removal.kind, removal.queue)
        for key in [key for key in self.letters if key[:2] == name]:
            self.old[key] = self.letters.pop(key)
        self._meant[id(removal)] = [letter for key, letter in self.old.items() if key[:2] == name]

    def _leave(self, letter: Letter, purged: bool, sent: Container[bytes]) -> None:
        key = letter.key
        here = [k for k, other in self.letters.items() if k[:2] == key[:2] and not other.leaving]
        name = name_of(key[1], letter.message)
        if name in sent:
            self.again.setdefault(name, []).append(letter.message)
        elif not purged and (len(here) <= self.policy.dead_letters_max or key != min(here)):
            raise Violation("a dead letter was dropped", key=key)
        letter.leaving = True

    def _named(self, operation: DeleteMessages) -> list[Letter]:
        keys = [(operation.kind, operation.queue, s) for a, b in operation.ranges for s in range(a, b + 1)]
        return [self.letters[key] for key in keys if key in self.letters]

    def committed(self, operations: Sequence[Operation]) -> None:
        """These are on the disk."""
        for operation in operations:
            for letter in self._meant.pop(id(operation), ()):
                if isinstance(operation, PutMessage):
                    self._stored(letter)
                else:
                    self._forget(letter)

    def _stored(self, letter: Letter) -> None:
        letter.stored = True
        if self.letters.get(letter.key) is letter:
            # The disk has one under each number.
            self.old.pop(letter.key, None)

    def _forget(self, letter: Letter) -> None:
        for table in (self.letters, self.old):
            if table.get(letter.key) is letter:
                del table[letter.key]

    def failed(self, append: Append, bound: Container[int]) -> None:
        """It could not be stored: what was to die has not, and what was to be sent again is here."""
        for operation in append.operations:
            for letter in self._meant.pop(id(operation), ()):
                if isinstance(operation, PutMessage):
                    self._forget(letter)
                elif id(operation) in bound:
                    letter.leaving = False

    def sent_again(self, name: bytes) -> StoredMessage | None:
        """The dead letter that a message was, or None. A feed may make another of that name beside it."""
        letters = self.again.get(name)
        return letters.pop(0) if letters else None

    def died(self) -> None:
        """The broker is killed: what is on the disk is what there is."""
        self._meant.clear()
        for letter in [*self.letters.values(), *self.old.values()]:
            letter.leaving = False
            if not letter.stored:
                self._forget(letter)
        self.letters |= self.old
        self.old.clear()

    def here(self, name: tuple[str, str]) -> set[int]:
        """Those that are there and stay."""
        return {key[2] for key, letter in self.letters.items() if key[:2] == name and not letter.leaving}

    def check_done(self, name: tuple[str, str], here: Collection[int]) -> None:
        """At the end the broker holds those that there are."""
        expected = self.here(name)
        if set(here) != expected:
            raise Violation("other dead letters are there", queue=name, here=here, expected=expected)
