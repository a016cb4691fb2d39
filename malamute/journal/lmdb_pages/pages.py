"""The pages of LMDB, read and checked without LMDB.

LMDB does not check its pages: no page has a checksum, and a wrong bit in a page number leads to another
page, or out of the map, which kills the process. Values have checksums of their own; this module checks the
tree of pages above them, whenever a store is opened, before LMDB reads it.

A valid page has its own number, the kind that its place in the tree needs, and no gap between its entries.
Keys rise, and lie between the keys of the page above. Each page has one place, either used or free. The
counts of pages and values are those of the root, and the two roots have successive transactions. The own
pages of a large value are counted but not read, so that the check costs the number of values and not their
bytes. A check of a suspect disk reads them as well: an unreadable page in LMDB's map kills the process, where
a system call only fails.
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
"""The root of an empty tree."""

MAP_BYTES_MAX = 1 << 47
"""The largest possible map; a root with a larger one is damaged."""

BEHIND_BYTES = 1 << 30
"""The most bytes from the end of the file to the last page, where LMDB has left pages unwritten."""

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
    """A damaged page, and the keys below it: from `first` up to, not including, `end`.

    `end` is None for the last keys. A root and the list of free pages have empty keys.
    """

    number: int
    reason: str
    first: bytes = b""
    end: bytes | None = b""


class Tree(NamedTuple):
    """The description of a tree in a root: its pages of each kind, its values, and its first page."""

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
    """Raised within this file with the fault of a page."""


def read_root(page: bytes, page_bytes: int) -> PageRoot:
    """Return the root in a page. Raises ValueError for any other page."""
    magic, version, _, map_bytes = _ROOT.unpack_from(page, _PAGE.size)
    if (magic, version, _PAGE.unpack_from(page)[2]) != (_MAGIC, _FORMAT, _IS_ROOT):
        raise ValueError("it is none")
    at = _PAGE.size + _ROOT.size
    free, values = (Tree(*_TREE.unpack_from(page, at + n * _TREE.size)) for n in (0, 1))
    root = PageRoot(map_bytes, free, values, *_ENDS.unpack_from(page, at + 2 * _TREE.size))
    if free.page_bytes != page_bytes or not root.last * page_bytes < map_bytes <= MAP_BYTES_MAX:
        raise ValueError(f"a map of {map_bytes} bytes has {root.last} pages of {free.page_bytes}")
    if (free.flags & 0xFF, values.flags) != (_KEYS_ARE_NUMBERS, 0):
        # The flags have the order of the keys, the upper ones of the first tree the options of the file.
        raise ValueError(f"its trees have the flags {free.flags} and {values.flags}")
    return root


class Pages:
    """The pages of a data file, and their faults."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self.faults: list[PageFault] = []
        self.page_bytes = 0
        self._last = 0
        self._used = bytearray()
        self._is_free_tree = False

    def check(self, *, values: bool = False) -> list[PageFault]:
        """Check all pages, with `values` also the own pages of large values; return the faults."""
        root = self._newest_root()
        if root is not None:
            for _, leaf in self._leaves(root):
                if values:
                    self.faults += filter(None, map(self.fault_of, leaf))
            if not self.faults:
                self._check_free(root.free)
        return self.faults

    def best_root(self) -> PageRoot | None:
        """Return the root that LMDB would use; if unknown, the one with less damage below it, or None."""
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
        """Return the readable roots."""
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
        """Return the root that LMDB would use; None if a root is damaged."""
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
            # A short read ends at the end of the file, or before an unreadable part; the next call tells.
            rest = os.pread(self._file, size - len(data), offset + len(data))
            if not rest:
                raise ValueError("it is cut off")
            data += rest
        return data

    # --- trees

    def values(self, root: PageRoot) -> Iterator[tuple[bytes, Node]]:
        """Yield the values below a root in order, each with its page, without damaged pages."""
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
        """Return the values of a leaf of large values with keys of one length; None for any other leaf.

        Nearly all leaves of a large store are of this kind: the leaves of chunks.
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
            # LMDB never reads the first key, which is that of the page above.
            key = self._key(page[place + _NODE.size : stop]) if children else first
            children.append((key, low | high << 16 | top << 32))
        self._check_filled(page, filled)
        _check_keys([key for key, _ in children], first, end)
        return children

    def _key(self, key: bytes) -> bytes:
        """Return a key in the byte order of keys: the keys of free pages are little-endian numbers."""
        return key[::-1] if self._is_free_tree else key

    def _places(self, page: bytes, number: int, kind: int) -> Sequence[int]:
        """Return the offsets of the values of a page."""
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
        """Return the number of own pages of a large value."""
        return -(-(_PAGE.size + size) // self.page_bytes)

    def _use(self, number: int, count: int) -> None:
        """Mark pages as used."""
        if not 2 <= number <= self._last - count + 1:
            raise _Bad(f"page {number} is none: the last is {self._last}")
        if self._used.find(1, number, number + count) >= 0:
            raise _Bad(f"page {number} is in two places")
        self._used[number : number + count] = b"\1" * count

    def _use_own(self, leaf: list[Node]) -> int:
        """Mark the own pages of the values of a leaf as used; return their number."""
        page_bytes, used, most = self.page_bytes, self._used, self._last + 1
        head = _PAGE.size + page_bytes - 1
        total = 0
        for _, _, size, own in leaf:
            if own:
                count = (head + size) // page_bytes
                if own < 2 or own + count > most or used.find(1, own, own + count) >= 0:
                    self._use(own, count)  # raises with the fault
                used[own : own + count] = b"\1" * count
                total += count
        return total

    def orphans(self, root: PageRoot) -> Iterator[tuple[bytes, Node]]:
        """Yield the values of orphaned leaves, after `values`: leaves that are neither in a tree nor free.

        Pages of the large values of orphans are left out, as their bytes may look like a leaf.
        """
        before = len(self.faults)
        self._check_free(root.free)
        if len(self.faults) > before:
            return  # the free pages are unknown
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
        """Return the fault of the own pages of a large value; LMDB checks none but the first of them."""
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
        """Return a value. Raises OSError or ValueError if its own pages cannot be read."""
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
    """Return the words for a damaged page and the keys below it."""
    if fault.end == b"":
        return fault.reason
    behind = "the end" if fault.end is None else fault.end.hex()
    return f"{fault.reason}; it led to the keys from {fault.first.hex() or 'the first'} to {behind}"


def check_pages(data: Path, *, values: bool = False) -> list[PageFault]:
    """Return the faults of the pages of a data file, which no process may be writing.

    Costs some microseconds for each value, and reading the tree of pages; with `values` all used pages.
    """
    descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Pages(descriptor).check(values=values)
    finally:
        os.close(descriptor)
