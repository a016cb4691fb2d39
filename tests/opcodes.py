"""Bytecode instructions that CPython executes: a count is the same on a busy and on an idle machine.

C code inside one instruction is not seen. Another version of CPython has other instructions: bounds are those
of 3.11, and a test that counts is skipped elsewhere.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import malamute

PACKAGE = str(Path(malamute.__file__).parent) + os.sep

GENERATED = "<string>"
"""The file of methods that the standard library makes, as for a NamedTuple: they count as their caller."""


class Counter:
    """The instructions in the files below some places, counted while it is on. They are of the package."""

    def __init__(self, *places: str) -> None:
        if sys.version_info[:2] != (3, 11):
            pytest.skip("instructions are counted on CPython 3.11, whose counts the bounds are")
        self.instructions = 0
        self._counted = tuple(os.path.join(PACKAGE, place) for place in places)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count during the block. Collecting garbage would run finalizers at any time."""
        before = sys.gettrace()
        gc.disable()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            gc.enable()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not self._is_counted(frame):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._trace

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.instructions += 1
        return self._trace

    def _is_counted(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_filename == GENERATED:
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(self._counted)


def instructions(work: Callable[[], object], *places: str) -> int:
    """The instructions that a work takes in the files below some places of the package."""
    counter = Counter(*places)
    with counter.on():
        work()
    return counter.instructions
