"""The making of a pair, and registers that are found out before anything relies on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from malamute.errors import ConfigError, InUse
from malamute.pair import rules
from malamute.pair.membership import Joining
from malamute.pair.node import RegisterThread
from malamute.pair.register import Register, open_register

SIZE = 16 * 1024 * 1024


def joining(root: Path, name: str, register: Register | None = None) -> Joining:
    register = register or open_register(f"file:{root}/register/pair.json")
    return Joining(name, root / name, SIZE, f"tcp://127.0.0.1:{ord(name)}", ("tcp://127.0.0.1:1",), register)


def entries(root: Path) -> set[Path]:
    return {*root.rglob("*")}


def test_a_dry_run_changes_neither_directory_nor_register(tmp_path: Path) -> None:
    (tmp_path / "register").mkdir()
    before = entries(tmp_path)
    assert joining(tmp_path, "a").create(is_dry=True).primary == "a"
    assert entries(tmp_path) == before
    joining(tmp_path, "a").create()
    made = entries(tmp_path)
    assert [*joining(tmp_path, "b").join(is_dry=True).members] == ["a", "b"]
    assert entries(tmp_path) == made
    with pytest.raises(InUse, match="malamute pair join"):
        joining(tmp_path, "a").create()


class Blind:
    """An engine that ignores conditions, as some that speak S3 do."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> tuple[bytes, object] | None:
        return (self.values[key], self.values[key]) if key in self.values else None

    def put(self, key: str, data: bytes, version: object) -> bool:
        self.values[key] = data
        return True

    def close(self) -> None: ...


def test_a_register_that_ignores_conditions_makes_no_pair(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ignores conditions"):
        joining(tmp_path, "a", Register(Blind(), "pair", "s3://blind/pair")).create()
    assert entries(tmp_path) == set()


@pytest.fixture
def answers() -> Iterator[SimpleQueue[tuple[Any, ...]]]:
    found: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    thread = RegisterThread(Register(Blind(), "pair", "s3://blind/pair"), lambda call: call())
    thread.start()
    thread.put(rules.Read(), lambda *event: found.put(event))
    yield found
    thread.finish()
    thread.join()


def test_a_node_finds_it_out_at_its_start(answers: SimpleQueue[tuple[Any, ...]]) -> None:
    event, text = answers.get(timeout=60)
    assert event == "register_refused"
    assert "ignores conditions" in text
