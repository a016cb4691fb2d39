"""Small commands, decoded and checked by their types: one pass in C instead of a call for each rule.

These are the commands that come with each message, in the form in which the other side sends them, with all
of their fields. What the types refuse, the rules of `messages.py` decide about: it may be right all the same.
What they accept is what the rules would, with the same result; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Annotated, Any, NamedTuple, get_args

from msgspec import Meta
from msgspec.msgpack import Decoder

from malamute.protocol.batch import UNCHECKED_BYTES, pack
from malamute.protocol.limits import NUMBER_MAX, SOURCE_MAX, SUBJECT_BYTES_MAX
from malamute.protocol.messages import (
    BY_TYPE,
    UNLIMITED,
    Ack,
    Credit,
    Deliver,
    Frame,
    Message,
    Publish,
    Reply,
    Request,
    Send,
    Stored,
)
from malamute.protocol.names import is_name

_Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
_Sequence = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
_Source = Annotated[int, Meta(ge=0, le=SOURCE_MAX)]
_NewSource = Annotated[int, Meta(ge=1, le=SOURCE_MAX)]
_Credit = Annotated[int, Meta(ge=UNLIMITED, le=NUMBER_MAX)]
# Four bytes a character is the most that UTF-8 takes.
_Subject = Annotated[str, Meta(max_length=SUBJECT_BYTES_MAX // 4)]
_Subjects = Annotated[list[_Subject], Meta(min_length=1)]
# Those with bytes among them are for the rules: these types cannot say bytes beside text.
_Properties = list[dict[str, str | int | float | bool | None] | None] | None
_Ranges = list[Annotated[list[_Sequence], Meta(min_length=2, max_length=2)]]
_StoredRanges = Annotated[
    list[Annotated[list[_Number], Meta(min_length=3, max_length=3)]], Meta(min_length=1)
]


class _Typed(NamedTuple):
    """A command: its decoder, and what the types cannot say of its fields."""

    message: type[Any]
    decode: Callable[[Frame], tuple[Any, ...]]
    holds: Callable[..., bool]
    left_out: tuple[Any, ...]
    """The last fields, which are left out while they have these values."""


def _publish(_: int, stream: str, number: int, subjects: list[str], records: list[bytes]) -> bool:
    return len(subjects) == len(records) and is_name(stream)


def _send(
    _: int,
    target: str,
    number: int,
    subjects: list[str],
    records: list[bytes],
    properties: list[Any] | None,
    acks: Sequence[list[int]] = (),
) -> bool:
    return (
        len(subjects) == len(records)
        and (properties is None or len(properties) == len(records))
        and is_name(target)
        and (not acks or _in_order(acks))
    )


def _reply(
    _: int,
    source: int,
    number: int,
    sequences: list[int],
    finals: list[bool],
    records: list[bytes],
    *credit: int,
) -> bool:
    return 0 < len(sequences) == len(finals) == len(records)


def _credit(*fields: int) -> bool:
    return True


def _ack(_: int, source: int, ranges: list[list[int]], *credit: int) -> bool:
    return bool(ranges) and _in_order(ranges)


def _stored(_: int, ranges: list[list[int]]) -> bool:
    return all(1 <= first <= last for first, last, _ in ranges)


def _in_order(ranges: Sequence[list[int]]) -> bool:
    return all(first <= last for first, last in ranges)


_TYPES: dict[type[Any], tuple[Any, Callable[..., bool]]] = {
    Publish: (tuple[int, str, _Number, _Subjects, list[bytes]], _publish),
    Send: (tuple[int, str, _Number, _Subjects, list[bytes], _Properties], _send),
    Request: (tuple[int, str, _Number, _Subjects, list[bytes], _Properties, _Ranges], _send),
    Reply: (
        tuple[int, _NewSource, _Number, list[_Sequence], list[bool], list[bytes], _Credit, _Credit],
        _reply,
    ),
    Credit: (tuple[int, _Source, _Credit, _Credit], _credit),
    Ack: (tuple[int, _Source, _Ranges, _Credit, _Credit], _ack),
    Stored: (tuple[int, _StoredRanges], _stored),
}

BY_BEGINNING: dict[bytes, _Typed] = {
    pack((BY_TYPE[message].opcode, *repeat(0, len(get_args(types)) - 1)))[:2]: _Typed(
        message, Decoder(types).decode, holds, (0,) if message is Publish else ()
    )
    for message, (types, holds) in _TYPES.items()
}
"""By the first two bytes: how many fields there are, and the opcode."""


_DELIVER = pack((BY_TYPE[Deliver].opcode, 0, 0))[:2]
_deliver = Decoder(tuple[int, _Source, _Number]).decode


def decode_typed(frames: Sequence[Frame]) -> Message | None:
    """A small command in one frame, as most are, or a DELIVER; None for any other."""
    frame = frames[0]
    if len(frames) > 1:
        return _decode_deliver(frames) if frame[:2] == _DELIVER else None
    typed = BY_BEGINNING.get(bytes(frame[:2]))
    if typed is None or len(frame) > UNCHECKED_BYTES:
        return None
    try:
        fields = typed.decode(frame)
    except ValueError:
        return None
    if not typed.holds(*fields):
        return None
    # As its class would, without a call in Python.
    message: Message = tuple.__new__(typed.message, fields[1:] + typed.left_out)
    return message


def _decode_deliver(frames: Sequence[Frame]) -> Deliver | None:
    try:
        _, source, after = _deliver(frames[0])
    except ValueError:
        return None
    return Deliver(source, after, frames[1], tuple(frames[2:]))
