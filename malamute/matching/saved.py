"""Compiled tables as bytes: an index that need not be built anew.

Building an index parses and files each pattern; the result is tables of rows. Saving the tables (`pack`) and
loading them again (`SavedIndex`) costs a tenth of that or less:

    head     "MLMI", version, CRC-32 of the body, length of the body
    body     msgpack: the selectors in columns, the keys of their subscribers, the tables of each family

The place of a selector in the columns is its number in the rows, too. A selector is made at its first use.
Families without tables, and selectors with a condition, are filed anew.

The CRC finds damage. A forged body may have a valid CRC, so every value that could cause a fault is checked
as well; at worst, such an index has false matches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from struct import Struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

from malamute.errors import InvalidValue
from malamute.matching.bitmap import pack_numbers, unpack_numbers
from malamute.matching.family import family_named
from malamute.matching.selector import CRITERIA_MAX, Criterion, Selector

if TYPE_CHECKING:
    import msgpack

MAGIC = b"MLMI"
VERSION = 1
_HEAD = Struct("<4sHxxIQ")
"""Magic, version, CRC-32 and length of the body."""

_LARGE = 1
"""The extension of msgpack that carries whole numbers of more than 64 bits."""


def pack(selectors: Sequence[Selector], keys: Sequence[Sequence[Any]], tables: Mapping[str, Any]) -> bytes:
    """Return the bytes of an index: its selectors, the keys of each, and the tables of the families.

    Raises TypeError for a key that msgpack cannot carry.
    """
    import msgpack  # only saving and loading need it, and all commands load this module

    criteria = [*chain.from_iterable(selector.criteria for selector in selectors)]
    names = [*dict.fromkeys(name for name, _ in criteria)]
    body: bytes = msgpack.packb(
        (
            pack_numbers(len(selector.criteria) for selector in selectors),
            names,
            pack_numbers(names.index(name) for name, _ in criteria),
            [pattern for _, pattern in criteria],
            {place: where for place, (_, where) in enumerate(selectors) if where},
            pack_numbers(map(len, keys)),
            [*chain.from_iterable(keys)],
            tables,
        ),
        default=_large,
        unicode_errors="surrogatepass",
    )
    return _HEAD.pack(MAGIC, VERSION, crc32(body), len(body)) + body


def _large(value: Any) -> msgpack.ExtType:
    """Return the extension of a whole number of more than 64 bits."""
    import msgpack

    if type(value) is not int:
        raise TypeError(f"cannot save {value!r}: expected text, a number, bytes, None or a tuple of them")
    return msgpack.ExtType(_LARGE, str(value).encode())


def _number(kind: int, text: bytes) -> int:
    if kind != _LARGE:
        raise ValueError(f"there is no extension {kind}")
    return int(text)


def damaged(error: Exception | str) -> InvalidValue:
    """Return the error for bytes that are no saved index."""
    return InvalidValue(f"damaged saved index: {error}; build it anew from its selectors")


class SavedIndex:
    """The contents of a saved index. `conditions` are by the number of the selector."""

    def __init__(self, body: bytes) -> None:
        """Read the body of a saved index. A body not written by `pack` may raise any exception."""
        import msgpack

        counts, names, named, self._patterns, conditions, key_counts, self._keys, tables = msgpack.unpackb(
            body, use_list=False, strict_map_key=False, ext_hook=_number, unicode_errors="surrogatepass"
        )
        self.conditions: dict[int, str] = dict(conditions)
        self.tables: dict[str, Any] = dict(tables)
        known = [family_named(name).name for name in names]
        self._families = [*map(known.__getitem__, unpack_numbers(named))]
        self._counts, key_counts = unpack_numbers(counts), unpack_numbers(key_counts)
        self._ends = [0, *accumulate(self._counts)]
        self._key_ends = [0, *accumulate(key_counts)]
        self._check(key_counts)

    def _check(self, key_counts: Sequence[int]) -> None:
        """Raise ValueError if the columns do not fit each other, and TypeError for a value without a hash."""
        if not self._ends[-1] == len(self._patterns) == len(self._families):
            raise ValueError("the criteria are not those of the selectors")
        if not {*self._counts} <= {*range(1, CRITERIA_MAX + 1)}:
            raise ValueError(f"a selector has 1 to {CRITERIA_MAX} criteria")
        if len(key_counts) != len(self._counts) or 0 in key_counts or self._key_ends[-1] != len(self._keys):
            raise ValueError("the keys are not those of the selectors")
        if not all(type(place) is int and 0 <= place < len(self) for place in self.conditions):
            raise ValueError("the conditions are not those of the selectors")
        "".join(self.conditions.values())
        hash((self._keys, self._patterns))

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, number: int) -> Selector:
        """Return the selector with this number."""
        families, patterns, condition = self._said(number)
        return Selector(tuple(map(Criterion, families, patterns)), condition)

    def _said(self, number: int) -> tuple[Sequence[str], Sequence[Any], str]:
        start, end = self._ends[number], self._ends[number + 1]
        return tuple(self._families[start:end]), self._patterns[start:end], self.conditions.get(number, "")

    def keys(self, number: int) -> Sequence[Any]:
        """Return the keys of the subscribers of a selector."""
        keys: Sequence[Any] = self._keys[self._key_ends[number] : self._key_ends[number + 1]]
        return keys

    def uses(self) -> Counter[str]:
        """Return the number of selectors without a condition for each family."""
        if len(self._families) == len(self) and not self.conditions:
            return Counter(self._families)
        plain = (number for number in range(len(self)) if number not in self.conditions)
        return Counter(chain.from_iterable({*self._said(number)[0]} for number in plain))


def body_of(data: bytes) -> bytes:
    """Return the body of a saved index. Raises InvalidValue if it is damaged, of another version, or none."""
    if len(data) < _HEAD.size or not data.startswith(MAGIC):
        raise damaged(f"expected bytes that begin with {MAGIC.decode()}")
    _, version, checksum, length = _HEAD.unpack_from(data)
    if version != VERSION:
        raise InvalidValue(f"the saved index has format {version}: expected {VERSION}; build it anew")
    body = data[_HEAD.size :]
    if len(body) != length:
        raise damaged(f"expected {length} bytes, found {len(body)}")
    if crc32(body) != checksum:
        raise damaged("its checksum is wrong")
    return body
