"""Processes without standard streams, and what was written on Windows: a mark at the beginning, CR LF."""

from __future__ import annotations

import subprocess
import sys
from codecs import BOM_UTF8
from io import BytesIO
from pathlib import Path

import pytest

import malamute
from malamute.cli.payload import chunks_of_lines
from malamute.config import Config
from malamute.gateway.bodies import _posted_lines, decoded
from malamute.testing import Broker

PUB = ("pub", "s", "a", "--lines")
COMMAND = f"exec '{sys.executable}' -m malamute"


def shell(words: str, url: str) -> subprocess.CompletedProcess[str]:
    command, _, closed = words.rpartition(" ")
    return subprocess.run(
        f"{COMMAND} {command} --url {url} {closed}",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("stream list >&-", "standard output is closed"),
        ("sub s --start first -n 1 >&-", "standard output is closed"),
        ("pub s a --lines <&-", "standard input is closed"),
        ("pub s a - <&-", "standard input is closed"),
        ("pub s --file - <&-", "standard input is closed"),
    ],
)
def test_a_command_without_a_stream_that_it_needs_says_so(
    malamute_broker: Broker, words: str, fault: str
) -> None:
    ended = shell(words, malamute_broker.url)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {fault}: expected ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_broker_serves_without_standard_streams(tmp_path: Path, closed: str) -> None:
    url = f"ipc://{tmp_path}/b.sock"
    others = " ".join(f"{n}>/dev/null" for n in "12" if f"{n.strip('1')}>&-" not in closed.split())
    running = subprocess.Popen(
        f"{COMMAND} broker run --listen {url} --data {tmp_path}/data {others} {closed}", shell=True
    )
    try:
        with malamute.connect(url, timeout=60) as client:
            assert client.publish("s", "a", b"x", assurance="stored") == 1
    finally:
        running.terminate()
        running.wait(60)


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (BOM_UTF8 + b"one\r\ntwo\n", [b"one\r", b"two"]),
        (BOM_UTF8[:2] + b"x", [BOM_UTF8[:2] + b"x"]),
        (BOM_UTF8[:2], [BOM_UTF8[:2]]),
        (BOM_UTF8, []),
        (b"a\n" + BOM_UTF8 + b"b", [b"a", BOM_UTF8 + b"b"]),
        (b"", []),
    ],
)
def test_a_mark_before_the_first_line_is_none_of_it(given: bytes, lines: list[bytes], piece: int) -> None:
    class Slow(BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(piece)

    assert [line for chunk in chunks_of_lines(Slow(given)) for line in chunk] == lines


def test_lines_may_end_with_cr_and_lf(malamute_broker: Broker) -> None:
    for options in ([], ["--crlf"]):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "malamute",
                "pub",
                "s",
                "a",
                "--lines",
                *options,
                "--url",
                malamute_broker.url,
            ],
            input=BOM_UTF8 + b"one\r\n\r\n",
            capture_output=True,
            check=True,
            timeout=60,
        )
    with malamute.connect(malamute_broker.url) as client, client.subscribe("s", start="first") as messages:
        assert [messages.receive(timeout=5).body for _ in range(4)] == [b"one\r", b"\r", b"one", b""]


def test_a_configuration_and_json_may_begin_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "malamute.toml"
    path.write_bytes(BOM_UTF8 + b'[log]\r\nlevel = "error"\r\n')
    assert Config.load(path, {}).log.level == "error"
    (posted,) = decoded(_posted_lines, BOM_UTF8 + b'{"subject": "s", "body": "1"}\r\n')
    assert (posted.subject, posted.body) == ("s", "1")
