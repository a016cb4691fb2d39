"""A family of patterns from an installed package: the broker knows it by name, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

import malamute
from malamute.errors import InvalidSelector
from malamute.protocol.admin import StreamQuery, TotalsQuery
from malamute.server.process import BrokerProcess

PATIENCE = 40.0

MODULE = '''
from malamute.matching import TermFamily


class Suffix(TermFamily):
    """Subjects by how they end."""

    name = "suffix"
    exact = False

    @classmethod
    def normalise(cls, pattern):
        if not isinstance(pattern, str) or not pattern:
            raise ValueError("a suffix is text")
        return pattern

    @classmethod
    def matches(cls, pattern, subject, headers, sender):
        return subject.endswith(pattern)

    def request_terms(self, pattern):
        return [pattern[-1]]

    def message_terms(self, subject, headers, sender):
        if subject == "boom":
            raise RuntimeError("it broke")
        return [subject[-1:]]
'''

FILES = {
    "suffix_family.py": MODULE,
    "suffix_family-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: suffix-family\nVersion: 1.0\n",
    "suffix_family-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "suffix_family-1.0.dist-info/entry_points.txt": "[malamute.families]\nsuffix = suffix_family:Suffix\n",
}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Where a distribution with a family is installed."""
    wheel, record = tmp_path / "suffix_family-1.0-py3-none-any.whl", "suffix_family-1.0.dist-info/RECORD"
    with ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in (*FILES, record)))
    install = [
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(tmp_path / "site"),
        str(wheel),
    ]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return tmp_path / "site"


@pytest.fixture
def client(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[malamute.Client]:
    monkeypatch.setenv("PYTHONPATH", str(installed))
    with BrokerProcess(tmp_path) as broker, malamute.connect(broker.url, timeout=PATIENCE) as client:
        yield client


def test_xu1_an_installed_family_routes_and_refuses_and_its_failures_are_shown(
    client: malamute.Client,
) -> None:
    wanted = client.subscribe("weather", "oslo", family="suffix")
    for subject in ("temp.oslo", "temp.rome", "boom", "so.o", "wind.oslo"):
        client.publish("weather", subject, b"x", assurance="stored")
    assert [wanted.receive(PATIENCE).subject for _ in range(2)] == ["temp.oslo", "wind.oslo"]
    (failed,) = client.query(StreamQuery(name="weather")).failures
    assert (failed.family, failed.count) == ("suffix", 1)
    assert client.query(TotalsQuery()).family_failures == {"suffix": 1}
    with pytest.raises(InvalidSelector, match="refused by family 'suffix': a suffix is text"):
        client.subscribe("weather", "", family="suffix")
    with pytest.raises(
        InvalidSelector, match=r"unknown family 'prefixes': expected .*prefix, regex, sender, suffix"
    ):
        client.subscribe("weather", "x", family="prefixes")
