"""Match expressions over columns: the rows of a row group for which an expression holds.

The index of the broker finds all expressions that hold for one message. A row group is the other way round:
there are a hundred thousand messages, and an expression is one comparison of whole columns. The meaning is
that of `malamute.matching.expression`, to the letter: values that numpy and Python compare differently
(integers beyond 2**53), or without a form for columns, are given to the expression one by one.

A header has an entry in some rows. Entries stand in one list for all headers, and in it values by their type:
texts as numbers of a dictionary, -1 for none; numbers, NaN for none; flags, -1 for none. At the end of the
list stands an entry without any value, for rows that lack the header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from malamute.matching.expression import (
    And,
    Attribute,
    BeginsWith,
    Differs,
    EnvelopeField,
    Exists,
    Expression,
    Matches,
    MessageFields,
    Not,
    OneOf,
    Or,
    Predicate,
    Range,
    Within,
)
from malamute.spark.schema import KINDS

Numbers = np.ndarray[Any, Any]

EXACT_MAX = 2**53
"""Up to here every integer is a floating-point number of its own."""


class EntryValues(NamedTuple):
    """Entries by the type of their value; the last entry has none. `large` integers stand apart."""

    texts: list[str]
    codes: dict[str, int]
    text: Numbers
    number: Numbers
    flag: Numbers
    integer: Numbers
    large: Numbers | None


class AttributeColumn(NamedTuple):
    """An attribute of the messages: the entry of each row, -1 for none, and where entries are looked up."""

    entries: Numbers
    values: EntryValues


def entries_of(headers: pa.MapArray) -> EntryValues:
    """The values of all headers, the keys of which are encoded as a dictionary, and so are texts."""
    text, integer, number, flag = (headers.items.field(kind) for kind in KINDS)
    texts = text.dictionary.to_pylist()
    integers, numbers = _filled(integer, 0), _filled(number, np.nan)
    large = (integers > EXACT_MAX) | (integers < -EXACT_MAX)
    return EntryValues(
        texts,
        {text: code for code, text in enumerate(texts)},
        _filled(text.indices, -1),
        np.where(large, np.nan, numbers),
        _filled(flag.cast(pa.int8()), -1),
        integers,
        large if large.any() else None,
    )


def _filled(array: pa.Array, nothing: float) -> Numbers:
    """The values, with something in place of nulls and behind them all."""
    missing = pa.scalar(nothing, array.type)
    values: Numbers = pa.concat_arrays([array.fill_null(missing), pa.array([missing])]).to_numpy()
    return values


class Rows:
    """The messages of a row group, for expressions."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[Attribute, AttributeColumn] = {}
        headers = batch.column("headers")
        self._values = entries_of(headers)
        ends = headers.offsets.to_numpy()
        self._first = int(ends[0])
        self._rows = np.repeat(np.arange(len(headers)), np.diff(ends))
        self._keys = headers.keys.indices.to_numpy()[self._first : int(ends[-1])]
        self._names = {name: code for code, name in enumerate(headers.keys.dictionary.to_pylist())}

    def holding(self, expression: Expression, rows: Numbers) -> Numbers:
        """For which of these rows it holds, as a mask."""
        return _MASKS[type(expression)](self, expression, rows)

    def column(self, attribute: Attribute) -> AttributeColumn:
        """Where an attribute is."""
        found = self._columns.get(attribute)
        if found is None:
            found = (
                self._place(attribute) if isinstance(attribute, EnvelopeField) else self._header(attribute)
            )
            self._columns[attribute] = found
        return found

    def _header(self, name: str) -> AttributeColumn:
        entries = np.full(self._batch.num_rows, -1)
        if name in self._names:
            found = np.flatnonzero(self._keys == self._names[name])
            # Of a header that is there twice the last one counts.
            entries[self._rows[found]] = found + self._first
        return AttributeColumn(entries, self._values)

    def _place(self, place: EnvelopeField) -> AttributeColumn:
        column = self._batch.column(place.value)
        texts, codes = column.dictionary.to_pylist(), column.indices.to_numpy()
        # A sender without an address is none.
        known = np.array([place is EnvelopeField.SUBJECT or bool(text) for text in texts], bool)
        count = len(texts)
        nothing = np.full(count + 1, -1)
        numbers, codes_of = np.full(count + 1, np.nan), {text: code for code, text in enumerate(texts)}
        values = EntryValues(
            texts, codes_of, np.append(np.arange(count), -1), numbers, nothing, nothing, None
        )
        return AttributeColumn(np.where(known[codes], codes, -1), values)


# Masks. Each takes the rows, an expression of its type, and which rows are asked for.


def _and(rows: Rows, expression: And, asked: Numbers) -> Numbers:
    return _folded(rows, expression.items, asked, True)


def _or(rows: Rows, expression: Or, asked: Numbers) -> Numbers:
    return _folded(rows, expression.items, asked, False)


