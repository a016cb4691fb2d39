"""Does what README.md says, as a newcomer would: in a clean clone, in a terminal of 80x24.

    make newcomer                              a clone of HEAD, `make run`, the tour, the program, all timed
    python tests/newcomer/newcomer.py --here   the tour in this checkout, with what is installed

All that was on the screens is kept in build/newcomer.txt. The exit code is 1 if a command failed, if a
promised line did not come, or if a line of a command was wider than the terminal. Ports are free ones; that
of the console of `make run` is 8080.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import shared_folders  # noqa: E402, F401  # puts docs_blocks on the path
from docs_blocks import ADDRESS, Block, blocks_of, pattern_of  # noqa: E402
from free_ports import free_port  # noqa: E402

import malamute  # noqa: E402

ROWS, COLUMNS = 24, 80
PATIENCE_SECONDS = 600.0
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT")
"""The beginning of an event or a line of a log, which is one line however long."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Screen:
    """A command in a terminal of 80x24."""

    def __init__(self, command: str, where: Path, environ: dict[str, str]) -> None:
        self._master, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["sh", "-euc", command],
            cwd=where,
            env=environ,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self.shown = ""

    def read(self, until: str = "", seconds: float = PATIENCE_SECONDS) -> None:
        """Read until a text is shown, or without one until the command has ended."""
        end = time.monotonic() + seconds
        while not (until and until in self.shown) and time.monotonic() < end:
            if not select.select([self._master], [], [], 1)[0]:
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                break
            self.shown += _CONTROL.sub("", data.decode(errors="replace"))
            if not data:
                break

    def interrupt(self) -> None:
        """Type Control-C, and wait for the end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        self.read()
        self.process.wait(PATIENCE_SECONDS)


class Newcomer:
    """Somebody in front of the README."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.faults: list[str] = []
        self.transcript = ""
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._environ |= {
            "TERM": "xterm-256color",
            "MALAMUTE_URL": self.url,
            "MALAMUTE_LISTEN__ENDPOINTS": self.url,
            "MALAMUTE_GATEWAY_LISTEN": f"127.0.0.1:{free_port()}",
        }

    def open(self, command: str) -> Screen:
        """Start a command, and leave it."""
        return Screen(command, self.where, self._environ)

    def keep(self, command: str, screen: Screen, began: float) -> None:
        """Note a command, what it showed, and what was wrong with that."""
        self.transcript += f"$ {command.rstrip()}\n{screen.shown}[{time.monotonic() - began:.1f} s]\n\n"
        print(self.transcript.rsplit("$ ", 1)[1], end="", flush=True)
        lines = screen.shown.splitlines()
        wide = [line for line in lines if len(line) > COLUMNS and not _STAMPED.match(line)]
        self.faults += [f"wider than {COLUMNS} columns: {line}" for line in wide]
        if "Traceback" in screen.shown:
            self.faults.append(f"a traceback: {command}")

    def run(self, command: str) -> str:
        """Run a command to its end, and return what it showed."""
        began, screen = time.monotonic(), self.open(command)
        screen.read()
        if screen.process.wait():
            self.faults.append(f"exit code {screen.process.returncode}: {command}")
        self.keep(command, screen, began)
        return screen.shown

    def tour(self, blocks: list[Block]) -> None:
        """Follow the blocks: commands, those that wait, a program, and what they print."""
        waiting: list[tuple[str, Screen, float]] = []
        shown = ""
        for block in blocks:
            text = block.text.replace(ADDRESS, self.url.removeprefix("tcp://"))
            if block.language == "sh" and block.title:
                known = self._consumers()
                waiting.append((text, self.open(text), time.monotonic()))
                end = time.monotonic() + PATIENCE_SECONDS
                while self._consumers() == known and time.monotonic() < end:
                    time.sleep(0.05)
            elif block.language == "sh":
                shown = "".join(self.run(line) for line in text.splitlines() if line.strip())
            elif block.language == "python":
                (self.where / "newcomer_program.py").write_text(text)
                shown = self.run(f"{self._python} newcomer_program.py")
                (self.where / "newcomer_program.py").unlink()
            elif block.language == "text" and not pattern_of(block.text).search(shown):
                self.faults.append(f"README promises {block.text!r}, and {shown!r} came")
        for text, screen, began in waiting:
            screen.interrupt()
            self.keep(text, screen, began)

    @property
    def _python(self) -> str:
        inside = self.where / ".venv" / "bin" / "python"
        return str(inside if inside.exists() else sys.executable)

    def _consumers(self) -> int:
        with malamute.connect(self.url, timeout=60) as client:
            rows = client.query("clients", details=True)
        return sum(len(row["subscriptions"]) + len(row["offers"]) for row in rows if row["connected"])


def main() -> int:
    """Be a newcomer, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--here", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        where = ROOT if options.here else Path(directory) / "malamute"
        if not options.here:
            subprocess.run(["git", "clone", "--quiet", ROOT, where], check=True)
        newcomer = Newcomer(where)
        data = Path(directory) / "data"
        start = (
            f"exec bin/malamute broker run --console 127.0.0.1:{free_port()} --data {data}"
            if options.here
            else "exec make run"
        )
        began, broker = time.monotonic(), newcomer.open(start)
        broker.read(until="Control-C")
        newcomer.transcript += f"[{time.monotonic() - began:.1f} s to the broker]\n"
        try:
            newcomer.tour(blocks_of((where / "README.md").read_text(encoding="utf-8")))
        finally:
            broker.interrupt()
            found = [*newcomer.faults]
            newcomer.keep(start, broker, began)
            newcomer.faults = found  # lines of pip are as wide as they like
    if broker.process.returncode not in (0, -signal.SIGINT):  # make ends by the signal itself
        newcomer.faults.append(f"the broker ended with {broker.process.returncode}")
    target = ROOT / "build" / "newcomer.txt"
    target.parent.mkdir(exist_ok=True)
    target.write_text(newcomer.transcript + "\n".join(newcomer.faults) + "\n", encoding="utf-8")
    print("\n".join(newcomer.faults) or f"all is as README says: {target.relative_to(ROOT)}")
    return 1 if newcomer.faults else 0


if __name__ == "__main__":
    sys.exit(main())
