"""How messages end: each in one way, for a reason that somebody gave, and as it is reported.

The broker removes a message in one transaction with what follows from it: a dead letter, or an outcome for
who tracks it. `Facts` gathers what one append tells of that, and `Ends.judge` says how a message ended, or
what is wrong about it. What the broker was sent in an iteration is in `said`, by the end that it allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any

from sim_clock import MailTimes
from sim_dead import DeadBook, base_of, is_dead, is_told, name_of
from sim_feeds import is_fed
from sim_mail import MOMENT, Mail
from sim_origin import Key, Violation
from sim_puts import PutMessage

from malamute.core.queue.settlement import CORRUPT
from malamute.store.commit import Append
from malamute.store.operations import StoredMessage
from malamute.store.policies import QueuePolicy

Said = Mapping[str, str]
"""What was said of a message in this iteration: the end that it allows, and the reason."""

TAKEN_BACK = ("withdrawn", "purged", "expired")
"""Ends of a message that come to it wherever it is; whoever holds it is notified."""

QUIET = (*TAKEN_BACK, "acknowledged")
"""Ends that leave nothing behind, unless the message is tracked."""


class Facts:
    """What one append tells of ends."""

    def __init__(self, append: Append, again: Container[bytes]) -> None:
        self.died: dict[Key, StoredMessage] = {}
        self.outcomes: dict[tuple[str, str], StoredMessage] = {}
        self.answers: Counter[tuple[str, str, int | str]] = Counter()
        """The last words on requests that are lost: the mailbox, the service and the correlation of each."""
        for operation in append.operations:
            if not isinstance(operation, PutMessage):
                continue
            asked = operation.message.properties or {}
            if is_dead(operation.kind):
                key = (base_of(operation.kind), operation.queue, asked["dead"]["sequence"])
                self.died[key] = operation.message
            elif not is_told(operation.message) or name_of(operation.queue, operation.message) in again:
                continue
            elif "outcome" in asked:
                self.outcomes[operation.queue, asked["tracker"]] = operation.message
            else:
                self.answers[operation.queue, asked["service"], asked["correlation"]] += 1

    def check_used(self) -> None:
        """Each dead letter and each outcome belonged to a message that ended."""
        if self.died or self.outcomes or +self.answers:
            raise Violation(
                "an end was reported of what has not ended", dead=self.died, outcomes=self.outcomes
            )


class Ends:
    """The ends of all messages, and how many there were of each."""

    def __init__(self, policy: QueuePolicy, times: MailTimes, dead: DeadBook) -> None:
        self.policy = policy
        self.times = times
        self.now = times.now
        self.dead = dead
        self.counts: Counter[str] = Counter()
        self.withdrawn: Counter[tuple[tuple[str, str], str, int | str]] = Counter()
        """Of the append that is looked at: the queue, the sender, and the correlation."""
        self.cancelled: Counter[tuple[tuple[str, str], str]] = Counter()
        """Of the same: the queue, and the id."""

    def judge(self, key: Key, mail: Mail, said: Said, facts: Facts, began: float) -> str:
        """How a message that is removed has ended."""
        letter = facts.died.pop(key, None)
        told = facts.outcomes.pop((mail.message.sender, mail.wishes.tracker), None)
        if bool(mail.wishes.tracker) != bool(told):
            raise Violation("a tracked message ended without its outcome", key=key)
        outcome = told.properties if told else None
        end = outcome["outcome"] if outcome else self._guess(mail, said, letter, facts)
        if not self.may(end, mail, said) or (letter is None) != self._leaves_nothing(end):
            raise Violation("a message was removed that nobody was done with", key=key, end=end, said=said)
        spent = self._spent(mail, letter, told, facts)
        reason = {"rejected": said.get("rejected", ""), "dead-lettered": spent}.get(end, "")
        if spent == CORRUPT and end == "dead-lettered":
            self._check_answered(key, mail, facts)
        elif end == "dead-lettered" and not mail.delivered:
            raise Violation("a message died that nobody was sent", key=key)
        if letter is not None:
            self.dead.check(key, mail, letter, reason, self.times.span(began))
        if told is not None:
            self._check_outcome(key, mail, told, end, reason)
        self.counts[end] += 1
        if end == "withdrawn":
            asked = mail.message.properties or {}
            self.withdrawn[key[:2], mail.message.sender, asked.get("correlation", "")] += 1
            self.cancelled[key[:2], mail.wishes.identity] += 1
        return end

    def _spent(
        self, mail: Mail, letter: StoredMessage | None, told: StoredMessage | None, facts: Facts
    ) -> str:
        """Why a message is dead that nobody has rejected."""
        if not mail.stranded:
            return CORRUPT if mail.damaged else "max-deliver"
        # The broker may have had it in memory.
        attempts_max = self.policy.attempts_max
        said = (letter.properties or {})["dead"]["reason"] if letter else CORRUPT
        if told is not None:
            said = (told.properties or {}).get("reason", "")
        elif letter is None and not facts.answers[_answer_to(mail)]:
            said = "max-deliver"
        return "max-deliver" if said != CORRUPT and 0 < attempts_max <= mail.attempts else CORRUPT

    def _check_answered(self, key: Key, mail: Mail, facts: Facts) -> None:
        """Who waits for the replies to a request that is lost is notified, unless he is gone or tracks it."""
        asked, sender = mail.message.properties or {}, mail.message.sender
        waits = key[0] == "service" and "correlation" in asked and not is_fed(mail.message)
        if not waits or mail.wishes.tracker:
            return
        if facts.answers[_answer_to(mail)]:
            facts.answers[_answer_to(mail)] -= 1
        elif not sender.startswith("$"):
            raise Violation("a request was lost without a word", key=key, sender=sender)

    def _guess(self, mail: Mail, said: Said, letter: StoredMessage | None, facts: Facts) -> str:
        dead = ("rejected", "dead-lettered")
        if letter is None:
            # An acknowledgement may have been refused, so it comes last.
            ends = (*TAKEN_BACK, *(dead if not self.policy.dead_letters_max else ()), "acknowledged")
            if mail.stranded:
                ends = (*TAKEN_BACK, "acknowledged", *dead)
            if mail.damaged and not self.policy.dead_letters_max and facts.answers[_answer_to(mail)]:
                # It may be over as well, but whoever is notified that it is lost is not notified that it is
                # over.
                ends = dead[::-1]
        elif mail.damaged and not mail.stranded:
            ends = dead[::-1]
        elif (letter.properties or {})["dead"]["reason"] in ("max-deliver", CORRUPT):
            # Somebody may have rejected it too late.
            ends = dead[::-1]
        else:
            ends = dead
        return next((end for end in ends if self.may(end, mail, said)), "unknown")

    def may(self, end: str, mail: Mail, said: Said) -> bool:
        """Whether a message may end so."""
        if mail.damaged and not (mail.spared or mail.stranded):
            # A broker that finds it so ends it at once, even if its time has passed meanwhile. Only if the
            # disk refuses that can anything else come to it.
            return end == "dead-lettered"
        if end == "expired":
            return self.now() >= mail.wishes.expires - MOMENT and not self.times.holds(mail.message)
        if end == "dead-lettered":
            return mail.damaged or 0 < self.policy.attempts_max <= mail.attempts
        return end in said

    def _leaves_nothing(self, end: str) -> bool:
        return end in QUIET or not self.policy.dead_letters_max

    def _check_outcome(self, key: Key, mail: Mail, told: StoredMessage, end: str, reason: str) -> None:
        asked: Mapping[str, Any] = mail.message.properties or {}
        expected = {"outcome": end, "tracker": mail.wishes.tracker, "kind": key[0], "name": key[1]}
        if "correlation" in asked:
            expected["correlation"] = asked["correlation"]
        if reason:
            expected["reason"] = reason
        if told.properties != expected or (told.subject, told.sender) != (mail.message.subject, ""):
            raise Violation(
                "an outcome tells something else", key=key, told=told.properties, expected=expected
            )


def _answer_to(mail: Mail) -> tuple[str, str, int | str]:
    """The last word on a request, if it is lost, as `Facts` has it."""
    return mail.message.sender, mail.key[1], (mail.message.properties or {}).get("correlation", 0)
