"""Limits that follow from options, and options that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malamute.config import Config, LimitsConfig, ListenConfig, StorageConfig
from malamute.config.derived import (
    CONNECTIONS,
    MEMORY_BYTES,
    REMOVED,
    SHARES_OF_MEMORY,
    ConnectionLimits,
)
from malamute.config.sections import SECTIONS, types_of
from malamute.errors import ConfigError
from malamute.protocol.limits import Limits
from malamute.server import guard, transport

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def test_the_defaults_imply_the_default_limits() -> None:
    assert Config().core_limits == Limits()
    assert Config().connection_limits == ConnectionLimits()


@pytest.mark.parametrize("name", SHARES_OF_MEMORY)
def test_a_share_of_memory_grows_and_shrinks_with_it(name: str) -> None:
    default = getattr(Limits(), name)
    for memory in (MEMORY_BYTES // 2, MEMORY_BYTES, 3 * MEMORY_BYTES):
        limits = Config(limits=LimitsConfig(memory=memory)).core_limits
        assert getattr(limits, name) == default * memory // MEMORY_BYTES


def test_what_is_sent_and_received_has_its_share_of_memory_and_the_largest_message_fits() -> None:
    half = Config(limits=LimitsConfig(memory=MEMORY_BYTES // 2)).connection_limits
    assert (half.send_bytes_all, half.receive_bytes_all) == (256 * MIB, 256 * MIB)
    assert half.receive_bytes == 128 * MIB
    storage = StorageConfig(size=64 * GIB)
    large = LimitsConfig(memory=64 * MIB, message_bytes=GIB)
    tight = Config(limits=large, storage=storage).connection_limits
    assert (tight.receive_bytes, tight.receive_bytes_all) == (2 * GIB, 2 * GIB)


def test_sessions_and_connections_without_one_follow_from_connections() -> None:
    config = Config(listen=ListenConfig(connections=100))
    assert (config.core_limits.sessions, config.connection_limits.hello_queue) == (100, 50)
    one = Config(listen=ListenConfig(connections=1))
    assert (one.core_limits.sessions, one.connection_limits.hello_queue) == (1, 1)


@pytest.mark.parametrize(
    ("size", "share", "queues_mib"), [(GIB, 0.7, 128), (10 * GIB, 0.7, 1280), (GIB, 0.5, 256)]
)
def test_bytes_of_queues_follow_from_the_room_that_streams_leave(
    size: int, share: float, queues_mib: int
) -> None:
    limits = Config(storage=StorageConfig(size=size, streams_share=share)).core_limits
    assert limits.queues_bytes == queues_mib * MIB
    assert limits.queue_bytes == queues_mib * MIB * 3 // 4


def test_a_program_sets_a_limit_in_place_of_the_derived_one() -> None:
    config = Config(overrides={"feeds": 3, "queues_messages": 400, "hello_timeout": 0.5})
    assert config.core_limits == Limits(feeds=3, queues_messages=400, queue_messages=300)
    assert config.connection_limits == ConnectionLimits(hello_timeout=0.5)
    assert Config(overrides={"queue_messages": 7}).core_limits == Limits(queue_messages=7)


@given(
    memory=st.integers(64 * MIB, 64 * GIB),
    connections=st.integers(1, 10 * CONNECTIONS),
    message_bytes=st.integers(KIB, 256 * MIB),
)
def test_all_limits_together_stay_within_what_the_page_on_sizing_promises(
    memory: int, connections: int, message_bytes: int
) -> None:
    """The rows of the table in docs/operations/sizing.md, for any value of the three options."""
    options = LimitsConfig(memory=memory, message_bytes=message_bytes)
    listen = ListenConfig(connections=connections)
    config = Config(limits=options, listen=listen, storage=StorageConfig(size=64 * GIB))
    limits, connection = config.core_limits, config.connection_limits
    clients_fill = (
        1000 * limits.queues_messages
        + connection.send_bytes_all
        + connection.receive_bytes_all
        + 13 * KIB * limits.queues
        + 3 * limits.backlog_bytes
        + limits.selectors_bytes
        + (limits.queues_memory_bytes + limits.backlog_bytes)
        + 17 * KIB * limits.streams
        + (limits.caches_bytes + limits.cursors_bytes)
        + (limits.identities_bytes + limits.published_ids_bytes)
    )
    messages = 7 * message_bytes
    sessions = int(44.2 * KIB * limits.sessions)
    newcomers = (guard.HELLO_BYTES_MIN + 4 * KIB) * connection.hello_queue
    fixed = 310 * MIB + transport.KEPT_BYTES_ALL
    total = clients_fill + messages + sessions + newcomers + fixed
    assert total <= memory + 53 * KIB * connections + 9 * message_bytes + 566 * MIB


@pytest.mark.parametrize("option", REMOVED)
def test_an_option_that_is_gone_is_refused_with_the_value_in_its_place(option: str, tmp_path: Path) -> None:
    section, name = option.split(".")
    assert name not in types_of(SECTIONS[section])
    file = tmp_path / "malamute.toml"
    file.write_text(f"[{section}]\n{name} = 1\n")
    for path, environ, given_options, place in (
        (file, {}, {}, str(file)),
        (None, {f"MALAMUTE_{section}__{name}".upper(): "1"}, {}, f"MALAMUTE_{section}__{name}".upper()),
        (None, {}, {option: "1"}, f"--set {option}"),
    ):
        with pytest.raises(ConfigError) as caught:
            Config.load(path, environ, given_options)
        assert caught.value.text.endswith(
            f"{place}: {option} is not an option any more: it is {REMOVED[option]}"
        )


def test_each_limit_is_derived_or_constant_and_its_option_is_gone() -> None:
    """No limit is left out of the words about options that are gone."""
    gone = {option.partition(".")[2] for option in REMOVED}
    assert {*Limits._fields, *ConnectionLimits._fields} - gone == {"message_bytes"}


def test_there_are_few_options() -> None:
    tables = {"store"}
    options = [name for kind in SECTIONS.values() for name in types_of(kind) if name not in tables]
    assert len(options) <= 53
