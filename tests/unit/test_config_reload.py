"""The options that a running broker takes of a configuration that is read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from malamute.config import (
    Config,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    QueuesConfig,
    StorageConfig,
    StreamsConfig,
)
from malamute.config.derived import MEMORY_BYTES, RELOADED_LIMITS
from malamute.config.reload import RELOADED, reloaded
from malamute.config.sections import SECTIONS, QueueRule, StreamRule, types_of
from malamute.errors import ConfigError
from malamute.protocol.limits import Limits

ROOT = Path(__file__).parents[2]


def test_what_can_change_changes_and_what_cannot_is_named() -> None:
    read = Config(
        listen=ListenConfig(endpoints=("tcp://127.0.0.1:1",), io_threads=7, connections=5),
        queues=QueuesConfig(max_deliver=3, rule=(QueueRule("w", depth=9),)),
        limits=LimitsConfig(message_bytes=1000),
        log=LogConfig(level="debug"),
    )
    found = reloaded(Config(), read)
    assert found.changed == ("listen.connections", "queues.max_deliver", "queues.rule", "log.level")
    assert found.waiting == ("listen.endpoints", "listen.io_threads", "limits.message_bytes")
    taken = replace(Config(), queues=read.queues, log=read.log, listen=ListenConfig(connections=5))
    assert replace(found.config, overrides={}) == taken
    assert found.config.core_limits == Limits(sessions=5)


def test_the_same_configuration_changes_nothing() -> None:
    assert reloaded(Config(), Config()) == (Config(), (), ())


def test_what_is_loaded_has_to_fit_what_stays() -> None:
    read = Config(storage=StorageConfig(size=2**40), streams=StreamsConfig(bytes=2**38))
    with pytest.raises(ConfigError, match=r"streams\.bytes .* is too large"):
        reloaded(Config(), read)


@pytest.mark.parametrize("journal", [None, True])
def test_a_rule_that_says_nothing_new_of_the_journal_waits_for_nothing(journal: bool | None) -> None:
    read = Config(streams=StreamsConfig(rule=(StreamRule("a", journal=journal, bytes=1000),)))
    assert reloaded(Config(), read).waiting == ()


def test_a_rule_without_a_journal_waits_for_the_next_start() -> None:
    read = Config(streams=StreamsConfig(rule=(StreamRule("a", journal=False),)))
    assert reloaded(Config(), read).waiting == ("streams.rule.journal",)
    assert reloaded(read, Config()).waiting == ("streams.rule.journal",)
    assert reloaded(Config(), Config(streams=StreamsConfig(journal=False))).waiting == ("streams.journal",)


def test_there_are_such_options_and_the_documentation_has_them_all() -> None:
    for section, options in RELOADED.items():
        assert options <= types_of(SECTIONS[section]).keys()
    text = (ROOT / "docs/operations/reload.md").read_text()
    for section, options in RELOADED.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"| `[{section}]`"))
        assert all(f"`{option}`" in line for option in options) or "all" in line


def test_what_one_queue_may_have_follows_from_what_all_may_have() -> None:
    found = reloaded(Config(), Config(limits=LimitsConfig(memory=MEMORY_BYTES // 2)))
    assert found.changed == ("limits.memory",)
    limits = found.config.core_limits
    assert (limits.queues_messages, limits.queue_messages) == (1_000_000, 750_000)


def test_limits_with_memory_set_aside_stay_as_at_the_start_over_reloads() -> None:
    less, more = (Config(limits=LimitsConfig(memory=MEMORY_BYTES * part // 2)) for part in (1, 4))
    config = reloaded(reloaded(Config(), less).config, more).config
    for name, value in config.core_limits._asdict().items():
        assert value == getattr((more if name in RELOADED_LIMITS else Config()).core_limits, name)
