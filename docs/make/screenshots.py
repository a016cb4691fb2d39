"""Pictures of a terminal: real commands against a real broker. `make screenshots` takes them anew."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

import malamute
from malamute.testing import Broker

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WORKER = ("work", "text", "shout.*", "--", "tr", "a-z", "A-Z")

_FONT = re.compile(r"@font-face\s*\{[^}]*\}\s*")


class Screen(NamedTuple):
    """A picture: its title, the commands that are seen in it, and how wide the terminal is."""

    title: str
    commands: list[str]
    columns: int = 96


SCREENS = {
    "streams": Screen(
        "Streams, mailboxes and services",
        [
            "malamute pub weather temp.oslo -H unit=C -- -3.5",
            "malamute pub weather wind.oslo -H unit=m/s 7",
            "malamute sub weather 'temp.*' --start first -n 1",
            "malamute send bob hello 'see you at nine'",
            "malamute recv bob",
            "malamute request text shout.en 'good morning'",
        ],
    ),
    "looking": Screen(
        "What a broker has",
        [
            "malamute stream list",
            "malamute sub weather --cursor archive --start first -n 2",
            "malamute stream show weather",
            "malamute service list",
        ],
        columns=130,
    ),
    "letters": Screen(
        "Dead letters",
        [
            "malamute service dead prints",
            "malamute service redrive prints --where \"paper = 'A9'\" --dry-run",
            "malamute broker check --dead 1,100",
        ],
        columns=112,
    ),
    "status": Screen("Is it there?", ["malamute broker status"]),
    "mistakes": Screen(
        "Errors have a number and a hint",
        [
            "malamute sub weather --where 'unit = C and'",
            "malamute errors 503",
            "malamute stream explain weather temp.oslo -H unit=C",
        ],
    ),
    "help": Screen("malamute --help", ["malamute --help"]),
}
"""They are made in this order, against one broker."""


def shots() -> Iterator[tuple[str, str]]:
    """The name of each picture, and the picture as SVG."""
    with TemporaryDirectory() as directory, _broker(Path(directory)) as environ:
        for name, screen in SCREENS.items():
            console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True)
            for command in screen.commands:
                console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
                output = _run(command, directory, {**environ, "COLUMNS": str(screen.columns)})
                console.print(Text.from_ansi(output))
            svg = console.export_svg(title=screen.title, unique_id=name)
            # The font that rich names is somewhere on the net; the reader's own will do.
            yield name, _FONT.sub("", svg)


@contextmanager
def _broker(directory: Path) -> Iterator[dict[str, str]]:
    """A broker with a worker and a subscriber, and the environment in which commands find it."""
    commands = directory / "bin"
    commands.mkdir()
    script = commands / "malamute"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m malamute "$@"\n')
    script.chmod(0o755)
    with Broker(directory / "malamute-data") as broker:
        environ = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MALAMUTE_URL": broker.url,
            "TERM": "xterm-256color",
        }
        others = [
            subprocess.Popen([script, *arguments], env=environ, stdout=subprocess.DEVNULL)
            for arguments in (WORKER, ("sub", "weather", "temp.*", "--where", "unit = 'C'"))
        ]
        try:
            _await_consumers(broker.url, len(others), others)
            _leave_a_dead_letter(broker.url)
            yield environ
        finally:
            for other in others:
                other.terminate()
                other.wait()


def _leave_a_dead_letter(url: str) -> None:
    with malamute.connect(url, address="studio") as client, client.work("prints") as jobs:
        client.request("prints", "poster", b"sun.png", {"paper": "A9"})
        jobs.receive(timeout=10).reject("no such paper")


def _await_consumers(url: str, count: int, others: list[subprocess.Popen[bytes]]) -> None:
    with malamute.connect(url) as client:
        while sum(row["subscriptions"] + row["offers"] for row in client.query("clients")) < count:
            if any(other.poll() is not None for other in others):
                raise RuntimeError("a worker or a subscriber has ended")


def _run(command: str, directory: str, environ: dict[str, str]) -> str:
    """What the command writes to a terminal, with what differs from run to run made plain."""
    here, there = pty.openpty()
    with subprocess.Popen(
        ["sh", "-c", command], cwd=directory, env=environ, stdin=there, stdout=there, stderr=there
    ):
        os.close(there)
        with open(here, "rb", closefd=True, buffering=0) as terminal:
            data = b"".join(_read(terminal))
    address = environ["MALAMUTE_URL"].removeprefix("tcp://")
    text = data.decode().replace("\r\n", "\n").replace(address, "127.0.0.1:9999")
    return text.replace(os.path.realpath(directory), "/var/lib/malamute").rstrip()


def _read(terminal: io.FileIO) -> Iterator[bytes]:
    while True:
        try:
            data = terminal.read(65536)
        except OSError:  # how Linux says that nobody has the other end open any more
            return
        if not data:
            return
        yield data


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, svg in shots():
        (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")
