"""Where the log goes may be full, or gone: the broker serves on, and stops cleanly."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

from rig_daemon import environment
from rig_waiting import PATIENCE

import malamute
from malamute.server.daemon import LogStream

SETTINGS = ("--set", 'listen.endpoints=["tcp://127.0.0.1:0"]', "--set", "storage.size=1GiB")


def broker(directory: Path, **streams: Any) -> subprocess.Popen[bytes]:
    words = ("-m", "malamute", "broker", "run", "--data", str(directory / "data"), *SETTINGS)
    return subprocess.Popen([sys.executable, *words], env=environment(), start_new_session=True, **streams)


def endpoint(text: str) -> str:
    found = re.search(r"tcp://127\.0\.0\.1:\d+", text)
    assert found is not None, text
    return found[0]


def test_a_full_disk_for_the_log_ends_nothing(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, broker(tmp_path, stdout=subprocess.PIPE, stderr=full) as process:
        assert process.stdout is not None
        url = endpoint(os.read(process.stdout.fileno(), 65_536).decode())
        with malamute.connect(url, timeout=PATIENCE) as client:
            process.send_signal(signal.SIGHUP)  # which is reported in the log
            client.publish("s", "a", b"1", assurance="stored")
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_broker_stops_cleanly_when_its_terminal_hangs_up(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with broker(tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = ""
        while "tcp://127.0.0.1" not in text or "Control-C" not in text:
            text += os.read(ours, 65_536).decode()
        with malamute.connect(endpoint(text), timeout=PATIENCE) as client:
            client.publish("s", "a", b"1", assurance="stored")
        os.close(ours)
        process.send_signal(signal.SIGHUP)  # it has no controlling terminal here, which would send it
        assert process.wait(PATIENCE) == 0


def test_a_log_that_nobody_reads_any_more_holds_up_nothing(tmp_path: Path) -> None:
    """As where a terminal is halted by Control-S."""
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, bytes(select.PIPE_BUF))
    os.set_blocking(full, True)
    with broker(tmp_path, stdout=subprocess.PIPE, stderr=full) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], PATIENCE)[0], "it waits for its log"
            url = endpoint(os.read(process.stdout.fileno(), 65_536).decode())
            with malamute.connect(url, timeout=PATIENCE) as client:
                client.publish("s", "a", b"1", assurance="stored")
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(unread)
            os.close(full)


STOPPED_IN_A_LINE = """
import signal, sys
from pathlib import Path
from malamute.config import Config, ListenConfig, StorageConfig
from malamute.server import daemon

class Interrupted:
    encoding = "utf-8"
    def isatty(self): return False
    def fileno(self): raise OSError
    def flush(self): pass
    def write(self, text):
        if '"started"' in text or '"stopping"' in text:
            signal.raise_signal(signal.SIGTERM)
        sys.__stderr__.write(text)

sys.stderr = Interrupted()
listen = ListenConfig(endpoints=("tcp://127.0.0.1:*",))
daemon.run(Config(listen=listen, storage=StorageConfig(kind="memory")))
"""


def test_a_signal_in_the_midst_of_a_line_of_the_log_stops_the_broker_and_so_do_two() -> None:
    """The handler must not wait for the line that it has interrupted."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_IN_A_LINE], env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, log = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert [line.count('"signal"') for line in log.splitlines()] == [0, 1, 0], log


class Failing(StringIO):
    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError("no space left on device")
        return super().write(text)


def test_what_was_lost_is_counted_until_a_line_is_written() -> None:
    below = Failing()
    log = LogStream(below)

    def line(text: str) -> None:
        print(text, file=log, flush=True)  # type: ignore[call-overload]  # as structlog does

    line("one")
    below.full = True
    line("two")
    line("three")
    assert log.note_lost(None, "info", {"event": "four"}) == {"event": "four", "lines_lost": 2}
    below.full = False
    line("four")
    assert log.note_lost(None, "info", {"event": "five"}) == {"event": "five"}
    assert below.getvalue() == "one\nfour\n"
