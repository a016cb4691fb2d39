"""No workload of the guard takes more bytecode instructions than the baseline says: work, not time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import instruction_counts as guard
import pytest
from core_bench import Bench

from malamute.access import AccessRule, Policy
from malamute.core.commands import ClientCommands
from malamute.core.iteration.effects import Effects


def test_no_workload_takes_more_instructions_than_recorded() -> None:
    before = guard.recorded().get(guard.VERSION)
    if before is None:
        pytest.skip(
            f"no instruction counts recorded for Python {guard.VERSION}, but for "
            f"{', '.join(guard.recorded())}: {guard.RECORD}"
        )
    # In a process of its own: what other tests have imported, traced or cached is not there.
    run = subprocess.run(
        [sys.executable, guard.__file__, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    more = guard.compare(before, json.loads(run.stdout.splitlines()[-1]))
    assert not more, "\n".join(
        ["more work in the core or the codec:", *more, f"if it is worth that, record it: {guard.RECORD}"]
    )


LOOP = """
def receive(self, peer, message, now):
    for _ in range(50):
        pass
    return before(self, peer, message, now)
"""


def test_a_loop_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    name, workload = "publish one, confirmed", guard.publish_confirmed
    counted = {name: guard.count(workload)}
    assert guard.compare(counted, {name: guard.count(workload)}) == []
    names = {"before": ClientCommands.receive}
    exec(compile(LOOP, ClientCommands.receive.__code__.co_filename, "exec"), names)
    monkeypatch.setattr(ClientCommands, "receive", names["receive"])
    (line,) = guard.compare(counted, {name: guard.count(workload)})
    assert line.startswith(f"{name}: ")


OTHERS = [f"publish stream/other{number}.#" for number in range(996)]
WHOLE = ["* stream/#", "* mailbox/#", "* service/#", "view broker/#"]
PARTS = [
    "publish stream/s/temp.#",
    "request service/w/a",
    "create,subscribe,offer */#",
    "receive,send mailbox/#",
]


@pytest.mark.parametrize(
    ("rules", "workload", "most"),
    [
        (WHOLE, guard.publish_batch, 1.0),
        (WHOLE, guard.ask_a_service, 1.0),
        (PARTS, guard.publish_batch, 1.05),
        (PARTS, guard.ask_a_service, 1.03),
    ],
)
def test_a_thousand_rules_take_next_to_nothing_once_they_have_decided(
    monkeypatch: pytest.MonkeyPatch, rules: list[str], workload: Callable[[], guard.Step], most: float
) -> None:
    without = guard.count(workload)

    class RuledBench(Bench):
        def __init__(self) -> None:
            super().__init__()
            policy = Policy(map(AccessRule.parse, [*rules, *OTHERS]))
            self.settings = self.settings._replace(access=policy)
            self.core.configure(self.settings, self.now)

    monkeypatch.setattr(guard, "Bench", RuledBench)
    assert guard.count(workload) <= most * without


def test_what_is_not_the_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = guard.count(guard.publish_confirmed)
    before = Effects.__dict__["send"]

    def send(self, *arguments, **named):
        sum(number for number in range(50))
        return before(self, *arguments, **named)

    monkeypatch.setattr(Effects, "send", send)
    assert guard.count(guard.publish_confirmed) == counted


def test_what_grew_and_what_is_new_is_named() -> None:
    before = {"same": 1000, "within": 1000, "more": 1000, "less": 1000, "gone": 1000}
    now = {"same": 1000, "within": 1030, "more": 1031, "less": 10, "new": 1000}
    assert guard.compare(before, now) == [
        "more: 1,031 instructions in 20 steps, +3.1% of 1,000",
        "new: not in the baseline",
        "gone: in the baseline, and no workload",
    ]


def test_the_baseline_is_beside_it() -> None:
    assert Path(guard.__file__).parent == guard.BASELINE.parent
