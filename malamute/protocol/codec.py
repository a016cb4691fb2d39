"""Messages to frames and back.

`decode` takes whatever bytes a peer sent: the result is a message, or one of `Malformed`, `TooLarge` and
`UnknownCommand`, and nothing else. Such an error says which command and which number or source it is about,
as far as the bytes told, so that the answer reaches the right waiter on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malamute.errors import MalamuteError, Malformed, TooLarge, UnknownCommand
from malamute.protocol.batch import pack, unpack
from malamute.protocol.limits import WHERE_BYTES_MAX
from malamute.protocol.messages import (
    BY_OPCODE,
    BY_TYPE,
    OPCODE,
    REF,
    Deliver,
    Error,
    Frame,
    Message,
    Packed,
    Spec,
)

__all__ = ["decode", "encode", "error_message"]


def encode(message: Message) -> list[Frame]:
    """The frames of a message: the command, and what travels beside it. The ranges are not checked here."""
    if isinstance(message, Deliver):
        return [pack((_DELIVER, message.source, message.after)), message.payload, *message.large]
    if isinstance(message, Packed):
        return [*message.frames]
    spec = BY_TYPE[type(message)]
    if spec.frames:
        fields: tuple[Any, ...] = message
        return [pack((spec.opcode, *fields[:-1])), *fields[-1]]
    return [pack((spec.opcode, *message))]


def decode(frames: Sequence[Frame]) -> Message:
    """The message that the frames hold. Raises `Malformed`, `TooLarge` or `UnknownCommand`."""
    if not frames:
        raise Malformed("a command without a frame")
    fields = unpack(frames[0])
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise Malformed("a command is an array that starts with its opcode")
    spec = BY_OPCODE.get(fields[0])
    if spec is None:
        raise _unknown(fields[0])
    del fields[0]
    if not spec.required <= len(fields) <= len(spec.rules):
        raise _fault(spec, fields, Malformed(f"{spec.name} has {len(spec.rules)} fields, not {len(fields)}"))
    if not spec.hold(fields):
        raise _broken_rule(spec, fields)
    return _with_frames(spec, fields, frames) if spec.frames else _plain(spec, fields, frames)


def _unknown(opcode: int) -> MalamuteError:
    error = UnknownCommand(f"there is no command {opcode}")
    error.about = opcode if OPCODE.holds(opcode) else 0
    return error


def _plain(spec: Spec, fields: list[Any], frames: Sequence[Frame]) -> Message:
    if len(frames) > 1:
        raise _fault(spec, fields, Malformed(f"{spec.name} is one frame, not {len(frames)}"))
    message: Message = spec.message(*fields)
    return message


def _with_frames(spec: Spec, fields: list[Any], frames: Sequence[Frame]) -> Message:
    if spec.frames == "payload":
        if len(frames) < 2:
            raise _fault(spec, fields, Malformed(f"{spec.name} has no payload"))
        return Deliver(fields[0], fields[1], frames[1], tuple(frames[2:]))
    records = fields[spec.records]
    for place in spec.columns:
        if place < len(fields) and fields[place] and len(fields[place]) != len(records):
            raise _fault(spec, fields, Malformed(f"the columns of {spec.name} differ in length"))
    large = frames[1:]
    if large or None in records:
        if records.count(None) != len(large):
            raise _fault(
                spec, fields, Malformed(f"{spec.name} has {len(large)} frames for its large records")
            )
        message: Message = spec.message(*fields, large=tuple(large))
    else:
        message = spec.message(*fields)
    return message


_DELIVER = BY_TYPE[Deliver].opcode


def _broken_rule(spec: Spec, fields: list[Any]) -> MalamuteError:
    for name, rule, value in zip(spec.message._fields, spec.rules, fields, strict=False):
        if not rule.holds(value):
            if rule.is_over(value):
                return _fault(
                    spec, fields, TooLarge(f"{spec.name}: {name} is over the limit for {rule.words}")
                )
            return _fault(spec, fields, Malformed(f"{spec.name}: {name} is not of the type {rule.words}"))
    raise AssertionError("one rule was broken a moment ago")


def _fault(spec: Spec, fields: list[Any], error: MalamuteError) -> MalamuteError:
    error.about = spec.opcode
    ref = fields[spec.ref] if 0 <= spec.ref < len(fields) else 0
    error.ref = ref if REF.holds(ref) else 0
    return error


def error_message(error: MalamuteError, about: int = 0, ref: int = 0) -> Error:
    """The ERROR that tells a peer of `error`. Words that are too long for it are cut."""
    text = (error.text or str(error)).encode("utf-8", "replace")[:WHERE_BYTES_MAX].decode("utf-8", "ignore")
    return Error(error.code, text, error.about or about, error.ref or ref)
