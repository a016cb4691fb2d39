"""A configuration that is read again by a broker that runs: by SIGHUP, and by `malamute broker reload`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from forked_commands import forked_malamute
from rig_daemon import Daemon, environment
from rig_waiting import PATIENCE, eventually

import malamute
from malamute.errors import ConfigError, TooMany
from malamute.protocol.admin import OptionsQuery, StatusQuery, StoredQuery

Connect = Callable[..., malamute.Client]


def command(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked_malamute(), *words, "--url", daemon.url, "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def changed(daemon: Daemon, **sections: dict[str, Any]) -> None:
    """Write a configuration that differs in these options."""
    config = daemon.config
    for section, options in sections.items():
        before = getattr(config, section)
        config = replace(config, **{section: replace(before, **options)})
    daemon.configure(config)


def test_sighup_loads_a_good_configuration_and_names_what_waits(daemon: Daemon, connect: Connect) -> None:
    client = connect("op")
    before = client.query(StatusQuery())
    client.publish("one", "a", b"1", assurance="stored")
    taken: dict[str, Any] = {"streams": {"count": 5}, "log": {"level": "debug"}}
    changed(daemon, **taken, listen={"io_threads": 2, "connections": 2})
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: client.query(StatusQuery()).configured_at > before.configured_at, "the configuration")
    status = client.query(StatusQuery())
    assert (status.pid, status.config_error) == (before.pid, "")
    assert status.waiting_for_restart == ["listen.io_threads"]
    eventually(lambda: client.query(StoredQuery(stream="one"))[0].retain_count == 5, "the retention")
    connect("second")
    with pytest.raises(TooMany, match="expected at most 2"):
        connect("third")
    assert "the configuration was loaded" in daemon.log
    changed(daemon, listen={"connections": 9})
    daemon.stop()
    daemon.start()
    assert connect("again").query(StatusQuery()).waiting_for_restart == []


def test_a_broken_configuration_is_refused_and_the_old_one_stays(daemon: Daemon, connect: Connect) -> None:
    client = connect("op")
    before = client.query(StatusQuery())
    text = daemon.file.read_text()
    daemon.file.write_text(text.replace("max_deliver = 20", "max_deliver = 3") + "\n[limits]\nmemory = 1\n")
    bad = daemon.file.read_text()

    def by_signal() -> None:
        os.kill(daemon.pid, signal.SIGHUP)
        eventually(lambda: client.query(StatusQuery()).config_error, "the refusal")

    def by_program() -> None:
        with pytest.raises(ConfigError, match="invalid TOML") as caught:
            client.change("broker.reload")
        assert caught.value.code == 700

    def by_command() -> None:
        done = command(daemon, "broker", "reload")
        assert done.returncode == 1
        assert json.loads(done.stderr)["error"]["code"] == 700

    for reload in (by_signal, by_program, by_command):
        daemon.file.write_text(bad)
        reload()
        status = client.query(StatusQuery())
        assert status.configured_at == before.configured_at, reload.__name__
        assert str(daemon.file) in status.config_error, reload.__name__
        daemon.file.write_text(text)
        assert client.change("broker.reload") == {"changed": [], "waiting_for_restart": []}
        before = client.query(StatusQuery())
        assert before.config_error == "", reload.__name__


def test_the_command_shows_what_changes_before_it_does(daemon: Daemon, connect: Connect) -> None:
    client = connect("op")
    changed(daemon, queues={"max_deliver": 3}, session={"expiry": 60.0})
    expected = {"changed": ["queues.max_deliver"], "waiting_for_restart": ["session.expiry"]}
    tried = command(daemon, "broker", "reload", "--dry-run")
    assert json.loads(tried.stdout) == expected, tried.stderr
    assert client.query(StatusQuery()).waiting_for_restart == []
    assert json.loads(command(daemon, "broker", "reload").stdout) == expected
    assert client.query(StatusQuery()).waiting_for_restart == ["session.expiry"]
    shown = json.loads(command(daemon, "broker", "status").stdout)
    assert shown["waiting_for_restart"] == ["session.expiry"]
    # What changed is in force and differs no more; what waits is shown until the restart.
    assert json.loads(command(daemon, "broker", "reload").stdout) == {**expected, "changed": []}


def test_every_option_is_told_with_its_source_and_what_it_waits_for(daemon: Daemon, connect: Connect) -> None:
    client = connect("op")
    before = {row.name: row for row in client.query(OptionsQuery())}
    assert (before["queues.max_deliver"].changed_since_start, before["session.expiry"].source) == (
        False,
        "file",
    )
    changed(
        daemon,
        queues={"max_deliver": 3},
        session={"expiry": 60.0},
        streams={"rule": ({"pattern": "a", "journal": False},)},
    )
    client.change("broker.reload")
    rows = {row["name"]: row for row in json.loads(command(daemon, "broker", "options").stdout)}
    assert list(rows) == list(before)
    assert rows["queues.max_deliver"] == {
        "name": "queues.max_deliver",
        "value": "3",
        "default": before["queues.max_deliver"].default,
        "source": "file",
        "changed_since_start": True,
        "needs_restart": False,
        "waiting_for_restart": False,
        "description": before["queues.max_deliver"].description,
    }
    assert all(row["description"].endswith(".") for row in rows.values())
    expiry = rows["session.expiry"]
    assert (expiry["value"], expiry["needs_restart"]) == (before["session.expiry"].value, True)
    # Of a rule it is the journal alone that waits.
    assert {name for name, row in rows.items() if row["waiting_for_restart"]} == {
        "session.expiry",
        "streams.rule",
    }
