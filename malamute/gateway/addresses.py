"""Addresses in what the gateway answers: they are made of names, which may hold any character."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, urlencode


def address(*segments: str, query: Iterable[tuple[str, str]] = ()) -> str:
    """Return a path of segments, each percent-encoded as a whole, and its query: ASCII, for any header."""
    path = "".join(f"/{quote(segment, safe='')}" for segment in segments)
    parameters = urlencode([*query])
    return f"{path}?{parameters}" if parameters else path
