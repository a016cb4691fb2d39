"""The command `malamute` in a process forked from one that has imported all: that is most of its time.

A launcher hands over its streams, directory and environment, passes signals on, and ends as the process does.
"""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import sys
import threading
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import mkdtemp

from forked_broker import FORKS, play_on

LAUNCHER = """#!{python} -ISE
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"."], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\\n")
said = server.makefile()
process = int(said.readline())
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int(said.readline())
sys.exit(code if code >= 0 else 128 - code)
"""

_LOCK = threading.Lock()
"""A start looks for processes that have ended, and one thread alone may do that."""


@cache
def forked_malamute() -> str:
    """Return the path of the launcher: a program like any other. Its process lives no longer than it does."""
    directory = Path(mkdtemp(prefix="malamute-"))
    atexit.register(shutil.rmtree, directory)
    address = str(directory / "forks")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    threading.Thread(target=_serve, args=(listener,), name="launchers", daemon=True).start()
    launcher = directory / "malamute"
    launcher.write_text(LAUNCHER.format(python=sys.executable, address=address))
    launcher.chmod(0o755)
    return str(launcher)


def _serve(listener: socket.socket) -> None:
    while True:
        launcher = listener.accept()[0]
        threading.Thread(target=_run, args=(launcher,), daemon=True).start()


def _run(launcher: socket.socket) -> None:
    with launcher, suppress(BrokenPipeError):
        _, files, _, _ = socket.recv_fds(launcher, 1, 3)
        given = json.loads(launcher.makefile().readline())
        streams = [Connection(file) for file in files]  # how a server of forks is given a file
        process = FORKS.Process(target=play_on, args=(streams, *given))
        with _LOCK:
            process.start()
        for stream in streams:
            stream.close()
        launcher.sendall(b"%d\n" % process.pid)
        ended = wait([process.sentinel, launcher])
        with _LOCK:
            if process.sentinel not in ended:
                process.kill()
            process.join()
        launcher.sendall(b"%d\n" % process.exitcode)
