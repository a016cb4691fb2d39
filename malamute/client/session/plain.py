"""Plain copies of a caller's values, which can be sent at any time.

A command is repeated at each reconnect, after its call has returned. So it is encoded first, and the kept
copy is as the broker would read it: values of plain types, which no caller can change, and which meet the
rules of the wire.
"""

from __future__ import annotations

from typing import Any, TypeVar

from malamute.errors import InvalidValue, Malformed
from malamute.protocol.batch import Frame
from malamute.protocol.codec import decode, encode, encode_records
from malamute.protocol.messages import BY_TYPE, Message, Spec

AnyMessage = TypeVar("AnyMessage", bound=Message)


_UNSENDABLE = (TypeError, ValueError, OverflowError, RecursionError)


def frames_of(kind: type[Message], *fields: Any) -> list[Frame]:
    """Return the frames of a command with records and values of a caller, by its fields.

    Raises:
        InvalidValue: a value cannot be sent.
    """
    spec = BY_TYPE[kind]
    try:
        return encode_records(spec, fields)
    except _UNSENDABLE as error:
        raise _unsendable(spec, error) from error


def _unsendable(spec: Spec, error: Exception) -> InvalidValue:
    return InvalidValue(
        f"{spec.name}: a value cannot be sent ({type(error).__name__}): expected text that has a form in "
        "UTF-8, numbers of at most 64 bits, booleans, bytes, None, and lists and maps of those"
    )


def plain(message: AnyMessage) -> AnyMessage:
    """Return the command as the broker would read it.

    Raises:
        InvalidValue: a value cannot be sent, or is invalid for the command.
        TooLarge: a value exceeds a limit of the wire.
    """
    try:
        frames = encode(message)
    except _UNSENDABLE as error:
        raise _unsendable(BY_TYPE[type(message)], error) from error
    try:
        read = decode([bytes(frame) for frame in frames])
    except Malformed as error:
        raise InvalidValue(error.text) from error
    assert type(read) is type(message)
    return read
