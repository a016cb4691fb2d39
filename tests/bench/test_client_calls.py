"""Waited calls of the client take few calls of functions: each is code that something else has evicted."""

from __future__ import annotations

import client_bench as bench
import pytest

from malamute.client.session.outbox import Outbox

REPEATS = 50

MOST = {
    # Python functions of the package, and C functions that they call: blocking, and on asyncio.
    "publish and wait": ((40, 30), (55, 37)),
    "request and its reply": ((59, 56), (80, 62)),
    "stored request and its reply": ((68, 65), (89, 71)),
    "receive and reply": ((51, 49), (54, 46)),
}
"""The most of each. Before they were counted, it was twice as many: 279 in all for a blocking request."""


@pytest.mark.parametrize("aio", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("name", bench.CALLS)
def test_a_waited_call_takes_few_calls_of_functions(name: str, aio: bool) -> None:
    with bench.stepping(name, aio=aio) as step:
        in_python, in_c = bench.calls(step, REPEATS)
    most_in_python, most_in_c = MOST[name][aio]
    assert in_python <= most_in_python
    assert in_c <= most_in_c


def test_one_call_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.stepping("publish and wait", aio=False) as step:
        in_python, in_c = bench.calls(step, REPEATS)
        room = Outbox.room
        source = "def room(self, *, numbered):\n    len(())\n    return before(self, numbered=numbered)"
        names = {"before": room}
        exec(compile(source, room.__code__.co_filename, "exec"), names)
        monkeypatch.setattr(Outbox, "room", names["room"])
        assert bench.calls(step, REPEATS) == (in_python + 1, in_c + 1)
