"""Messages as tables of Arrow, pandas and polars, by both clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest

import malamute
from malamute import aio, errors
from malamute.testing import Broker

PATIENCE = 60
COLUMNS = ["sequence", "time", "sender", "subject", "body", "unit", "header.time", "n"]


@pytest.fixture
def client(broker: Broker) -> Iterator[malamute.Client]:
    with malamute.connect(broker.url, address="station", timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def stream(client: malamute.Client) -> str:
    name = uuid4().hex
    headers = [{"unit": "C"}, None, {"time": "noon", "n": 7}]
    client.publish_batch(name, ["a", "b", "a"], [b"1", b"2", b"3"], headers)
    return name


def test_pandas(client: malamute.Client, stream: str) -> None:
    pytest.importorskip("pandas")
    frame = client.frame(stream)
    assert [*frame.columns] == COLUMNS
    assert frame.body.tolist() == [b"1", b"2", b"3"]
    assert frame["n"].tolist()[2] == 7
    assert frame["n"].isna().tolist() == [True, True, False]
    assert str(frame.time.dt.tz) == "UTC"
    assert client.frame(stream, "b", since=2, until=3).sequence.tolist() == [2]
    assert client.frame(stream, "none").empty


def test_arrow_on_asyncio(broker: Broker, client: malamute.Client, stream: str) -> None:
    pytest.importorskip("pyarrow")

    async def program() -> None:
        async with aio.connect(broker.url, timeout=PATIENCE) as other:
            table = await other.frame(stream, library="arrow")
            assert table.column_names == COLUMNS
            assert table["sender"].to_pylist() == ["station"] * 3
            assert table["header.time"].to_pylist() == [None, None, "noon"]

    asyncio.run(program())


def test_polars(client: malamute.Client, stream: str) -> None:
    pytest.importorskip("polars")
    frame = client.frame(stream, library="polars")
    assert frame.columns == COLUMNS
    assert frame["unit"].to_list() == ["C", None, None]


def test_a_library_that_is_missing_or_unknown(
    client: malamute.Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.NotInstalled, match="pandas is missing: pip install pandas"):
        client.frame(stream)
    with pytest.raises(
        errors.InvalidValue, match="invalid library 'numpy': expected 'arrow', 'pandas', 'polars'"
    ):
        client.frame(stream, library="numpy")  # type: ignore[arg-type]
