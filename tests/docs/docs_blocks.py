"""The blocks of a page, and how a reader would run them: one after the other, in terminals, against a broker.

| block | what is done with it |
|---|---|
| `sh` | run; it has to end with 0 |
| `sh title="Terminal 2"` | run and left running there; what ran in that terminal gets a Control-C first |
| `python` | run; all of a page share their names |
| `python title="worker.py"` | saved under that name |
| `text` | what the block before it printed |
| `text title="Terminal 2"` | what is printed there, since the last look |
| `toml` | a configuration, and has to be good |
| `json` | has to be JSON, on each line |
| `bash`, `py`, `c`, `js` | not run: commands for who administers a machine, programs of other systems |

In what is expected, `…` is anything within a line, and a line that is `…` is any lines. A fence without
a language is an illustration. A command left in a terminal has to be a broker, a gateway, a subscriber or a
worker: it counts as started when the broker or the gateway answers, or the broker has one subscription or
offer more than before. A request by `curl -N` that follows a stream is a subscriber. A command with port
8000 is a web server, and counts as started when it takes connections.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from forked_commands import forked_malamute
from free_ports import free_port

import malamute
from malamute.config import Config

ROOT = Path(__file__).parents[2]
PATIENCE = 120
ADDRESS = "127.0.0.1:9999"
"""Where the broker of the documents listens; the one of a test has another port."""
GATEWAY_ADDRESS = "127.0.0.1:8080"
"""Where their gateway listens; that of a test has another port, too."""

WEB_PORT = "8000"
"""Where web servers of readers listen; one of a test has another port."""

LIBRARIES = ("django", "duckdb", "fastapi", "flask", "mcp", "polars")
"""Libraries that a program of a page may need, and that are not installed everywhere."""

NOT_RUN = frozenset({"", "bash", "py", "c", "js"})

_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"\n]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page, and the line that it begins in."""

    language: str
    title: str
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """The blocks of a page in their order. Every fence is of one, so no block is overlooked."""
    found = list(_BLOCK.finditer(markdown))
    assert 2 * len(found) == len(re.findall(r"^ *```", markdown, re.MULTILINE)), "a fence is in a wrong form"
    return [Block(m[1], m[2] or "", m[3], markdown[: m.start()].count("\n") + 1) for m in found]


def pattern_of(expected: str) -> re.Pattern[str]:
    """The pattern that printed text has to match in full."""
    lines = (
        r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"[ \t]*\n"
        for line in expected.splitlines()
    )
    return re.compile("".join(lines))


