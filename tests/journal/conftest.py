from __future__ import annotations

import pytest
from stores import KINDS, Maker


@pytest.fixture(params=KINDS)
def make(request, tmp_path):
    """Opens a store of one kind; a second call opens what the first has written."""
    maker = Maker(request.param, tmp_path / "store")
    yield maker
    maker.close()


@pytest.fixture
def disk(tmp_path):
    """The same, for what only a disk can do."""
    maker = Maker("disk", tmp_path / "store")
    yield maker
    maker.close()
