"""The book of those who wait: messages for a worker, and workers for a message.

This one looks into the broker, since only the broker knows what waits: at the end of each iteration it takes
down which messages wait in each queue. Nobody with credit may stand idle beside a message that he takes. Of
the messages that waited through an iteration, none may have been passed over for one that comes behind it,
by its priority and the step that bounds starvation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sim_options import Wishes
from sim_origin import Violation
from sim_wants import takes

from malamute.core.broker import Core
from malamute.core.queue.entry import Entry
from malamute.core.queue.queue import Queue
from malamute.core.queue.state import DELIVERED, READY
from malamute.store.policies import QueuePolicy

Name = tuple[str, str]
Began = Callable[[bytes, int], Any]
"""The offer that a source of a peer began with, or None for a mailbox."""


class Waits(NamedTuple):
    """What waits in a queue, by sequence, and who its takers are."""

    entries: dict[int, Entry]
    attempts: dict[int, int]
    consumers: frozenset[int]


class WaitingBook:
    """What waits in the broker's queues."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self._before: dict[Name, Waits] = {}
        self.offered: set[Name] = set()
        """Whom somebody has offered to work for in this iteration."""

    def died(self) -> None:
        """The broker is killed."""
        self._before.clear()
        self.offered.clear()

    def iterated(self, core: Core, began: Began) -> None:
        """An iteration is over."""
        now: dict[Name, Waits] = {}
        for table in (core.mailboxes, core.services):
            for name, queue in table.by_name.items():
                waits = _waits(queue)
                if waits.entries:
                    now[table.kind, name] = waits
                    self._check_idle(queue, waits, began)
        for name, before in self._before.items():
            after = now.get(name)
            # Who came and went in this iteration may have had what waits again.
            if after is not None and before.consumers == after.consumers and name not in self.offered:
                self._check_order(name, before, after, began)
        self._before = now
        self.offered.clear()

    def _check_idle(self, queue: Queue, waits: Waits, began: Began) -> None:
        for consumer in queue.consumers.values():
            # One whose records come from the disk takes more when they are there.
            if (
                consumer.drained
                or not consumer.credit.open
                or consumer.session.blocked
                or consumer.missing_bytes
            ):
                continue
            offer = began(consumer.session.peer, consumer.source)
            for sequence, entry in waits.entries.items():
                if not Wishes(entry.message).key and takes(offer, entry.subject, entry.sender):
                    raise Violation(
                        "a message waits for an idle worker",
                        queue=(queue.kind, queue.name),
                        sequence=sequence,
                    )

    def _check_order(self, name: Name, before: Waits, after: Waits, began: Began) -> None:
        passed = [
            (self._place(sequence, entry), entry)
            for sequence, entry in after.entries.items()
            if before.attempts.get(sequence) == entry.attempts and not Wishes(entry.message).key
        ]
        for sequence, entry in before.entries.items():
            # It may have ended when it came back from one who came and went in this iteration.
            if entry.state != DELIVERED or id(entry.consumer) not in after.consumers:
                continue
            offer = began(entry.consumer.session.peer, entry.consumer.source)
            place = self._place(sequence, entry)
            for other, waits in passed:
                if other < place and takes(offer, waits.subject, waits.sender):
                    raise Violation(
                        "a message was passed over", queue=name, waits=waits.message.sequence, given=sequence
                    )

    def _place(self, sequence: int, entry: Entry) -> int:
        return sequence - Wishes(entry.message).priority * self.policy.priority_step_messages


def _waits(queue: Queue) -> Waits:
    queue.states.assert_these(queue.entries.values())
    entries = {sequence: entry for sequence, entry in queue.entries.items() if entry.state == READY}
    attempts = {sequence: entry.attempts for sequence, entry in entries.items()}
    return Waits(entries, attempts, frozenset(queue.consumers))