class Terminal:
    """Where one command is left running. Its output can be waited for."""

    def __init__(self, command: list[str], directory: Path, environ: dict[str, str]) -> None:
        self._errors = (directory / "errors.txt").open("a+")
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._printed = ""

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def shows(self, expected: str) -> None:
        """Wait until it has printed this since the last look."""
        assert self._process.stdout is not None
        pattern = pattern_of(expected)
        while not pattern.fullmatch(self._printed):
            ready = select.select([self._process.stdout], [], [], PATIENCE)[0]
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert data, f"not printed:\n{expected}\nbut:\n{self._printed}{self.errors}"
            self._printed += data.decode()
        self._printed = ""

    def begins(self) -> None:
        """Wait until it has printed something, which stays to be shown."""
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], PATIENCE)[0]
        assert ready, f"nothing printed:\n{self.errors}"

    @property
    def errors(self) -> str:
        """All that it wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read()

    def interrupt(self) -> None:
        """Control-C, and wait for its end."""
        with self._errors, self._process as process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


class Reader:
    """Somebody who does what a page says, in a directory of their own."""

    def __init__(self, directory: Path, url: str, gateway: str = "") -> None:
        self._directory = directory
        self._url = url
        self._gateway = gateway or f"127.0.0.1:{free_port()}"
        self._web_port = free_port()
        self._terminals: dict[str, Terminal] = {}
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed = ""
        self._environ = {
            **os.environ,
            "PATH": f"{_commands(directory)}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "MALAMUTE_URL": url,
            "MALAMUTE_LISTEN__ENDPOINTS": url,
            "MALAMUTE_GATEWAY_LISTEN": self._gateway,
            "MALAMUTE_STORAGE__PREALLOCATE": "false",
        }
        self._does: dict[str, Callable[[Block], None]] = {
            "sh": self._shell,
            "python": self._python,
            "text": self._text,
            "toml": self._toml,
            "json": self._json,
            **dict.fromkeys(NOT_RUN, self._nothing),
        }

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        self._does[block.language](block._replace(text=self._here(block.text)))

    def leave(self) -> None:
        """Control-C in every terminal, the last one first: the broker outlives its clients."""
        for terminal in reversed(self._terminals.values()):
            terminal.interrupt()
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or "/").parent == self._directory:
                del sys.modules[name]

    def _here(self, text: str) -> str:
        return text.replace(ADDRESS, self._url.removeprefix("tcp://")).replace(GATEWAY_ADDRESS, self._gateway)

    def _shell(self, block: Block) -> None:
        command = ["sh", "-euc", re.sub(rf"\b{WEB_PORT}\b", f"{self._web_port}", block.text)]
        if block.title:
            self._open(block.title, command)
            return
        run = subprocess.run(
            command, cwd=self._directory, env=self._environ, capture_output=True, text=True, timeout=PATIENCE
        )
        assert run.returncode == 0, f"{block.text}ended with {run.returncode}:\n{run.stdout}{run.stderr}"
        self._printed = run.stdout

    def _open(self, title: str, command: list[str]) -> None:
        before = self._terminals.get(title)
        if before is not None:
            before.interrupt()
        if "broker run" in command[-1]:
            self._terminals[title] = Terminal(command, self._directory, self._environ)
            malamute.connect(self._url, timeout=PATIENCE).close()
            return
        if "gateway run" in command[-1]:
            self._terminals[title] = Terminal(command, self._directory, self._environ)
            self._terminals[title].begins()
            return
        if f" {self._web_port}" in command[-1]:
            self._terminals[title] = Terminal(command, self._directory, self._environ)
            self._wait_for_web(self._terminals[title])
            return
        with malamute.connect(self._url, timeout=PATIENCE) as client:
            known = _consumers(client)
            terminal = self._terminals[title] = Terminal(command, self._directory, self._environ)
            while not _consumers(client) - known:
                assert not terminal.ended, terminal.errors

    def _wait_for_web(self, terminal: Terminal) -> None:
        while True:
            assert not terminal.ended, terminal.errors
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self._web_port)).close()
                return
            time.sleep(0.02)

    def _python(self, block: Block) -> None:
        if block.title:
            (self._directory / block.title).write_text(block.text)
            return
        printed = io.StringIO()
        sys.path.insert(0, str(self._directory))
        try:
            with contextlib.chdir(self._directory), contextlib.redirect_stdout(printed):
                exec(compile("\n" * block.line + block.text, "the page", "exec"), self._names)
        finally:
            sys.path.remove(str(self._directory))
        self._printed = printed.getvalue()

    def _text(self, block: Block) -> None:
        if block.title:
            self._terminals[block.title].shows(block.text)
        else:
            assert pattern_of(block.text).fullmatch(self._printed), f"printed:\n{self._printed}"

    def _toml(self, block: Block) -> None:
        file = self._directory / (block.title or "block.toml")
        file.write_text(block.text)
        Config.load(file, {})

    def _json(self, block: Block) -> None:
        for line in block.text.splitlines():
            json.loads(line)

    def _nothing(self, block: Block) -> None:
        assert "import malamute" not in block.text, "a program of ours that is not run"


def _consumers(client: malamute.Client) -> set[tuple[str, int]]:
    """Which there are, and not how many: what the block before has read may still be there, and go."""
    rows = client.query("clients", details=True)
    return {
        (row["id"], consumer["source"])
        for row in rows
        if row["connected"]
        for consumer in (*row["subscriptions"], *row["offers"])
    }


def _commands(directory: Path) -> Path:
    """Make a directory with the commands that a reader has: `malamute` and `python`."""
    place = directory / "bin"
    place.mkdir()
    (place / "malamute").symlink_to(forked_malamute())
    (place / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (place / "python").chmod(0o755)
    return place


def runs_its_own_broker(blocks: list[Block]) -> bool:
    """Whether the page tells its reader to start one."""
    return any(block.language == "sh" and "malamute broker run" in block.text for block in blocks)


def missing_libraries(blocks: list[Block]) -> list[str]:
    """Return the libraries that programs of the blocks import, and that are not installed here."""
    programs = "".join(block.text for block in blocks if block.language == "python")
    imported = set(re.findall(rf"^(?:import|from) ({'|'.join(LIBRARIES)})\b", programs, re.MULTILINE))
    return sorted(name for name in imported if importlib.util.find_spec(name) is None)


def pages() -> list[Path]:
    """The pages whose blocks are run."""
    docs = ROOT / "docs"
    folders = ("tutorial", "guides", "operations")
    return [
        ROOT / "README.md",
        docs / "index.md",
        docs / "security.md",
        docs / "make" / "examples.md",
        *(page for folder in folders for page in sorted((docs / folder).glob("*.md"))),
    ]
