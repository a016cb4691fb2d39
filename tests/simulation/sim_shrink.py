"""Shrinking: the fewest steps of a failing run that still break the same promise.

A run is a pure function of its steps, so steps are left out, in large pieces and then in ever smaller ones,
as long as what remains fails in the same way.
"""

from __future__ import annotations

from sim_origin import Violation
from sim_plan import Plan
from sim_world import run

RUNS_MAX = 2_000


def failure_of(plan: Plan) -> str | None:
    """In which way a run fails, in words that are the same each time; None if it does not."""
    try:
        run(plan)
    except Violation as violation:
        return violation.rule
    except Exception as error:  # whatever the broker or a client raises is a fault
        return type(error).__name__
    return None


def shrink(plan: Plan) -> Plan:
    """The plan with all steps left out that it does not need to fail as it does."""
    rule = failure_of(plan)
    steps = list(plan.steps)
    size, left = len(steps) // 2, RUNS_MAX
    while size and left > 0:
        start, before = 0, len(steps)
        while start < len(steps) and left > 0:
            left -= 1
            fewer = steps[:start] + steps[start + size :]
            if failure_of(plan._replace(steps=fewer)) == rule:
                steps = fewer
            else:
                start += size
        if size > 1 or len(steps) == before:
            size //= 2
    return plan._replace(steps=steps)
