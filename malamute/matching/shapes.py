"""Topic forms by their shape: one table for each, one look-up for a subject.

The *shape* of a form is the positions of its literals, its length, and whether it is open (has a `#`).
Positions before the first `#` count from the front, positions after the last one from the back.

    (forex *)      length 2,      literals at 0          (* usd)   length 2, literals at 1
    (forex #)      length 1 up,   literals at 0          (* # c)   length 2 up, literals at -1

A subject fits a form of a shape exactly when its parts at these positions are the form's literals.
So a shape is a table from literals to rows, and a new subject costs one look-up for each shape in
use that its number of parts allows: six or eight for usual patterns, the same
for 10 patterns and for 100,000. (The tables of `constituents.py` AND rows in which every wildcard of
the index has its bit, so they slow down as the index grows.)

A form with literals between two `#` floats: it is filed under the literals outside of them, and the caller
checks it (`fits`). Shapes with the fewest literals are first, as the likeliest to match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from malamute.matching.bitmap import Bitmap, pack_numbers, pack_rows, unpack_numbers, unpack_rows
from malamute.matching.family import discard
from malamute.matching.pattern import MANY, ONE, Form

Pick = Callable[[Sequence[str]], Hashable]
"""Returns the literals of a shape from the parts of a subject."""

ShapeLookups = list[tuple[Pick, Callable[[Hashable], Bitmap | None]]]
"""The key function and the look-up of each shape."""


class Shape(NamedTuple):
    """The common shape of the forms of one table; `length` is the least length of an open shape."""

    open: bool
    length: int
    positions: tuple[int, ...]

    @classmethod
    def of(cls, form: Form) -> Shape:
        """Return the shape of a form."""
        if MANY not in form:
            return cls(False, len(form), tuple([at for at, part in enumerate(form) if part != ONE]))
        front = form.index(MANY)
        back = len(form) - form[::-1].index(MANY)
        ends = [*range(front), *range(back - len(form), 0)]
        return cls(True, len(form) - form.count(MANY), tuple([at for at in ends if form[at] != ONE]))

    @property
    def is_sound(self) -> bool:
        """Whether a form can have this shape, so that a subject has all of its positions."""
        within = range(-self.length * self.open, self.length)
        return all(type(at) is int and at in within for at in self.positions)

    @property
    def pick(self) -> Pick:
        """The function that returns the literals of this shape from parts."""
        return itemgetter(*self.positions) if self.positions else _nothing


def _nothing(parts: Sequence[str]) -> Hashable:
    return None


def _terms(parts: Sequence[str], width: int) -> Iterable[Hashable]:
    """Return the keys of a shape with `width` literals, from the literals of all of its forms."""
    if width < 2:
        return parts if width else (None,)
    return zip(*(parts[at::width] for at in range(width)), strict=True)


def floats(form: Form) -> bool:
    """Return whether a form has literals between two `#`, which are not in its shape."""
    return form.count(MANY) > 1


class Shapes:
    """Rows of numbers by form, for at most `shapes_max` shapes of one length, and as many open ones."""

    def __init__(self, shapes_max: int = 2**30) -> None:
        self._shapes_max = shapes_max
        self._tables: dict[Shape, dict[Hashable, Bitmap]] = {}
        self._counts: Counter[int] = Counter()  # closed shapes by length, and open ones under _OPEN
        self._plans: dict[int, ShapeLookups] = {}  # by the number of parts, until the shapes change

    def __len__(self) -> int:
        return len(self._tables)

    def add(self, number: int, form: Form) -> bool:
        """File a number under a form; return False, without a change, if it needs one shape too many."""
        shape = Shape.of(form)
        table = self._tables.get(shape)
        if table is None:
            if not self._counted(shape):
                return False
            table = self._tables[shape] = {}
            self._plans = {}
        literals = shape.pick(form)
        row = table.get(literals)
        if row is None:
            row = table[literals] = Bitmap()
        row.add(number)
        return True

    def remove(self, number: int, form: Form) -> None:
        """Undo `add`; an empty shape is removed."""
        shape = Shape.of(form)
        table = self._tables.get(shape)
        if table is None:
            return  # the number had this form twice
        discard(table, shape.pick(form), number)
        if not table:
            del self._tables[shape]
            self._counts[_OPEN if shape.open else shape.length] -= 1
            self._plans = {}

    def saved(self, without: Collection[int]) -> tuple[Any, ...]:
        """Return the tables without some numbers: all literals, then each shape with its keys and rows."""
        literals: dict[str, int] = {}
        shapes = []
        for shape, table in self._tables.items():
            kept: dict[Any, list[int]] = {
                term: row for term, all_ in table.items() if (row := [n for n in all_ if n not in without])
            }
            parts = chain.from_iterable((term,) if isinstance(term, str) else term or () for term in kept)
            places = pack_numbers([literals.setdefault(part, len(literals)) for part in parts])
            if kept:
                shapes.append((*shape, places, *pack_rows(kept.values())))
        return [*literals], shapes

    def restore(self, tables: tuple[Any, ...], numbers: Bitmap) -> None:
        """Restore saved tables. Raises ValueError or TypeError for invalid tables."""
        literals, shapes = tables
        "".join(literals)
        for is_open, length, positions, places, *packed in shapes:
            shape = Shape(bool(is_open), length, positions)
            if not shape.is_sound or not self._counted(shape):
                raise ValueError(f"there is no such shape: {shape}")
            parts = [*map(literals.__getitem__, unpack_numbers(places))]
            self._tables[shape] = unpack_rows(_terms(parts, len(positions)), packed, numbers)

    def _counted(self, shape: Shape) -> bool:
        """Count a new shape; return False for one too many."""
        counted = _OPEN if shape.open else shape.length
        if shape in self._tables or self._counts[counted] >= self._shapes_max:
            return False
        self._counts[counted] += 1
        return True

    def rows(self, parts: Sequence[str]) -> list[Bitmap]:
        """Return the rows of the forms that fit the parts: one look-up for each shape."""
        rows = []  # a loop, since this is the hot path of a new subject, and a comprehension is a call
        for pick, find in self._plans.get(len(parts)) or self._plan(len(parts)):
            row = find(pick(parts))
            if row is not None:
                rows.append(row)
        return rows

    def _plan(self, length: int) -> ShapeLookups:
        shapes = [s for s in self._tables if s.length == length or (s.open and s.length < length)]
        shapes.sort(key=lambda shape: len(shape.positions))
        plan: ShapeLookups = [(shape.pick, self._tables[shape].get) for shape in shapes]
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        self._plans[length] = plan
        return plan


_OPEN = -1
_PLANS_MAX = 1024
"""Lengths of subjects with a cached plan."""
