"""The readers of a stream: their selectors in two indexes, by the cost of a message.

Most selectors are *plain*: a reader that takes a message is found by its terms, at a cost that does not
depend on them. The others are *costly*: an expression such as `not a = 'x'`, or a regular expression, is
evaluated for each message or each new subject. There may be any number of them, so they are matched as far as
there is work left in the iteration. A reader that has not been matched then falls into REPLAY, as one without
credit: it goes on from there in later iterations, and neither a publisher nor any other reader waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from malamute.matching import CacheBudget, Group, Groups, Index, Selector
from malamute.protocol.batch import Columns, headers_of

STEP = 500
"""Work between two looks at whether there is some left, in expressions to evaluate."""

MESSAGES_SEEN = 16
"""Messages that are handed to an index in about a microsecond."""

SHARED_GROUPS = 8
"""From so many groups on it is cheaper to look a chunk up for all of them,"""

SHARED_PART = 64
"""unless there are so many times more of them."""


class SharedPlaces(NamedTuple):
    """The places of messages by the groups of one version of an index."""

    version: int
    by_group: Mapping[Group, Sequence[int]]


EMPTY = Index()
"""The empty audience shared by streams without readers, as an index takes 4 KiB. Nothing is ever added to
it."""


class Audience:
    """All readers of one stream."""

    def __init__(self, on_failure: Callable[[str, Exception], None], caches: CacheBudget) -> None:
        self._on_failure, self._caches = on_failure, caches
        self._plain = self._costly = EMPTY
        self.failures: Counter[str] = Counter()
        """How often each family has raised."""

    def __len__(self) -> int:
        return len(self._plain) + len(self._costly)

    def groups(self) -> Iterator[Group]:
        """Every group of readers with one selector."""
        return chain(self._plain.groups(), self._costly.groups())

    def add(self, key: Hashable, selector: Selector, reader: Any) -> Group:
        """Add a reader. Raises `InvalidSelector`."""
        return self._of(selector).add(key, selector, reader)

    def remove(self, key: Hashable) -> None:
        """Remove a reader."""
        (self._plain if key in self._plain else self._costly).remove(key)

    def modify(self, key: Hashable, selector: Selector, reader: Any) -> Group:
        """Give a reader another selector. Raises `InvalidSelector`, and then nothing has changed."""
        before, after = self._plain if key in self._plain else self._costly, self._of(selector)
        if before is after:
            return after.modify(key, selector)
        group = after.add(key, selector, reader)
        before.remove(key)
        return group

    def failed(self, family: str, error: Exception) -> None:
        """A family has raised, in an index or outside of them."""
        self.failures[family] += 1
        self._on_failure(family, error)

    def named_groups(self) -> Iterator[tuple[str, Group]]:
        """Every group with a name that stays the same while it is there."""
        for letter, index in (("a", self._plain), ("b", self._costly)):
            for group in index.groups():
                yield f"{letter}{group.number:07}", group

    def is_costly(self, group: Group) -> bool:
        """Whether a group is one of those that are costly to match."""
        return self._costly.holds(group)

    def match(self, columns: Columns, start: int = 0, stop: int | None = None) -> Sequence[Groups]:
        """The plain groups that each message is for, from one place to before another."""
        if len(self._plain):
            return _match(self._plain, columns, start, stop)
        return [()] * len(range(len(columns))[start:stop])

    def shares(self, groups: int) -> bool:
        """Whether to look a chunk up for so many groups at once is cheaper than for each by itself."""
        return groups >= SHARED_GROUPS and groups * SHARED_PART >= len(self._plain)

    def places(self, columns: Columns, start: int, stop: int) -> SharedPlaces:
        """The places of the messages that each plain group takes, from one place to before another."""
        found: dict[int, tuple[Groups, list[int]]] = {}
        for place, groups in enumerate(self.match(columns, start, stop), start):
            known = found.get(id(groups))
            if known is not None:
                known[1].append(place)
            elif groups:
                found[id(groups)] = (groups, [place])
        by_group: dict[Group, list[list[int]]] = {}
        for groups, places in found.values():
            for group in groups:
                by_group.setdefault(group, []).append(places)
        return SharedPlaces(self._plain.version, {group: _merged(runs) for group, runs in by_group.items()})

    def places_of(self, group: Group, found: SharedPlaces) -> Sequence[int] | None:
        """Return the messages of one group; None if the group was not looked up."""
        if group.since > found.version or not self._plain.holds(group):
            return None
        return found.by_group.get(group, ())

    def pop_work(self) -> int:
        """The work that it took to look up subjects since this was asked last."""
        return self._plain.pop_spent()

    def match_costly(self, columns: Columns, work: int) -> tuple[Sequence[Groups], int]:
        """The costly groups that the first messages are for, and the work that this took.

        There are fewer than messages when there is no work left; those of the first step are always there.
        """
        index, count = self._costly, len(columns)
        if not len(index):
            return (), 0
        step = max(1, STEP // (1 + index.work))
        matches: list[Groups] = []
        spent = 0
        while len(matches) < count and (not matches or spent < work):
            before = len(matches)
            matches += _match(index, columns, before, before + step)
            # Most messages are of a subject, or have headers, like those of one that was evaluated.
            spent += 1 + (len(matches) - before) // MESSAGES_SEEN + index.pop_spent()
        return matches, spent

    def costly_groups(self) -> Iterator[Group]:
        """The groups that `match_costly` is about."""
        return self._costly.groups()

    def match_subjects(self, group: Group, subjects: Sequence[str]) -> list[str]:
        """Return the subjects that a group takes, as far as a subject alone decides."""
        if group.selector.work or self._plain.needs_headers:
            return [*subjects]
        matches = self._plain.match_many(subjects)
        return [s for s, groups in zip(subjects, matches, strict=True) if group in groups]

    def _of(self, selector: Selector) -> Index:
        """The index for a selector, which is made for the first."""
        if selector.work:
            if self._costly is EMPTY:
                self._costly = self._new_index()
            return self._costly
        if self._plain is EMPTY:
            self._plain = self._new_index()
        return self._plain

    def _new_index(self) -> Index:
        return Index(on_failure=self.failed, caches=self._caches)


def _merged(runs: list[list[int]]) -> Sequence[int]:
    return runs[0] if len(runs) == 1 else sorted(chain.from_iterable(runs))


def _match(index: Index, columns: Columns, start: int, stop: int | None) -> Sequence[Groups]:
    subjects = columns.subjects[start:stop]
    if not index.needs_headers:
        return index.match_many(subjects)
    senders = columns.all_senders()[start:stop]
    return index.match_many(subjects, headers_of(columns.records[start:stop]), senders)
