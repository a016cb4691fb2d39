"""Runs a program in a session of its own until standard input ends, and then kills it with all its children.

Who started the guard holds the other end of that pipe, which the system closes when it ends, however it ends:
no server stays behind. What the server writes is thrown away with its directory, so it is not asked to stop.

    python guard.py PROGRAM [ARGUMENT]...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


def main(command: Sequence[str]) -> None:
    """Run the program; its process, which leads a group, is the line on standard output."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        sys.stdout.write(f"{process.pid}\n")
        sys.stdout.close()
        sys.stdin.buffer.read()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
