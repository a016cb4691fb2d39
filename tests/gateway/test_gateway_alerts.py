"""Alerts fire in the states that they are for, and in no other: each state is that of a real broker.

A story brings a broker into one state after the other. The export of its gateway in each is recorded, and
becomes the series that `promtool` gives to the rules, for some minutes each.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from forked_commands import forked_malamute
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from running_gateway import WAIT_SECONDS, gateway_before

import malamute
from malamute.config import Config, QueueRule, QueuesConfig
from malamute.errors import TryLater
from malamute.protocol.admin import (
    JournalBackup,
    QueuePurge,
    QueueRedrive,
    StreamCreate,
    StreamPurge,
    StreamRetain,
)
from malamute.testing import Broker, small_config

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "malamute-rules.yaml"
MONITORING = DEPLOY.parent / "docs" / "operations" / "monitoring.md"
TARGET = {"job": "malamute", "instance": "gateway:8080"}
LAG = 2_000
"""Messages that are more than a cursor may be behind."""

TIMED = ("iteration", "commit")
"""Of these the longest is exported. On a busy machine it is long by no fault of the broker."""

Scrape = Mapping[str, float]


class State(NamedTuple):
    """The minute up to which a state lasts, its figures, and the alerts that fire in its last minute."""

    until: int
    figures: Scrape
    firing: set[str]


class Story:
    """A broker with a gateway, and the states that were recorded of them."""

    def __init__(self, config: Config, directory: Path | None = None) -> None:
        self.broker = Broker(directory, config=config)
        self.states: list[State] = []
        self._stack = ExitStack()
        self._http: httpx.Client
        self.client: malamute.Client

    def __enter__(self) -> Story:
        self.broker.start()
        self._connect()
        self.client.change(StreamCreate(stream="weather"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.broker.stop()

    def _connect(self) -> None:
        gateway = self._stack.enter_context(gateway_before(self.broker))
        self._http = self._stack.enter_context(gateway.client())
        self.client = self._stack.enter_context(
            malamute.connect(self.broker.url, address="story", timeout=WAIT_SECONDS)
        )

    def start_again(self, meanwhile: Callable[[], None]) -> None:
        """Stop the broker, do something to its directory, and start it."""
        self._stack.close()
        self.broker.stop()
        meanwhile()
        self.broker.start()
        self._connect()

    def publish(self, count: int, stream: str = "weather") -> None:
        self.client.publish_batch(stream, ["a"] * count, [b"x"] * count)
        self.client.flush()

    def record(self, minutes: int, *firing: str, stream: str = "weather", **longest: float) -> None:
        """Note what is exported now, and which alerts are to fire after so many more minutes of it.

        The `longest` of what is timed is given, in seconds: the machine has no part in what fires.
        """
        answer = self._http.get("/metrics", params={"stream": stream}).raise_for_status()
        figures = {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        for name in TIMED:
            series = _series(f"malamute_{name}_longest_seconds", {})
            assert series in figures
            figures[series] = longest.get(name, 0.0)
        until = minutes + (self.states[-1].until if self.states else 0)
        self.states.append(State(until, figures | {_series("up", {}): 1}, {*firing}))


def _series(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in sorted({**labels, **TARGET}.items()))
    return f"{name}{{{pairs}}}"


def _values(states: Sequence[State], series: str) -> str:
    """A series over all states, a value a minute, in the notation of promtool."""
    before, found = 0, []
    for state in states:
        value, count = state.figures.get(series), state.until - before
        found.append(f"_x{count}" if value is None else f"{value!r}+0x{count - 1}")
        before = state.until
    return " ".join(found)


def check_alerts(story: Story, tmp_path: Path) -> None:
    """Hold the rules to what was recorded: these alerts fire at the end of each state, and no others."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    names = sorted({series for state in story.states for series in state.figures})
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": _values(story.states, name)} for name in names],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{state.until - 1}m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}"}}', "value": 1}
                            for alert in sorted(state.firing)
                        ],
                    }
                    for state in story.states
                ],
            }
        ],
    }
    path = tmp_path / "rules_test.yaml"
    path.write_text(yaml.safe_dump(tests), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_while_all_is_well_no_alert_fires(tmp_path: Path) -> None:
    with Story(small_config()) as story:
        story.publish(LAG)
        story.client.send("bob", "s", b"x")
        with story.client.subscribe("weather", start="first", cursor="archive") as reader:
            for _ in range(LAG):
                last = reader.receive(WAIT_SECONDS)
            reader.commit(last)
            story.client.flush()
            story.record(30)
            story.publish(10)
            story.record(30)
    check_alerts(story, tmp_path)


def test_a_loop_or_a_disk_that_lets_everybody_wait_is_an_alert(tmp_path: Path) -> None:
    with Story(small_config()) as story:
        story.record(10, iteration=0.5, commit=1.0)
        story.record(10, "MalamuteLoopHeld", iteration=0.501)
        story.record(10, "MalamuteCommitsSlow", commit=1.001)
        story.record(10)
    check_alerts(story, tmp_path)


def test_a_reader_that_died_is_an_alert_by_its_cursor(tmp_path: Path) -> None:
    with Story(small_config()) as story:
        story.publish(1)
        with story.client.subscribe("weather", start="first", cursor="archive") as reader:
            reader.commit(reader.receive(WAIT_SECONDS))
            story.client.flush()
            story.record(20)
        story.publish(LAG)
        story.record(10)
        story.publish(LAG)
        story.record(10, "MalamuteCursorBehind")
        with story.client.subscribe("weather", start="first", cursor="archive") as reader:
            for _ in range(LAG + 1):
                last = reader.receive(WAIT_SECONDS)
            reader.commit(last)
            story.client.flush()
            # Behind, but coming nearer.
            story.record(10)
    check_alerts(story, tmp_path)


def test_a_full_queue_is_an_alert_and_so_is_each_sender_that_is_refused(tmp_path: Path) -> None:
    rules = (QueueRule("bob", "mailbox", depth=20),)
    with Story(replace(small_config(), queues=QueuesConfig(rule=rules))) as story:
        story.record(10)
        for _ in range(20):
            story.client.send("bob", "s", b"x")
        story.client.flush()
        story.record(10, "MalamuteLimitNear")
        with pytest.raises(TryLater, match="is full"):
            story.client.send("bob", "s", b"x", assurance="stored")
        story.record(3, "MalamuteLimitNear", "MalamuteRefusals")
        story.record(10, "MalamuteLimitNear")
        story.client.change(QueuePurge(kind="mailbox", name="bob"))
        story.record(10)
    check_alerts(story, tmp_path)


def test_a_ring_that_turns_is_an_alert_before_the_gap_and_after_it(tmp_path: Path) -> None:
    with Story(small_config()) as story:
        story.client.change(StreamRetain(stream="weather", count=100))
        story.client.change("cursor.set", stream="weather", cursor="archive", start="new")
        for _ in range(9):
            story.publish(10)
        story.record(20)
        story.publish(20)
        story.record(5, "MalamuteGapSoon")
        with story.client.subscribe("weather", start="first", cursor="archive") as reader:
            for _ in range(100):
                last = reader.receive(WAIT_SECONDS)
            reader.commit(last)
            story.client.flush()
        story.record(5, "MalamuteGaps")
        story.record(20)
    check_alerts(story, tmp_path)


def test_dead_letters_are_an_alert_as_long_as_there_are_any_and_new_ones_another(tmp_path: Path) -> None:
    rules = (QueueRule("print", "service", dead_letters=1),)
    with Story(replace(small_config(), queues=QueuesConfig(rule=rules))) as story:

        def reject() -> None:
            with story.client.work("print") as work:
                story.client.request("print", "s", b"x")
                work.receive(WAIT_SECONDS).reject("no paper")
                story.client.flush()
            # The letter before goes with the commit that brings this one.
            while story.client.query("service", name="print")["dead_letters"] != 1:
                pass

        story.record(20)
        reject()
        story.record(5, "MalamuteDeadLetters", "MalamuteDeadLettersNew")
        story.record(120, "MalamuteDeadLetters")
        # There is room for one: the number stays as it is.
        reject()
        story.record(5, "MalamuteDeadLetters", "MalamuteDeadLettersNew")
        story.record(20, "MalamuteDeadLetters")
        story.client.change(QueueRedrive(kind="service", name="print"))
        story.record(20)
    check_alerts(story, tmp_path)


def test_a_purge_and_a_restore_are_no_lag(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "data" / "backups" / "monday"
    with Story(small_config(), data) as story:
        story.publish(LAG)
        story.client.change("cursor.set", stream="weather", cursor="archive", start="first")
        story.client.change(StreamPurge(stream="weather"))
        story.record(40)
        story.publish(1)
        story.client.change(JournalBackup(directory="monday"), timeout=WAIT_SECONDS)
        story.record(20)

        def restore() -> None:
            restored = tmp_path / "restored"
            _malamute("journal", "restore", str(backup), str(restored))
            data.rename(tmp_path / "old")
            restored.rename(data)

        story.start_again(restore)
        story.record(40)
        story.publish(1)
        story.record(40)
    check_alerts(story, tmp_path)


def _malamute(*arguments: str) -> str:
    command = [forked_malamute(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _advised() -> Iterator[str]:
    """The commands that rules, their documentation and `broker check` advise."""
    texts = [RULES.read_text(encoding="utf-8")]
    texts += re.findall(r"^\| `Malamute\w+` .*$", MONITORING.read_text(encoding="utf-8"), re.MULTILINE)
    texts.append((DEPLOY.parent / "malamute" / "cli" / "check.py").read_text(encoding="utf-8"))
    for text in texts:
        yield from re.findall(r"`malamute ([^`]+)`", re.sub(r"\s+", " ", text))


ADVISED_NAMES = {"broker backup": "monday", "stream show": "weather"}


def test_each_command_that_is_advised_works_beside_a_running_broker(tmp_path: Path) -> None:
    """The advice is for a broker that runs: of `journal`, all but `export` refuses the directory of one."""
    commands = {" ".join(command.split()[:2]) for command in _advised()}
    assert {"broker check", "broker status", "cursor list"} <= commands
    with Broker(tmp_path / "data") as broker, malamute.connect(broker.url, timeout=WAIT_SECONDS) as client:
        client.publish("weather", "a", b"x", assurance="stored")
        for command in sorted(commands - {"config check"}):
            names = [ADVISED_NAMES[command]] if command in ADVISED_NAMES else []
            _malamute(*shlex.split(command), *names, "--url", broker.url)


def test_a_counter_is_there_before_its_first_event() -> None:
    """A counter that comes with its first event has not grown for `increase`, so no alert fires."""
    asked: dict[str, set[str]] = defaultdict(set)
    with Story(small_config()) as story:
        story.record(1)
    exported = {series.partition("{")[0] for series in story.states[0].figures}
    rules: Any = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            asked[rule["alert"]] = {*re.findall(r"\bmalamute_\w+_total\b", rule["expr"])}
    assert set().union(*asked.values()) <= exported
