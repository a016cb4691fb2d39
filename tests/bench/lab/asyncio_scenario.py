"""The scenario of event loops: a publisher and a subscriber, each blocking and on asyncio."""

from __future__ import annotations

from collections.abc import Iterator

from lab import asyncio_workloads
from malamute.bench import workloads
from malamute.bench.scenarios import ScenarioOptions, ScenarioRow, pair_row, scenario_run


def event_loop(options: ScenarioOptions) -> Iterator[ScenarioRow]:
    """1 publisher, 1 subscriber, each blocking and on an event loop."""
    for sending, sender in (
        ("blocking", workloads.publish_each),
        ("asyncio", asyncio_workloads.publish_each),
    ):
        for receiving, receiver in (
            ("blocking", workloads.subscribe),
            ("asyncio", asyncio_workloads.subscribe),
        ):
            with scenario_run(options, options.part(2)) as (workload, watch):
                yield pair_row(
                    f"1→1, {sending} → {receiving}", workload, watch, (sender, workload), (receiver, workload)
                )
