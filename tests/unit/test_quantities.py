"""Durations, sizes and times have one grammar in configuration, CLI, gateway and wire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click
import pytest
from starlette.requests import Request

from malamute.cli import units
from malamute.config import option_types
from malamute.errors import InvalidValue
from malamute.gateway.console import forms
from malamute.gateway.routes import DURATION, Endpoint, Parameter
from malamute.protocol.start import Start

ENDPOINT: Any = Endpoint("GET", "/", None, "", (Parameter("ttl", "", DURATION),))  # type: ignore[arg-type]  # no handler


def by_gateway(text: str) -> float:
    query = f"ttl={quote(text)}".encode()
    seconds: float = ENDPOINT.read(Request({"type": "http", "query_string": query, "headers": []}))["ttl"]
    return seconds


DURATIONS: dict[str, Callable[[str], float]] = {
    "configuration": option_types.duration(0, 10**9).read,
    "CLI": units.duration,
    "CLI, within bounds": lambda text: units.DurationRange(min=0).convert(text, None, None),
    "gateway": by_gateway,
    "console": forms.duration,
    "wire": lambda text: Start.parse(f"since:{text}").value / 1e9,
}
SIZES: dict[str, Callable[[str], int]] = {
    "configuration": option_types.size(0).read,
    "CLI": units.size,
    "console": forms.size,
}
TIMES: dict[str, Callable[[str], int]] = {
    "CLI": lambda text: int(units.moment(text).timestamp() * 10**9),
    "wire": lambda text: Start.parse(f"time:{text}").value,
}
REFUSED = (ValueError, click.BadParameter, InvalidValue)


@pytest.mark.parametrize("surface", DURATIONS)
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("15m", 900),
        ("1h", 3600),
        ("7d", 604_800),
        ("2 h", 7200),
        ("1e3", 1000),
    ],
)
def test_a_duration_is_the_same_on_every_surface(surface: str, text: str, seconds: float) -> None:
    assert DURATIONS[surface](text) == seconds


@pytest.mark.parametrize("surface", DURATIONS)
@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1 week", "1w", "1M", "1MS", "inf", "nan", "1.", ".5", "1e", "1e9999", "1h30m"]
)
def test_another_text_is_no_duration_on_any_surface(surface: str, text: str) -> None:
    with pytest.raises(REFUSED):
        DURATIONS[surface](text)


@pytest.mark.parametrize("surface", SIZES)
@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("7", 7),
        ("7B", 7),
        ("64MiB", 64 << 20),
        ("1.5 KiB", 1536),
        ("2GB", 2 * 10**9),
        ("1e3", 1000),
    ],
)
def test_a_size_is_the_same_on_every_surface(surface: str, text: str, size_bytes: int) -> None:
    assert SIZES[surface](text) == size_bytes


@pytest.mark.parametrize("surface", SIZES)
@pytest.mark.parametrize("text", ["", "x", "-1", "1 KB", "1.5", "1kb", "1e400", f"{2**63}", "1PiB", "1MiBs"])
def test_another_text_is_no_size_on_any_surface(surface: str, text: str) -> None:
    with pytest.raises(REFUSED):
        SIZES[surface](text)


NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize("surface", TIMES)
@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2026-01-31T12:00", NOON),
        ("2026-01-31T12:00Z", NOON),
        ("2026-01-31 13:00+01:00", NOON),
        ("2026-01-31", NOON - 12 * 3600 * 10**9),
        (str(NOON), NOON),
    ],
)
def test_a_time_is_the_same_on_every_surface(surface: str, text: str, time_ns: int) -> None:
    assert TIMES[surface](text) == time_ns


@pytest.mark.parametrize("surface", TIMES)
@pytest.mark.parametrize("text", ["", "noon", "-1", "1.5", "31.01.2026", "1e9"])
def test_another_text_is_no_time_on_any_surface(surface: str, text: str) -> None:
    with pytest.raises(REFUSED):
        TIMES[surface](text)
