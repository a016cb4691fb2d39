"""Plain copies of a caller's values, which can be sent at any time.

A command is repeated at each reconnect, after its call has returned. So it is encoded first, and the kept
copy is as the broker would read it: values of plain types, which no caller can change, and which meet the
rules of the wire.
"""

from __future__ import annotations

from typing import TypeVar

from malamute.errors import InvalidValue, Malformed
from malamute.protocol.batch import Frame
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import BY_TYPE, Message

AnyMessage = TypeVar("AnyMessage", bound=Message)


def frames_of(message: Message) -> list[Frame]:
    """Return the frames of a command with values of a caller.

    Raises:
        InvalidValue: a value cannot be sent.
    """
    try:
        return encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidValue(
            f"{BY_TYPE[type(message)].name}: a value cannot be sent ({type(error).__name__}): expected text "
            "that has a form in UTF-8, numbers of at most 64 bits, booleans, bytes, None, and lists and maps "
            "of those"
        ) from error


def plain(message: AnyMessage) -> AnyMessage:
    """Return the command as the broker would read it.

    Raises:
        InvalidValue: a value cannot be sent, or is invalid for the command.
        TooLarge: a value exceeds a limit of the wire.
    """
    frames = frames_of(message)
    try:
        read = decode([bytes(frame) for frame in frames])
    except Malformed as error:
        raise InvalidValue(error.text) from error
    assert type(read) is type(message)
    return read
