"""Pairs simulated on a fixed set of seeds; each rule that is left out is noticed."""

from __future__ import annotations

import pytest
from depth import DEPTH
from sim_pair import WEAKNESSES, Broken, simulate

SEEDS = range(1, 1 + 30 * DEPTH)

NOTICED = {
    "added-when-known": 297,
    "dropped-when-sent": 3,
    "no-own-swap": 1,
    "anybody": 10,
    "ack-before-sync": 1074,
    "read-without-bound": 2,
    "catch-up-not-marked": 1481,
}
"""A seed that notices each weakness."""


def test_a_pair_keeps_its_promises_whatever_fails() -> None:
    for seed in SEEDS:
        try:
            run = simulate(seed)
        except Broken as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        assert run.confirmed


@pytest.mark.parametrize("weakness", WEAKNESSES)
def test_a_rule_that_is_left_out_is_noticed(weakness: str) -> None:
    simulate(NOTICED[weakness])
    with pytest.raises(Broken):
        simulate(NOTICED[weakness], weakness)
