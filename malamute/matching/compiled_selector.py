"""One selector against many messages, for readers of history.

The index has many selectors, so it needs decoded headers as soon as any of them reads headers. A single
selector costs less: each subject is tested once, headers are decoded only of messages with a matching
subject, and the condition is compiled to a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from malamute.matching.cache import SubjectCache
from malamute.matching.compiled import compiled_test, message_test
from malamute.matching.criteria import Criteria, Guard
from malamute.matching.expression import MessageFields
from malamute.matching.family import Headers
from malamute.matching.parser import parse_normal
from malamute.matching.selector import Selector

SUBJECTS_MAX = 1_000
"""Subjects in the cache of tested subjects."""

KNOWN_SUBJECTS = 16
"""Messages with cached subjects that take a microsecond together."""

HeadersOf = Callable[[Sequence[int]], Sequence[Headers]]
"""Returns the headers of the messages at some places."""


class CompiledSelector:
    """A selector, compiled for very many messages. `on_failure` is called if a family raises."""

    def __init__(self, selector: Selector, on_failure: Guard) -> None:
        self._criteria = Criteria(on_failure)
        self._criteria.add(0, selector)
        self._by_subject: SubjectCache[bool] = SubjectCache(self._fits, SUBJECTS_MAX)
        condition = parse_normal(selector.where) if selector.where else None
        self._condition = None if condition is None else message_test(condition)
        self._test = None if condition is None else compiled_test(condition)

        self.work = selector.work or int(selector.needs_headers)
        """The cost of a message beyond its subject, in tests to evaluate."""
        self._spent = 0

    def takes_subject(self, subject: str) -> bool:
        """Return whether the criteria on the subject alone accept a subject."""
        return self._by_subject[subject]

    def pop_spent(self) -> int:
        """Return the estimated microseconds of matching since the last call."""
        spent, self._spent = self._spent, 0
        return spent

    def places(self, subjects: Sequence[str], senders: Sequence[str], headers_of: HeadersOf) -> list[int]:
        """Return the places of the matching messages, in order, with at most one call of `headers_of`."""
        fits = self._by_subject
        self._spent += self.work * len(subjects) + len(subjects) // KNOWN_SUBJECTS
        if not self._criteria.by_headers:
            places = [place for place, subject in enumerate(subjects) if fits[subject]]
            if self._condition is None or not places:
                return places
            return self._fulfilled(places, headers_of(places), subjects, senders)
        headers = headers_of(range(len(subjects)))
        places = [
            place
            for place, message in enumerate(zip(subjects, headers, senders, strict=True))
            if fits[message[0]] or any(self._criteria.rows(self._criteria.by_headers, *message))
        ]
        return self._fulfilled(places, [headers[place] for place in places], subjects, senders)

    def _fits(self, subject: str) -> bool:
        self._spent += 1
        return any(self._criteria.rows(self._criteria.by_subject, subject, {}, ""))

    def _fulfilled(
        self,
        places: Sequence[int],
        headers: Sequence[Headers],
        subjects: Sequence[str],
        senders: Sequence[str],
    ) -> list[int]:
        test, condition = self._test, self._condition
        if test is not None:
            return [place for place, of in zip(places, headers, strict=True) if test(of)]
        if condition is None:
            return list(places)
        return [
            place
            for place, of in zip(places, headers, strict=True)
            if condition(MessageFields(subjects[place], of, senders[place]))
        ]
