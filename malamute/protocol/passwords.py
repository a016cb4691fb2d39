"""What can be a password, wherever one is made, sent or tried."""

from __future__ import annotations

from malamute.protocol.limits import PASSWORD_BYTES_MAX

PASSWORD_FORM = f"1 to {PASSWORD_BYTES_MAX} bytes of UTF-8, none of them zero"


def is_password(text: str) -> bool:
    """Whether a text can be a password, or the name that is given with one.

    HMAC fills a short key up with zero bytes, so scrypt cannot tell `a` from `a` with some at its end.
    """
    try:
        return 1 <= len(text.encode()) <= PASSWORD_BYTES_MAX and "\0" not in text
    except UnicodeEncodeError:  # bytes of the environment or of a terminal that are none of UTF-8
        return False
