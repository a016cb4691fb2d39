"""A gateway as a process of its own, as `malamute gateway run` starts it, and what it takes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running_gateway import WAIT_SECONDS


class GatewayProcess:
    """A gateway that runs, and raw connections to it."""

    def __init__(self, process: subprocess.Popen[str], port: int, errors: Path) -> None:
        self.pid = process.pid
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._errors = errors

    @property
    def peak_mib(self) -> float:
        """The most memory that it had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024

    @property
    def log(self) -> str:
        return self._errors.read_text()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_SECONDS)


@contextmanager
def gateway_process(
    broker: str, directory: Path, *options: str, files: str = "", **variables: str
) -> Iterator[GatewayProcess]:
    """Run one before a broker; `files` is what to do with `ulimit -n` first."""
    command = [sys.executable, "-m", "malamute", "gateway", "run", "--listen", "127.0.0.1:0", "--json"]
    command += ["--broker", broker, *options]
    if files:
        command = ["/bin/sh", "-c", f'{files} && exec "$@"', "sh", *command]
    errors = directory / "gateway.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **variables}
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, errors.read_text()
        [url] = json.loads(line)["urls"]
        yield GatewayProcess(process, int(url.rpartition(":")[2]), errors)
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
        process.stdout.close()


def answer_of(connection: socket.socket) -> bytes:
    """Return the bytes of a connection until the other end closes it, or the first answer as a whole."""
    found = b""
    while b"\r\n\r\n" not in found:
        part = connection.recv(65_536)
        if not part:
            return found
        found += part
    length = re.search(rb"content-length: (\d+)", found)
    rest = int(length[1]) - len(found.partition(b"\r\n\r\n")[2]) if length else 0
    while rest > 0 and (part := connection.recv(rest)):
        found += part
        rest -= len(part)
    return found
