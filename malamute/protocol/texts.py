"""Texts of unknown origin, made fit for a message, an error or a log.

An exception may quote a document of megabytes, name a file whose name is not UTF-8 (half surrogates in
Python), or raise another exception in its `str`. So may the `repr` of a value.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Any

SHOWN_CHARACTERS = 80
"""Characters of a value in an error at most."""

ELLIPSIS = "…"

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = SHOWN_CHARACTERS


def shown(value: Any) -> str:
    """Return a value as an error shows it: its `repr`, cut; the type alone if that fails."""
    if isinstance(value, str | bytes | bytearray) and len(value) > SHOWN_CHARACTERS:
        # The `repr` of the whole would take up to ten times the memory.
        return f"{value[:SHOWN_CHARACTERS]!r}{ELLIPSIS}"
    try:
        return _SHORT.repr(value)
    except Exception:  # a class may raise anything
        return f"<{type(value).__name__}>"


def fitting(text: str, bytes_max: int) -> str:
    """Return a text of at most so many bytes of UTF-8, with lone surrogates escaped."""
    data = text[:bytes_max].encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max and len(text) <= bytes_max:
        return data.decode()
    room = max(0, bytes_max - len(ELLIPSIS.encode()))
    return f"{data[:room].decode(errors='ignore')}{ELLIPSIS}"


def words_of(error: BaseException, bytes_max: int) -> str:
    """Return the type and the text of an exception; the type alone if its text fails."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # its class may raise anything
        text = ""
    return fitting(f"{name}: {text}" if text else name, bytes_max)
