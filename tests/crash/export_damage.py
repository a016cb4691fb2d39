"""Damages files of an export, in every way and of every kind, and looks what its readers say of it.

`python tests/crash/export_damage.py --count 10000` for many. Each is tried in a child process, as libraries
in C read the files. The data source and the jobs have to read all that was exported but for the parts that
they report, which have to be the damaged row groups and no others. `verify` reports every wrong byte.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from malamute.errors import MalamuteError
from malamute.protocol.batch import Columns, pack_record
from malamute.spark import columns as gathering
from malamute.spark import export as exporting
from malamute.spark import scan
from malamute.spark.checksums import Blocks
from malamute.spark.export_location import ExportLocation, Sink
from malamute.spark.history import ExportGap, SequenceRange
from malamute.spark.layout import manifest_path
from malamute.spark.manifest import encode_footer, load
from malamute.spark.options import SourceOptions
from malamute.spark.reading import LostRange, ReadQuery, read, slices
from malamute.spark.scan import ExportDamage, ExportedHistory, HistoryBounds
from malamute.spark.schema import arrow_schema
from malamute.spark.verify import verify

DAY = 86_400 * 10**9
TIME = 20_000 * DAY

KINDS = MAGIC, DICTIONARY_HEAD, DICTIONARY, HEAD, PAGE, FOOTER, LENGTH, MANIFEST = (
    *("magic", "dictionary head", "dictionary", "page head", "page"),
    *("footer", "footer length", "manifest"),
)
"""The kinds of places."""

NEW, OLD, BARE = "new", "old", "bare"
"""An export as it is written, one as an earlier version has written it, and files without their manifests."""

EVERYTHING = HistoryBounds()

GAP_REASON = "restart"
"""The reason of the gaps that the history has, which are no damage."""

SECONDS = 120
"""A child that says nothing for so long hangs."""


# --- what is exported


STREAMS = {
    "flights": SequenceRange(1, 70),
    "a/b": SequenceRange(101, 140),
    "large": SequenceRange(1, 12),
}


class Source:
    """A history that is made of numbers: three streams with gaps, over some days."""

    def __init__(self) -> None:
        self.limited: set[str] = set()

    def store(self) -> str:
        return "numbers"

    def streams(self) -> Mapping[str, SequenceRange]:
        return STREAMS

    def find_time(self, stream: str, time_ns: int) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def read(self, stream: str, first: int, last: int, wanted: Any = None) -> Iterator[Columns | ExportGap]:
        chance = Random(stream)
        for start in range(first, last + 1, 10):
            if start // 10 % 4 == 2:
                yield ExportGap(start, start + 9, GAP_REASON)
                continue
            numbers = [*range(start, min(start + 10, last + 1))]
            records = [pack_record(*self._message(stream, n, chance)) for n in numbers]
            yield Columns(
                numbers,
                [TIME + n * DAY // 60 for n in numbers],
                [chance.choice(("ann", "", "bob")) for _ in numbers],
                [f"{stream}.{n % 3}" for n in numbers],
                records,
                ttls=[n % 2 * 1000 for n in numbers],
            )

    def _message(self, stream: str, number: int, chance: Random) -> tuple[Any, Any]:
        if stream == "large":
            return {"price": number / 7}, chance.randbytes(chance.randrange(20_000))
        headers = {"price": chance.random(), "n": number, "who": f"it{number % 5}", "ok": number % 2 == 0}
        return headers if number % 3 else None, [b"%d" % number] * (1 + number % 2)


PROMOTED: Mapping[str, Any] = {"price": "number", "who": "text"}

ALL = tuple(arrow_schema(PROMOTED).names)


class Group(NamedTuple):
    """A row group: its bytes and its sequences."""

    start: int
    stop: int
    first: int
    last: int


class Whole(NamedTuple):
    """A file of an export before it is damaged: its bytes, what is where, and its row groups."""

    stream: str
    data: bytes
    places: Mapping[str, Sequence[tuple[int, int]]]
    groups: Sequence[Group]
    data_size: int

    @property
    def range(self) -> tuple[int, int]:
        return self.groups[0].first, self.groups[-1].last


def make(directory: Path, age: str) -> dict[str, Whole]:
    """An export, with a few files of a few row groups for each stream. Returns what it consists of."""
    place, sinks = ExportLocation(str(directory)), list[tuple[Sink, list[tuple[int, int]]]]()
    write = Sink.write

    def noted(sink: Sink, data: Any) -> int:
        if not sinks or sinks[-1][0] is not sink:
            sinks.append((sink, []))
        sinks[-1][1].append((sink.size, sink.size + memoryview(data).nbytes))
        return write(sink, data)

    with (
        mock.patch.object(gathering, "BATCH_ROWS", 10),
        mock.patch.object(exporting, "FILE_ROWS", 30),
        mock.patch.object(Sink, "write", noted),
        mock.patch.object(exporting, "encode_footer", _old_footer if age == OLD else encode_footer),
        mock.patch.object(Sink, "footer", nullcontext if age == OLD else Sink.footer),
    ):
        for stream in STREAMS:
            exporting.export(Source(), stream, place, promoted=PROMOTED)
    found = {}
    for sink, writes in sinks:
        if sink.path.endswith(".parquet"):
            found[sink.path] = _whole(directory, sink.path, writes)
    for stream in STREAMS:
        path = manifest_path(stream)
        if age == OLD:
            _make_old(_at(directory, path))
        data = _at(directory, path).read_bytes()
        if age == BARE:
            _at(directory, path).unlink()
        else:
            found[path] = Whole(stream, data, {MANIFEST: [(0, len(data))]}, (), 0)
    return found


def _at(directory: Path, path: str) -> Path:
    """Return a file of an export, or its manifest beside it."""
    return Path(ExportLocation(str(directory)).full(path))


def _old_footer(stream: str, promoted: Any, part: Any, blocks: Blocks) -> dict[bytes, bytes]:
    [(key, text)] = encode_footer(stream, promoted, part, blocks).items()
    value = json.loads(text)
    del value["blocks"]
    return {key: json.dumps(value).encode()}


def _make_old(path: Path) -> None:
    value = json.loads(path.read_text())
    del value["crc32"]
    for entry in value["files"]:
        del entry["checksums"]
    path.write_text(json.dumps(value, indent=1))


def _whole(directory: Path, path: str, writes: Sequence[tuple[int, int]]) -> Whole:
    data = _at(directory, path).read_bytes()
    metadata = pq.read_metadata(_at(directory, path))
    places: dict[str, list[tuple[int, int]]] = {}
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(n) for n in range(group.num_columns)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        for chunk, start in zip(chunks, starts, strict=True):
            stop = start + chunk.total_compressed_size
            within = [each for each in writes if start <= each[0] < stop]
            assert within[-1][1] == stop
            for n, each in enumerate(within):
                kinds = (DICTIONARY_HEAD, DICTIONARY) if chunk.has_dictionary_page and n < 2 else (HEAD, PAGE)
                places.setdefault(kinds[n % 2], []).append(each)
        bounds = chunks[0].statistics
        groups.append(Group(starts[0], stop, bounds.min, bounds.max))
    size, footer = len(data), groups[-1].stop
    places |= {MAGIC: [(0, 4)], FOOTER: [(footer, size - 8)], LENGTH: [(size - 8, size)]}
    [stream] = [name for name in STREAMS if path.startswith(f"stream={name.replace('/', '%2F')}/")]
    return Whole(stream, data, places, groups, footer)


# --- the damages


Files = dict[str, bytes | None]
"""The files that are other than before; None for one that is not there."""


def flip(data: bytearray, start: int, stop: int, chance: Random) -> None:
    """One bit."""
    data[chance.randrange(start, stop)] ^= 1 << chance.randrange(8)


def zero(data: bytearray, start: int, stop: int, chance: Random) -> None:
    """A block, which may go on behind this place."""
    begin, size = _block(data, start, stop, chance)
    data[begin : begin + size] = bytes(size)


def noise(data: bytearray, start: int, stop: int, chance: Random) -> None:
    """The same with other bytes."""
    begin, size = _block(data, start, stop, chance)
    data[begin : begin + size] = chance.randbytes(size)


def swap(data: bytearray, start: int, stop: int, chance: Random) -> None:
    """Two blocks of the file, one of them here."""
    begin, size = _block(data, start, stop, chance)
    other = chance.randrange(len(data) - size + 1)
    one, two = data[begin : begin + size], data[other : other + size]
    data[begin : begin + size] = two
    data[other : other + size] = one


def _block(data: bytearray, start: int, stop: int, chance: Random) -> tuple[int, int]:
    size = min(chance.choice([1, 4, 16, 64, 512, 4096, stop - start]), len(data))
    return min(chance.randrange(start, stop), len(data) - size), size


def cut(data: bytearray, start: int, stop: int, chance: Random) -> None:
    """The file, somewhere here."""
    del data[chance.randrange(start, stop) :]


def append(data: bytearray, start: int, stop: int, chance: Random) -> None:
    """Bytes behind the file: others, zeros, or some of its own."""
    size = chance.choice([1, 8, 100, 5000])
    data += chance.choice([chance.randbytes(size), bytes(size), bytes(data[-size:])])


def remove(whole: Mapping[str, Whole], path: str, chance: Random) -> Files:
    """The file."""
    return {path: None}


def exchange(whole: Mapping[str, Whole], path: str, chance: Random) -> Files:
    """The file with another one of its kind."""
    other = chance.choice([name for name in whole if name != path and name[-4:] == path[-4:]])
    return {path: whole[other].data, other: whole[path].data}


def copy(whole: Mapping[str, Whole], path: str, chance: Random) -> Files:
    """Another one of its kind in its place."""
    return {path: exchange(whole, path, chance)[path]}


WITHIN: Sequence[Callable[[bytearray, int, int, Random], None]] = (flip, zero, noise, swap, cut, append)
OF_FILES: Sequence[Callable[[Mapping[str, Whole], str, Random], Files]] = (remove, exchange, copy)
WAYS = (*WITHIN, *OF_FILES)
AGES = (NEW, NEW, OLD, NEW, BARE)


class Case(NamedTuple):
    """One damage: how, where, of which export, and what it makes of the files."""

    way: str
    kind: str
    age: str
    files: Files


def case(whole: Mapping[str, Mapping[str, Whole]], number: int, seed: int) -> Case:
    """The damage of a number: each export, each kind of place and each way in turn."""
    chance = Random(f"{seed} {number}")
    age = AGES[number % len(AGES)]
    kind = KINDS[number // len(AGES) % len(KINDS)]
    way = WAYS[number // (len(AGES) * len(KINDS)) % len(WAYS)]
    if age == BARE and (kind == MANIFEST or way is remove):
        age = NEW  # nothing says there which files there are
    there = whole[age]
    path = chance.choice([path for path, one in there.items() if kind in one.places])
    if way in OF_FILES:
        return Case(way.__name__, kind, age, way(there, path, chance))  # type: ignore[operator]
    data = bytearray(there[path].data)
    way(data, *chance.choice(there[path].places[kind]), chance)  # type: ignore[operator]
    return Case(way.__name__, kind, age, {path: bytes(data)})


# --- what is to be reported


class Change(NamedTuple):
    """The effect of a damage on readers of a data file: all of it, or some row groups."""

    groups: Sequence[Group]
    is_whole: bool = False

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """The loss, as it is reported."""
        if self.is_whole:
            return [(self.groups[0].first, self.groups[-1].last)]
        return [(group.first, group.last) for group in self.groups]


def change_of(one: Whole, data: bytes | None, age: str) -> Change:
    """The changed bytes of a data file."""
    if data == one.data:
        return Change(())
    if data is None or age == OLD:
        return Change(one.groups, is_whole=True)
    size = min(len(data), len(one.data))
    wrong = np.flatnonzero(np.frombuffer(data, np.uint8, size) != np.frombuffer(one.data, np.uint8, size))
    # Without a manifest nobody knows where the end has been.
    is_end = len(data) < len(one.data) or (age == BARE and len(data) > len(one.data))
    if is_end or (wrong >= one.data_size).any():
        return Change(one.groups, is_whole=True)
    return Change([group for group in one.groups if ((wrong >= group.start) & (wrong < group.stop)).any()])


def is_other(one: Whole, data: bytes | None) -> bool:
    """Whether a manifest says something else than before, or nothing."""
    try:
        return data is None or json.loads(data) != json.loads(one.data)
    except (ValueError, RecursionError):
        return True


# --- the readers


def read_source(
    directory: Path, stream: str, columns: Sequence[str], rows: int, bounds: HistoryBounds = EVERYTHING
) -> tuple[pa.Table, list[tuple[str, int, int]]]:
    """As the tasks of the data source `malamute` read it: the rows, and files and ranges of what is lost."""
    options = SourceOptions(path=str(directory), stream=stream, rows=rows)
    query = ReadQuery(options, options.promoted(), bounds, tuple(columns))
    batches, lost = [], []
    for piece in slices(query):
        for item in read(query, piece):
            if isinstance(item, LostRange):
                assert item.stream == stream
                assert item.reason
                if item.reason != GAP_REASON:
                    lost.append((item.path, item.first, item.last))
            else:
                batches.append(item.select(columns))
    return pa.Table.from_batches(batches) if batches else pa.table({}), lost


SCANNED = ("sequence", "time_ns", "subject", "body", "size", "headers", "frames")


def read_jobs(
    directory: Path, stream: str, shares: int
) -> tuple[list[dict[str, Any]], Sequence[ExportDamage]]:
    """As the tasks of `analyze`, `match` and `replay` read it."""
    history = ExportedHistory(str(directory), HistoryBounds((stream,)))
    assert history.seconds() >= 0
    with mock.patch.object(scan, "PART_ROWS", 1):  # each row group is a part
        pieces = [share for piece in history.pieces for share in piece.split(piece.size_bytes // shares + 1)]
        found = [*scan.read(history.location, pieces, SCANNED, history.bounds)]
    rows = [row for part in found if not isinstance(part, ExportDamage) for row in part.batch.to_pylist()]
    return rows, [item for item in found if isinstance(item, ExportDamage)]


class Expected(NamedTuple):
    """The rows that both readers read of a stream before any damage."""

    source: pa.Table
    jobs: Mapping[int, Mapping[str, Any]]


def expect(directory: Path) -> dict[str, Expected]:
    """Read all of it."""
    found = {}
    for stream in STREAMS:
        source, lost = read_source(directory, stream, ALL, 0)
        jobs, damages = read_jobs(directory, stream, 1)
        assert not damages
        assert all(first > last for _, first, last in lost)
        found[stream] = Expected(source, {row["sequence"]: row for row in jobs})
    return found


# --- what they have to say

UNHARMED, VERIFIED, REPORTED, UNCOVERED = "unharmed", "verified", "reported", "not covered"
"""Nothing is other than before; `verify` alone says what is; readers say it; or nobody has to."""


@dataclass(frozen=True)
class Trial:
    """A damaged export, what it was before, and what has to be read."""

    directory: Path
    one: Case
    whole: Mapping[str, Whole]
    expected: Mapping[str, Expected]
    chance: Random

    def outcome(self) -> str:
        """Return the outcome. Raises `AssertionError`."""
        streams = {self.whole[path].stream for path in self.one.files}
        is_old = self.one.age == OLD and self.one.kind == MANIFEST
        words = [self._old_manifest(stream) if is_old else self._stream(stream) for stream in streams]
        return max(words, key=(UNHARMED, VERIFIED, REPORTED, UNCOVERED).index)

    def _stream(self, stream: str) -> str:
        manifest = manifest_path(stream)
        of = {path: data for path, data in self.one.files.items() if self.whole[path].stream == stream}
        changes = {path: change_of(self.whole[path], data, self.one.age) for path, data in of.items()}
        changes.pop(manifest, None)
        is_damaged = manifest in of and is_other(self.whole[manifest], of[manifest])
        lost = [(path, *of) for path, change in changes.items() for of in change.ranges]
        if is_damaged or self.one.age == BARE:
            lost.append((manifest, 1, 0))
        self._source(stream, lost)
        is_there = is_damaged and of[manifest] is not None
        if self.chance.random() < 0.5:
            self._jobs(stream, changes, {(manifest, -1)} if is_there else set())
        wrong = {path for path in changes if of[path] != self.whole[path].data}
        if is_damaged or self.one.age == BARE:
            wrong = {manifest}  # there is nothing to hold the others against
        assert faults(self.directory, stream) == wrong, f"verify reports {faults(self.directory, stream)}"
        if is_damaged or any(first <= last for _, first, last in lost):
            return REPORTED
        is_same = all(of[path] == self.whole[path].data for path in changes)
        return UNHARMED if is_same else UNCOVERED if self.one.age == BARE else VERIFIED

    def _source(self, stream: str, lost: Sequence[tuple[str, int, int]]) -> None:
        expected = self.expected[stream].source
        rows, found = read_source(self.directory, stream, ALL, self.chance.choice([0, 9]))
        assert sorted(found) == sorted(lost), f"reported {found}, not {lost}"
        _check_rows(rows, found, expected)
        if self.chance.random() < 0.7:
            return
        # Who reads a part need not notice what is wrong elsewhere.
        columns = ["sequence", *(name for name in ALL[1:] if self.chance.random() < 0.2)]
        least = self.chance.randrange(140)
        few, found = read_source(self.directory, stream, columns, 0, HistoryBounds(first=least))
        ranges = {(path, first if first > last else max(first, least), last) for path, first, last in lost}
        assert {*found} <= ranges, f"reported {found}, not {ranges}"
        _check_rows(few, found, expected.select(columns), least)

    def _jobs(self, stream: str, changes: Mapping[str, Change], also: set[tuple[str, int]]) -> None:
        rows, damages = read_jobs(self.directory, stream, self.chance.choice([1, 3]))
        root = str(self.directory)
        found = {(damage.path.removeprefix(root).lstrip("/"), damage.row_group) for damage in damages}
        allowed, needed = {*also}, {*also}
        lost: set[int] = set()
        for path, change in changes.items():
            numbers = {group: number for number, group in enumerate(self.whole[path].groups)}
            if change.is_whole:
                needed.add((path, -1))
            for group in change.groups:
                key = path, -1 if change.is_whole else numbers[group]
                allowed.add(key)  # they do not read all columns
                if key in found:
                    lost |= {*range(group.first, group.last + 1)}
        assert needed <= found <= allowed, f"jobs report {found}, not {allowed}"
        assert len(found) == len(damages)
        rest = [row for number, row in self.expected[stream].jobs.items() if number not in lost]
        assert rows == rest, "the rows of the jobs are other than before"

    def _old_manifest(self, stream: str) -> str:
        """One without a checksum is believed if it can be read. The results are errors of our own."""
        try:
            load(ExportLocation(str(self.directory)), stream)
        except MalamuteError:
            rows, lost = read_source(self.directory, stream, ALL, 0)
            assert lost == [(manifest_path(stream), 1, 0)]
            _check_rows(rows, lost, self.expected[stream].source)
            assert faults(self.directory, stream) == {manifest_path(stream)}
            return REPORTED
        with suppress(MalamuteError):
            read_source(self.directory, stream, ALL, 0)
        with suppress(MalamuteError):
            read_jobs(self.directory, stream, 1)
        faults(self.directory, stream)
        return UNCOVERED


def _check_rows(
    rows: pa.Table, lost: Iterable[tuple[str, int, int]], expected: pa.Table, least: int = 0
) -> None:
    numbers = expected.column("sequence")
    keep = pc.greater_equal(numbers, least)
    for _, first, last in lost:
        keep = pc.and_(keep, pc.or_(pc.less(numbers, first), pc.greater(numbers, last)))
    rest = expected.filter(keep)
    assert rows.num_rows == rest.num_rows, f"{rows.num_rows} rows, not {rest.num_rows}"
    assert not rest.num_rows or rows.equals(rest), "rows are other than before"


def faults(directory: Path, stream: str) -> set[str]:
    """The files that `malamute journal export verify` reports."""
    return {found.path for found in verify(ExportLocation(str(directory)), stream) if found.fault}


# --- many of them


def try_all(numbers: Sequence[int], seed: int, directory: Path, said: Connection) -> None:
    """Try the damages of these numbers, and say what came of each."""
    with tempfile.TemporaryDirectory(dir=directory) as made:
        whole = {age: make(Path(made, age), age) for age in (NEW, OLD, BARE)}
        expected = {age: expect(Path(made, age)) for age in whole}
        for number in numbers:
            one = case(whole, number, seed)
            try:
                with changed(Path(made, one.age), one.files, whole[one.age]) as place:
                    word = Trial(place, one, whole[one.age], expected[one.age], Random(number)).outcome()
            except Exception as error:
                word = f"FAULT {type(error).__name__} {error} {[*one.files]}"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            said.send(Tried(number, one.way, one.kind, one.age, word, peak))
    said.close()


@contextmanager
def changed(directory: Path, files: Files, whole: Mapping[str, Whole]) -> Iterator[Path]:
    """An export with some files that are other than before, until the block ends."""
    for path, data in files.items():
        if data is None:
            _at(directory, path).unlink()
        else:
            _at(directory, path).write_bytes(data)
    try:
        yield directory
    finally:
        for path in files:
            _at(directory, path).write_bytes(whole[path].data)


class Tried(NamedTuple):
    """The outcome of a damage, and the most memory of the process so far."""

    number: int
    way: str
    kind: str
    age: str
    outcome: str
    peak_mib: int


def run(count: int, seed: int, directory: Path, first: int = 0) -> Iterator[Tried]:
    """Try so many damages in a child process; another one goes on if it is ended or hangs."""
    context, number = get_context("spawn"), first
    while number < first + count:
        heard, said = context.Pipe(duplex=False)
        child = context.Process(target=try_all, args=(range(number, first + count), seed, directory, said))
        child.start()
        said.close()
        with suppress(EOFError):
            while heard.poll(SECONDS):
                found = heard.recv()
                number = found.number + 1
                yield found
            child.kill()
        child.join()
        if number < first + count:
            yield Tried(number, "", "", "", f"FAULT the process was ended: {child.exitcode}", 0)
            number += 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    chosen = parser.parse_args()
    total: Counter[tuple[str, str, str]] = Counter()
    memory, peaks = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None, [0]
    with tempfile.TemporaryDirectory(dir=memory) as made:
        for number, way, kind, age, word, peak in run(chosen.count, chosen.seed, Path(made), chosen.first):
            if word.startswith("FAULT"):
                print(f"seed {chosen.seed}, number {number}: {way} {kind} {age}: {word}", flush=True)
            total[age, kind, "FAULT" if word.startswith("FAULT") else word] += 1
            peaks.append(peak)
            if number % 1000 == 999:
                words = Counter(word for _, _, word in total.elements())
                print(number + 1, dict(words), f"{peak} MiB", flush=True)
    print(f"seed {chosen.seed}, {max(peaks)} MiB at most")
    for (age, kind, word), times in sorted(total.items()):
        print(f"{age:5} {kind:16} {word:12} {times:9,}")
    sys.exit(any(word == "FAULT" for *_, word in total))


if __name__ == "__main__":
    main()
