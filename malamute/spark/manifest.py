"""The manifest of an exported stream: its files, and their contents.

Readers and `verify` compare the files with the manifest, and the next export continues from it. A file gets
its final name before its entry here; after an export that was killed between the two, the next one enters the
file from its footer. A reader without a whole manifest does the same, and reports it.

The manifest ends with a checksum of its own, of its contents and not of their form.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from malamute.errors import InvalidValue, StoreCorrupt, StoreError, StoreTooNew
from malamute.protocol.limits import NUMBER_MAX
from malamute.spark.checksums import Blocks, is_footer
from malamute.spark.dependencies import need
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import ExportGap
from malamute.spark.layout import (
    MANIFEST,
    SHORTENED,
    STREAM,
    manifest_path,
    range_of_file,
    stream_directory,
    value_of,
)
from malamute.spark.schema import KINDS, Kind, Promoted

Value = TypeVar("Value")

FORMAT = 1
"""The format of manifests and of files that this code writes, and the newest that it reads."""

FOOTER = b"malamute"
"""The key of a file's contents in its footer."""


class FileContents(NamedTuple):
    """The contents of a file. `gaps` are before its messages or between them; times are in nanoseconds.

    If it is `limited`, rules withheld messages from the exporting user. `store` is the store in which its
    sequences count; an earlier version has not written it.
    """

    first: int
    last: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    first_time: int
    last_time: int
    gaps: tuple[ExportGap, ...] = ()
    malformed: int = 0
    limited: bool = False
    store: str = ""


class File(NamedTuple):
    """A file of an export: its path, relative to the location; its bytes and CRC32; and its contents.

    The record has checksums of its parts, too, unless an earlier version has written it. Of a file that is in
    no manifest `size` and `crc` are 0.
    """

    path: str
    size: int
    crc: int
    part: FileContents
    has_checksums: bool = False

    @property
    def is_checked_whole(self) -> bool:
        """Return whether only a check of the whole file is possible."""
        return bool(self.size and not self.has_checksums)


class Expired(NamedTuple):
    """The last sequence of the days that have left an export, and its store."""

    last: int = 0
    store: str = ""


class Manifest(NamedTuple):
    """All files of one exported stream, in the order of their sequences, behind its expired days.

    A manifest with a `fault` could not be read, and was made from the footers of the files.
    """

    stream: str
    promoted: Promoted
    files: tuple[File, ...] = ()
    fault: str = ""
    expired: Expired = Expired()

    @property
    def last(self) -> int:
        """Return the last exported sequence; 0 if there is none."""
        return self.files[-1].part.last if self.files else self.expired.last

    @property
    def store(self) -> str:
        """Return the store of the last file; empty if it is unknown."""
        return self.files[-1].part.store if self.files else self.expired.store

    def is_leftover(self, path: str) -> bool:
        """Return whether a file is of no use: its day has expired, or its messages are in others.

        A maintenance that was killed leaves such files: a joined one before its entry, or its parts.
        """
        if (named := range_of_file(path)) is None:
            return False
        first, last = named
        if last <= self.expired.last:
            return True
        parts = [file.part for file in self.files if file.part.first <= last and file.part.last >= first]
        is_part = len(parts) == 1
        is_joined = len(parts) > 1 and (parts[0].first, parts[-1].last) == (first, last)
        within = bool(parts) and parts[0].first <= first and last <= parts[-1].last
        return within and (is_part or is_joined)


def encode_footer(stream: str, promoted: Promoted, part: FileContents, blocks: Blocks) -> dict[bytes, bytes]:
    """Return the contents of a file for its footer."""
    about = {"stream": stream, "promoted": dict(promoted), "blocks": blocks.encode()}
    value = {"format": FORMAT, **about, **_part_map(part)}
    return {FOOTER: json.dumps(value).encode()}


def decode_footer(metadata: Mapping[bytes, bytes]) -> tuple[str, Promoted, FileContents]:
    """Read the contents of a file in its footer. Raises `StoreCorrupt` or `StoreTooNew`."""
    try:
        value = json.loads(metadata[FOOTER])
        _check_format(value)
        return _typed(str, value["stream"]), _promoted_of(value), _part_of(value)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"its footer does not say what is in it: {error!r}") from error


def decode_blocks(metadata: Mapping[bytes, bytes]) -> Blocks | None:
    """Return the checksums in the footer of a file; None if it has none. Raises `StoreCorrupt`."""
    try:
        text = json.loads(metadata.get(FOOTER, b"{}")).get("blocks")
        return None if text is None else Blocks.decode(text)
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"its footer does not say what is in it: {error!r}") from error


