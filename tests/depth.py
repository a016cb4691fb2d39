"""How much tests try: little for each change, and many times as much in `make nightly`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

Value = TypeVar("Value")

DEPTH = int(os.environ.get("MALAMUTE_DEPTH", "1"))
"""So many times as many examples as `make test` takes."""

NIGHT = DEPTH > 1
"""Whether all is tried, and not one of each kind."""

nightly = pytest.mark.skipif(not NIGHT, reason="left to `make nightly`: MALAMUTE_DEPTH=2 runs it here")
"""The mark of a test that takes long, and that a shorter one of its kind stands for."""


def some(values: Iterable[Value], *chosen: Value) -> list[Value]:
    """Return the chosen values, or all of them at night."""
    every = [*values]
    assert {*chosen} <= {*every}, f"{chosen}: expected some of {every}"
    return every if NIGHT else [*chosen]
