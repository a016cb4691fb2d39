"""Confirmations: numbered commands are admitted once, and confirmed when the iteration is stored.

`admit` says whether a command is new. Its handler calls `accept` or `refuse`; a change begins and is decided.
At the end of the iteration, `flush` stores the numbers of these sessions beside the messages, and confirms
the commands when that is durable. If the disk refuses it, each command is refused. Commands whose messages
are in memory only are confirmed at once, and nothing is stored of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from malamute.core.iteration.effects import Effects
from malamute.core.session.numbers import Numbers
from malamute.core.session.session import Session
from malamute.errors import (
    MalamuteError,
    NumberTooOld,
    TooMany,
)
from malamute.protocol.limits import CHANGES_MAX, Limits
from malamute.protocol.messages import (
    BY_TYPE,
    Add,
    Change,
    Commit,
    Delete,
    Error,
    Forward,
    Ok,
    Publish,
    Put,
    Reply,
    Request,
    Send,
    Stored,
    error_message,
)
from malamute.store.operations import PutValue, Stranded
from malamute.store.tables import NUMBERS, OUTCOMES, REFUSALS, SESSIONS

if TYPE_CHECKING:
    pass

Numbered = Publish | Forward | Send | Request | Reply | Commit
"""The commands that a session numbers and that STORED confirms. OK answers a CHANGE, which has one, too."""

CHANGE = BY_TYPE[Change].opcode

WITH_OUTCOME = frozenset(BY_TYPE[message].opcode for message in (Change, Put, Delete, Add))
"""Opcodes of the numbered commands that OK answers with their outcome, which is kept for the session."""


class Run:
    """Numbers in a row that are confirmed together: commands of one kind, whose messages follow each other.

    `sequence` is that of the first message, and `following` the one that would continue the run.
    """

    __slots__ = ("command", "first", "following", "last", "sequence")

    def __init__(self, message: Numbered, count: int, sequence: int) -> None:
        self.command = type(message)
        self.first = self.last = message.number
        self.sequence = sequence
        self.following = sequence + count

    def append(self, message: Numbered, count: int, sequence: int) -> bool:
        """Add a command if it continues the run."""
        if sequence != self.following or type(message) is not self.command or message.number != self.last + 1:
            return False
        self.last += 1
        self.following += count
        return True


class Confirmations:
    """The numbered commands of the iteration, by their sessions, until they are confirmed."""

    def __init__(self, effects: Effects, limits: Limits, by_peer: Mapping[bytes, Session]) -> None:
        """`by_peer` are the sessions as they come and go."""
        self.effects = effects
        self._stage = effects.stage
        self.limits = limits
        self.by_peer = by_peer
        self.pending: dict[Session, list[Run]] = {}
        """The confirmations of this iteration: none for a session with a change alone."""
        self.at_once: dict[Session, list[Run]] = {}
        """The commands of this iteration that leave nothing to be stored."""

    def admit(self, session: Session, number: int) -> bool:
        """Whether a numbered command is to be executed; if it was before, it is answered again.

        Raises:
            NumberTooOld: it leaves a gap, or is too far behind the newest one.
        """
        numbers = session.numbers
        if number > numbers.next:
            numbers.skip_settled()
        if number == numbers.next:
            return True
        if number > numbers.next:
            raise NumberTooOld(f"number {number} leaves a gap: expected {numbers.next}")
        if number < max(numbers.floor, numbers.next - self.limits.unconfirmed):
            raise NumberTooOld(f"number {number} is too old: the newest is {numbers.next - 1}")
        if refusal := numbers.refused.answer(number):
            self.effects.send(session.peer, refusal)
        elif numbers.is_settled(number):
            self.effects.send(session.peer, Stored([[number, number, 0]]))
        return False

    def accept(
        self, session: Session, message: Numbered, count: int, sequence: int, *, in_memory: bool = False
    ) -> None:
        """Confirm a numbered command that was executed, once this iteration is stored, or at once.

        `sequence` is that of the first of its `count` stream messages; both are 0 for other commands.
        A duplicate has the negative of its first one's sequence, and is in no run with others.
        """
        confirmations = self.at_once if in_memory else self.pending
        numbers = session.numbers
        numbers.next = message.number + 1
        if not in_memory:
            numbers.unstored = message.number
        runs = confirmations.get(session)
        if runs is None:
            runs = confirmations[session] = []
        elif runs and runs[-1].append(message, count, sequence):
            return
        runs.append(Run(message, count, sequence))

    def refuse(self, session: Session, number: int, error: Error) -> None:
        """A numbered command was refused."""
        numbers = session.numbers
        if number > numbers.next:
            numbers.skip_settled()
        if number == numbers.next:
            numbers.next = number + 1
            numbers.forget_before(number - self.limits.unconfirmed)
            numbers.refuse(number, error)
        elif error.about in WITH_OUTCOME and numbers.outcomes.drop(number):
            numbers.refuse(number, error)

    # Changes

    def admit_change(self, session: Session, number: int, about: int = CHANGE) -> bool:
        """Whether a change is to be executed; if it was before, it is answered again, now or when it is done.

        `about` is the opcode of the command, here and below.

        Raises `NumberTooOld` as for all numbers, and for an outcome that is not kept any more; `TooMany`
        when as many wait for their answers as may.
        """
        outcomes = session.numbers.outcomes
        if number in outcomes.running:
            return False
        if number in outcomes.decided:
            self.effects.send(session.peer, Ok(about, number, outcomes.decided[number]))
            return False
        if number in outcomes.undecided:
            return True
        if number < session.numbers.next and session.numbers.refused.answer(number) is None:
            raise NumberTooOld(
                f"outcome of change {number} is no longer kept: expected one of the last {CHANGES_MAX}"
            )
        if self.admit(session, number):
            if len(outcomes.undecided) >= CHANGES_MAX:
                raise TooMany(
                    f"too many changes: {CHANGES_MAX} of this session are under way; wait for their answers"
                )
            return True
        return False

    def begin_change(self, session: Session, number: int, *, stores: bool = True) -> None:
        """A change is executed: from now on it is undecided, over a crash too if anything of it is stored."""
        numbers = session.numbers
        if number == numbers.next:
            numbers.next = number + 1
            numbers.forget_before(number - self.limits.unconfirmed)
        numbers.outcomes.begin(number)
        if stores:
            self.pending.setdefault(session, [])

    def decide_change(
        self,
        session: Session,
        number: int,
        value: Any,
        *,
        final: bool = True,
        otherwise: Any = None,
        about: int = CHANGE,
    ) -> None:
        """A change has come to this, all of it in this iteration: store it beside that, and answer then.

        One that is not `final` goes on, and this is its outcome if it cannot. If this cannot be stored it has
        come to `otherwise`, or was refused.
        """
        if number and self._lives(session):
            session.numbers.outcomes.decide(number, value)
            self.pending.setdefault(session, [])

        def stored(error: MalamuteError | None) -> None:
            if error is not None and otherwise is None:
                self.fail_change(session, number, error, about)
                return
            outcomes = session.numbers.outcomes
            outcomes.running.discard(number)
            if error is not None and number in outcomes.decided:
                outcomes.decide(number, otherwise)
            self._answer(session, Ok(about, number, value if error is None else otherwise))

        if final:
            self._stage.when_stored(stored)

    def settle_at_once(self, session: Session, number: int, value: Any, about: int) -> None:
        """A change has come to this, and nothing of it is stored: answer it at once."""
        self.begin_change(session, number, stores=False)
        session.numbers.outcomes.decide(number, value)
        session.numbers.outcomes.running.discard(number)
        self.effects.send(session.peer, Ok(about, number, value))

    def fail_change(self, session: Session, number: int, error: MalamuteError, about: int = CHANGE) -> None:
        """A change was refused, and nothing was changed."""
        answer = error_message(error, about, number)
        if number and session.numbers.outcomes.drop(number):
            session.numbers.refuse(number, answer)
        self.effects.counters.refuse(answer.code, self.effects.now)
        self._answer(session, answer)

    def _answer(self, session: Session, answer: Ok | Error) -> None:
        """Answer a session, unless another one of its peer has begun with numbers of its own."""
        if self.by_peer.get(session.peer, session) is session:
            self.effects.send(session.peer, answer)

    def flush(self) -> None:
        """Store the numbers of this iteration beside the messages, and confirm them when that is done."""
        if self.at_once:
            self._confirm_at_once()
        confirmations, self.pending = self.pending, {}
        if not confirmations:
            return
        try:
            for session in confirmations:
                self._store(session)
        except Exception as error:
            self.effects.spoil("the numbers of a session", error)
        # Behind the append that `_store` waits for: a failure has to be known when the numbers are stored
        # again.
        self._stage.when_stored(lambda error: self._confirm(confirmations, error))

    def _confirm_at_once(self) -> None:
        confirmations, self.at_once = self.at_once, {}
        if self.effects.spoiled:
            # Nothing of this iteration happens, so these are refused with all others.
            for session, runs in confirmations.items():
                both = sorted([*self.pending.get(session, ()), *runs], key=attrgetter("first"))
                session.numbers.unstored = both[-1].last
                self.pending[session] = both
            return
        for session, runs in confirmations.items():
            for run in runs:
                session.numbers.confirm_at_once(run.first, run.last)
            self._send(session, runs)

    def _send(self, session: Session, runs: list[Run]) -> None:
        self.effects.send(session.peer, Stored([[run.first, run.last, run.sequence] for run in runs]))

    def _store(self, session: Session) -> None:
        if not self._lives(session):
            return
        numbers = session.numbers
        session.durable = True
        self._stage.store(PutValue(SESSIONS, (session.peer, NUMBERS), numbers.pack()))
        if numbers.refused_changed:
            numbers.refused_changed = False
            self._stage.store(PutValue(SESSIONS, (session.peer, REFUSALS), numbers.refused.pack()))
            self._stage.when_stored(lambda error: self._refusals_stored(numbers, error), awaited=False)
        if numbers.outcomes_changed:
            numbers.outcomes.changed = False
            self._stage.store(PutValue(SESSIONS, (session.peer, OUTCOMES), numbers.outcomes.pack()))
            self._stage.when_stored(lambda error: self._outcomes_stored(numbers, error), awaited=False)

    def store_again(self, stranded: Stranded) -> None:
        """A store has lost this: sessions that are in it are stored once more.

        One in doubt is not: as new as the damage, it would be in doubt no more after a restart, and its
        client would never be notified.
        """
        for peer in {peer for peer, *_ in stranded.keys(SESSIONS)}:
            session = self.by_peer.get(peer)
            if session is not None and not session.doubtful:
                session.numbers.refused_changed = session.numbers.outcomes.changed = True
                self._store(session)

    def _refusals_stored(self, numbers: Numbers, error: MalamuteError | None) -> None:
        numbers.refused_changed |= error is not None

    def _outcomes_stored(self, numbers: Numbers, error: MalamuteError | None) -> None:
        numbers.outcomes.changed |= error is not None

    def _lives(self, session: Session) -> bool:
        return self.by_peer.get(session.peer) is session

    def _confirm(self, confirmations: dict[Session, list[Run]], error: MalamuteError | None) -> None:
        for session, runs in confirmations.items():
            if not self._lives(session):
                continue
            if runs:
                session.numbers.decide(runs[-1].last, stored=error is None)
            if error is None and runs:
                self._send(session, runs)
            elif error is not None:
                self._unstored(session, runs, error)
                # Sessions handed out meanwhile have these numbers as stored.
                self._store(session)

    def _unstored(self, session: Session, runs: list[Run], error: MalamuteError) -> None:
        for run in runs:
            opcode = BY_TYPE[run.command].opcode
            for number in range(run.first, run.last + 1):
                answer = Error(error.code, error.text, opcode, number)
                session.numbers.refuse(number, answer)
                self.effects.send(session.peer, answer)
