"""Options that several benchmarks have."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def messages_option(default: int, help_text: str) -> Decorator:
    """--messages, with what it means for this benchmark."""
    return count_option("--messages", default, help_text, least=10)


def count_option(name: str, default: int, help_text: str, *, least: int = 1, most: int = 10**9) -> Decorator:
    """A whole number."""
    return click.option(
        name, type=click.IntRange(least, most), default=default, show_default=True, help=help_text
    )


def rounds_option(default: int) -> Decorator:
    """--rounds."""
    words = "How often each is measured, in turns; shown are medians, and the extent."
    return count_option("--rounds", default, words, most=100)


SIZE = click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(min=8),
    default=100,
    show_default=True,
    help="Bytes of a body.",
)
BATCH = count_option("--batch", 1000, "Messages in a batch, at most; 64 KiB end one too.", most=10_000)
CREDIT = count_option("--credit", 20_000, "Messages that a subscriber allows the broker to be ahead.")
DATA = click.option(
    "--data",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=tempfile.gettempdir,
    help="Where the temporary data directory is made.",
)
