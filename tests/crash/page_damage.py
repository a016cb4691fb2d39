"""Damages pages of a data file, in every way and of every kind, and looks what the store says of it.

`python tests/crash/page_damage.py --count 10000` for many. Each is tried in a child process, since LMDB may
end one: that is what must not happen. And what is other than before has to be reported.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple

from malamute.core.broker import Core
from malamute.errors import StoreCorrupt, StoreError
from malamute.journal.disk import DiskStore
from malamute.journal.lmdb_pages.pages import Pages, check_pages
from malamute.journal.reader import StoreReader
from malamute.journal.repair import repair
from malamute.store.operations import AppendChunk, Chunk, Damage, DeleteMessages, PutMessages, PutValue
from malamute.store.tables import CURSORS, FEEDS, SESSIONS

PAGE = 4096
SIZE = 4 << 20
NOW = 1_800_000_000.0
TIME = 1_700_000_000_000_000_000

ROOT, BRANCH, LEAF, VALUE, FREE_TREE, FREE = "root", "branch", "leaf", "value", "free list", "free"
"""The kinds of pages; a free one may be damaged as one likes."""


def make(directory: Path) -> bytes:
    """A store with each kind of page and value in it. Returns its file."""
    with closing(DiskStore.open(directory, size=SIZE, preallocate=False)) as store:
        store.recover()
        for n in range(1, 400):
            name = f"stream{n % 7}"
            first = n // 7 * 2 + 1
            operations: list[object] = [
                AppendChunk(name, Chunk(first, 2, TIME + n, bytes(20 + n * 7919 % 900), ()), first + 10),
                PutValue(CURSORS, (name, f"cursor{n % 5}"), first),
            ]
            if n % 40 == 0:
                operations.append(
                    AppendChunk("large", Chunk(n, 1, TIME + n, bytes(n * 97), (bytes(9000),)), n + 9)
                )
            if n % 3 == 0:
                operations.append(
                    PutMessages("mailbox", f"box{n % 4}", n, TIME, "ann", ["s"], [b"record %d" % n])
                )
            if n % 9 == 0:
                operations.append(DeleteMessages("mailbox", f"box{(n - 3) % 4}", [(n - 3, n - 3)]))
            if n % 50 == 0:
                operations += [
                    PutValue(SESSIONS, (b"%016d" % n, 0), b"value"),
                    PutValue(FEEDS, (name, f"feed{n}"), b"feed"),
                ]
            store.write(operations)  # type: ignore[arg-type]
    return (directory / "data.mdb").read_bytes()


def kinds(image: bytes) -> dict[int, str]:
    """The kind of each page of a data file."""
    found = dict.fromkeys(range(len(image) // PAGE), FREE)
    with tempfile.TemporaryFile() as file:
        file.write(image)
        file.flush()
        pages = Pages(file.fileno())
        root = pages.best_root()
        assert root is not None
        nodes = [*pages.values(root)]
        used = [number for number, is_used in enumerate(pages._used) if is_used]
        assert not Pages(file.fileno()).check()
    found |= dict.fromkeys(used, VALUE)
    for number in used:
        head = image[number * PAGE : number * PAGE + 16]
        if int.from_bytes(head[:8], "little") == number and head[10] == 1:
            found[number] = BRANCH
    found |= {int.from_bytes(page[:8], "little"): LEAF for page, _ in nodes}
    found |= {0: ROOT, 1: ROOT, root.free.root: FREE_TREE}
    return found


class Contents(NamedTuple):
    """The contents that a broker finds in a store, and how much was reported as damaged."""

    recovered: object
    chunks: dict[str, Sequence[Chunk | Damage]]
    reported: int


def contents(store: DiskStore) -> Contents:
    """Read all of a store, as a broker that starts on it and as its readers."""
    found = store.recover(now=NOW)
    core = Core(NOW, None, found._replace(defects=()))
    assert not core.effects.faults.count, core.effects.notices
    chunks = {name: store.read(name, 0, bytes_max=1 << 30).found for name in found.streams}
    damages = [damage for step in store.verify() for damage in step.damages]
    whole = found._replace(defects=(), queues=sorted(found.queues.items()))  # type: ignore[arg-type]
    return Contents(whole, chunks, len(found.defects) + len(damages) + len(found.lost))


class Case(NamedTuple):
    """One damage: how, of which kind of page, and the file that it makes."""

    way: str
    kind: str
    image: bytes


def flip(image: bytearray, page: int, chance: Random) -> None:
    """One bit."""
    image[page * PAGE + chance.randrange(PAGE)] ^= 1 << chance.randrange(8)


def flip_head(image: bytearray, page: int, chance: Random) -> None:
    """One bit of what a page says of itself, or a root of its trees."""
    image[page * PAGE + chance.randrange(160)] ^= 1 << chance.randrange(8)


def zero(image: bytearray, page: int, chance: Random) -> None:
    """All of it, or a sector."""
    size = chance.choice([PAGE, 512])
    start = page * PAGE + chance.randrange(PAGE // size) * size
    image[start : start + size] = bytes(size)


def swap(image: bytearray, page: int, chance: Random) -> None:
    """With another page, which may be of the same kind."""
    other = chance.randrange(len(image) // PAGE)
    one, two = slice(page * PAGE, page * PAGE + PAGE), slice(other * PAGE, other * PAGE + PAGE)
    image[one], image[two] = image[two], image[one]


def scramble(image: bytearray, page: int, chance: Random) -> None:
    """Some bytes."""
    size = chance.choice([1, 8, 512, PAGE])
    start = page * PAGE + chance.randrange(PAGE // size) * size
    image[start : start + size] = chance.randbytes(size)


def cut(image: bytearray, page: int, chance: Random) -> None:
    """The file, somewhere in this page."""
    del image[page * PAGE + chance.randrange(PAGE) :]


WAYS: Sequence[Callable[[bytearray, int, Random], None]] = (flip, flip_head, zero, swap, scramble, cut)


def case(image: bytes, pages: dict[str, list[int]], number: int, seed: int) -> Case:
    """The damage of a number: each kind of page and each way in turn."""
    chance = Random(f"{seed} {number}")
    kind = [*pages][number % len(pages)]
    way = WAYS[number // len(pages) % len(WAYS)]
    damaged = bytearray(image)
    way(damaged, chance.choice(pages[kind]), chance)
    return Case(way.__name__, kind, bytes(damaged))


def outcome(directory: Path, image: bytes, whole: Contents) -> str:
    """The outcome of a damaged file: unharmed, reported, repaired, or refused for good."""
    (directory / "data.mdb").write_bytes(image)
    _check_reader(directory, whole)
    word = "reported"
    try:
        store = DiskStore.open(directory, size=SIZE, preallocate=False)
    except StoreError:
        try:
            if not repair(directory):
                return "refused by nothing to repair"
            store = DiskStore.open(directory, size=SIZE, preallocate=False)
        except StoreError as error:
            assert (directory / "data.mdb").read_bytes() == image, "what was refused is other than before"
            return f"refused {error}"
        word = "repaired"
    try:
        with closing(store):
            contents(store)
    except StoreCorrupt:  # of one value with pages of its own, which LMDB refuses to read
        assert repair(directory)
        word = "repaired"
    with closing(DiskStore.open(directory, size=SIZE, preallocate=False)) as store:
        found = contents(store)
        same = found[:2] == whole[:2]
        assert same or found.reported or word == "repaired", (
            "what it has is other than before, and nobody is notified"
        )
        _check_chunks(found.chunks, whole)
        _write(store)
    assert not check_pages(directory / "data.mdb"), "writing to it damaged it"
    return "unharmed" if same and not found.reported else word


def _check_reader(directory: Path, whole: Contents) -> None:
    """Who reads the store without a broker, as an export does, is refused, or gets all of it or a damage."""
    try:
        with StoreReader.open(directory) as reader:
            chunks = {name: reader.read(name, 0, bytes_max=1 << 30).found for name in reader.streams()}
    except StoreError:
        return
    _check_chunks(chunks, whole)
    found = [chunk for every in chunks.values() for chunk in every]
    is_whole = len(found) == sum(map(len, whole.chunks.values()))
    assert is_whole or any(isinstance(chunk, Damage) for chunk in found), "a reader lacks what it is not told"


def _check_chunks(found: Mapping[str, Sequence[Chunk | Damage]], whole: Contents) -> None:
    """Each value is read as it was stored, or reported as a damage or a gap."""
    for name, chunks in found.items():
        # A stream whose name is lost has another one.
        names = [name] if name in whole.chunks else [*whole.chunks]
        known = [chunk for one in names for chunk in whole.chunks[one]]
        for chunk in chunks:
            assert isinstance(chunk, Damage) or chunk in known, (
                f"{name} has {chunk.first}, which nobody wrote"
            )


def _write(store: DiskStore) -> None:
    for number in range(3):
        states = store.status().streams
        store.write(
            [
                AppendChunk(name, Chunk(state.reserved + 1, 1, TIME, bytes(3000)), state.reserved + 1)
                for name, state in states.items()
            ]
            + [PutMessages("mailbox", f"new{number}", 1, TIME, "ann", ["s"], [bytes(3000)])]
        )


def try_all(numbers: Sequence[int], seed: int, directory: Path, said: Connection) -> None:
    """Try the damages of these numbers, and say what came of each."""
    with tempfile.TemporaryDirectory(dir=directory) as made:
        image = make(Path(made))
        with closing(DiskStore.open(made, size=SIZE, preallocate=False)) as store:
            whole = contents(store)
        assert not whole.reported
    pages: dict[str, list[int]] = {}
    for page, kind in kinds(image).items():
        pages.setdefault(kind, []).append(page)
    for number in numbers:
        one = case(image, pages, number, seed)
        with tempfile.TemporaryDirectory(dir=directory) as made:
            try:
                word = outcome(Path(made), one.image, whole)
            except Exception as error:
                word = f"FAULT {type(error).__name__} {error}"
        said.send((number, one.way, one.kind, word))
    said.close()


def run(count: int, seed: int, directory: Path) -> Iterator[tuple[int, str, str, str]]:
    """Try so many damages in a child process; another one goes on if it is ended."""
    context, number = get_context("spawn"), 0
    while number < count:
        heard, said = context.Pipe(duplex=False)
        child = context.Process(target=try_all, args=(range(number, count), seed, directory, said))
        child.start()
        said.close()
        with suppress(EOFError):
            while True:
                found = heard.recv()
                number = found[0] + 1
                yield found
        child.join()
        if number < count:
            yield number, "", "", f"FAULT the process was ended: {child.exitcode}"
            number += 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    chosen = parser.parse_args()
    total: Counter[tuple[str, str]] = Counter()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as made:
        for number, way, kind, word in run(chosen.count, chosen.seed, Path(made)):
            if word.startswith(("FAULT", "refused")):
                print(f"seed {chosen.seed}, number {number}: {way} {kind}: {word}", flush=True)
            total[kind, word.split()[0]] += 1
            if number % 1000 == 999:
                print(number + 1, dict(Counter(word for _, word in total.elements())), flush=True)
    print(f"seed {chosen.seed}")
    for (kind, word), times in sorted(total.items()):
        print(f"{kind:10} {word:10} {times:9,}")
    sys.exit(any(word == "FAULT" for _, word in total))


if __name__ == "__main__":
    main()
