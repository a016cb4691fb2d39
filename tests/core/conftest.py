import pytest
from core_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
