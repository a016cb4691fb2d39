"""What can be a password, wherever one is made, sent or tried, and how HELLO has one.

In the `token` of HELLO a user and a password are as in the mechanism PLAIN of SASL (RFC 4616), which is no
token: NUL, the user, NUL, the password.
"""

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


def pack_login(user: str, password: str) -> str:
    """A user and a password as HELLO has them; both are to be as `is_password` says."""
    return f"\0{user}\0{password}"


def unpack_login(token: str) -> tuple[str, str] | None:
    """The user and the password that are in the place of a token, if there are any."""
    nothing, *login = token.split("\0")
    return (login[0], login[1]) if not nothing and len(login) == 2 else None
