"""Opens the states in which a power failure can leave the disk of a broker: `make crash-states`.

A broker is recorded while it works (`crash_recorder`). Then the data file and the write-ahead log are built
as they may be after each entry of the log of the disk (`crash_disk`), with any part of the unsynced sectors.
LMDB reads each such data file, which has to be that after a whole transaction: the last one that is durable,
or the one under way. And both files together have to keep what the broker had promised by then
(`crash_promises`): the real store is opened on them, and a core is started. The same values and records keep
the same promises, so that is done once for all states of a moment that have them.

In some states the free pages are tried, too: the store is opened, written to, and read once more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple

import lmdb
from crash_disk import MARK, NAMED, SYNC, SYNCED, Disk, Entry, Write, read_log, sample
from crash_promises import Broken, Promises
from crash_recorder import SIZE, build, record

from malamute.errors import MalamuteError
from malamute.journal.disk import DiskStore
from malamute.journal.format import CHUNK, META, decode_meta
from malamute.journal.format import key as key_of_value
from malamute.journal.write_ahead import FILE, find_records
from malamute.store.operations import AppendChunk, Chunk, PutMessages, StreamState

WRITTEN_EVERY = 16
"""One in so many states is recovered, verified and written to as well."""

Values = list[tuple[bytes, bytes]]


class Count(NamedTuple):
    """The tried states. `promises` is how often a store was held against all that had been confirmed."""

    moments: int
    states: int
    written: int
    promises: int
    confirmed: int


class Trial:
    """A data directory, preferably in memory, in which one state after the other is opened."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True)
        self.directory = directory
        self._file = os.open(directory / "data.mdb", os.O_RDWR | os.O_CREAT, 0o640)
        self._high = 0

    def show(self, disk: Disk, kept: Sequence[Write], log: bytes = b"") -> None:
        """Have the data file be what is durable, and these sectors; and the write-ahead log be this."""
        if log:
            (self.directory / FILE).write_bytes(log)
        else:
            (self.directory / FILE).unlink(missing_ok=True)
        end = max([len(disk.durable), *(write.offset + len(write.data) for write in kept)])
        self._high = max(self._high, end)
        image = bytearray(self._high)
        image[: len(disk.durable)] = disk.durable
        for offset, data in kept:
            image[offset : offset + len(data)] = data
        os.pwrite(self._file, image, 0)
        os.ftruncate(self._file, max(disk.length, end))

    def clear(self) -> None:
        """Forget what was written to the file by others."""
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Checker:
    """Goes through a log, and opens the states of those moments that are its own."""

    def __init__(
        self, log: Path, directory: Path, *, each: int, seed: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        self._log = read_log(log)
        self._trial = Trial(directory)
        self._each = each
        self._chance = Random(f"{seed} {share}")
        self._share = share
        self._promises = Promises()
        self._asked = self._promises.asked()
        self._before: Values | None = None
        """The values after the last transaction that is durable; None as long as there is none."""
        self._kept: tuple[object, ...] = ()
        self._ahead = Disk()
        self._moments = self._states = self._written = self._checked = 0

    def run(self) -> Count:
        """Open the states. Raises Broken with the moment, if one is not what it has to be."""
        disk = Disk()
        with closing(self._trial):
            for moment, (entry, marks) in enumerate(_moments(self._log)):
                (self._ahead if entry.file else disk).take(entry)
                self._asked = self._promises.asked()
                for packed in marks:
                    self._promises.take(packed)
                if not disk.is_there:
                    continue
                try:
                    self._moment(
                        disk,
                        not entry.file and entry.kind in (NAMED, SYNC, SYNCED),
                        moment % self._share[1] == self._share[0],
                    )
                except (Broken, MalamuteError, lmdb.Error) as error:
                    raise Broken(f"moment {moment}, state {self._states}: {error}") from error
        return Count(self._moments, self._states, self._written, self._checked, self._promises.count)

    def _moment(self, disk: Disk, is_committed: bool, is_mine: bool) -> None:
        if is_committed:
            self._before = self._values(disk, ())
        if not is_mine:
            return
        self._moments += 1
        after = self._values(disk, disk.pending) if disk.pending and self._before is not None else None
        both = [*((0, w) for w in disk.pending), *((1, w) for w in self._ahead.pending)]
        for some in sample(both, self._each, self._chance):
            self._states += 1
            kept = [write for file, write in some if not file]
            self._try(disk, kept, after, self._log_of([write for file, write in some if file]))

    def _log_of(self, kept: Sequence[Write]) -> bytes:
        """The write-ahead log with these sectors; nothing as long as it does not have its name."""
        if not self._ahead.is_there:
            return b""
        image = bytearray(self._ahead.durable)
        for offset, data in kept:
            image[offset : offset + len(data)] = data
        return bytes(image)

    def _values(self, disk: Disk, kept: Sequence[Write], log: bytes = b"") -> Values:
        """The findings of the real LMDB, which reads the data file and nothing else."""
        self._trial.show(disk, kept, log)
        return self._values_now()

    def _values_now(self) -> Values:
        directory = str(self._trial.directory)
        with (
            lmdb.open(directory, map_size=SIZE, readonly=True, lock=False) as environment,
            environment.begin() as transaction,
            transaction.cursor() as cursor,
        ):
            return [*cursor]

    def _open(self) -> DiskStore:
        return DiskStore.open(self._trial.directory, size=SIZE, preallocate=False)

    def _try(self, disk: Disk, kept: Sequence[Write], after: Values | None, log: bytes) -> None:
        if self._before is None:
            self._try_new(disk, kept)
            return
        found = self._values(disk, kept, log)
        if found not in (self._before, after):
            raise Broken(f"{len(kept)} of {len(disk.pending)} sectors: no state after a whole transaction")
        meta = dict(found).get(key_of_value(META))
        if meta is None:
            raise Broken("a store without its first values")
        ahead = find_records(log, decode_meta(meta))
        if ahead.later:
            raise Broken(f"{len(ahead.later)} records of the write-ahead log are behind a damaged one")
        # The store is made of these values alone, and the same values keep the same promises.
        records = [record.lsn for record in ahead.records]
        key = found == self._before, self._promises.count, self._asked, records
        if key not in self._kept:
            self._kept = (*self._kept[-3:], key)
            self._checked += 1
            with closing(self._open()) as store:
                self._promises.check(store, self._asked)
            self._trial.clear()
            self._trial.show(disk, kept, log)
        if self._states % WRITTEN_EVERY == 0:
            self._write(found)

    def _try_new(self, disk: Disk, kept: Sequence[Write]) -> None:
        """A store that is being made has nothing in it, and a broker makes it."""
        self._trial.show(disk, kept)
        with closing(self._open()) as store:
            found = store.recover()
        if found.streams or found.queues or found.defects:
            raise Broken(f"a store that is not made yet has something in it: {found}")
        self._trial.clear()

    def _write(self, found: Values) -> None:
        """Write to the store, which takes free pages for that, and see that all else is as it was."""
        self._written += 1
        with closing(self._open()) as store:
            states = store.recover().streams
            for number in (1, 2):
                store.write(
                    [
                        *_chunks(states, number),
                        PutMessages("mailbox", "tried", number, 7, "", ["s"], [bytes(9000)]),
                    ]
                )
            assert not [damage for step in store.verify() for damage in step.damages]
        kept = dict(self._values_now())
        self._trial.clear()
        lost = [key for key, value in found if key[0] == CHUNK and kept.get(key, value) != value]
        if lost:
            raise Broken(f"after writing to it other values are in the place of {lost}")


def _moments(log: Sequence[Entry]) -> Iterator[tuple[Entry, list[bytes]]]:
    """Each entry of the disk, with the marks that follow it."""
    entry: Entry | None = None
    marks: list[bytes] = []
    for one in log:
        if one.kind == MARK:
            marks.append(one.data)
            continue
        if entry is not None:
            yield entry, marks
        entry, marks = one, []
    if entry is not None:
        yield entry, marks


def _chunks(states: Mapping[str, StreamState], number: int) -> list[AppendChunk]:
    """The next chunk of each stream, or the one after it."""
    return [
        AppendChunk(
            name, Chunk(state.reserved + number, 1, state.time_ns, bytes(9000)), state.reserved + number
        )
        for name, state in states.items()
    ]


def _check(arguments: tuple[Path, Path, int, int, tuple[int, int]]) -> Count:
    log, directory, each, seed, share = arguments
    return Checker(log, directory, each=each, seed=seed, share=share).run()


def check(log: Path, directory: Path, *, each: int, seed: int, processes: int) -> Count:
    """Open the states of a log in so many processes: a store that is damaged may end one of them.

    Raises Broken if a state is not what it has to be.
    """
    shares = [(log, directory / str(n), each, seed, (n, processes)) for n in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            counts = [*pool.map(_check, shares)]
        except BrokenProcessPool as error:
            raise Broken("a process that opened a state was ended by a signal") from error
    return Count(*map(sum, zip(*counts, strict=True)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the first recording")
    parser.add_argument("--recordings", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100, help="what clients do while the broker is recorded")
    parser.add_argument(
        "--each", type=int, default=20, help="states of each moment that has any unsynced sector"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    first = int.from_bytes(os.urandom(3)) if chosen.seed is None else chosen.seed
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    total, begun = Count(0, 0, 0, 0, 0), time.monotonic()
    for seed in range(first, first + chosen.recordings):
        with tempfile.TemporaryDirectory(dir=memory) as made:
            directory = Path(made)
            log = record(directory, build(directory), seed, chosen.steps)
            try:
                count = check(
                    log, directory / "states", each=chosen.each, seed=seed, processes=chosen.processes
                )
            except Broken as error:
                sys.exit(f"seed {seed}: {error}")
        total = Count(*map(sum, zip(total, count, strict=True)))
        said = {"seed": seed, **total._asdict(), "seconds": round(time.monotonic() - begun)}
        print(
            json.dumps(said) if chosen.json else "  ".join(f"{k} {v:,}" for k, v in said.items()), flush=True
        )


if __name__ == "__main__":
    main()
