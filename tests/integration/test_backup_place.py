"""Where a client may have a backup written: below one directory of the broker, by no way elsewhere."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import malamute
from malamute.config import Config
from malamute.errors import AccessRefused, InvalidValue
from malamute.testing import Broker


@pytest.fixture
def client(tmp_path: Path) -> Iterator[malamute.Client]:
    with Broker(tmp_path / "data") as broker, malamute.connect(broker.url, timeout=40) as client:
        yield client


def below(tmp_path: Path) -> Path:
    return tmp_path / "data" / "backups"


def test_a_relative_path_and_an_absolute_one_lead_below_the_directory_of_the_backups(
    client: malamute.Client, tmp_path: Path
) -> None:
    for given, place in (("one", "one"), ("deep/er", "deep/er"), (str(below(tmp_path) / "two"), "two")):
        answer = client.change("journal.backup", directory=given)
        assert answer["directory"] == str(below(tmp_path) / place)
        assert (below(tmp_path) / place / "data.mdb").exists()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    "given",
    ["/elsewhere", "..", "../../elsewhere", "one/../../elsewhere", "", ".", "{below}", "{below}-too/one"],
)
def test_no_path_leads_elsewhere(client: malamute.Client, tmp_path: Path, given: str, dry_run: bool) -> None:
    directory = given.replace("/elsewhere", f"{tmp_path}/elsewhere", given.startswith("/"))
    directory = directory.replace("{below}", str(below(tmp_path)))
    client.publish("s", "made", b"")  # the first write makes the write-ahead log
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((AccessRefused, InvalidValue)):
        client.change("journal.backup", directory=directory, dry_run=dry_run)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_link_leads_elsewhere(client: malamute.Client, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").write_bytes(b"precious")
    below(tmp_path).mkdir()
    (below(tmp_path) / "link").symlink_to(outside)
    for given in ("link", "link/one"):
        with pytest.raises(AccessRefused, match="leads to"):
            client.change("journal.backup", directory=given)
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("lock", b"precious")]


def test_the_directory_is_the_configured_one(tmp_path: Path) -> None:
    config = Config()
    storage = replace(config.storage, backups=tmp_path / "safe", size=64 * 1024 * 1024)
    limits = replace(config.limits, message_bytes=1 << 20)
    config = replace(config, storage=storage, limits=limits)
    with (
        Broker(tmp_path / "data", config=config) as broker,
        malamute.connect(broker.url, timeout=40) as client,
    ):
        assert client.change("journal.backup", directory="one")["directory"] == str(tmp_path / "safe" / "one")
        with pytest.raises(AccessRefused, match=r"storage\.backups"):
            client.change("journal.backup", directory=str(tmp_path / "data" / "backups" / "one"))


def test_a_broker_in_memory_has_nothing_to_copy() -> None:
    with (
        Broker() as broker,
        malamute.connect(broker.url, timeout=40) as client,
        pytest.raises(InvalidValue, match="in memory"),
    ):
        client.change("journal.backup", directory="one")
