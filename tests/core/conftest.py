import sys
from pathlib import Path

import pytest
from core_bench import Bench

# What any command may hold is known to the tests of the protocol.
sys.path.insert(0, str(Path(__file__).parents[1] / "protocol"))


@pytest.fixture
def bench() -> Bench:
    return Bench()
