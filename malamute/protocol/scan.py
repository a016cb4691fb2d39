"""The number of values in a frame, counted before any value is made.

A value takes up to a hundred times its bytes in memory: an empty list is one byte, and 72 in Python. So a
large frame is scanned first, token by token. The scan costs more than decoding for many small values, and
next to nothing for few large ones.
"""

from __future__ import annotations

from malamute.protocol.limits import VALUES_MAX


def _scalars() -> list[int]:
    """Return the size of each token by its first byte; 0 for tokens with a length or with values inside."""
    sizes = [0] * 256
    sizes[0x00:0x80] = [1] * 0x80
    sizes[0xA0:0xC0] = range(1, 33)
    sizes[0xE0:0x100] = [1] * 0x20
    for first, size in ((0xC0, 1), (0xC2, 1), (0xC3, 1)):
        sizes[first] = size
    sizes[0xCA:0xD4] = 5, 9, 2, 3, 5, 9, 2, 3, 5, 9
    sizes[0xD4:0xD9] = 3, 4, 6, 10, 18
    return sizes


_SCALARS = _scalars()
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
"""Bytes of the length of a text, of bytes or of an extension, which has one more for its type."""
_COUNTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the count of a list or a map, and the values of each item."""


def has_too_many_values(data: bytes | memoryview) -> bool:
    """Return whether a value has more than `VALUES_MAX` values. Raises `ValueError` if truncated."""
    announced, seen, place = 1, 0, 0
    sizes, lengths = _SCALARS, _LENGTHS
    try:
        while seen < announced:
            token = data[place]
            seen += 1
            if size := sizes[token]:
                place += size
            elif width := lengths.get(token):
                length = int.from_bytes(data[place + 1 : place + 1 + width], "big")
                place += 1 + width + length + (0xC7 <= token <= 0xC9)
            else:
                place, inside = _container(data, place, token)
                announced += inside
                if announced > VALUES_MAX:
                    return True
    except IndexError:
        raise ValueError("it is cut short") from None
    if place > len(data):
        raise ValueError("it is cut short")
    return False


def _container(data: bytes | memoryview, place: int, token: int) -> tuple[int, int]:
    """Return the place of the first value of a list or a map, and the number of its values."""
    if token < 0x90:
        return place + 1, 2 * (token & 0x0F)
    if token < 0xA0:
        return place + 1, token & 0x0F
    if token not in _COUNTS:
        raise ValueError(f"no value begins with {token:#x}")
    width, values = _COUNTS[token]
    end = place + 1 + width
    return end, values * int.from_bytes(data[place + 1 : end], "big")
