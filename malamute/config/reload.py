"""Reload: the options that a running broker can change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from malamute.config.derived import RELOADED_LIMITS
from malamute.config.sections import SECTIONS, types_of

if TYPE_CHECKING:
    from malamute.config import Config

RELOADED: Mapping[str, frozenset[str]] = {
    "access": frozenset({"accounts", "rules", "quota", "group", "user", "issuer"}),
    "storage": frozenset({"backups"}),
    "streams": frozenset({"committed", "bytes", "count", "age", "ttl", "rule"}),
    "queues": frozenset(option.name for option in fields(SECTIONS["queues"])),
    "buckets": frozenset(option.name for option in fields(SECTIONS["buckets"])),
    "listen": frozenset({"connections"}),
    "limits": frozenset({"memory"}),
    "log": frozenset({"level", "format"}),
}
"""The options of each section that a reload takes. All others wait for the next start. Of the limits that
follow from `limits.memory` and `listen.connections`, `RELOADED_LIMITS` change."""


class Reloaded(NamedTuple):
    """Configuration after a reload, and the options that changed or wait for a restart."""

    config: Config
    changed: tuple[str, ...]
    waiting: tuple[str, ...]


def reloaded(running: Config, read: Config) -> Reloaded:
    """Return the configuration in force after a reload.

    Raises:
        ConfigError: the new configuration contradicts options that cannot change until the next start.
    """
    changed: list[str] = []
    waiting: list[str] = []
    sections: dict[str, Any] = {}
    for section, options in _different(running, read):
        taken = {name: value for name, value in options.items() if name in RELOADED.get(section, ())}
        before = getattr(running, section)
        sections[section] = replace(before, **taken)
        changed += (f"{section}.{name}" for name in taken)
        waiting += (f"{section}.{name}" for name in options if name not in taken)
    if "streams.rule" in changed and _journals(running) != _journals(read):
        waiting.append("streams.rule.journal")
    sources = {option: source for option, source in read.sources.items() if option not in waiting}
    kept = {option: source for option, source in running.sources.items() if option in waiting}
    config = replace(running, **sections, sources=sources | kept)
    if config.core_limits != running.core_limits:
        at_start = running.core_limits._asdict().items()
        fixed = {name: value for name, value in at_start if name not in RELOADED_LIMITS}
        config = replace(config, overrides={**running.overrides, **fixed})
    return Reloaded(config, tuple(changed), tuple(waiting))


def _different(one: Config, other: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sections that differ, each with its differing options and their values in the other one."""
    for section, kind in SECTIONS.items():
        before, after = getattr(one, section), getattr(other, section)
        options = {name: getattr(after, name) for name in types_of(kind)}
        changed = {name: value for name, value in options.items() if value != getattr(before, name)}
        if changed:
            yield section, changed


def _journals(config: Config) -> list[tuple[str, bool]]:
    """Which streams have a journal, as far as a rule says it: that is settled when the broker starts."""
    streams = config.streams
    if streams.journal and all(rule.journal is not False for rule in streams.rule):
        return []
    return [
        (rule.pattern, streams.journal if rule.journal is None else rule.journal) for rule in streams.rule
    ]
