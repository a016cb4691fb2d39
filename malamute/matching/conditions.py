"""An index of many expressions, which finds the true ones for a message without evaluating each of them.

An expression is planned as clauses, of which one must hold (`plan.py`). A clause is filed like a row in the
composite index of a database, equalities first, then ranges:

1. Its terms, the rarest first, are a path in a *set-trie* (Savnik, "Index data structure for fast
   subset and superset queries", 2013). A message has one term for each header, and one more if an
   expression tests the presence of the header. The paths of its own terms lead to all clauses with
   true terms; a clause with any other term is never visited.
2. Its ranges are filed at the end of that path, in one group for each set of ranged attributes, as
   intervals (`thresholds.py`). The rows of a group are joined by AND.

    symbol = 'X' and price > 100       path (symbol, 'X')(price, PRESENT), there the group {price}
    a = 1 and b = 2 or c = 3           two clauses: path (a, 1)(b, 2) and path (c, 3)
    exists a                           path (a, PRESENT)
    within(lat, lon, …)                a path for each cell of the cover

Selectors with an inexact plan are *unsure*: their expression is evaluated for each message that hits
them (RFC 003, post-filtering). The worst case is an expression that is evaluated for every message,
such as `not a = 'x'`, which can be true without any term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from malamute.matching.bitmap import Bitmap, union
from malamute.matching.compiled import MessageTest, message_test
from malamute.matching.expression import ABSENT, Attribute, EnvelopeField, Expression, MessageFields, kind_of
from malamute.matching.geometry import cell_at, position
from malamute.matching.plan import PRESENT, Clause, Ranged, Term, plan_of
from malamute.matching.thresholds import Intervals

ALIASES = 2**31
"""Bits from here on are second bits of numbers that need more than one."""


class _Use:
    """A term in use, and its count. Paths consist of uses, which compare by identity: that is fast."""

    __slots__ = ("count", "term")

    def __init__(self, term: Term) -> None:
        self.term = term
        self.count = 0


class _Node:
    """A node of the set-trie: the clauses that end here, and the children."""

    __slots__ = ("children", "groups", "row")

    def __init__(self) -> None:
        self.children: dict[_Use, _Node] = {}
        self.row = Bitmap()
        self.groups: dict[tuple[Ranged, ...], list[Intervals]] = {}

    def __bool__(self) -> bool:
        return bool(self.row or self.children or self.groups)


class _Filed(NamedTuple):
    """The path of a clause in the set-trie, and its bit."""

    path: tuple[_Use, ...]
    clause: Clause
    bit: int


class Conditions:
    """Expressions by the number of their selector; a number has one expression."""

    def __init__(self) -> None:
        self._root = _Node()
        self._expressions: dict[int, Expression] = {}
        self._filed: dict[int, list[_Filed]] = {}
        self._owners: dict[int, int] = {}  # alias -> number
        self._free: list[int] = []  # aliases for reuse
        self._unsure: dict[int, MessageTest] = {}
        self._uses: dict[Term, _Use] = {}
        # Terms of a message beyond its headers and their values.
        self._presences: dict[str, _Use] = {}
        self._places: Counter[EnvelopeField] = Counter()
        self._grids: dict[str, Counter[tuple[Attribute, int]]] = {}  # latitude -> longitude, level

    def __len__(self) -> int:
        return len(self._expressions)

    def add(self, number: int, expression: Expression) -> None:
        """File an expression."""
        plan = plan_of(expression)
        self._expressions[number] = expression
        filed = self._filed[number] = []
        if not plan.exact:
            self._unsure[number] = message_test(expression)
        ranged = False
        for clause in plan.clauses:
            # Two clauses with one bit would mix in a group of ranges, so the second has an alias.
            bit = self._alias(number) if clause.ranges and ranged else number
            ranged = ranged or bool(clause.ranges)
            for terms in clause.paths:
                uses = [self._used(term) for term in dict.fromkeys(terms)]
                path = tuple(sorted(uses, key=attrgetter("count")))  # the rarest first
                filed.append(_Filed(path, clause, bit))
                _file(self._grown(path), clause, bit)

    def remove(self, number: int) -> None:
        """Undo `add`."""
        del self._expressions[number]
        self._unsure.pop(number, None)
        filed = self._filed.pop(number)
        for path, clause, bit in filed:
            self._prune(path, clause, bit)
            for use in path:
                self._unused(use)
        for alias in {bit for _, _, bit in filed} - {number}:
            del self._owners[alias]
            self._free.append(alias)

    def candidates(self, message: MessageFields) -> list[Bitmap]:
        """Return rows with every number of a true expression, and perhaps some unsure numbers."""
        said = self._said(message)
        rows: list[Bitmap] = []
        nodes = [self._root]
        for node in nodes:
            if node.row:
                rows.append(node.row)
            if node.groups:
                rows += map(self._owned, _held(node.groups, message))
            children = node.children
            if children:
                for use in said:
                    if use in children:
                        nodes.append(children[use])
        return rows

    def confirmed(self, hits: Bitmap, message: MessageFields) -> Bitmap:
        """Return the hits without the unsure ones whose expression is false."""
        unsure = self._unsure
        if not unsure:
            return hits
        false = [number for number in hits if number in unsure and not unsure[number](message)]
        return hits - Bitmap(false) if false else hits

    def rows(self, message: MessageFields) -> list[Bitmap]:
        """Return the numbers of true expressions, as at most one row."""
        rows = self.candidates(message)
        return [self.confirmed(union(rows), message)] if rows else rows

    @property
    def work(self) -> int:
        """The number of expressions that a message may have to be evaluated for."""
        return len(self._unsure)

    def _alias(self, number: int) -> int:
        alias = self._free.pop() if self._free else ALIASES + len(self._owners)
        self._owners[alias] = number
        return alias

    def _owned(self, row: Bitmap) -> Bitmap:
        if not self._owners or row.max() < ALIASES:
            return row
        aliases = list(row.iter_equal_or_larger(ALIASES))
        return row - Bitmap(aliases) | Bitmap(self._owners[alias] for alias in aliases)

    def _said(self, message: MessageFields) -> list[_Use]:
        uses = self._uses
        try:
            said = [uses[item] for item in message.headers.items() if item in uses]
        except TypeError:  # a value without a hash is equal to no term
            said = [uses[item] for item in _scalars(message.headers) if item in uses]
        if self._presences:
            said += [self._presences[name] for name in message.headers if name in self._presences]
        if self._places or self._grids:
            said += [uses[term] for term in self._other_terms(message) if term in uses]
        return said

    def _other_terms(self, message: MessageFields) -> Iterator[Term]:
        for place in self._places:
            if (value := message.value(place)) is not ABSENT:
                yield place, value
                yield place, PRESENT
        for latitude in self._grids.keys() & message.headers.keys():
            for longitude, level in self._grids[latitude]:
                point = position(message.value(latitude), message.value(longitude))
                if point is not None:
                    yield (latitude, longitude), cell_at(point, level)

    def _used(self, term: Term) -> _Use:
        use = self._uses.get(term)
        if use is None:
            use = self._uses[term] = _Use(term)
            attribute, value = term
            if isinstance(attribute, EnvelopeField):
                self._places[attribute] += 1
            elif value is PRESENT:
                self._presences[attribute] = use
            elif isinstance(attribute, tuple):
                latitude, longitude = attribute
                self._grids.setdefault(latitude, Counter())[longitude, value.level] += 1
        use.count += 1
        return use

    def _unused(self, use: _Use) -> None:
        use.count -= 1
        if use.count:
            return
        attribute, value = use.term
        del self._uses[use.term]
        if isinstance(attribute, EnvelopeField):
            _decrease(self._places, attribute)
        elif value is PRESENT:
            del self._presences[attribute]
        elif isinstance(attribute, tuple):
            latitude, longitude = attribute
            _decrease(self._grids[latitude], (longitude, value.level))
            if not self._grids[latitude]:
                del self._grids[latitude]

    def _grown(self, path: Iterable[_Use]) -> _Node:
        node = self._root
        for use in path:
            child = node.children.get(use)
            if child is None:
                child = node.children[use] = _Node()
            node = child
        return node

    def _prune(self, path: Sequence[_Use], clause: Clause, bit: int) -> None:
        way = [self._root]
        for use in path:
            if use not in way[-1].children:
                return  # two clauses of one number ended here, and the first has pruned the path
            way.append(way[-1].children[use])
        _unfile(way[-1], clause, bit)
        for parent, use, node in zip(way[-2::-1], path[::-1], way[::-1], strict=False):
            if not node:
                del parent.children[use]


def _decrease(counter: Counter[Any], key: Hashable) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _scalars(headers: Mapping[str, Any]) -> Iterable[Term]:
    return [item for item in headers.items() if kind_of(item[1])]


def _file(node: _Node, clause: Clause, number: int) -> None:
    if not clause.ranges:
        node.row.add(number)
        return
    signature = tuple(ranged for ranged, _, _ in clause.ranges)
    group = node.groups.get(signature)
    if group is None:
        group = node.groups[signature] = [Intervals() for _ in signature]
    for intervals, (_, low, high) in zip(group, clause.ranges, strict=True):
        intervals.add(low, high, number)


def _unfile(node: _Node, clause: Clause, number: int) -> None:
    if not clause.ranges:
        node.row.discard(number)
        return
    signature = tuple(ranged for ranged, _, _ in clause.ranges)
    group = node.groups[signature]
    for intervals, (_, low, high) in zip(group, clause.ranges, strict=True):
        intervals.remove(low, high, number)
    if not group[0]:
        del node.groups[signature]


def _held(groups: Mapping[tuple[Ranged, ...], list[Intervals]], message: MessageFields) -> list[Bitmap]:
    rows = []
    for signature, group in groups.items():
        held: Bitmap | None = None
        for (attribute, kind), intervals in zip(signature, group, strict=True):
            value = message.value(attribute)
            if kind_of(value) != kind:
                break
            row = intervals.holding(value)
            held = row if held is None else held & row
            if not held:
                break
        else:
            if held:
                rows.append(held)
    return rows
