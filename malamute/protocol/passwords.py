"""The form of a password for every module that makes, sends or tries one, and its place in HELLO.

The `token` of HELLO has a user and a password as the mechanism PLAIN of SASL does (RFC 4616), which no bearer
token looks like: NUL, the user, NUL, the password.
"""

from __future__ import annotations

from malamute.protocol.limits import PASSWORD_BYTES_MAX

PASSWORD_FORM = f"1 to {PASSWORD_BYTES_MAX} bytes of UTF-8, none of them zero"


def is_password(text: str) -> bool:
    """Return whether a text can be a password, or the name of its user.

    HMAC fills a short key up with zero bytes, so scrypt cannot tell `a` from `a` with some at its end.
    """
    try:
        return 1 <= len(text.encode()) <= PASSWORD_BYTES_MAX and "\0" not in text
    except UnicodeEncodeError:  # bytes of the environment or of a terminal that are none of UTF-8
        return False


def pack_login(user: str, password: str) -> str:
    """Return a user and a password for HELLO; both have the form of `is_password`."""
    return f"\0{user}\0{password}"


def unpack_login(token: str) -> tuple[str, str] | None:
    """Return the user and the password in the place of a token; None if it is a token."""
    nothing, *login = token.split("\0")
    return (login[0], login[1]) if not nothing and len(login) == 2 else None
