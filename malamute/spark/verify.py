"""Verification of an export against its manifest, and against the journal that it came from.

Three questions, each of which finds faults that the others cannot. Is each file as it was written, by its
size and its CRC? Is each sequence in a file or in a gap, once, unless rules kept it back? And, as far as the
journal still has them, are the messages the same: both sides are made into columns, a batch at a time, and
compared. The journal of another store says nothing of them, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from malamute.errors import NotFound, StoreError
from malamute.protocol.batch import Columns
from malamute.spark.columns import BATCH_ROWS, batches_of
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import HistorySource, SequenceRange, check_store
from malamute.spark.layout import manifest_path, stream_directory
from malamute.spark.manifest import File, FileContents, Manifest, decode_footer, described, read_footer


class Verified(NamedTuple):
    """One verified file, or a fault around it.

    `compared` counts messages that were found to be the same in the journal. `fault` is empty when all is
    well.
    """

    path: str
    first: int
    last: int
    messages: int
    compared: int
    fault: str = ""


Progress = Callable[[int, int], None]


def verify(
    place: ExportLocation,
    stream: str,
    history: HistorySource | None = None,
    progress: Progress = lambda done, total: None,
) -> Iterator[Verified]:
    """Verify each file of an exported stream. Raises `NotFound` when the stream was never exported.

    A manifest that cannot be read is reported, and nothing can be held against it then.
    """
    manifest = described(place, stream)
    if manifest is None:
        raise NotFound(f"no export of the stream {stream!r} in {place.root}: export it first")
    if manifest.fault:
        yield Verified(manifest_path(stream), 0, 0, 0, 0, manifest.fault)
        return
    kept = history.streams().get(stream, SequenceRange(1, 0)) if history is not None else SequenceRange(1, 0)
    total, done = sum(file.part.count for file in manifest.files), 0
    reached: int | None = manifest.expired.last or None
    for file in manifest.files:
        yield _verify_file(place, manifest, file, reached, history, kept)
        reached = file.part.last
        done += file.part.count
        progress(done, total)
    yield from _strays(place, manifest)


def _verify_file(
    place: ExportLocation,
    manifest: Manifest,
    file: File,
    reached: int | None,
    history: HistorySource | None,
    kept: SequenceRange,
) -> Verified:
    part, compared = file.part, 0
    fault = _covers(part, reached)
    try:
        fault = fault or _intact(place, manifest, file)
        if not fault and history is not None:
            check_store(part.store, history, "the file", "compare it with its own")
            compared, fault = _compare(place, manifest, file, history, kept)
    except StoreError as error:
        fault = str(error)
    return Verified(file.path, part.first, part.last, part.count, compared, fault)


def _strays(place: ExportLocation, manifest: Manifest) -> Iterator[Verified]:
    """Yield files that readers see and the manifest does not have, as a killed export leaves them."""
    known = {file.path for file in manifest.files}
    for path in place.data_files(stream_directory(manifest.stream)):
        if path not in known:
            does = "removes" if manifest.is_leftover(path) else "enters"
            yield Verified(path, 0, 0, 0, 0, f"not in the manifest; the next export {does} it")


def _covers(part: FileContents, reached: int | None) -> str:
    """Return a fault unless each sequence behind the file before is in the file, or in a gap."""
    start = part.first if reached is None else reached + 1
    missing = sum(
        min(gap.last, part.last) - max(gap.first, start) + 1 for gap in part.gaps if gap.last >= start
    )
    expected = part.last - start + 1 - missing
    if part.count > expected or (part.count < expected and not part.limited):
        return f"{part.count} messages where {expected} belong, from {start} to {part.last}"
    return ""


def _intact(place: ExportLocation, manifest: Manifest, file: File) -> str:
    size, crc = place.measure(file.path)
    if size != file.size:
        return f"{size} bytes, and {file.size} were written"
    if crc != file.crc:
        return "wrong CRC"
    stream, _, part = decode_footer(read_footer(place, file.path))
    return "" if (stream, part) == (manifest.stream, file.part) else "its footer differs from the manifest"


def _compare(
    place: ExportLocation, manifest: Manifest, file: File, history: HistorySource, kept: SequenceRange
) -> tuple[int, str]:
    """Compare with the journal. Returns the number of equal messages, and the difference."""
    compared = 0
    with pq.ParquetFile(place.full(file.path), filesystem=place.system) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS):
            exported = pa.Table.from_batches([batch])
            sequences = exported.column("sequence")
            first, last = max(sequences[0].as_py(), kept.first), sequences[-1].as_py()
            if last < first:
                continue
            exported = exported.filter(pa.compute.greater_equal(sequences, first))
            runs = (item for item in history.read(manifest.stream, first, last) if isinstance(item, Columns))
            journal = pa.Table.from_batches(batches_of(runs, manifest.promoted), exported.schema)
            if file.part.limited:
                journal = journal.filter(
                    pa.compute.is_in(journal.column("sequence"), exported.column("sequence"))
                )
            if not _same(exported, journal):
                return compared, f"differs from the journal between {first} and {last}"
            compared += exported.num_rows
    return compared, ""


def _same(one: pa.Table, other: pa.Table) -> bool:
    if one.equals(other):
        return True
    # Unequal values may be NaN, which differs from itself.
    return one.num_rows == other.num_rows and _bits(one) == _bits(other)


def _bits(table: pa.Table) -> list[pa.Array]:
    """Return all columns, with numbers as their bits. Only for suspected differences, so it may copy."""
    fresh = table.take(pa.array(range(table.num_rows)))
    columns = {name: fresh.column(name).combine_chunks() for name in fresh.column_names}
    headers = columns.pop("headers")
    arrays = [headers.is_null(), headers.offsets, headers.keys, *headers.items.flatten(), *columns.values()]
    return [array.view(pa.int64()) if pa.types.is_float64(array.type) else array for array in arrays]
