"""The value in a pair's register: who is primary, and whose disks have all that was confirmed.

Theory. A member is a directory and not a host: `replica` are random bits that a directory got when it was
made, so an emptied or exchanged one is another member. `change` are random bits of one value alone. So no
content ever comes back, an engine that compares contents is as safe as one that counts versions, and a node
knows its own swap when it reads it. Each start of a primary begins a timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from malamute.errors import AccessRefused, InUse, Malformed, NotFound

VALUE_BYTES_MAX = 4096
"""The size of an encoded value."""

FORMAT = 1
MEMBERS_MAX = 2

Bits = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""128 random bits."""

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The name of a member."""

Address = Annotated[str, Meta(max_length=255)]
Small = Annotated[int, Meta(ge=0, lt=2**31)]
Lsn = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Timeline = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Level(Struct, frozen=True, array_like=True):
    """The formats of stores, kinds of operations and protocols of a pair that a version of Malamute reads."""

    store_format: Small
    operations: Small
    protocol: Small

    def reads(self, other: Level) -> bool:
        """Return whether all is read that the other one writes."""
        return (
            self.store_format >= other.store_format
            and self.operations >= other.operations
            and self.protocol >= other.protocol
        )

    def __str__(self) -> str:
        return f"format {self.store_format}, {self.operations} operations, protocol {self.protocol}"


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """A directory, its level, the URL of its link, those for clients, and the public key of its link."""

    replica: Bits
    level: Level
    link: Address
    urls: Annotated[tuple[Address, ...], Meta(max_length=4)] = ()
    key: Annotated[str, Meta(max_length=40)] = ""


class PairValue(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state of a pair in its register. `decode` and the functions below return consistent ones."""

    format: Annotated[int, Meta(ge=1, le=FORMAT)] = FORMAT
    pair: Bits
    timeline: Timeline
    primary: Name
    in_sync: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MEMBERS_MAX)]
    members: Annotated[Mapping[Name, Member], Meta(min_length=1, max_length=MEMBERS_MAX)]
    change: Bits

    def other(self, name: str) -> str | None:
        """Return the name of the other member, if there is one."""
        return next((one for one in self.members if one != name), None)

    def has(self, name: str, replica: bytes) -> bool:
        """Return whether a directory is the member of this name."""
        return name in self.members and self.members[name].replica == replica


_decoder = msgspec.json.Decoder(PairValue)


def encode(value: PairValue) -> bytes:
    """Return the bytes of a value. Raises: Malformed for one that `decode` would refuse."""
    data = msgspec.json.encode(value)
    decode(data)
    return data


def decode(data: bytes) -> PairValue:
    """Return a value. Raises: Malformed."""
    if len(data) > VALUE_BYTES_MAX:
        raise Malformed(f"register value of {len(data)} bytes: expected at most {VALUE_BYTES_MAX}")
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"register value of no pair, or of a newer version: {error}") from error
    replicas = {member.replica for member in value.members.values()}
    if (
        value.primary not in value.in_sync
        or not {*value.in_sync} <= value.members.keys()
        or len({*value.in_sync}) != len(value.in_sync)
    ):
        raise Malformed("register value that contradicts itself: expected a primary in sync, and members")
    if len(replicas) != len(value.members):
        raise Malformed("register value with one directory under two names: join with another directory")
    return value


def created(pair: bytes, name: str, member: Member, timeline: int, change: bytes) -> PairValue:
    """Return the first value of a pair, to be swapped for none. `timeline` is that of the directory, or 1."""
    return PairValue(
        pair=pair,
        timeline=max(1, timeline),
        primary=name,
        in_sync=(name,),
        members={name: member},
        change=change,
    )


def joined(value: PairValue, name: str, member: Member, change: bytes) -> PairValue:
    """Return the value with a member more, or with another directory under its name; it is not in sync.

    Raises: InUse for a third member and for a directory that has the other's replica, AccessRefused for the
    name of the primary, and for a version that reads less than the primary writes.
    """
    other = value.other(name)
    if name not in value.members and len(value.members) == MEMBERS_MAX:
        raise InUse(
            f"the pair has two members: {', '.join(value.members)}; expected the name of one to replace"
        )
    if other is not None and value.members[other].replica == member.replica:
        raise InUse(
            f"this directory is a copy of that of {other}: expected one of its own, with `join --new`"
        )
    if name == value.primary:
        if not value.has(name, member.replica):
            raise AccessRefused(f"{name} is the primary, with another directory: expected another name")
    elif not member.level.reads(value.members[value.primary].level):
        raise AccessRefused(
            f"this version has {member.level}, and the primary {value.members[value.primary].level}:"
            " expected the same or a newer version here"
        )
    stays = value.has(name, member.replica)
    return replace(
        value,
        members={**value.members, name: member},
        in_sync=tuple(one for one in value.in_sync if stays or one != name),
        change=change,
    )


def check(value: PairValue | None, pair: bytes | None, timeline: int, name: str, replica: bytes) -> PairValue:
    """Return the value if a directory may act on it.

    `pair` and `timeline` are those of the directory. Raises: NotFound for a register without a value and for
    a stranger, AccessRefused for another pair's value, an older one, and a name with another directory.
    """
    if value is None:
        raise NotFound("the register has no pair: expected one made with `malamute pair create`")
    if pair is not None and value.pair != pair:
        raise AccessRefused(
            f"the register has pair {value.pair.hex()}: expected {pair.hex()}, as the directory"
        )
    if value.timeline < timeline:
        raise AccessRefused(
            f"the register has timeline {value.timeline}, and the directory {timeline}: it lost its data;"
            " `malamute pair create --force` where the newest data are"
        )
    if name not in value.members:
        raise NotFound(f"{name} is no member of the pair: expected one after `malamute pair join`")
    if value.members[name].replica != replica:
        raise AccessRefused(f"{name} has another directory: expected that one, or `malamute pair join --new`")
    return value
