"""Records a broker: what it did to its disk, what it was asked and what it said, in one order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from crash_load import play

import malamute
from malamute.config import Config, LimitsConfig, ListenConfig, StorageConfig
from malamute.server.process import environment

HERE = Path(__file__).parent
MIB = 1 << 20

SIZE = 32 * MIB
"""Of the data file, in bytes."""


def compiler() -> str | None:
    """The C compiler, on a system where libraries can be preloaded."""
    return (shutil.which("gcc") or shutil.which("cc")) if sys.platform.startswith("linux") else None


def build(directory: Path) -> Path:
    """Compile the library that records a disk."""
    made = directory / "disk_recorder.so"
    command = [
        compiler() or "cc",
        "-shared",
        "-fPIC",
        "-o",
        made,
        HERE / "disk_recorder.c",
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return made


def configuration(directory: Path) -> Config:
    """The defaults, on a small store."""
    listen = ListenConfig(endpoints=("tcp://127.0.0.1:*",), connections=100)
    storage = StorageConfig(directory=directory / "data", size=SIZE)
    return Config(storage=storage, limits=LimitsConfig(message_bytes=MIB), listen=listen)


def record(directory: Path, library: Path, seed: int, steps: int, **faults: str) -> Path:
    """Run a broker under load on a new directory, and return the log of its disk."""
    config, log = directory / "malamute.toml", directory / "disk.log"
    config.write_text(configuration(directory).toml())
    spoken = directory / "broker.log"
    with (
        spoken.open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(HERE / "crash_broker.py"), str(config)],
            env={**environment(), "LD_PRELOAD": str(library), "DISK_LOG": str(log), **faults},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as broker,
    ):
        assert broker.stdout is not None
        try:
            line = broker.stdout.readline()
            assert line, spoken.read_text()
            play(line.strip("[]\n'"), seed, steps)
        finally:
            # As after the end of the power, nothing is reported at the end.
            broker.kill()
    assert "Traceback" not in spoken.read_text(), spoken.read_text()
    return log


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    log = record(
        target, build(target), int(sys.argv[2]), int(sys.argv[3]), **dict(a.split("=") for a in sys.argv[4:])
    )
    print(log, os.path.getsize(log), malamute.__file__)
