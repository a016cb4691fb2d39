"""A data directory of an earlier version, which had streams in stores elsewhere, is refused at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from malamute.errors import StoreError
from malamute.journal.disk import DiskStore
from malamute.store.operations import PutValue
from malamute.store.tables import STORES
from malamute.testing import STORE_BYTES, Broker


def _left_by_an_earlier_version(directory: Path, ident: bytes) -> None:
    """A data directory as such a broker left it: it has the id of each of its stores."""
    with Broker(directory):
        pass
    store = DiskStore.open(directory, size=STORE_BYTES)
    store.recover()
    store.write([PutValue(STORES, ("archive",), ident)])
    store.close()


def test_a_directory_with_streams_in_stores_elsewhere_is_refused_with_the_way_out(tmp_path: Path) -> None:
    _left_by_an_earlier_version(tmp_path, bytes(16))
    with pytest.raises(StoreError, match=r"elsewhere: archive; .*export.*run a second broker") as refused:
        Broker(tmp_path).start()
    assert refused.value.code == 800
    # The store is closed again, so that whoever goes the way out finds it free.
    DiskStore.open(tmp_path, size=STORE_BYTES).close()


def test_a_directory_whose_stores_were_forgotten_is_taken(tmp_path: Path) -> None:
    _left_by_an_earlier_version(tmp_path, b"")
    with Broker(tmp_path):
        pass
