"""The manifest of an exported stream: which files there are, and what is in them.

It is the account that `verify` holds the files against, and where the next export continues. A file is
renamed to where readers see it before it is entered here; an export that was killed between the two finds the
file and enters it then, from what the file says of itself in its footer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from malamute.errors import InvalidValue, StoreCorrupt, StoreTooNew
from malamute.spark.dependencies import need
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import ExportGap
from malamute.spark.layout import MANIFEST, STREAM, manifest_path, stream_directory, stream_of_manifest
from malamute.spark.schema import KINDS, Kind, Promoted

FORMAT = 1
"""The format of manifests and of files that this code writes, and the newest that it reads."""

FOOTER = b"malamute"
"""The key in the footer of a file under which it says what is in it."""

Value = TypeVar("Value")


class FileContents(NamedTuple):
    """What is in a file. `gaps` are before its messages or between them; times are in nanoseconds.

    If it is `limited`, rules kept more back from the user that exported it.
    """

    first: int
    last: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    first_time: int
    last_time: int
    gaps: tuple[ExportGap, ...] = ()
    malformed: int = 0
    limited: bool = False


class File(NamedTuple):
    """A file of an export: where it is, relative to the place; its bytes and CRC32; and what is in it."""

    path: str
    size: int
    crc: int
    part: FileContents


class Manifest(NamedTuple):
    """All files of one exported stream, in the order of their sequences."""

    stream: str
    promoted: Promoted
    files: tuple[File, ...] = ()

    @property
    def last(self) -> int:
        """The last sequence that was exported; 0 if none was."""
        return self.files[-1].part.last if self.files else 0


def encode_footer(stream: str, promoted: Promoted, part: FileContents) -> dict[bytes, bytes]:
    """What a file says of itself."""
    value = {"format": FORMAT, "stream": stream, "promoted": dict(promoted), **_part_map(part)}
    return {FOOTER: json.dumps(value).encode()}


def decode_footer(metadata: Mapping[bytes, bytes]) -> tuple[str, Promoted, FileContents]:
    """Read what a file says of itself. Raises `StoreCorrupt` when it is none of ours, or `StoreTooNew`."""
    try:
        value = json.loads(metadata[FOOTER])
        _check_format(value)
        return _typed(str, value["stream"]), _promoted_of(value), _part_of(value)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"its footer does not say what is in it: {error!r}") from error


def _part_map(part: FileContents) -> dict[str, Any]:
    return {**part._asdict(), "gaps": [list(gap) for gap in part.gaps]}


def _part_of(value: dict[str, Any]) -> FileContents:
    # What an earlier version wrote has fewer.
    names = FileContents._fields
    fields = {
        name: value[name] for name in names if name in value or name not in FileContents._field_defaults
    }
    part = FileContents(**{**fields, "gaps": tuple(_gap_of(*gap) for gap in value["gaps"])})
    for number in (part.first, part.last, part.count, part.first_time, part.last_time, part.malformed):
        _typed(int, number)
    _typed(bool, part.limited)
    return part


def _gap_of(first: Any, last: Any, reason: Any) -> ExportGap:
    return ExportGap(_typed(int, first), _typed(int, last), _typed(str, reason))


def _promoted_of(value: dict[str, Any]) -> Promoted:
    promoted: dict[str, Kind] = _typed(dict, value["promoted"])
    if not {*promoted.values()} <= {*KINDS}:
        raise ValueError(f"promoted headers of unknown kinds: {promoted!r:.100}")
    return promoted


def _typed(kind: type[Value], value: Any) -> Value:
    """A value of this very type: what is damaged is still JSON, often. Raises `TypeError`."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.100}: expected {kind.__name__}")
    return value


def _check_format(value: dict[str, Any]) -> None:
    if value["format"] > FORMAT:
        raise StoreTooNew(
            f"export has format {value['format']}: expected {FORMAT} or lower; read it with a newer Malamute"
        )


def exported_streams(place: ExportLocation) -> list[str]:
    """The streams that have a manifest."""
    names = [path.removeprefix(f"{MANIFEST}/") for path in place.files(MANIFEST)]
    return [stream_of_manifest(name) for name in names if name.startswith(STREAM)]


def load(place: ExportLocation, stream: str) -> Manifest | None:
    """The manifest of a stream; None if there is none. Raises `StoreCorrupt`, `StoreTooNew`."""
    path = manifest_path(stream)
    if not place.is_there(path):
        return None
    try:
        value = json.loads(place.read(path))
        _check_format(value)
        if value["stream"] != stream:
            raise ValueError(f"it is that of {value['stream']!r:.100}")
        return Manifest(stream, _promoted_of(value), tuple(map(_file_of, value["files"])))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreCorrupt(f"{path} is no manifest: {error!r}") from error


def _file_of(entry: dict[str, Any]) -> File:
    path, size, crc = entry["path"], entry["size"], entry["crc32"]
    return File(_typed(str, path), _typed(int, size), _typed(int, crc), _part_of(entry))


def save(place: ExportLocation, manifest: Manifest) -> None:
    """Write the manifest of a stream, in place of what there was."""
    files = [
        {"path": file.path, "size": file.size, "crc32": file.crc, **_part_map(file.part)}
        for file in manifest.files
    ]
    value = {"format": FORMAT, "stream": manifest.stream, "promoted": dict(manifest.promoted), "files": files}
    place.write_json(manifest_path(manifest.stream), value)


def settle(place: ExportLocation, stream: str, promoted: Promoted | None) -> Manifest:
    """The manifest to go on from, when a writer may have been killed.

    What it was writing is removed, and what it had not entered is entered. Raises `InvalidValue` when
    other headers are to be promoted than before.
    """
    directory = stream_directory(stream)
    place.clean(directory)
    manifest = load(place, stream) or Manifest(stream, promoted or {})
    if promoted is not None and dict(promoted) != dict(manifest.promoted):
        raise InvalidValue(
            f"{stream!r} was exported with other promoted headers: {dict(manifest.promoted) or 'none'}"
        )
    known = {file.path for file in manifest.files}
    for path in place.data_files(directory):
        if path not in known:
            manifest = _enter(place, manifest, path)
    return manifest


def _enter(place: ExportLocation, manifest: Manifest, path: str) -> Manifest:
    try:
        stream, promoted, part = decode_footer(read_footer(place, path))
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{path} is not in the manifest, and {error.text}") from error
    if stream != manifest.stream or part.first <= manifest.last or dict(promoted) != dict(manifest.promoted):
        raise StoreCorrupt(f"{path} is not in the manifest, and does not follow what is")
    size, crc = place.measure(path)
    manifest = manifest._replace(files=(*manifest.files, File(path, size, crc, part)))
    save(place, manifest)
    return manifest


def read_footer(place: ExportLocation, path: str) -> Mapping[bytes, bytes]:
    """What the footer of a file says besides its columns. Raises `StoreCorrupt`."""
    pq = need("pyarrow.parquet")
    try:
        return pq.read_metadata(place.full(path), filesystem=place.system).metadata or {}
    except (OSError, ValueError) as error:
        raise StoreCorrupt(f"{path} is no Parquet file: {error}") from error
