"""Text in headers of HTTP: programs send it as UTF-8, and servers hand it over as Latin-1, byte by byte."""

from __future__ import annotations


def text_of(value: str) -> str:
    """Return the text of a header of a request. Bytes that are no UTF-8 are of Latin-1, as RFC 9110 says."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def value_of(text: str) -> str:
    """Return a text as a header of an answer has it: its bytes are UTF-8, and `text_of` returns it."""
    return text if text.isascii() else text.encode().decode("latin-1")
