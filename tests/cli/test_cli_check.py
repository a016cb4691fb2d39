"""`malamute broker check`: figures, bounds, and the exit codes of a monitoring plugin."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from cli_commands import Run
from msgspec import structs

import malamute
from malamute.cli.check import MEASURES, CheckBounds, Figure, PluginState, faults, judge
from malamute.config import QueueRule, QueuesConfig
from malamute.errors import TryLater
from malamute.protocol.admin import BrokerStatus
from malamute.testing import Broker, small_config

CHECK = ("broker", "check")


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [
        ("lag", 9, PluginState.OK),
        ("lag", 10, PluginState.WARNING),
        ("lag", 19.9, PluginState.WARNING),
        ("lag", 20, PluginState.CRITICAL),
        ("uptime", 20, PluginState.OK),
        ("uptime", 19.9, PluginState.WARNING),
        ("uptime", 10, PluginState.WARNING),
        ("uptime", 9.9, PluginState.CRITICAL),
    ],
)
def test_a_figure_at_its_bound_and_beside_it(name: str, value: float, state: PluginState) -> None:
    bounds = CheckBounds(20, 10) if MEASURES[name].least else CheckBounds(10, 20)
    assert judge(name, Figure(value), bounds).state is state


@pytest.mark.parametrize(
    ("name", "key"), [("faults", "faults"), ("unrecovered", "not_recovered"), ("surplus", "dead_excess")]
)
def test_a_single_one_of_what_should_never_be_is_a_warning(
    run: Run, client: malamute.Client, monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    real = malamute.Client.query

    def query(self: malamute.Client, topic: Any) -> Any:
        answer = real(self, topic)
        return structs.replace(answer, **{key: 1}) if isinstance(answer, BrokerStatus) else answer

    monkeypatch.setattr(malamute.Client, "query", query)
    assert f"{name} 1 is at or over 1" in run(*CHECK, exit_code=1).stdout
    run(*CHECK, f"--{name}", "2", exit_code=0)
    run(*CHECK, f"--{name}", ",1", exit_code=2)


def test_a_queue_at_its_limit_and_a_sender_that_is_refused_are_a_warning(run: Run) -> None:
    rules = (QueueRule("bob", "mailbox", depth=10),)
    config = replace(small_config(), queues=QueuesConfig(rule=rules))
    with Broker(config=config) as broker, malamute.connect(broker.url) as client:
        at = ("--url", broker.url)
        for _ in range(8):
            client.send("bob", "a", b"")
        client.flush()
        run(*CHECK, *at, exit_code=0)
        client.send("bob", "a", b"", assurance="stored")
        shown = run(*CHECK, *at, exit_code=1).stdout
        assert shown.startswith("MALAMUTE WARNING - full 90% (queue_messages mailbox bob) is at or over 90 |")
        run(*CHECK, *at, "--full", "91", exit_code=0)
        client.send("bob", "a", b"", assurance="stored")
        with pytest.raises(TryLater):
            client.send("bob", "a", b"", assurance="stored")
        assert "refused 1 is at or over 1" in run(*CHECK, *at, "--full", "91,100", exit_code=2).stdout


def test_a_broker_that_is_well(run: Run, client: malamute.Client) -> None:
    shown = run(*CHECK, "--lag", "1,2", "--uptime", "0", "--fill", "90").stdout
    line, _, figures = shown.partition(" | ")
    assert line.startswith("MALAMUTE OK - the broker at tcp://")
    labels = [figure.partition("=")[0] for figure in figures.split()]
    assert labels == [*MEASURES]
    assert all(re.fullmatch(r"\w+=\d+(\.\d+)?[s%]?;(\d+:?)?;(\d+:?)?", figure) for figure in figures.split())


def test_each_figure_shows_where_it_is_worst(run: Run, client: malamute.Client) -> None:
    for number in range(3):
        client.publish("weather", "a", b"%d" % number, assurance="stored")
        client.send("bob", "a", b"")
    client.change("cursor.set", stream="weather", cursor="slow", start="seq:2")
    shown = json.loads(
        run(*CHECK, "--lag", "2,3", "--depth", ",3", "--oldest", "1d", "--json", exit_code=2).stdout
    )
    assert shown["state"] == "CRITICAL"
    found = {row["name"]: (row["value"], row["where"], row["state"]) for row in shown["findings"]}
    assert found["lag"] == (2, "weather for slow", "WARNING")
    assert found["depth"] == (3, "mailbox bob", "CRITICAL")
    assert found["oldest"][1:] == ("mailbox bob", "OK")
    assert found["dead"] == (0, None, "OK")


def test_a_reader_that_is_behind_counts_too(run: Run, client: malamute.Client) -> None:
    for _ in range(5):
        client.publish("weather", "a", b"", assurance="stored")
    with client.subscribe("weather", start="first", credit=1):
        text = run(*CHECK, "--lag", "4", exit_code=1).stdout
    assert text.startswith("MALAMUTE WARNING - lag 4 (weather for test) is at or over 4 | lag=4;4;")


def test_a_broker_that_started_just_now(run: Run, client: malamute.Client) -> None:
    text = run(*CHECK, "--uptime", "1d,1h", exit_code=2).stdout
    assert re.match(r"MALAMUTE CRITICAL - uptime [\d.]+s is below 3600 \|", text)
    assert "s;86400:;3600:" in text


def test_no_broker_is_critical(run: Run) -> None:
    nowhere = ("--url", "tcp://127.0.0.1:1", "--timeout", "0.1")
    assert run(*CHECK, *nowhere, exit_code=2).stdout.startswith("MALAMUTE CRITICAL - no broker answered")
    shown = json.loads(run(*CHECK, *nowhere, "--json", exit_code=2).stdout)
    assert (shown["state"], shown["findings"]) == ("CRITICAL", [])


@pytest.mark.parametrize(
    "options", [("--lag", "many"), ("--lag", "2,1"), ("--lag", "1,2,3"), ("--uptime", "1,2"), ("--none",)]
)
def test_wrong_usage_is_unknown(run: Run, options: tuple[str, ...]) -> None:
    assert options[0] in run(*CHECK, *options, exit_code=3).stderr


def test_a_broker_that_refuses_is_unknown(run: Run, client: malamute.Client) -> None:
    assert "MALAMUTE UNKNOWN" in run(*CHECK, "--address", "$sys", exit_code=3).stdout


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("config_error", "bad.toml: no", "the configuration was refused at a reload: bad.toml: no"),
        ("waiting_for_restart", ["listen.endpoints", "storage.size"], "listen.endpoints, storage.size"),
    ],
)
def test_a_refused_configuration_and_options_that_wait_for_a_restart_are_warnings(
    field: str, value: Any, words: str
) -> None:
    counts = dict.fromkeys(BrokerStatus.__struct_fields__, 0)
    texts: dict[str, Any] = {"software": "", "store_error": "", "config_error": "", "waiting_for_restart": []}
    good: dict[str, Any] = {**counts, **texts}
    assert faults(BrokerStatus(**good)) == []
    ((state, found),) = faults(BrokerStatus(**{**good, field: value}))
    assert (state, words in found) == (PluginState.WARNING, True)
