"""Histories to test with: a data directory with chosen messages, and records of every shape."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
from click.testing import CliRunner
from hypothesis import strategies as st

from malamute.cli.root import cli
from malamute.journal.disk import DiskStore
from malamute.journal.format import CHUNK, key
from malamute.protocol.batch import Columns, pack_record, pack_stream_payload
from malamute.store.operations import AppendChunk, Chunk, Reserve

ROOT = Path(__file__).parents[2]
DAY = 86_400 * 10**9
START = 20_000 * DAY
"""The beginning of a day, 2024-10-04."""


class Told(NamedTuple):
    """A message to be stored."""

    subject: str
    headers: Mapping[str, Any] | None = None
    body: Any = b"body"


def operations(
    stream: str, first: int, messages: Sequence[Told], time: int = START, sender: str = "alice"
) -> AppendChunk:
    """A chunk of messages."""
    subjects = [message.subject for message in messages]
    records = [
        message.body if message.headers == "raw" else pack_record(message.headers, message.body)
        for message in messages
    ]
    payload, large = pack_stream_payload(Columns(first, time, sender, subjects, records))
    chunk = Chunk(first, len(messages), time, payload, large)
    return AppendChunk(stream, chunk, chunk.last, subjects)


def store(directory: Path, *chunks: AppendChunk | Reserve) -> None:
    """Append chunks to the store in a directory."""
    opened = DiskStore.open(directory, size=32 << 20)
    try:
        opened.recover()
        for chunk in chunks:
            opened.write([chunk])
    finally:
        opened.close()


def numbered(count: int, first: int = 1, **headers: Any) -> list[Told]:
    """Messages whose bodies are their numbers."""
    return [Told(f"a.{n % 7}", {"n": n, **headers}, b"%d" % n) for n in range(first, first + count)]


def damage(directory: Path, first: int, identifier: int = 1) -> None:
    """Spoil the payload of a chunk."""
    with (
        lmdb.open(str(directory), map_size=32 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        value = bytearray(transaction.get(key(CHUNK, identifier, first)))
        value[-1] ^= 0xFF
        transaction.put(key(CHUNK, identifier, first), bytes(value))


def command(*arguments: str) -> subprocess.Popen[str]:
    """`malamute`, as a process."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "malamute", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def run(*arguments: str, code: int = 0) -> str:
    """Run `malamute` to its end, in this process. Returns what it wrote, errors behind the rest."""
    done = CliRunner().invoke(cli, arguments, prog_name="malamute")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr


def run_apart(*arguments: str) -> str:
    """The same as a process: one that has a store open cannot open it again."""
    process = command(*arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return out


# Sizes and numbers around each border of msgpack's forms.
texts = st.one_of(
    st.text(max_size=40), st.sampled_from([0, 7, 8, 12, 13, 31, 32, 255, 256, 70_000]).map(lambda n: "ø" * n)
)
integers = st.sampled_from(
    [
        sign * (1 << bits) + more
        for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)
        for sign in (1, -1)
        for more in (-1, 0, 1)
        if -(2**63) <= sign * (1 << bits) + more < 2**64
    ]
) | st.integers(-(2**63), 2**64 - 1)
values = st.one_of(st.none(), st.booleans(), integers, st.floats(), texts)
names = st.sampled_from(["", "a", "price", "a name that is long", "æøå", "n" * 40]) | st.text(max_size=5)
headers = st.none() | st.dictionaries(names, values, max_size=4) | st.dictionaries(names, values, max_size=20)
bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([0, 12, 13, 255, 256, 65_535, 65_536]).map(bytes),
    st.lists(st.binary(max_size=4), max_size=3),
)
good_records = st.builds(pack_record, headers, bodies)


@st.composite
def spoiled_records(draw: st.DrawFn) -> bytes:
    """A record with some bytes changed, cut off, or added."""
    record = bytearray(draw(good_records))
    for _ in range(draw(st.integers(0, 3))):
        record[draw(st.integers(0, min(len(record) - 1, 40)))] = draw(st.integers(0, 255))
    return (
        bytes(record[: draw(st.integers(0, len(record)))]) if draw(st.booleans()) else bytes(record) + b"\0"
    )


records = good_records | spoiled_records() | st.binary(max_size=10)
