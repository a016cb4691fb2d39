"""The index: which selectors match a message, at a cost that does not grow with their number.

Distinct selectors are numbered from 0, and a number that was freed is given again, lowest first.
Subscribers with identical selectors form one *group*, which owns the number: one bit in every row.
Adding, removing and modifying cost what the selector has terms, not what the index holds.

A selector is a hit when one of its criteria matches and its condition holds. Selectors without and with a
condition are filed apart (`unconditional` and `conditional`), so that the first kind never meets the second:

    subject ──> subject families ──> unconditional rows ───────────────────────> groups
                                     conditional rows ──┐
    headers ──> header families ──>  unconditional rows │──────────────────────> groups
                                     conditional rows ──┴── AND conditions ────> groups

What follows from the subject alone is computed once for each subject and cached until the set of
selectors changes: the final groups when no selector needs headers, which is the usual case and costs
one dict look-up for a seen subject; otherwise the unconditional groups and the conditional rows, to which
the rest is added for each message. Conditions are asked only when a conditional row was hit. A message of a
batch is known by its subject's rows and the classes of its headers (`classes.py`): if one like it was matched
before, the result is that one's.

Equal results are one tuple, the same object, so that a caller that sends the same messages to the same groups
can tell by identity. Families from outside may raise: then they hit nothing for that
message, `failures` counts it, and `on_failure` is called.
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
"""Subjects that a result is kept for, unless the caller says otherwise."""

RESULT_BYTES = 150
"""What a distinct result takes beside its references."""

RESULTS_MAX = 1_000_000
"""References to groups in all distinct results that are kept; 8 bytes each."""

SUBJECT_WORK, MESSAGE_WORK = 2, 4
"""Microseconds that a new subject takes, or a message that is matched by its headers, about."""

MESSAGES_KNOWN = 2
"""Messages like one before that are looked at in a microsecond."""

PARTIALS_MAX = 1_000
"""Different results of subjects that messages are told apart by."""

GROUPS_FOUND = 25
"""Groups that are found in one more."""

NO_HEADERS: Headers = {}
NOBODY = Selector(())


class Group:
    """All subscribers of one selector. `number` is its bit while the group is in the index."""

    __slots__ = ("members", "number", "selector", "since")

    def __init__(self, number: int, selector: Selector) -> None:
        self.number = number
        self.selector = selector
        self.members: dict[Hashable, Any] = {}
        """Subscriber -> the value given at `add`, in the order they came."""
        self.since = 0
        """The version of the index that it came with."""

    def __repr__(self) -> str:
        return f"Group({self.number}, {self.selector}, {len(self.members)} members)"


Groups = tuple[Group, ...]


class _Groups(dict[int, Group]):
    """Groups by their numbers. Of an index that was loaded, each is made when somebody asks for it."""

    def __init__(self, saved: saved.SavedIndex | None = None) -> None:
        super().__init__()
        self.saved = saved
        self.loaded = saved is not None

    def __missing__(self, number: int) -> Group:
        if self.saved is None:
            if not self.loaded:
                raise KeyError(number)
            # What was loaded from anywhere may have a row with more than its selectors say.
            return Group(number, NOBODY)
        group = self[number] = Group(number, self.saved[number])
        group.members = dict.fromkeys(self.saved.keys(number))
        return group

    def complete(self) -> None:
        """Make all of them, in the order of their numbers."""
        groups = [self[number] for number in range(len(self.saved or ()))]
        self.saved = None
        self.clear()
        self.update(enumerate(groups))


class Explanation(NamedTuple):
    """Whether a group matches a message; if not, `reason` is the first thing that failed."""

    group: Group
    matched: bool
    reason: str = ""


class _Partial:
    """What the subject alone decides, when some selector needs more than it. Equal ones are one object."""

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
        """`caches` is the budget of all indexes that share one; without it this one has its own."""
        self.version = 0
        """Rises with each change of the set of selectors; results of one version stay true."""
        self.needs_headers = False
        """Whether some selector looks at headers or the sender. If not, they need not be decoded."""
        self.failures: Counter[str] = Counter()
        """How often each family raised."""
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
        """Every group, in the order they came."""
        self._complete()
        return iter(self._groups.values())

    def holds(self, group: Group) -> bool:
        """Whether a group is one of this index, and still there."""
        return self._groups.get(group.number) is group

    # Change.

    def add(self, key: Hashable, selector: Selector, value: Any = None) -> Group:
        """Add a subscriber under a new key; returns the group that it is in.

        Raises KeyError for a key that is there already, and InvalidSelector if a family refuses.
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
        """Give a subscriber another selector; its value stays. Raises KeyError and InvalidSelector."""
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
        """The selectors, the keys of their subscribers, and what they are compiled to. Values are not saved.

        Raises TypeError for a key that is no text, number, bytes, None or tuple of them.
        """
        if self._free:
            return self._without_gaps().save()
        self._complete()
        groups = [self._groups[number] for number in range(len(self))]
        keys = [[*group.members] for group in groups]
        return saved.pack([group.selector for group in groups], keys, self._unconditional.saved())

    def _without_gaps(self) -> Index:
        """The same with the lowest numbers."""
        index = Index()
        for group in self.groups():
            for key in group.members:
                index.add(key, group.selector)
        return index

    @classmethod
    def load(cls, data: bytes, **options: Any) -> Index:
        """The index that was saved, with the options of a new one. All values of subscribers are None.

        Groups are made when they are hit; the first change makes those that are left.

        Raises:
            InvalidValue: the bytes are damaged, of a newer version, or no saved index.

        """
        body = saved.body_of(data)
        index = cls(**options)
        try:
            index._restore(saved.SavedIndex(body))
        except Exception as error:  # bytes from anywhere, and families from outside
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
        """Make the groups that are not made yet: all of them are looked at, or one changes."""
        if self._groups.saved is not None:
            self._groups.complete()
            groups = self._groups.values()
            self._by_selector = {group.selector: group for group in groups}
            self._by_key = {key: group for group in groups for key in group.members}

    # Match.

    def match(self, subject: str, headers: Headers | None = None, sender: str = "") -> Groups:
        """The groups whose selectors match, each once. Equal results are the same object."""
        if not self.needs_headers:
            return self._groups_of[subject]
        return self._match_message(MessageFields(subject, headers or NO_HEADERS, sender))

    def match_many(
        self,
        subjects: Iterable[str],
        headers: Sequence[Headers] | None = None,
        senders: Sequence[str] | None = None,
    ) -> list[Groups]:
        """`match` for each message of a batch; the columns are of one length or absent."""
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
        """The groups of messages by their keys, and how many were not known."""
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
            if known is self._known:  # else all was forgotten meanwhile
                self._grown(grown)
        return cast("list[Groups]", found), new

    def explain(self, subject: str, headers: Headers | None = None, sender: str = "") -> list[Explanation]:
        """For every group whether it matches and, if not, the first criterion that failed."""
        message = MessageFields(subject, headers or NO_HEADERS, sender)
        # Each selector is asked by itself: nothing of what strangers name is kept.
        reasons = ((group, reason_of(group.selector, *message)) for group in self.groups())
        return [Explanation(group, not reason, reason) for group, reason in reasons]

    @property
    def work(self) -> int:
        """How many expressions a message may have to be evaluated for, beyond looking up its terms."""
        if self._work is None:
            self._work = self._unconditional.work + self._conditional.work + self._conditions.work
        return self._work

    def pop_spent(self) -> int:
        """What matching took since this was asked last, in about microseconds, but for known subjects."""
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
        if selector.where or self._unconditional.by_headers:  # else it tells nothing apart
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
        # What was loaded from anywhere may have a selector twice.
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
        """Empty the caches: what was computed is no longer true, or takes too much memory."""
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
        """A family has raised: count it, and report it."""
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
        work = self.work if self._work is None else self._work  # a call for each new subject is dear
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
        """The one tuple of these groups. Too many different ones are forgotten together."""
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
    """Why a selector does not take a message: the first test that fails; empty if it takes it."""
    message = MessageFields(subject, headers, sender)
    reasons = []
    for name, pattern in selector.criteria:
        try:
            reasons.append(family_named(name).explain(pattern, *message))
        except Exception as error:  # a family from outside may raise anything
            reasons.append(f"{name} failed: {error}")
    if all(reasons):
        return "; ".join(reasons)
    words = parse_normal(selector.where).failure(message) if selector.where else ""
    return words and f"where: {words}"
