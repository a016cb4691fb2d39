"""The attempts, the backoff and the time-out of a queue, set at run time."""

from __future__ import annotations

from typing import Any

import pytest
from core_bench import Bench, offer, request

from malamute.core.queue import limits
from malamute.errors import StorageFull
from malamute.protocol.messages import Answer, Change, Error, Nak, Ok, Query
from malamute.store.policies import QueuePolicy, QueueSettings
from malamute.store.tables import QUEUE_SETTINGS

POLICY = QueuePolicy(attempts_max=7, backoff_seconds=(1.0, 2.0), source="rule w*")
CONFIGURED = {"attempts": 7, "backoff": [1.0, 2.0], "ack_timeout": 1800.0, "settings_source": "rule w*"}


@pytest.fixture
def bench() -> Bench:
    """A service `w` with a request."""
    bench = Bench(queues=POLICY)
    bench.open("op", "alice", "bob")
    bench.tell("alice", request(b"1"))
    bench.settle()
    return bench


def change(
    bench: Bench, topic: str = "queue.set", kind: str = "service", name: str = "w", **more: Any
) -> Any:
    """The settings in the answer, or the code of a refusal."""
    bench.sent("op")
    bench.tell("op", Change(0, topic, {"kind": kind, "name": name, **more}))
    bench.settle()
    [answer] = [m for m in bench.sent("op") if isinstance(m, Ok | Error)]
    return answer.code if isinstance(answer, Error) else settings(answer.value)


def settings(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in CONFIGURED if name in row}


def shown(bench: Bench) -> dict[str, Any]:
    bench.sent("op")
    bench.tell("op", Query(1, "service", {"name": "w"}))
    bench.settle()
    [answer] = [m for m in bench.sent("op") if isinstance(m, Answer)]
    return settings(answer.value)


def test_settings_are_shown_with_their_source_and_outlive_a_restart(bench):
    assert shown(bench) == CONFIGURED
    three = {**CONFIGURED, "attempts": 3, "settings_source": "rule w*; at run time: attempts"}
    assert change(bench, attempts=3, dry_run=True) == three
    assert shown(bench) == CONFIGURED
    assert change(bench, attempts=3) == three
    both = {**three, "backoff": [], "settings_source": "rule w*; at run time: attempts, backoff"}
    assert change(bench, backoff=[]) == both == shown(bench)
    bench.restart()
    bench.open("op")
    assert shown(bench) == both
    last = {**CONFIGURED, "ack_timeout": 9.0, "settings_source": "rule w*; at run time: ack_timeout"}
    assert change(bench, reset=True, ack_timeout=9.0) == last
    assert change(bench, reset=True) == CONFIGURED == shown(bench)
    assert bench.store.recover().table(QUEUE_SETTINGS) == {}


def test_attempts_and_backoff_hold_at_once_and_a_time_out_for_the_next_consumer(bench):
    change(bench, attempts=2, backoff=[4], ack_timeout=50)
    bench.tell("bob", offer())
    bench.settle()
    assert [m.value for m in bench.sent("bob") if isinstance(m, Ok)] == [50_000]
    bench.tell("bob", Nak(1, [[1, 1]]))
    bench.settle()
    bench.wait(3.0)
    assert bench.got("bob") == []
    bench.wait(1.1)
    bench.settle()
    assert [item.attempt for item in bench.got("bob")] == [2]
    bench.tell("bob", Nak(1, [[1, 1]]))
    bench.settle()
    assert bench.core.services.by_name["w"].dead_letters.count == 1


def test_a_setting_that_the_disk_refuses_holds_no_more(bench):
    bench.tell("op", Change(0, "queue.set", {"kind": "service", "name": "w", "attempts": 3}))
    bench.fail(StorageFull("full"))
    assert shown(bench) == CONFIGURED
    assert bench.core.services.by_name["w"].usage.policy.attempts_max == 7


def test_settings_go_with_their_queue(bench):
    change(bench, attempts=3)
    bench.tell("op", Change(0, "queue.delete", {"kind": "service", "name": "w"}))
    bench.settle()
    assert bench.store.recover().table(QUEUE_SETTINGS) == {}
    bench.tell("alice", request(b"2"))
    bench.settle()
    assert shown(bench) == CONFIGURED


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, 416),
        ({"name": "none", "attempts": 1}, 404),
        ({"kind": "mailbox", "name": "$alice", "attempts": 1}, 404),
        ({"attempts": -1}, 416),
        ({"backoff": [1] * 33}, 416),
        ({"backoff": [-1]}, 416),
        ({"ack_timeout": -1}, 416),
    ],
)
def test_a_refused_setting_changes_nothing(bench, arguments, code):
    assert change(bench, **arguments) == code
    assert shown(bench) == CONFIGURED


def test_so_many_queues_have_settings(bench, monkeypatch):
    monkeypatch.setattr(limits, "SETTINGS_MAX", 1)
    bench.tell("alice", request(b"1", service="v"))
    bench.settle()
    assert change(bench, attempts=3)["attempts"] == 3
    assert change(bench, name="v", attempts=3) == 429
    assert change(bench, attempts=4)["attempts"] == 4


@pytest.mark.parametrize("value", [None, (1,), ("x", None, None), (None, (1, "x"), None)])
def test_a_stored_value_that_is_none_is_no_setting(value):
    assert QueueSettings.of(value) == QueueSettings()
