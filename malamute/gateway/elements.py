"""The number of elements in a JSON body, before any is built: each takes many times its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from malamute.errors import TooLarge

ELEMENTS_MAX = 250_000
"""Maximum elements of a body: objects, lists, and values in them."""

ELEMENT_BYTES = 100
"""Approximate memory of an element with few bytes."""

BRACKETS_MAX = 1_000_000
"""Maximum brackets examined to count the elements."""

_KEPT = b'",[]{}'
_OTHERS = bytes(byte for byte in range(256) if byte not in _KEPT)
_TEXTS = re.compile(rb'"[^"]*"')
_BRACKETS = re.compile(rb"[][{}]")


def check_elements(body: bytes, depth: int = 0) -> int:
    """Check that JSON has not too many elements, and return about how many it has.

    Elements below `depth` are not counted: their text is not decoded.

    Raises `TooLarge`.
    """
    count = sum(body.count(separator) for separator in (b",", b"[", b"{"))
    if count > ELEMENTS_MAX:
        # Some separators may be in texts, or below `depth`.
        count = exact(body, depth)
    if count > ELEMENTS_MAX:
        raise TooLarge(
            f"body has too many elements: expected at most {ELEMENTS_MAX} values, lists and objects"
        )
    return count


def exact(body: bytes, depth: int) -> int:
    """Return the number of elements down to `depth`; 0 counts all of them."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = body.translate(None, _OTHERS)
    if signs.count(b'"') > 2 * BRACKETS_MAX:
        return ELEMENTS_MAX + 1
    signs = _TEXTS.sub(b"", signs)
    if not depth:
        return sum(signs.count(separator) for separator in (b",", b"[", b"{"))
    if sum(signs.count(bracket) for bracket in (b"[", b"{")) > BRACKETS_MAX:
        return ELEMENTS_MAX + 1
    return sum(_counts(signs, depth))


def _counts(signs: bytes, depth: int) -> Iterator[int]:
    """Yield numbers of elements down to `depth`, piece by piece."""
    now = at = 0
    for found in _BRACKETS.finditer(signs):
        if now <= depth:
            yield signs.count(b",", at, found.start())
        opens = found[0] in b"[{"
        if opens and now <= depth:
            yield 1
        now += 1 if opens else -1
        at = found.end()
