"""The index: the selectors that match a message, at a cost that does not grow with their number.

Distinct selectors are numbered from 0, and a freed number is used again, lowest first.
Subscribers with identical selectors form one *group*, which owns the number: one bit in every row.
Adding, removing and modifying cost the terms of the selector, not the size of the index.

A selector is a hit when one of its criteria matches and its condition holds. Selectors without and with a
condition are filed apart (`unconditional` and `conditional`), so that the first kind never meets the second:

    subject ──> subject families ──> unconditional rows ───────────────────────> groups
                                     conditional rows ──┐
    headers ──> header families ──>  unconditional rows │──────────────────────> groups
                                     conditional rows ──┴── AND conditions ────> groups

Results of the subject alone are computed once for each subject and cached until the set of selectors changes.
If no selector needs headers, the usual case, these are the final groups, and a cached subject costs one dict
look-up. Otherwise these are the unconditional groups and the conditional rows, and the header families add
theirs for each message. Conditions are evaluated only if a conditional row was hit. The key of a message in
a batch is the rows of its subject and the classes of its headers (`classes.py`): messages with the same
key have the same result, which is matched once.

Equal results are one tuple, the same object, so that a caller recognizes messages to the same groups by
identity. If a foreign family raises, it hits no row for that message, `failures` counts the error, and
`on_failure` is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple, cast

from malamute.matching import saved
from malamute.matching.bitmap import Bitmap, union
from malamute.matching.cache import ENTRY_BYTES, CacheBudget, SubjectCache
from malamute.matching.classes import Classes
from malamute.matching.conditions import Conditions
from malamute.matching.criteria import Criteria
from malamute.matching.expression import EnvelopeField, MessageFields
from malamute.matching.family import Headers, family_named
from malamute.matching.parser import parse_normal
from malamute.matching.selector import Selector

CACHE_SIZE = 10_000
"""The subjects with cached results, by default."""

RESULT_BYTES = 150
"""The bytes of a distinct result besides its references."""

RESULTS_MAX = 1_000_000
"""References to groups in all cached results; 8 bytes each."""

SUBJECT_WORK, MESSAGE_WORK = 2, 4
"""Estimated microseconds for a new subject, and for a message that is matched by its headers."""

MESSAGES_KNOWN = 2
"""Messages with cached keys that take a microsecond together."""

PARTIALS_MAX = 1_000
"""Different results of subjects that are held as parts of keys."""

GROUPS_FOUND = 25
"""Groups of results that take a microsecond together."""

NO_HEADERS: Headers = {}
NOBODY = Selector(())


class Group:
    """All subscribers of one selector. `number` is its bit while the group is in the index."""

    __slots__ = ("members", "number", "selector", "since")

    def __init__(self, number: int, selector: Selector) -> None:
        self.number = number
        self.selector = selector
        self.members: dict[Hashable, Any] = {}
        """Subscriber -> the value given at `add`, in the order of `add`."""
        self.since = 0
        """The version of the index that added the group."""

    def __repr__(self) -> str:
        return f"Group({self.number}, {self.selector}, {len(self.members)} members)"


Groups = tuple[Group, ...]


class _Groups(dict[int, Group]):
    """Groups by their numbers. In a loaded index, each group is made at its first use."""

    def __init__(self, saved: saved.SavedIndex | None = None) -> None:
        super().__init__()
        self.saved = saved
        self.loaded = saved is not None

    def __missing__(self, number: int) -> Group:
        if self.saved is None:
            if not self.loaded:
                raise KeyError(number)
            # A loaded row may have numbers that its selectors do not justify.
            return Group(number, NOBODY)
        group = self[number] = Group(number, self.saved[number])
        group.members = dict.fromkeys(self.saved.keys(number))
        return group

    def complete(self) -> None:
        """Make all groups, in the order of their numbers."""
        groups = [self[number] for number in range(len(self.saved or ()))]
        self.saved = None
        self.clear()
        self.update(enumerate(groups))


class Explanation(NamedTuple):
    """The result of a group for a message; for a mismatch, `reason` is the first failed test."""

    group: Group
    matched: bool
    reason: str = ""


class _Partial:
    """The result of a subject alone, if some selector needs headers. Equal ones are one object."""

    __slots__ = ("conditional", "unconditional")

    def __init__(self, unconditional: Groups, conditional: list[Bitmap]) -> None:
        self.unconditional = unconditional
        self.conditional = conditional


class Index:
    """Selectors and their subscribers. Not thread-safe; it belongs to one loop."""

    def __init__(
        self,
        cache_size: int = CACHE_SIZE,
        on_failure: Callable[[str, Exception], None] | None = None,
        caches: CacheBudget | None = None,
    ) -> None:
        """`caches` is the budget that indexes share; without it the index has its own."""
        self.version = 0
        """Rises with each change of the set of selectors; results of one version stay valid."""
        self.needs_headers = False
        """Whether some selector reads headers or the sender. If not, headers need not be decoded."""
        self.failures: Counter[str] = Counter()
        """The number of errors of each family."""
        self._on_failure = on_failure
        self._groups = _Groups()
        self._count = 0
        self._by_selector: dict[Selector, Group] = {}
        self._by_key: dict[Hashable, Group] = {}
        self._free: list[int] = []
        self._unconditional = Criteria(self.failed)
        self._conditional = Criteria(self.failed)
        self._conditions = Conditions()
        self._conditions_on_headers = 0
        self._caches = caches or CacheBudget()
        self._groups_of: SubjectCache[Groups] = SubjectCache(self._compute_groups, cache_size, self._grown)
        self._partial_of: SubjectCache[_Partial] = SubjectCache(
            self._compute_partial, cache_size, self._grown
        )
        self._partials: dict[tuple[Groups, bytes], _Partial] = {}
        self._classes = Classes()
        self._known: dict[tuple[Hashable, ...], Groups] = {}
        self._known_max = cache_size
        self._results: dict[Groups, Groups] = {}
        self._results_size = 0
        self._spent = 0
        self._work: int | None = None

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Hashable) -> bool:
        self._complete()
        return key in self._by_key

    def groups(self) -> Iterator[Group]:
        """Return an iterator over all groups, in the order of their creation."""
        self._complete()
        return iter(self._groups.values())

    def holds(self, group: Group) -> bool:
        """Return whether a group is in this index."""
        return self._groups.get(group.number) is group

    # Change.

    def add(self, key: Hashable, selector: Selector, value: Any = None) -> Group:
        """Add a subscriber under a new key; return its group.

        Raises KeyError for a key in use, and InvalidSelector if a family refuses.
        """
        self._complete()
        if key in self._by_key:
            raise KeyError(f"{key!r} is already in the index")
        group = self._by_selector.get(selector) or self._new_group(selector)
        group.members[key] = value
        self._by_key[key] = group
        return group

    def remove(self, key: Hashable) -> None:
        """Remove a subscriber, and its group with the last one. Raises KeyError."""
        self._complete()
        group = self._by_key.pop(key)
        del group.members[key]
        if not group.members:
            self._drop_group(group)

    def modify(self, key: Hashable, selector: Selector) -> Group:
        """Change the selector of a subscriber; its value stays. Raises KeyError and InvalidSelector."""
        self._complete()
        old = self._by_key[key]
        new = self._by_selector.get(selector) or self._new_group(selector)
        if new is not old:
            new.members[key] = old.members.pop(key)
            self._by_key[key] = new
            if not old.members:
                self._drop_group(old)
        return new

    # Save and load.

    def save(self) -> bytes:
        """Return the index as bytes: selectors, keys of subscribers, and compiled tables, without values.

        Raises TypeError for a key that is no text, number, bytes, None or tuple of them.
        """
        if self._free:
            return self._without_gaps().save()
        self._complete()
        groups = [self._groups[number] for number in range(len(self))]
        keys = [[*group.members] for group in groups]
        return saved.pack([group.selector for group in groups], keys, self._unconditional.saved())

    def _without_gaps(self) -> Index:
        """Return the same index with the lowest numbers."""
        index = Index()
        for group in self.groups():
            for key in group.members:
                index.add(key, group.selector)
        return index

    @classmethod
    def load(cls, data: bytes, **options: Any) -> Index:
        """Return a saved index, with the options of a new one. All values of subscribers are None.

        Groups are made at their first hit; the first change makes the others.

        Raises:
            InvalidValue: the bytes are damaged, of a newer version, or no saved index.
        """
        body = saved.body_of(data)
        index = cls(**options)
        try:
            index._restore(saved.SavedIndex(body))
        except Exception as error:  # invalid bytes, and foreign families
            raise saved.damaged(error) from error
        return index

    def _restore(self, found: saved.SavedIndex) -> None:
        self._groups = _Groups(found)
        self._count = len(found)
        self._unconditional.restore(found)
        for number in found.conditions:
            self._add_conditional(number, found[number])
        if self._unconditional.by_headers or found.conditions:
            for number in range(len(found)):
                self._classes.add(found[number])
        self._changed()

    def _complete(self) -> None:
        """Make all groups of a loaded index, before a change or an iteration."""
        if self._groups.saved is not None:
            self._groups.complete()
            groups = self._groups.values()
            self._by_selector = {group.selector: group for group in groups}
            self._by_key = {key: group for group in groups for key in group.members}

    # Match.

    def match(self, subject: str, headers: Headers | None = None, sender: str = "") -> Groups:
        """Return the groups with matching selectors, each once. Equal results are the same object."""
        if not self.needs_headers:
            return self._groups_of[subject]
        return self._match_message(MessageFields(subject, headers or NO_HEADERS, sender))

    def match_many(
        self,
        subjects: Iterable[str],
        headers: Sequence[Headers] | None = None,
        senders: Sequence[str] | None = None,
    ) -> list[Groups]:
        """Return the results of `match` for a batch of messages; columns have one length, or are absent."""
        if not self.needs_headers:
            cache = self._groups_of
            return [cache[subject] for subject in subjects]
        subjects = list(subjects)
        headers = headers or [NO_HEADERS] * len(subjects)
        senders = senders or [""] * len(subjects)
        classes = self._classes.of(subjects, headers, senders)
        if classes is None:
            messages = map(MessageFields, subjects, headers, senders)
            found = [self._match_message(message) for message in messages]
            new = len(found)
        else:
            partials = [self._partial_of[subject] for subject in subjects]
            keys = [*zip(partials, *classes, strict=True)]
            found, new = self._look_up(keys, subjects, headers, senders)
        self._spent += (MESSAGE_WORK + self.work) * new if new else 0
        self._spent += len(found) // MESSAGES_KNOWN + sum(map(len, found)) // GROUPS_FOUND
        return found

    def _look_up(
        self,
        keys: Sequence[tuple[Hashable, ...]],
        subjects: Sequence[str],
        headers: Sequence[Headers],
        senders: Sequence[str],
    ) -> tuple[list[Groups], int]:
        """Return the groups of messages by their keys, and the number of new keys."""
        known, new, grown = self._known, 0, 0
        found = [*map(known.get, keys)]
        if None in found:
            for place, groups in enumerate(found):
                if groups is None and (groups := known.get(key := keys[place])) is None:
                    message = MessageFields(subjects[place], headers[place], senders[place])
                    groups = self._match_message(message)
                    if len(known) >= self._known_max:
                        known.clear()
                    known[key] = groups
                    new += 1
                    grown += ENTRY_BYTES + sum([len(value) for value in key if type(value) is str])
                found[place] = groups
            if known is self._known:  # else `forget` has emptied the caches meanwhile
                self._grown(grown)
        return cast("list[Groups]", found), new

    def explain(self, subject: str, headers: Headers | None = None, sender: str = "") -> list[Explanation]:
        """Return the result of every group, with the first failed criterion of a mismatch."""
        message = MessageFields(subject, headers or NO_HEADERS, sender)
        # Each selector is tested by itself: an operator's messages fill no cache.
        reasons = ((group, reason_of(group.selector, *message)) for group in self.groups())
        return [Explanation(group, not reason, reason) for group, reason in reasons]

    @property
    def work(self) -> int:
        """The number of expressions that a message may have to be evaluated for, beyond look-ups of terms."""
        if self._work is None:
            self._work = self._unconditional.work + self._conditional.work + self._conditions.work
        return self._work

    def pop_spent(self) -> int:
        """Return the estimated microseconds of matching since the last call, without cached subjects."""
        spent, self._spent = self._spent, 0
        return spent

    # The set of selectors.

    def _new_group(self, selector: Selector) -> Group:
        number = self._free[0] if self._free else self._count
        if selector.where:
            self._add_conditional(number, selector)
        else:
            self._unconditional.add(number, selector)
        if self._free:
            heappop(self._free)
        if selector.where or self._unconditional.by_headers:  # else it distinguishes no classes
            self._classes.add(selector)
        group = self._groups[number] = self._by_selector[selector] = Group(number, selector)
        self._count += 1
        self._changed()
        group.since = self.version
        return group

    def _add_conditional(self, number: int, selector: Selector) -> None:
        condition = parse_normal(selector.where)
        self._conditional.add(number, selector)
        self._conditions.add(number, condition)
        self._conditions_on_headers += _needs_headers(selector)

    def _drop_group(self, group: Group) -> None:
        if group.selector.where:
            self._conditional.remove(group.number, group.selector)
            self._conditions.remove(group.number)
            self._conditions_on_headers -= _needs_headers(group.selector)
        else:
            self._unconditional.remove(group.number, group.selector)
        self._classes.remove(group.selector)
        del self._groups[group.number]
        self._count -= 1
        # A loaded index may have a selector twice.
        self._by_selector.pop(group.selector, None)
        heappush(self._free, group.number)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._work = None
        self.needs_headers = bool(
            self._unconditional.by_headers or self._conditional.by_headers or self._conditions_on_headers
        )
        self.forget()

    def forget(self) -> None:
        """Empty the caches: their results are outdated, or take too much memory."""
        self._caches.release(self)
        self._groups_of.forget()
        self._partial_of.forget()
        self._partials = {}
        self._known = {}
        self._results = {}
        self._results_size = 0

    def _grown(self, size_bytes: int) -> None:
        self._caches.charge(self, size_bytes)

    def failed(self, family: str, error: Exception) -> None:
        """Count and report the error of a family."""
        self.failures[family] += 1
        if self._on_failure is not None:
            self._on_failure(family, error)

    # From a subject or a message to groups.

    def _compute_groups(self, subject: str) -> Groups:
        rows = self._unconditional.rows(self._unconditional.by_subject, subject, NO_HEADERS, "")
        if self._conditional.by_subject:
            conditional = self._conditional.rows(self._conditional.by_subject, subject, NO_HEADERS, "")
            rows += self._fulfilled(conditional, MessageFields(subject, NO_HEADERS, ""))
        groups = self._groups_in(rows)
        work = self.work if self._work is None else self._work  # saves a call for each new subject
        self._spent += SUBJECT_WORK + work + len(groups) // GROUPS_FOUND
        return groups

    def _compute_partial(self, subject: str) -> _Partial:
        unconditional = self._unconditional.rows(self._unconditional.by_subject, subject, NO_HEADERS, "")
        conditional = self._conditional.rows(self._conditional.by_subject, subject, NO_HEADERS, "")
        groups = self._groups_in(unconditional)
        if len(self._partials) >= PARTIALS_MAX:
            self._partials = {}
        key = groups, union(conditional).serialize() if conditional else b""
        return self._partials.setdefault(key, _Partial(groups, conditional))

    def _match_message(self, message: MessageFields) -> Groups:
        partial = self._partial_of[message.subject]
        unconditional, conditional = partial.unconditional, partial.conditional
        rows = self._unconditional.rows(self._unconditional.by_headers, *message)
        if self._conditional.by_headers:
            conditional = conditional + self._conditional.rows(self._conditional.by_headers, *message)
        if conditional:
            rows += self._fulfilled(conditional, message)
        if not rows:
            return unconditional
        others = self._groups_in(rows)
        if not unconditional or not others:
            return unconditional or others
        # A selector with criteria of both kinds may be in both.
        return self._kept(tuple(sorted({*unconditional, *others}, key=attrgetter("number"))))

    def _fulfilled(self, conditional: list[Bitmap], message: MessageFields) -> list[Bitmap]:
        if not conditional:
            return []
        allowed = self._conditions.candidates(message)
        if not allowed:
            return []
        hits = self._conditions.confirmed(union(conditional) & union(allowed), message)
        return [hits] if hits else []

    def _groups_in(self, rows: list[Bitmap]) -> Groups:
        return self._kept(tuple(map(self._groups.__getitem__, union(rows)))) if rows else ()

    def _kept(self, groups: Groups) -> Groups:
        """Return the one tuple of these groups; beyond a number of references the caches are emptied."""
        known = self._results.setdefault(groups, groups)
        if known is groups:
            self._results_size += len(groups)
            self._grown(RESULT_BYTES + 8 * len(groups))
            if self._results_size > RESULTS_MAX:
                self.forget()
        return known


def _needs_headers(selector: Selector) -> bool:
    return bool(parse_normal(selector.where).attributes() - {EnvelopeField.SUBJECT})


def reason_of(selector: Selector, subject: str, headers: Headers, sender: str) -> str:
    """Return the first failed test of a selector for a message; empty for a match."""
    message = MessageFields(subject, headers, sender)
    reasons = []
    for name, pattern in selector.criteria:
        try:
            reasons.append(family_named(name).explain(pattern, *message))
        except Exception as error:  # a foreign family may raise any exception
            reasons.append(f"{name} failed: {error}")
    if all(reasons):
        return "; ".join(reasons)
    words = parse_normal(selector.where).failure(message) if selector.where else ""
    return words and f"where: {words}"
