"""A broker takes up the data directory of each released version, with all that its users had there."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from record_broker import CONFIG, DATA, fill

import malamute
from malamute.testing import Broker

RECORDED = sorted(path.name for path in DATA.glob("broker-*.tar.xz"))
PATIENCE = 60


def _is_all_there(client: malamute.Client) -> None:
    history = [(message.sequence, message.subject, message.body) for message in client.history("weather")]
    assert history == [(1, "temp.1", b"1"), (2, "temp.2", b"2"), (3, "temp.3", b"3"), (4, "temp.9", b"hot")]
    assert client.publish("weather", "temp.2", json=2, headers={"n": 2}, id="id-2") == 2
    assert client.change("stream.retain", stream="weather", expect_count=1000)["count"] == 1000
    with client.subscribe("weather", cursor="reader") as messages:
        assert messages.receive(PATIENCE).sequence == 2
    [feed] = client.query("feeds")
    assert (feed["source"], feed["target"]) == ("stream/weather", "service/cooling")
    with client.work("cooling") as requests:
        assert requests.receive(PATIENCE).body == b"hot"
    client.send("bob", "hello", b"see you at nine", priority=3)
    rows = client.query("messages", kind="mailbox", name="bob")
    assert [(row["subject"], row["state"]) for row in rows] == [
        ("hello", "ready"),
        ("later", "delayed"),
        ("hello", "ready"),
    ]
    [dead] = client.query("messages", kind="service", name="printer", dead=True)
    assert "no paper" in str(dead["properties"])
    with client.work("printer") as jobs:
        job = jobs.receive(PATIENCE)
        assert (job.body, job.properties["key"]) == (b"alive", "k")


@pytest.mark.parametrize("name", RECORDED)
def test_the_store_of_a_release_is_taken_up(name: str, tmp_path: Path) -> None:
    with tarfile.open(DATA / name) as archive:
        archive.extractall(tmp_path, filter="data")
    with Broker(tmp_path, config=CONFIG) as broker, malamute.connect(broker.url, timeout=PATIENCE) as client:
        _is_all_there(client)


def test_this_version_is_recorded_and_the_recorder_still_works(tmp_path: Path) -> None:
    release = ".".join(malamute.__version__.split(".")[:3])
    assert f"broker-{release}.tar.xz" in RECORDED
    with Broker(tmp_path, config=CONFIG) as broker, malamute.connect(broker.url, timeout=PATIENCE) as client:
        fill(client)
        broker.restart()
        _is_all_there(client)
