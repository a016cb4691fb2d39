"""The congestion window, on simulated paths."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import NamedTuple

import pytest
from depth import some
from hypothesis import given, settings
from hypothesis import strategies as st
from path_model import UNBOUNDED, Path, Sender

from malamute.client.session.congestion import (
    INITIAL_BYTES,
    INTERVAL_SECONDS,
    LEAST_BYTES,
    RATE_ROUNDS,
    TARGET_SECONDS,
    CongestionWindow,
)

RATE = 50e6
SIZE = 50_000


class Setup(NamedTuple):
    """A path, and how many commands a second it takes."""

    rate: float
    delay: float
    bunch: float
    jitter: float
    commands: int

    @property
    def size(self) -> int:
        return int(self.rate / self.commands)

    @property
    def round_trip(self) -> float:
        """Of a command that meets no queue, and a bunch that is on its way."""
        return 2 * self.delay + self.size / self.rate + 2 * self.bunch * (1 + self.jitter)

    def path(self) -> Path:
        return Path(self.rate, self.delay, bunch=self.bunch, jitter=self.jitter)


SETUPS = st.builds(
    Setup,
    rate=st.floats(1e6, 1e9),
    delay=st.floats(1e-5, 0.04),
    bunch=st.floats(0, 0.003),
    jitter=st.floats(0, 1),
    commands=st.integers(300, 800),
)


@settings(deadline=None, max_examples=15)
@given(SETUPS)
def test_the_path_is_used_and_only_a_short_queue_stands_on_it(setup: Setup) -> None:
    path = setup.path()
    Sender(path, setup.size)
    path.run(3.0)
    assert path.throughput(1.5, 3.0) > 0.95 * setup.rate
    delays = path.queueing_delays(1.5, 3.0)
    # A round trip is measured behind the least window at the most.
    accepted = TARGET_SECONDS + 2 * (setup.round_trip + LEAST_BYTES / setup.rate)
    assert delays[len(delays) // 2] < 1.2 * accepted
    assert delays[-1] < 1.5 * accepted


@settings(deadline=None, max_examples=10)
@given(SETUPS, st.floats(0.1, 0.9))
def test_who_sends_less_than_the_path_takes_is_not_held_up(setup: Setup, load: float) -> None:
    path = setup.path()
    Sender(path, setup.size, rate=load * setup.rate)
    path.run(2.5)
    assert path.throughput(0.5, 2.5) > 0.97 * load * setup.rate


@pytest.mark.parametrize(
    ("factor", "delay"), some(product((10.0, 0.1), (0.0001, 0.005)), (10.0, 0.005), (0.1, 0.0001))
)
def test_the_window_follows_a_rate_that_changes_tenfold(factor: float, delay: float) -> None:
    path = Path(lambda now: RATE if now < 2.0 else factor * RATE, delay)
    Sender(path, 10_000)
    # The window grows within some round trips; to see that less is taken, it has to be full some rounds long.
    begin = 2.3 if factor > 1 else 6.0
    end = begin + 0.5
    path.run(end)
    assert path.throughput(begin, end) > 0.95 * factor * RATE
    accepted = TARGET_SECONDS + 2 * (2 * delay + 10_000 / (factor * RATE))
    assert path.queueing_delays(begin, end)[-1] < 1.5 * accepted


def test_after_a_stall_it_goes_on_as_before() -> None:
    path = Path(RATE, stall=(2.0, 2.5))
    Sender(path, SIZE)
    path.run(4.0)
    assert path.throughput(2.5, 2.6) > 0.95 * RATE
    assert path.queueing_delays(2.6, 4.0)[-1] < 2 * TARGET_SECONDS


@pytest.mark.parametrize(
    ("small", "least", "begin"),
    some(
        [(*size, begin) for size in ((SIZE, 0.3), (SIZE // 10, 0.05)) for begin in (0.0, 1.3)],
        (SIZE, 0.3, 0.0),
        (SIZE // 10, 0.05, 1.3),
    ),
)
def test_two_senders_share_a_path(small: int, least: float, begin: float) -> None:
    path = Path(RATE, bunch=0.0003)
    senders = [Sender(path, SIZE), Sender(path, small, begin=begin)]
    path.run(12.0)
    shares = [path.throughput(4.0, 12.0, sender) / RATE for sender in senders]
    assert sum(shares) > 0.95
    assert min(shares) > least
    # Each may take the other's queue for a part of the path, since they seldom measure it together.
    assert path.queueing_delays(4.0, 12.0)[-1] < 20 * TARGET_SECONDS


@settings(deadline=None, max_examples=10)
@given(st.integers(1000, 2_000_000), st.floats(1e4, 1e7), st.integers(1, 100_000))
def test_one_command_may_always_be_on_its_way_however_large_it_is(size: int, rate: float, most: int) -> None:
    path = Path(rate)
    sender = Sender(path, size, most=most)
    path.run(30 * (size / rate + 2 * path.delay))
    assert len(path.served) >= 29
    assert sender.window.bytes >= 1


@settings(deadline=None, max_examples=10)
@given(SETUPS, st.integers(1, 1_000_000))
def test_it_is_never_more_than_the_most(setup: Setup, most: int) -> None:
    path = setup.path()
    sender = Sender(path, setup.size, most=most)
    path.run(1.0)
    assert sender.under_way_max < most + setup.size


# One by one


@pytest.fixture
def window() -> CongestionWindow:
    return CongestionWindow(UNBOUNDED)


def test_nothing_is_known_at_the_beginning(window: CongestionWindow) -> None:
    assert (window.bytes, window.rate, window.round_trip) == (INITIAL_BYTES, 0.0, inf)
    assert CongestionWindow(1000).bytes == 1000


def test_the_rate_is_that_of_a_full_window_and_the_round_trip_the_shortest(window: CongestionWindow) -> None:
    window.observe(INITIAL_BYTES, 0, 1.0)
    window.observe(INITIAL_BYTES, INITIAL_BYTES, 1.5)
    assert window.round_trip == 0.5
    assert window.rate == 2 * INITIAL_BYTES
    window.observe(INITIAL_BYTES + 1, INITIAL_BYTES, 2.0)
    window.observe(INITIAL_BYTES + 1, INITIAL_BYTES + 1, 2.25)
    assert window.round_trip == 0.25
    assert window.rate == 2 * INITIAL_BYTES, "a byte was all that there was to send"


def test_a_sender_that_never_fills_its_window_learns_no_rate(window: CongestionWindow) -> None:
    for number in range(1, 100):
        window.observe(number, number - 1, number * 1.0)
        window.observe(number, number, number + 0.5)
    assert (window.rate, window.bytes) == (0.0, INITIAL_BYTES)
    assert window.round_trip == 0.5


def test_an_answer_at_the_very_moment_of_sending_is_none_of_no_time(window: CongestionWindow) -> None:
    window.observe(INITIAL_BYTES, 0, 1.0)
    window.observe(INITIAL_BYTES, INITIAL_BYTES, 1.0)
    assert 0 < window.rate < inf


def fill(window: CongestionWindow, sent: int, begin: float, seconds: float) -> int:
    """Fill the window at once, and have it answered after so many seconds."""
    full = sent + window.bytes
    window.observe(full, sent, begin)
    window.observe(full, full, begin + seconds)
    return full


def test_a_rate_is_forgotten_after_some_full_windows_at_another(window: CongestionWindow) -> None:
    now, sent = 0.0, 0
    sent = fill(window, sent, now, 0.01)
    best = window.rate
    for _ in range(2 * RATE_ROUNDS):
        now += 0.1
        sent = fill(window, sent, now, 0.1)
    assert window.rate < best / 2


def test_a_round_trip_is_forgotten_after_two_intervals(window: CongestionWindow) -> None:
    fill(window, 0, 0.0, 0.001)
    sent, now = INITIAL_BYTES, 0.0
    while now < INTERVAL_SECONDS:
        assert window.round_trip == 0.001
        sent, now = fill(window, sent, now + 0.1, 0.01), now + 0.2
    while window.round_trip == 0.001 and now < 5 * INTERVAL_SECONDS:
        sent, now = fill(window, sent, now + 0.1, 0.01), now + 0.2
    assert window.round_trip == pytest.approx(0.01)
    assert now <= 3 * INTERVAL_SECONDS


def test_the_window_is_small_until_a_round_trip_was_measured_alone() -> None:
    path = Path(RATE / 5)
    sender = Sender(path, 1000)
    path.run(1.9)
    seen = []
    while path.now < 2.3:
        path.run(path.now + 0.0005)
        seen.append(sender.window.bytes)
    assert min(seen) == LEAST_BYTES
    # That costs little: of an interval only what the path needs to drain, and a round trip.
    assert sum(size == LEAST_BYTES for size in seen) < len(seen) / 20