def _folded(rows: Rows, items: Sequence[Expression], asked: Numbers, undecided: bool) -> Numbers:
    """Ask each item only about the rows that those before it have not decided."""
    mask = rows.holding(items[0], asked)
    for item in items[1:]:
        left = np.flatnonzero(mask == undecided)
        if not len(left):
            break
        mask[left] = rows.holding(item, asked[left])
    return mask


def _not(rows: Rows, expression: Not, asked: Numbers) -> Numbers:
    return ~rows.holding(expression.item, asked)


def _exists(rows: Rows, expression: Exists, asked: Numbers) -> Numbers:
    mask: Numbers = rows.column(expression.attribute).entries[asked] >= 0
    return mask


def _one_of(rows: Rows, expression: OneOf, asked: Numbers) -> Numbers:
    return _compared(rows, expression, expression.values, np.equal, asked)


def _differs(rows: Rows, expression: Differs, asked: Numbers) -> Numbers:
    return _compared(rows, expression, (expression.value,), np.not_equal, asked)


def _compared(
    rows: Rows, test: OneOf | Differs, wanted: Sequence[Any], compare: Callable[..., Numbers], asked: Numbers
) -> Numbers:
    entries, values = rows.column(test.attribute)
    entries = entries[asked]
    mask = np.zeros(len(asked), bool)
    for value in wanted:
        if isinstance(value, str):
            text = values.text[entries]
            mask |= compare(text, values.codes.get(value, -2)) & (text >= 0)
        elif isinstance(value, bool):
            flag = values.flag[entries]
            mask |= compare(flag, value) & (flag >= 0)
        elif abs(value) > EXACT_MAX:
            return _each(test, entries, values)
        else:
            number = values.number[entries]
            mask |= compare(number, value) & (number == number)
    return _with_large(test, entries, values, mask)


def _range(rows: Rows, expression: Range, asked: Numbers) -> Numbers:
    entries, values = rows.column(expression.attribute)
    entries = entries[asked]
    bounds = [bound for bound in (expression.low, expression.high) if bound]
    if expression.kind != "number" or any(abs(bound.value) > EXACT_MAX for bound in bounds):
        return _each(expression, entries, values)
    number = values.number[entries]
    mask = number == number
    if (low := expression.low) is not None:
        mask &= (number > low.value) if low.side else (number >= low.value)
    if (high := expression.high) is not None:
        mask &= (number <= high.value) if high.side else (number < high.value)
    return _with_large(expression, entries, values, mask)


def _with_large(test: Predicate, entries: Numbers, values: EntryValues, mask: Numbers) -> Numbers:
    """Return the mask, corrected by the test of large integers, which are no numbers of a column."""
    if values.large is not None:
        places = np.flatnonzero(values.large[entries])
        mask[places] = _accepted(test, values.integer[entries[places]])
    return mask


def _each(test: Predicate, entries: Numbers, values: EntryValues) -> Numbers:
    """Ask the test about each value that there is, once."""
    mask = _with_large(test, entries, values, np.zeros(len(entries), bool))
    texts = values.text[entries]
    places = np.flatnonzero(texts >= 0)
    mask[places] = _accepted(test, texts[places], values.texts.__getitem__)
    numbers = values.number[entries]
    places = np.flatnonzero(numbers == numbers)
    mask[places] = _accepted(test, numbers[places])
    flags = values.flag[entries]
    places = np.flatnonzero(flags >= 0)
    mask[places] = _accepted(test, flags[places], bool)
    return mask


def _accepted(test: Predicate, found: Numbers, value: Callable[[Any], Any] = lambda one: one) -> Numbers:
    distinct, places = np.unique(found, return_inverse=True)
    accepted = np.fromiter((test.accepts(value(one)) for one in distinct.tolist()), bool, len(distinct))
    mask: Numbers = accepted[places]
    return mask


def _by_value(rows: Rows, expression: Predicate, asked: Numbers) -> Numbers:
    entries, values = rows.column(expression.attribute)
    return _each(expression, entries[asked], values)


def _within(rows: Rows, expression: Within, asked: Numbers) -> Numbers:
    names = expression.latitude, expression.longitude
    columns = [rows.column(name) for name in names]
    # NaN, also in place of a number too large for a column, is no place.
    latitude, longitude = (values.number[entries[asked]] for entries, values in columns)
    bounds = expression.area.bounds()
    mask: Numbers = (latitude >= bounds.south) & (latitude <= bounds.north)
    mask &= np.mod(longitude - bounds.west, 360.0) <= bounds.width
    near = np.flatnonzero(mask)
    points = zip(latitude[near].tolist(), longitude[near].tolist(), strict=True)
    messages = (MessageFields("", dict(zip(names, point, strict=True))) for point in points)  # type: ignore[arg-type]
    mask[near] = np.fromiter(map(expression.holds, messages), bool, len(near))
    return mask


_MASKS: dict[type[Expression], Callable[[Rows, Any, Numbers], Numbers]] = {
    And: _and,
    Or: _or,
    Not: _not,
    Exists: _exists,
    OneOf: _one_of,
    Differs: _differs,
    Range: _range,
    BeginsWith: _by_value,
    Matches: _by_value,
    Within: _within,
}
