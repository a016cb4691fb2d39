"""A size that was lowered is reported at the start."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from malamute.config import Config
from malamute.journal.directory import PAGE
from malamute.testing import STORE_BYTES, Broker, small_config

LOWERED = "the size of the store was lowered: a store never shrinks, and stays as large as it is"


def _with_size(size: int) -> Config:
    config = small_config()
    return replace(config, storage=replace(config.storage, size=size))


@pytest.fixture
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as found:
        yield found


def _lowered(logged: list[MutableMapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if name in ("store", "configured", "size")}
        for entry in logged
        if entry["event"] == LOWERED
    ]


def test_a_size_that_was_lowered_is_reported_with_both(
    tmp_path: Path, logged: list[MutableMapping[str, Any]]
) -> None:
    with Broker(tmp_path, config=_with_size(STORE_BYTES + PAGE)):
        pass
    for size in (STORE_BYTES + PAGE, STORE_BYTES + 1):
        with Broker(tmp_path, config=_with_size(size)):
            assert _lowered(logged) == []
    with Broker(tmp_path, config=_with_size(STORE_BYTES)):
        assert _lowered(logged) == [{"configured": STORE_BYTES, "size": STORE_BYTES + PAGE}]
