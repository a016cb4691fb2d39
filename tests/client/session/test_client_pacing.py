"""How long the broker is busy, by what sending took."""

import pytest

from malamute.client.session.pacing import BROKER_RATIO, COMMAND_SECONDS_MAX, Backlog


def test_a_broker_that_has_nothing_to_do_is_busy_with_one_command_alone():
    backlog = Backlog()
    backlog.sent(100.0, 100.00001)
    assert backlog.until == pytest.approx(100.00001 + BROKER_RATIO * 0.00001)
    backlog.sent(200.0, 200.00001)
    assert backlog.until == pytest.approx(200.00001 + BROKER_RATIO * 0.00001)


def test_commands_that_come_faster_than_it_works_add_up():
    backlog, now = Backlog(), 100.0
    for _ in range(50):
        backlog.sent(now, now + 0.00001)
        now += 0.00001
    assert backlog.until - now == pytest.approx(50 * (BROKER_RATIO - 1) * 0.00001 + 0.00001, rel=1e-3)


def test_a_sender_that_was_held_up_itself_counts_so_much_and_no_more():
    backlog = Backlog()
    backlog.sent(100.0, 100.0 + COMMAND_SECONDS_MAX / BROKER_RATIO)
    assert backlog.until - 100.0 == pytest.approx(COMMAND_SECONDS_MAX * (1 + 1 / BROKER_RATIO))
    backlog = Backlog()
    backlog.sent(100.0, 160.0)
    assert backlog.until - 160.0 == pytest.approx(COMMAND_SECONDS_MAX)
