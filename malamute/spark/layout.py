"""Paths in an exported directory. Pure.

    DIR/stream=NAME/date=2024-05-31/00000000000000000001-00000000000000250000.parquet
    DIR.manifest/stream=NAME.json

The manifest is beside the directory, since some readers take every file in it for data. Where nothing can be
beside it (it is a bucket, or where a disk is mounted), and in exports of earlier versions at a URL, the
manifest is `DIR/_manifest/stream=NAME.json`.

In NAME the characters that mean something in a path are percent-encoded, and no others: Spark could not read
escapes of other characters. A name that is too long for a directory is cut, and ends with `%7E` and its hash;
the manifest and the files have it whole. A file holds the messages of one stream and one UTC date from its
first to its last sequence, in order; the order of the names is the order of the sequences.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from urllib.parse import unquote

from malamute.protocol.time_units import NS_PER_SECOND

MANIFEST = ".manifest"
"""The directory of the manifests, one for each stream: what stands behind the path of the export."""

INNER_MANIFEST = "/_manifest"
"""The same, where it is within the export."""

STREAM, DATE, SUFFIX = "stream=", "date=", ".parquet"

NAME_BYTES_MAX = 230
"""The longest name of a directory that every file system takes, with room for its prefix."""

CUT_BYTES_MAX = 160
"""Bytes of a longer name that stand before its hash."""

SHORTENED = "%7E"
"""Stands before the hash of a name that was cut, and in no other: its character is never encoded."""

NULL_OF_HIVE = "__HIVE_DEFAULT_PARTITION__"
"""A name that Spark and others read as null."""

_SPECIAL = re.compile(r"""["#%'*/:=?\\{}\[\]^]""")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def quoted(stream: str) -> str:
    """Return a stream's name as part of a path that file systems can hold."""
    name = _encoded(stream)
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    kept = len(stream)
    while len(_encoded(stream[:kept]).encode()) > CUT_BYTES_MAX:
        kept -= 1
    return f"{_encoded(stream[:kept])}{SHORTENED}{sha256(stream.encode()).hexdigest()[:32]}"


def _encoded(stream: str) -> str:
    name = _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", stream)
    return f"%5F{name[1:]}" if name == NULL_OF_HIVE else name


def stream_directory(stream: str) -> str:
    """Return the directory of a stream, relative to the export."""
    return STREAM + quoted(stream)


def manifest_path(stream: str) -> str:
    """Return the manifest of a stream, behind the path of the export."""
    return f"{MANIFEST}/{stream_directory(stream)}.json"


def value_of(directory: str) -> str:
    """Return the value of a stream's directory for readers: its stream, unless that was cut."""
    return unquote(directory.removeprefix(STREAM))


def date_of(time_ns: int) -> str:
    """Return the UTC date of a broker's time."""
    return (_EPOCH + timedelta(seconds=time_ns // NS_PER_SECOND)).date().isoformat()


def range_of_file(path: str) -> tuple[int, int] | None:
    """Return the first and the last sequence in the name of a file; None for any other name."""
    numbers = path.rpartition("/")[2].removesuffix(SUFFIX).split("-")
    if len(numbers) != 2 or not all(map(str.isdecimal, numbers)):
        return None
    return int(numbers[0]), int(numbers[1])


def date_of_file(path: str) -> str:
    """Return the UTC date of a file, by its directory."""
    return path.rpartition("/")[0].rpartition("/")[2].removeprefix(DATE)


def file_path(stream: str, date: str, first: int, last: int) -> str:
    """Return the path of a file with a range of sequences, relative to the export."""
    return f"{stream_directory(stream)}/{DATE}{date}/{first:020}-{last:020}{SUFFIX}"
