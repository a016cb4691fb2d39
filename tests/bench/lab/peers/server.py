"""A server of some project as a process on loopback, in a directory of its own, which surely ends."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from lab.peers import guard
from malamute.bench.machine import cpu_seconds
from malamute.errors import MalamuteError, TimedOut
from malamute.server.process import environment

HOST = "127.0.0.1"

PORTS = 4
"""Free ports that a server gets; it listens for clients on the first one."""

START_SECONDS = 120.0
"""How long a server may take until it accepts connections."""

LOOK_SECONDS = 0.02
"""How often a port is tried until then."""

VERSION_SECONDS = 60.0
"""How long a program may take to say its version."""

PLACES = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where servers are, beside PATH. The first is that of a RabbitMQ whom no wrapper makes another user."""


class ServerCommand(NamedTuple):
    """How a server is started: its words, and what its environment has beyond ours."""

    words: Sequence[str]
    environment: Mapping[str, str] = {}


class Server:
    """A server that runs, as the process `pid`, which leads a group."""

    def __init__(self, pid: int, ports: Sequence[int]) -> None:
        self.pid = pid
        self.ports = ports

    @property
    def cpu_seconds(self) -> float:
        """The processor time that its processes have used."""
        return group_cpu_seconds(self.pid)


def group_cpu_seconds(group: int) -> float:
    """The processor time of all processes of a group that run."""
    pids = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    return sum(cpu_seconds(pid) for pid in pids if _stat(pid)[2:3] == [str(group)])


def has_ended(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has waited for it yet."""
    return _stat(pid)[:1] in ([], ["Z"])


def _stat(pid: int) -> list[str]:
    """Counts of a process by the system, from its state on; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def find_program(name: str) -> str | None:
    """Where a program is, also when it is one for administrators."""
    return shutil.which(name, path=os.pathsep.join([*PLACES, os.environ.get("PATH", "")]))


def version_of(words: Sequence[str]) -> str:
    """The first number with a dot that a program prints; nothing when it prints none."""
    program = find_program(words[0])
    if program is None:
        return ""
    try:
        run = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+\.\d+[\w.-]*", run.stdout + run.stderr)
    return found.group() if found else ""


def free_ports(count: int = PORTS) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def serve(command: ServerCommand, directory: Path, ports: Sequence[int]) -> Iterator[Server]:
    """Run a server during the block; it is there when the first of its ports accepts connections.

    Raises:
        MalamuteError: It ended before that; the text is what it wrote last.
        TimedOut: It did not within `START_SECONDS`.
    """
    log = directory / "server.log"
    with log.open("w") as errors:
        guarding = subprocess.Popen(
            [sys.executable, guard.__file__, find_program(command.words[0]) or "", *command.words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=directory,
            env={**environment(), **command.environment},
            start_new_session=True,  # a Control-C is for us; we stop it
            text=True,
        )
    with guarding:  # closes its standard input, and waits
        assert guarding.stdout is not None
        line = guarding.stdout.readline()
        if not line:
            raise MalamuteError(f"{command.words[0]} did not start: {_last_line(log)}")
        pid = int(line)
        _wait_until_it_accepts(pid, ports[0], log)
        yield Server(pid, ports)


def _wait_until_it_accepts(pid: int, port: int, log: Path) -> None:
    give_up_at = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up_at:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
            return
        except OSError:
            if has_ended(pid):
                raise MalamuteError(f"the server did not start: {_last_line(log)}") from None
            time.sleep(LOOK_SECONDS)
    raise TimedOut(f"no server on port {port} within {START_SECONDS} s: {_last_line(log)}")


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2] or "it wrote nothing"
