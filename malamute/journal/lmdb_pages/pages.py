"""The pages of LMDB, read and checked without LMDB.

LMDB believes what it reads: no page has a checksum, and a wrong bit in the number of a page leads it to
another one, or out of its map, which ends the process. Values have checksums of their own; this is about the
way to them. It is looked at whenever a store is opened, before LMDB takes a step in it.

What has to hold: each page names itself, has the kind that its place in the tree needs, and is filled without
a gap. Keys rise, and lie between those of the page above. Each page is in one place, either used or free.
There are as many pages and values as the root says, and the two roots follow each other. Of a value that has
pages of its own only their number is known here: they are not read, so that this costs the number of values
and not their bytes. Who suspects the disk has them read as well: LMDB maps the file, and what cannot be read
ends the process there, where a call fails here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import ge
from pathlib import Path
from typing import NamedTuple

BRANCH, LEAF = 1, 2
"""The kinds of pages of a tree."""

NONE = (1 << 64) - 1
"""The root of a tree with nothing in it."""

MAP_BYTES_MAX = 1 << 47
"""What can be mapped; a root that says more is damaged."""

BEHIND_BYTES = 1 << 30
"""How far the last page may be behind the end of the file, where LMDB has never written it."""

_MAGIC, _FORMAT = 0xBEEFC0DE, 1
_OWN_PAGES = 1
_IS_ROOT, _OF_VALUE = 8, 4
_KEYS_ARE_NUMBERS = 8
_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_ROOT = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_ENDS = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


class PageFault(NamedTuple):
    """A page that cannot be believed, and the keys that it had: from `first` up to, not including, `end`.

    `end` is None if nothing lies behind. Of a root, and of the list of free pages, the keys are empty.
    """

    number: int
    reason: str
    first: bytes = b""
    end: bytes | None = b""


class Tree(NamedTuple):
    """What a root says of a tree: how many pages of each kind, how many values, and where it begins."""

    page_bytes: int
    flags: int
    depth: int
    branches: int
    leaves: int
    own_pages: int
    entries: int
    root: int


class PageRoot(NamedTuple):
    """A root page: the trees of the free pages and of the values, the last page, and its transaction."""

    map_bytes: int
    free: Tree
    values: Tree
    last: int
    transaction: int


class Node(NamedTuple):
    """A value of a leaf: in the page from `start`, or from the page `own` on if that is not 0."""

    key: bytes
    start: int
    size: int
    own: int


class _Bad(ValueError):
    """Raised within this file: what is wrong with a page."""


def read_root(page: bytes, page_bytes: int) -> PageRoot:
    """A root page. Raises ValueError if it is none."""
    magic, version, _, map_bytes = _ROOT.unpack_from(page, _PAGE.size)
    if (magic, version, _PAGE.unpack_from(page)[2]) != (_MAGIC, _FORMAT, _IS_ROOT):
        raise ValueError("it is none")
    at = _PAGE.size + _ROOT.size
    free, values = (Tree(*_TREE.unpack_from(page, at + n * _TREE.size)) for n in (0, 1))
    root = PageRoot(map_bytes, free, values, *_ENDS.unpack_from(page, at + 2 * _TREE.size))
    if free.page_bytes != page_bytes or not root.last * page_bytes < map_bytes <= MAP_BYTES_MAX:
        raise ValueError(f"a map of {map_bytes} bytes has {root.last} pages of {free.page_bytes}")
    if (free.flags & 0xFF, values.flags) != (_KEYS_ARE_NUMBERS, 0):
        # They say how keys are ordered, the upper ones of the first how the file was opened.
        raise ValueError(f"its trees have the flags {free.flags} and {values.flags}")
    return root


class Pages:
    """The pages of a data file, and what is wrong with them."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self.faults: list[PageFault] = []
        self.page_bytes = 0
        self._last = 0
        self._used = bytearray()
        self._is_free_tree = False

    def check(self, *, values: bool = False) -> list[PageFault]:
        """Look at all of them, and read the `values` that have pages of their own. Returns the faults."""
        root = self._newest_root()
        if root is not None:
            for _, leaf in self._leaves(root):
                if values:
                    self.faults += filter(None, map(self.fault_of, leaf))
            if not self.faults:
                self._check_free(root.free)
        return self.faults

    def best_root(self) -> PageRoot | None:
        """The root that LMDB takes; or, if nobody can tell, the one with less damage below it; or None."""
        root = self._newest_root()
        if root is not None:
            return root
        before, counted = self.faults, []
        for root in self._roots():
            self.faults = []
            for _ in self._leaves(root):
                continue
            counted.append((len(self.faults), -root.transaction, root))
        self.faults = before
        return min(counted)[2] if counted else None

    def _roots(self) -> list[PageRoot]:
        """The roots that can be read."""
        size = os.sysconf("SC_PAGESIZE")
        longest = 2 * os.fstat(self._file).st_size + BEHIND_BYTES
        roots = []
        for number in (0, 1):
            try:
                root = read_root(self._read(number * size, size), size)
                if root.last * size > longest:
                    raise ValueError(f"the last page is {root.last}")
                roots.append(root)
            except (ValueError, OSError) as error:
                self.faults.append(PageFault(number, f"root: {error}"))
        return roots

    def _newest_root(self) -> PageRoot | None:
        """The root that LMDB takes. None if there is none to go by."""
        roots = self._roots()
        if self.faults:
            return None
        numbers = [root.transaction for root in roots]
        newest = max(numbers)
        if numbers != [0, 0] and (min(numbers) != newest - 1 or numbers.index(newest) != newest % 2):
            self.faults.append(PageFault(0, f"root: they are of the transactions {numbers}"))
            return None
        return roots[numbers.index(newest)]

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file, size, offset)
        while len(data) < size:
            # What comes short ends where the file ends, or before what cannot be read: the next call says so.
            rest = os.pread(self._file, size - len(data), offset + len(data))
            if not rest:
                raise ValueError("it is cut off")
            data += rest
        return data

    # --- trees

    def values(self, root: PageRoot) -> Iterator[tuple[bytes, Node]]:
        """The values below a root in order, each with its page, as far as nothing is wrong with that."""
        for page, leaf in self._leaves(root):
            for node in leaf:
                yield page, node

    def _leaves(self, root: PageRoot) -> Iterator[tuple[bytes, list[Node]]]:
        self.page_bytes, self._last = root.free.page_bytes, root.last
        self._used = bytearray(b"\1\1").ljust(root.last + 1, b"\0")
        yield from self._leaves_of(root.values)

    def _leaves_of(self, tree: Tree) -> Iterator[tuple[bytes, list[Node]]]:
        before, found = len(self.faults), [0, 0, 0, 0]
        if tree.root != NONE:
            yield from self._below(tree.root, tree.depth, b"", None, found)
        expected = [tree.branches, tree.leaves, tree.entries]
        # A value that was made smaller may keep a page more than it needs.
        is_right = found[:3] == expected and found[3] <= tree.own_pages <= self._last
        if not is_right and len(self.faults) == before:
            reason = f"below it are {found} branches, leaves, values and their pages, expected {tree[3:7]}"
            self.faults.append(PageFault(tree.root, reason, b"", None))

    def _below(
        self, number: int, depth: int, first: bytes, end: bytes | None, found: list[int]
    ) -> Iterator[tuple[bytes, list[Node]]]:
        try:
            self._use(number, 1)
            page = self._read(number * self.page_bytes, self.page_bytes)
            if depth == 1:
                leaf = self._leaf(page, number, first, end)
                own_pages = self._use_own(leaf)
            else:
                children = self._branch(page, number, first, end)
        except (ValueError, OSError) as error:
            self.faults.append(PageFault(number, str(error), first, end))
            return
        if depth == 1:
            found[1] += 1
            found[2] += len(leaf)
            found[3] += own_pages
            yield page, leaf
            return
        found[0] += 1
        ends = [*(begin for begin, _ in children[1:]), end]
        for (begin, child), stop in zip(children, ends, strict=True):
            yield from self._below(child, depth - 1, begin, stop, found)

    def _leaf(self, page: bytes, number: int, first: bytes, end: bytes | None) -> list[Node]:
        places = self._places(page, number, LEAF)
        nodes = self._even_leaf(page, places)
        if nodes is None:
            nodes = self._any_leaf(page, places)
        _check_keys([node.key for node in nodes], first, end)
        return nodes

    def _even_leaf(self, page: bytes, places: Sequence[int]) -> list[Node] | None:
        """The values of a leaf of which each has pages of its own and a key as long as all others.

        Nearly all leaves of a large store are: those of chunks. None if it is no such leaf.
        """
        upper = min(places)
        size, rest = divmod(self.page_bytes - upper, len(places))
        key_bytes = _NODE.unpack_from(page, upper)[3]
        form = struct.Struct(f"<HHHH{key_bytes}sQ{'x' * (key_bytes % 2)}")
        if rest or form.size != size or sorted(places) != [*range(upper, self.page_bytes, size)]:
            return None
        found = [*form.iter_unpack(page[upper:])]
        if {(flags, length) for _, _, flags, length, _, _ in found} != {(_OWN_PAGES, key_bytes)}:
            return None
        key_of, before = self._key, _NODE.size + key_bytes
        nodes = []
        for place in places:
            low, high, _, _, key, own = found[(place - upper) // size]
            nodes.append(Node(key_of(key), place + before, low | high << 16, own))
        return nodes

    def _any_leaf(self, page: bytes, places: Sequence[int]) -> list[Node]:
        nodes = []
        filled = 0
        for place in places:
            low, high, flags, key_bytes = _NODE.unpack_from(page, place)
            start, size = place + _NODE.size + key_bytes, low | high << 16
            stop = start + (_NUMBER.size if flags else size)
            if flags & ~_OWN_PAGES or stop > self.page_bytes:
                raise _Bad(f"a value has the flags {flags}, and ends at {stop}")
            filled += stop - place + (stop - place) % 2
            own = _NUMBER.unpack_from(page, start)[0] if flags else 0
            nodes.append(Node(self._key(page[place + _NODE.size : start]), start, size, own))
        self._check_filled(page, filled)
        return nodes

    def _branch(self, page: bytes, number: int, first: bytes, end: bytes | None) -> list[tuple[bytes, int]]:
        children: list[tuple[bytes, int]] = []
        filled = 0
        for place in self._places(page, number, BRANCH):
            low, high, top, key_bytes = _NODE.unpack_from(page, place)
            stop = place + _NODE.size + key_bytes
            filled += stop - place + (stop - place) % 2
            # LMDB never looks at the first key, which is that of the page above.
            key = self._key(page[place + _NODE.size : stop]) if children else first
            children.append((key, low | high << 16 | top << 32))
        self._check_filled(page, filled)
        _check_keys([key for key, _ in children], first, end)
        return children

    def _key(self, key: bytes) -> bytes:
        """A key such that the order of the bytes is that of the keys: those of free pages are numbers."""
        return key[::-1] if self._is_free_tree else key

    def _places(self, page: bytes, number: int, kind: int) -> Sequence[int]:
        """Where the values of a page begin."""
        itself, _, flags, lower, upper = _PAGE.unpack_from(page)
        if itself != number or flags != kind:
            raise _Bad(f"it is page {itself} of kind {flags}, expected kind {kind}")
        count, odd = divmod(lower - _PAGE.size, 2)
        least = 1 if kind == LEAF or self._is_free_tree else 2
        if not _PAGE.size <= lower <= upper <= self.page_bytes or odd or count < least:
            raise _Bad(f"its values are between {lower} and {upper}")
        places = struct.unpack_from(f"<{count}H", page, _PAGE.size)
        if min(places) < upper or max(places) > self.page_bytes - _NODE.size:
            raise _Bad(f"its values begin at {min(places)} to {max(places)}")
        return places

    def _check_filled(self, page: bytes, filled: int) -> None:
        upper = _PAGE.unpack_from(page)[4]
        if filled != self.page_bytes - upper:
            raise _Bad(f"{filled} bytes of it are filled, expected {self.page_bytes - upper}")

    def _pages_of(self, size: int) -> int:
        """How many pages a value takes that has pages of its own."""
        return -(-(_PAGE.size + size) // self.page_bytes)

    def _use(self, number: int, count: int) -> None:
        """Take note that pages are in use."""
        if not 2 <= number <= self._last - count + 1:
            raise _Bad(f"page {number} is none: the last is {self._last}")
        if self._used.find(1, number, number + count) >= 0:
            raise _Bad(f"page {number} is in two places")
        self._used[number : number + count] = b"\1" * count

    def _use_own(self, leaf: list[Node]) -> int:
        """Take note of the pages that the values have of their own. Returns how many there are."""
        page_bytes, used, most = self.page_bytes, self._used, self._last + 1
        head = _PAGE.size + page_bytes - 1
        total = 0
        for _, _, size, own in leaf:
            if own:
                count = (head + size) // page_bytes
                if own < 2 or own + count > most or used.find(1, own, own + count) >= 0:
                    self._use(own, count)  # says what is wrong
                used[own : own + count] = b"\1" * count
                total += count
        return total

    def orphans(self, root: PageRoot) -> Iterator[tuple[bytes, Node]]:
        """The values of leaves that nothing leads to any more, after `values`: they are not free either.

        What a value of its own pages holds may look like a leaf, but not in the pages of an orphan.
        """
        before = len(self.faults)
        self._check_free(root.free)
        if len(self.faults) > before:
            return  # nobody knows which pages are free
        leaves: dict[int, tuple[bytes, list[Node]]] = {}
        for number in range(2, root.last + 1):
            if not self._used[number]:
                with suppress(ValueError, OSError):
                    page = self._read(number * self.page_bytes, self.page_bytes)
                    leaves[number] = page, self._leaf(page, number, b"", None)
        for _, leaf in [*leaves.values()]:
            for node in leaf:
                for number in range(node.own, node.own + self._pages_of(node.size)) if node.own else ():
                    leaves.pop(number, None)
        for page, leaf in leaves.values():
            for node in leaf:
                yield page, node

    def fault_of(self, node: Node) -> PageFault | None:
        """What is wrong with the pages of a value, if it has some of its own: LMDB looks at the first."""
        if not node.own:
            return None
        try:
            head = self._read(node.own * self.page_bytes, _PAGE.size)
            itself, _, flags, low, high = _PAGE.unpack(head)
            if (itself, flags) == (node.own, _OF_VALUE) and low | high << 16 >= self._pages_of(node.size):
                self._read(node.own * self.page_bytes, _PAGE.size + node.size)
                return None
            reason = f"it is page {itself} of kind {flags}, expected kind {_OF_VALUE}"
        except (OSError, ValueError) as error:
            reason = str(error)
        return PageFault(node.own, reason, node.key, node.key + b"\0")

    def read(self, page: bytes, node: Node) -> bytes:
        """A value. Raises OSError or ValueError if its own pages cannot be read."""
        if node.own:
            return self._read(node.own * self.page_bytes + _PAGE.size, node.size)
        return page[node.start : node.start + node.size]

    # --- free pages

    def _check_free(self, tree: Tree) -> None:
        """Check the list of free pages: each is free once, and in no other place."""
        self._is_free_tree = True
        leaves = [*self._leaves_of(tree)]
        self._is_free_tree = False
        for page, node in ((page, node) for page, leaf in leaves for node in leaf):
            try:
                if fault := self.fault_of(node):
                    raise _Bad(fault.reason)
                value = self.read(page, node)
                numbers = struct.unpack(f"<{len(value) // 8}Q", value)
                if len(node.key) != _NUMBER.size or not numbers or numbers[0] != len(numbers) - 1:
                    raise _Bad("a list of free pages is none")
                for number in numbers[1:]:
                    self._use(number, 1)
            except (ValueError, OSError, struct.error) as error:
                self.faults.append(PageFault(tree.root, f"free pages: {error}"))
                return


def _check_keys(keys: Sequence[bytes], first: bytes, end: bytes | None) -> None:
    """Check that keys rise within their bounds."""
    if any(map(ge, keys, keys[1:])) or keys[0] < first or (end is not None and keys[-1] >= end):
        raise _Bad(f"its keys are not in order, or not between {first.hex()} and {(end or b'').hex()}")


def words(fault: PageFault) -> str:
    """What is wrong with a page, and which keys it led to."""
    if fault.end == b"":
        return fault.reason
    behind = "the end" if fault.end is None else fault.end.hex()
    return f"{fault.reason}; it led to the keys from {fault.first.hex() or 'the first'} to {behind}"


def check_pages(data: Path, *, values: bool = False) -> list[PageFault]:
    """What is wrong with the pages of a data file, which nobody may be writing to.

    Costs some microseconds for each value, and reading the pages that lead to them; with `values` it reads
    all that is used.
    """
    descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Pages(descriptor).check(values=values)
    finally:
        os.close(descriptor)
