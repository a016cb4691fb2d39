"""Records the data directory of a broker of this version: `python tests/acceptance/record_broker.py`.

Run it once for each release, before its tag, and never again: the recorded store is what users of that
version have. `test_upgrade.py` starts a broker on it, and knows what is in it.
`tests/journal/record_store.py` does the same for each format of the store, operation by operation.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from pathlib import Path

import malamute
from malamute.config import Config, LimitsConfig, StorageConfig
from malamute.testing import Broker
from malamute.version import __version__

DATA = Path(__file__).parent / "data"
CONFIG = Config(
    storage=StorageConfig(size=8 << 20, preallocate=False), limits=LimitsConfig(message_bytes=64 << 10)
)


def fill(client: malamute.Client) -> None:
    """Make what a broker keeps, by the calls of its users."""
    for number in range(1, 4):
        client.publish("weather", f"temp.{number}", json=number, headers={"n": number}, id=f"id-{number}")
    client.change("stream.retain", stream="weather", count=1000)
    with client.subscribe("weather", cursor="reader", start="first") as messages:
        messages.commit(messages.receive(60))
    hot = [["topic", "temp.9"]]
    client.change("feed.set", source="stream/weather", feed="hot", target="service/cooling", criteria=hot)
    client.publish("weather", "temp.9", b"hot")
    client.send("bob", "hello", b"see you at nine", priority=3, id="mail-1")
    client.send("bob", "later", b"", delay=10 * 365 * 86400)
    client.enqueue("printer", "page", b"dead")
    client.enqueue("printer", "page", b"alive", key="k")
    with client.work("printer") as jobs:
        jobs.receive(60).reject("no paper")
    client.flush()


def record(path: Path) -> None:
    """Pack the directory of a broker that was filled and stopped."""
    with tempfile.TemporaryDirectory() as directory, tarfile.open(path, "w:xz") as archive:
        with Broker(directory, config=CONFIG) as broker, malamute.connect(broker.url) as client:
            fill(client)
        for file in sorted(Path(directory).rglob("*")):
            if file.is_file() and "lock" not in file.name:
                member = tarfile.TarInfo(str(file.relative_to(directory)))
                member.size = file.stat().st_size
                archive.addfile(member, io.BytesIO(file.read_bytes()))


if __name__ == "__main__":
    target = DATA / f"broker-{__version__}.tar.xz"
    if target.exists():
        sys.exit(f"{target} is there already, and is what it was meant to keep")
    DATA.mkdir(exist_ok=True)
    record(target)
    print(f"{target}: {target.stat().st_size} bytes")
