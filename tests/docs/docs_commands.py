"""The command `malamute` as a reader has it on the path: processes forked from one that has imported all.

A launcher hands over its terminal, directory and environment, passes signals on, and ends as its process.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from uuid import uuid4

from forked_broker import FORKS, play_on

LAUNCHER = """#!{python} -ISE
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect("\\0{address}")
socket.send_fds(server, [b"."], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
server.shutdown(socket.SHUT_WR)
said = server.makefile()
process = int(said.readline())
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int(said.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


class Commands:
    """Serves the launchers that it makes."""

    def __init__(self) -> None:
        self._address = f"malamute-{uuid4().hex}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self._address}")
        self._listener.listen()
        self._processes: list[Any] = []
        self._lock = threading.Lock()
        """A start looks for processes that have ended, and one thread alone may do that."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def put(self, file: Path) -> None:
        """Make a launcher."""
        file.write_text(LAUNCHER.format(python=sys.executable, address=self._address))
        file.chmod(0o755)

    def close(self) -> None:
        """End what its launcher has left alone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._lock:
            for process in self._processes:
                process.kill()
                process.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                launcher = self._listener.accept()[0]
                threading.Thread(target=self._run, args=(launcher,), daemon=True).start()

    def _run(self, launcher: socket.socket) -> None:
        with launcher, suppress(BrokenPipeError):
            _, files, _, _ = socket.recv_fds(launcher, 1, 3)
            given = json.load(launcher.makefile())
            terminal = [Connection(file) for file in files]  # how a server of forks is given a file
            process = FORKS.Process(target=play_on, args=(terminal, *given))
            with self._lock:
                process.start()
                self._processes.append(process)
            for end in terminal:
                end.close()
            launcher.sendall(b"%d\n" % process.pid)
            wait([process.sentinel])
            with self._lock:
                process.join()
            launcher.sendall(b"%d\n" % process.exitcode)
