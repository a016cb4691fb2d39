"""Entries of keys as bytes: the same in memory and in the store, so that a key is one object and no more."""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from malamute.errors import InvalidValue
from malamute.protocol.limits import NUMBER_MAX
from malamute.protocol.texts import shown

KEY_BYTES = 600
"""Memory of a key beside its own bytes, with its place in the index of the store."""

_HEAD = Struct(">QQB")
_REVISION = Struct(">Q")
_INTEGER = re.compile(rb"-?[0-9]{1,19}")


class KeyEntry(NamedTuple):
    """The entry of a key; `due_ns` is when it expires, or 0. Its `user` is who has put it."""

    revision: int
    due_ns: int
    user: str
    value: bytes


def pack_entry(entry: KeyEntry) -> bytes:
    """Return the bytes of an entry."""
    user = entry.user.encode()
    return b"".join((_HEAD.pack(entry.revision, entry.due_ns, len(user)), user, entry.value))


def unpack_entry(packed: bytes) -> KeyEntry:
    """Return the entry in some bytes. Raises `ValueError` or `struct.error` for others."""
    revision, due_ns, length = _HEAD.unpack_from(packed)
    end = _HEAD.size + length
    if end > len(packed):
        raise ValueError("entry of a key is cut")
    return KeyEntry(revision, due_ns, packed[_HEAD.size : end].decode(), packed[end:])


def revision_of(packed: bytes) -> int:
    """Return the revision of an entry."""
    revision: int = _REVISION.unpack_from(packed)[0]
    return revision


def due_of(packed: bytes) -> int:
    """Return when an entry expires, in nanoseconds, or 0."""
    due_ns: int = _HEAD.unpack_from(packed)[1]
    return due_ns


def user_of(packed: bytes) -> str:
    """Return the user who has put an entry."""
    return packed[_HEAD.size : _HEAD.size + packed[_HEAD.size - 1]].decode()


def cost_of(key: str, packed: bytes) -> int:
    """Return the memory that a key takes, in bytes."""
    return KEY_BYTES + len(key.encode()) + len(packed)


def number_of(key: str, value: bytes) -> int:
    """Return the integer that a value is. Raises `InvalidValue` for any other value."""
    number = int(value) if _INTEGER.fullmatch(value) else NUMBER_MAX + 1
    return checked_number(key, number, f"value {shown(value[:40])}")


def checked_number(key: str, number: int, what: str) -> int:
    """Return an integer that a key may have. Raises `InvalidValue` for one out of bounds."""
    if not -NUMBER_MAX <= number <= NUMBER_MAX:
        raise InvalidValue(
            f"{what} of key {key!r} is no number to add to: expected an integer from -{NUMBER_MAX} to "
            f"{NUMBER_MAX} in decimal digits"
        )
    return number