def _part_map(part: FileContents) -> dict[str, Any]:
    return {**part._asdict(), "gaps": [list(gap) for gap in part.gaps]}


def _part_of(value: dict[str, Any]) -> FileContents:
    # Earlier versions wrote fewer fields.
    names = FileContents._fields
    fields = {
        name: value[name] for name in names if name in value or name not in FileContents._field_defaults
    }
    part = FileContents(**{**fields, "gaps": tuple(_gap_of(*gap) for gap in value["gaps"])})
    for number in (part.first, part.last, part.count, part.first_time, part.last_time, part.malformed):
        _typed(int, number)
    _typed(bool, part.limited)
    _typed(str, part.store)
    return part


def _gap_of(first: Any, last: Any, reason: Any) -> ExportGap:
    return ExportGap(_typed(int, first), _typed(int, last), _typed(str, reason))


def _promoted_of(value: dict[str, Any]) -> Promoted:
    promoted: dict[str, Kind] = _typed(dict, value["promoted"])
    if not {*promoted.values()} <= {*KINDS}:
        raise ValueError(f"promoted headers {promoted}")
    return promoted


def _typed(kind: type[Value], value: Any) -> Value:
    """Return a value of this very type: damaged data is still JSON, often. Raises `TypeError`."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.100}: expected {kind.__name__}")
    return value


def _check_format(value: dict[str, Any]) -> None:
    if value["format"] > FORMAT:
        raise StoreTooNew(
            f"export has format {value['format']}: expected {FORMAT} or lower; read it with a newer Malamute"
        )


def exported_streams(place: ExportLocation) -> list[str]:
    """Return the streams that have a manifest, or files that readers see."""
    names = {path.removeprefix(f"{MANIFEST}/") for path in place.files(MANIFEST)}
    folders = {f"{name}.json" for name in place.folders()} - names
    found = names | {name for name in folders if place.data_files(name.removesuffix(".json"))}
    return sorted(stream_of(place, name.removesuffix(".json")) for name in found if name.startswith(STREAM))


def stream_of(place: ExportLocation, directory: str) -> str:
    """Return the stream of a directory. A name that was cut is whole in the manifest, and in the files."""
    if SHORTENED in directory:
        for name in _names(place, directory):
            if isinstance(name, str) and stream_directory(name) == directory:
                return name
    return value_of(directory)


def _names(place: ExportLocation, directory: str) -> Iterator[Any]:
    """Yield the stream named by manifest and files of a directory, as far as they can be read."""
    with suppress(StoreError, AttributeError, ValueError, RecursionError):
        yield json.loads(place.read(f"{MANIFEST}/{directory}.json")).get("stream")
    for path in place.data_files(directory):
        with suppress(StoreError):
            yield decode_footer(read_footer(place, path))[0]


def load(place: ExportLocation, stream: str) -> Manifest | None:
    """Return the manifest of a stream; None if there is none. Raises `StoreCorrupt`, `StoreTooNew`."""
    path = manifest_path(stream)
    if not place.is_there(path):
        return None
    try:
        value = json.loads(place.read(path))
        crc = value.pop("crc32", None)
        if crc not in (None, _crc_of(value)):
            raise StoreCorrupt(f"{path} is not as it was written: wrong CRC")
        _check_format(value)
        files = tuple(map(_file_of, value["files"]))
        if value["stream"] != stream:
            raise StoreCorrupt(f"{path} is that of the stream {value['stream']!r}")
        if crc is None and any(file.has_checksums for file in files):
            raise StoreCorrupt(f"{path} is not as it was written: no CRC")
        expired = Expired(*value.get("expired", ()))
        _typed(int, expired.last), _typed(str, expired.store)
        return Manifest(value["stream"], _promoted_of(value), files, expired=expired)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"{path} is no manifest: {error!r}") from error


def _file_of(entry: dict[str, Any]) -> File:
    path, size, crc = entry["path"], entry["size"], entry["crc32"]
    has_checksums = _typed(bool, entry.get("checksums", False))
    return File(_typed(str, path), _typed(int, size), _typed(int, crc), _part_of(entry), has_checksums)


def _crc_of(value: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(value).encode())


def described(place: ExportLocation, stream: str) -> Manifest | None:
    """Return the manifest of a stream for a reader, made from files if need be; None without files.

    Raises `StoreTooNew`.
    """
    fault = ""
    try:
        if (manifest := load(place, stream)) is not None:
            return manifest
    except StoreTooNew:
        raise
    except StoreError as error:
        fault = error.text
    found = [_describe(place, stream, path) for path in place.data_files(stream_directory(stream))]
    promoted = next((promoted for _, promoted in found if promoted is not None), {})
    if not found and not fault:
        return None
    fault = fault or f"{manifest_path(stream)} is not there"
    return Manifest(stream, promoted, tuple(file for file, _ in found), fault)


def _describe(place: ExportLocation, stream: str, path: str) -> tuple[File, Promoted | None]:
    """Return a file by its footer, or by its name if they disagree: its reader reports that."""
    named = range_of_file(path) or (0, 0)
    try:
        name, promoted, part = decode_footer(read_footer(place, path))
        if (name, part.first, part.last) == (stream, *named):
            return File(path, 0, 0, part), promoted
    except StoreError:
        pass
    return File(path, 0, 0, FileContents(*named, 0, 0, NUMBER_MAX)), None


def save(place: ExportLocation, manifest: Manifest) -> None:
    """Write the manifest of a stream, in place of an older one."""
    files = [_file_map(file) for file in manifest.files]
    value = {"format": FORMAT, "stream": manifest.stream, "promoted": dict(manifest.promoted), "files": files}
    if manifest.expired.last:
        value["expired"] = [*manifest.expired]
    place.write_json(manifest_path(manifest.stream), {**value, "crc32": _crc_of(value)})


def _file_map(file: File) -> dict[str, Any]:
    about = {"path": file.path, "size": file.size, "crc32": file.crc, "checksums": file.has_checksums}
    return {**about, **_part_map(file.part)}


def settle(place: ExportLocation, stream: str, promoted: Promoted | None) -> Manifest:
    """Return the manifest from which to continue, when a writer may have been killed.

    Unfinished files are removed, and those left over by a maintenance; finished ones are entered. Raises
    `InvalidValue` when other headers are to be promoted than before.
    """
    directory = stream_directory(stream)
    place.clean(directory)
    # With the data removed, it begins anew.
    manifest = None if place.is_gone() else load(place, stream)
    if manifest is None:
        there = described(place, stream) if promoted is None else None
        manifest = Manifest(stream, there.promoted if there else promoted or {})
    if promoted is not None and dict(promoted) != dict(manifest.promoted):
        raise InvalidValue(
            f"{stream!r} was exported with other promoted headers: {dict(manifest.promoted) or 'none'}"
        )
    known = {file.path for file in manifest.files}
    for path in place.data_files(directory):
        if path in known:
            continue
        if manifest.is_leftover(path):
            place.remove(path)
        else:
            manifest = _enter(place, manifest, path)
    return manifest


def _enter(place: ExportLocation, manifest: Manifest, path: str) -> Manifest:
    try:
        footer = read_footer(place, path)
        stream, promoted, part = decode_footer(footer)
        has_checksums = decode_blocks(footer) is not None
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{path} is not in the manifest, and {error.text}") from error
    if stream != manifest.stream or part.first <= manifest.last or dict(promoted) != dict(manifest.promoted):
        raise StoreCorrupt(f"{path} is not in the manifest, and does not follow what is")
    size, crc = place.measure(path)
    file = File(path, size, crc, part, has_checksums)
    manifest = manifest._replace(files=(*manifest.files, file))
    save(place, manifest)
    return manifest


def read_footer(place: ExportLocation, path: str) -> Mapping[bytes, bytes]:
    """Return the entries of a file's footer besides its columns. Raises `StoreCorrupt`."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    try:
        with place.system.open_input_file(place.full(path)) as source:
            footer = find_footer(source, source.size())
            return pq.read_metadata(source if footer is None else pa.BufferReader(footer)).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise StoreCorrupt(f"{path} is no Parquet file: {error}") from error


def find_footer(source: Any, size: int) -> bytes | None:
    """Return the footer of an open file, with its checksum before it; None if it has none.

    Raises `StoreCorrupt` for a damaged footer.
    """
    lengths = source.read_at(8, max(size - 8, 0))
    start = size - 16 - int.from_bytes(lengths[:4], "little")
    data: bytes = source.read_at(size - start, start) if start >= 0 else b""
    if len(data) < 16 or (is_right := is_footer(data)) is None:
        return None
    if not is_right:
        raise StoreCorrupt("the footer is not as it was written")
    return data
