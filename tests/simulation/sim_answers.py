"""The book of answers: each command is answered as often as it is sent at the most, and with what came of it.

A command with a number has its answer when it is stored or refused. One without a number has none but a
refusal, so what the broker neither stores nor refuses in the iteration was lost without a word. Who takes
back what he sent learns how much of it was there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from sim_origin import Key, Violation

from malamute.protocol.messages import (
    Commit,
    Error,
    Message,
    Ok,
    Publish,
    Reply,
    Request,
    Send,
    Stored,
    Withdraw,
)

NO_OUTCOME = frozenset((405, 421))
"""Refusals of whoever has no session, and of numbers that are out of order."""

ABOUT: Mapping[type[Message], int] = {Publish: 2, Send: 3, Request: 4, Reply: 5, Commit: 14}
"""The commands that may have a number, and how an answer names each."""

WITHDRAW = 20

Asked = tuple[tuple[str, str], str, int | str]
"""A queue, the sender of messages in it, and their correlation."""

Under = tuple[tuple[str, str], str]
"""A queue, and an id."""


class Cancellation:
    """A cancellation by id, and the messages that waited under it when it was asked for."""

    def __init__(self, under: Under, waiting: list[Key]) -> None:
        self.under = under
        self.waiting = waiting
        self.most = 0
        """How many messages under the id were withdrawn since."""


class AnswerBook:
    """What was asked, and how often it was answered."""

    def __init__(self) -> None:
        self._sent: Counter[tuple[bytes, int]] = Counter()
        self._answered: Counter[tuple[bytes, int]] = Counter()
        self._unnumbered: list[tuple[bytes, Publish | Send | Request]] = []
        self._refused: set[bytes] = set()
        """Who was refused something in this iteration; one refusal may stand for all without a number."""
        self._withdrawals: dict[Asked, tuple[bytes, int]] = {}
        """The first of this iteration for each."""
        self._withdrawn: dict[tuple[bytes, int], int] = {}
        """How many messages each took back."""
        self.cancellations: dict[tuple[bytes, int], Cancellation] = {}
        """Cancellations without an answer, by client and number."""
        self.cancelled: list[Cancellation] = []
        """Cancellations answered in this iteration."""

    def received(self, peer: bytes, message: Message) -> None:
        """The broker is about to read a command."""
        if type(message) not in ABOUT:
            return
        if message.number:
            self._sent[peer, message.number] += 1
        elif isinstance(message, Publish | Send | Request):
            self._unnumbered.append((peer, message))

    def withdraws(self, peer: bytes, message: Withdraw, asked: Asked) -> None:
        """Somebody takes back what he sent."""
        self._withdrawn[peer, message.ref] = 0
        self._withdrawals.setdefault(asked, (peer, message.ref))

    def handed_out(self, withdrawn: Mapping[Asked, int], cancelled: Mapping[Under, int]) -> None:
        """The broker wants to store what it has done; so many messages may have been withdrawn."""
        for under, count in cancelled.items():
            for wanted in self.cancellations.values():
                wanted.most += count * (wanted.under == under)
        for asked, count in withdrawn.items():
            if asked in self._withdrawals:
                self._withdrawn[self._withdrawals[asked]] += count

    def sent(self, peer: bytes, message: Message) -> None:
        """The broker sends an answer."""
        if isinstance(message, Stored):
            for first, last, _ in message.ranges:
                for number in range(first, last + 1):
                    self._answer(peer, number)
        elif isinstance(message, Error):
            self._refused.add(peer)
            if message.about == WITHDRAW:
                self.cancellations.pop((peer, message.ref), None)
            if message.about in ABOUT.values() and message.ref and message.code not in NO_OUTCOME:
                self._answer(peer, message.ref)
        elif isinstance(message, Ok) and message.about == WITHDRAW:
            self._told_withdrawn(peer, message)

    def _told_withdrawn(self, peer: bytes, message: Ok) -> None:
        if (wanted := self.cancellations.pop((peer, message.ref), None)) is not None:
            if not 0 <= message.value[0] <= wanted.most:
                raise Violation("a cancellation is reported of other messages", told=message.value)
            self.cancelled.append(wanted)
            return
        most = self._withdrawn.get((peer, message.ref), 0)
        if not 1 <= message.value <= most:
            raise Violation("a withdrawal is reported of other messages", told=message.value, most=most)

    def is_cancelled(self, under: Under) -> bool:
        """Whether a cancellation of messages of a queue under an id is under way."""
        return any(wanted.under == under for wanted in self.cancellations.values())

    def _answer(self, peer: bytes, number: int) -> None:
        self._answered[peer, number] += 1
        if self._answered[peer, number] > self._sent[peer, number]:
            raise Violation("a number was answered more often than it was sent", peer=peer, number=number)

    def iterated(self, has: Callable[[Publish | Send | Request, int], bool], open_: set[bytes]) -> None:
        """An iteration is over: what it read without a number is about to be stored, or refused."""
        for peer, message in self._unnumbered:
            if peer not in open_ or peer in self._refused:
                continue
            for place in range(len(message.records)):
                if not has(message, place):
                    raise Violation("a command was lost without a word", peer=peer, command=message)
        self._unnumbered.clear()
        self._refused.clear()
        self._withdrawals.clear()
        self.cancelled.clear()

    def died(self) -> None:
        """The broker is killed: what it read and did not answer it need not answer."""
        self._unnumbered.clear()
        self._refused.clear()
        self._withdrawals.clear()
        self._withdrawn.clear()
        self.cancellations.clear()
        self.cancelled.clear()
