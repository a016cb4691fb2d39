"""Plain copies of a caller's values, which can be sent at any time.

A command is said again at each reconnect, when its caller is gone. So it is encoded before anything of it is
kept, and what is kept is what the broker would read: values of plain types, which nobody else can change, and
which meet the rules of the wire.
"""

from __future__ import annotations

from typing import TypeVar

from malamute.errors import InvalidValue, Malformed
from malamute.protocol.batch import Frame
from malamute.protocol.codec import decode, encode
from malamute.protocol.messages import BY_TYPE, Message

AnyMessage = TypeVar("AnyMessage", bound=Message)


def frames_of(message: Message) -> list[Frame]:
    """The frames of a command with values of a caller.

    Raises:
        InvalidValue: one of them cannot be sent.
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
    """The command as the broker would read it.

    Raises:
        InvalidValue: a value cannot be sent, or is none that the command may have.
        TooLarge: a value goes past a limit of the wire.
    """
    frames = frames_of(message)
    try:
        read = decode([bytes(frame) for frame in frames])
    except Malformed as error:
        raise InvalidValue(error.text) from error
    assert type(read) is type(message)
    return read
