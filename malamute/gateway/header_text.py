"""Text in HTTP headers: programs send it as UTF-8, and servers hand it over as Latin-1, byte by byte."""

from __future__ import annotations


def text_of(value: str) -> str:
    """Return the text of a request header. Bytes other than UTF-8 are Latin-1, as in RFC 9110."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def value_of(text: str) -> str:
    """Return a text as the value of a response header: its bytes are UTF-8, and `text_of` reverses it."""
    return text if text.isascii() else text.encode().decode("latin-1")
