"""The garbage collector of a broker's process."""

from __future__ import annotations

import gc

import pytest

from malamute.server.daemon import GC_THRESHOLDS, quiet_collector


@pytest.fixture
def collector():
    """Give the collector back as it was."""
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("collector")
def test_a_collector_that_rested_while_the_broker_started_looks_while_it_runs():
    before = gc.get_threshold()
    gc.disable()
    with quiet_collector():
        assert gc.isenabled()
        assert gc.get_threshold() == GC_THRESHOLDS
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
