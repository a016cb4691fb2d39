"""The options of a broker, as it shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from malamute.access import AccessRule
from malamute.config import AccessConfig, Config, GroupRules, UserRules
from malamute.config.options import VALUE_CHARACTERS_MAX, options_in_force
from malamute.config.reload import reloaded
from malamute.config.sections import SECTIONS, types_of
from malamute.protocol.admin import BrokerOption


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "malamute.toml"
    path.write_text(
        '[storage]\nsize = "2GiB"\nstreams_share = 0.5\n[limits]\nmemory = "7GiB"\n[queues]\nidle = 9\n'
    )
    return path


def told(config: Config, started: Config | None = None) -> dict[str, BrokerOption]:
    return {row.name: row for row in options_in_force(config, started or config)}


def test_every_option_is_told_and_by_itself_has_its_default() -> None:
    rows = options_in_force(Config(), Config())
    assert [row.name for row in rows] == [f"{s}.{o}" for s, kind in SECTIONS.items() for o in types_of(kind)]
    assert {row.source for row in rows} == {"default"}
    assert [row.name for row in rows if row.value != row.default] == []


def test_the_source_is_the_place_that_came_before_the_others(file: Path) -> None:
    environ = {"MALAMUTE_LIMITS__MEMORY": "8GiB", "MALAMUTE_QUEUES__IDLE": "9"}
    rows = told(Config.load(file, environ, {"limits.memory": "9GiB"}))
    assert (rows["limits.memory"].value, rows["limits.memory"].source) == ('"9GiB"', "command line")
    assert (rows["queues.idle"].value, rows["queues.idle"].source) == ('"9s"', "environment")
    assert (rows["storage.size"].value, rows["storage.size"].default) == ('"2GiB"', '"1GiB"')
    assert rows["storage.size"].source == "file"
    assert rows["log.level"].source == "default"


def test_a_reload_changes_values_with_their_sources_and_what_waits_keeps_both(file: Path) -> None:
    started = Config.load(file, {})
    read = Config.load(file, {"MALAMUTE_STORAGE__SIZE": "3GiB", "MALAMUTE_LIMITS__MEMORY": "8GiB"})
    rows = told(reloaded(started, read).config, started)
    size, memory = rows["storage.size"], rows["limits.memory"]
    assert (size.value, size.source, size.changed_since_start, size.needs_restart) == (
        '"2GiB"',
        "file",
        False,
        True,
    )
    assert (memory.value, memory.source, memory.changed_since_start, memory.needs_restart) == (
        '"8GiB"',
        "environment",
        True,
        False,
    )


def test_an_option_that_goes_out_of_the_file_has_its_default_again(file: Path) -> None:
    started = Config.load(file, {})
    file.write_text("")
    rows = told(reloaded(started, Config.load(file, {})).config, started)
    assert (rows["queues.idle"].source, rows["queues.idle"].changed_since_start) == ("default", True)
    assert rows["storage.size"].source == "file"


def test_of_groups_and_users_only_the_number_is_told() -> None:
    access = AccessConfig(
        group=(GroupRules("staff"),),
        user=(UserRules("ann", claims=(("ward", "secret-3"),)), UserRules("bob")),
    )
    rows = told(Config(access=access))
    assert (rows["access.group"].value, rows["access.user"].value) == ("1 tables", "2 tables")
    assert rows["access.user"].source == "program"
    assert "secret-3" not in repr(rows)


@pytest.mark.parametrize(("over", "whole"), [(0, True), (1, False)])
def test_a_long_value_is_cut(over: int, *, whole: bool) -> None:
    # The text around the name: ["view stream/"].
    name = "x" * (VALUE_CHARACTERS_MAX - len('["view stream/"]') + over)
    rows = told(Config(access=AccessConfig(rules=(AccessRule.parse(f"view stream/{name}"),))))
    value = rows["access.rules"].value
    assert len(value) == VALUE_CHARACTERS_MAX
    assert value.endswith('"]' if whole else "…")
