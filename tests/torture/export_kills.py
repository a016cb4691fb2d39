"""Kills of exports that follow a ring which turns at full rate, and the count of what is there afterwards.

    python tests/torture/export_kills.py --kills 200 --seed 1

A broker keeps the last messages of one stream. Publishers write to it as fast as it takes them; each body is
a number. Meanwhile `malamute journal export --follow --compact --expire` runs on the data directory and is
killed with SIGKILL at a random moment, again and again, in turn for Parquet, Delta Lake and Iceberg. The
exporter's clock and the times of messages run so fast that a second is a day, so that days end, are joined
and expire all the time. At the end two readers each count every target: messages, gaps and expired ones
are what was published, no message is there twice, and each has the body of its number.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import malamute
from malamute.cli.root import cli
from malamute.protocol.batch import Columns
from malamute.server.process import BrokerProcess
from malamute.spark import history, maintenance, table_formats
from malamute.spark.export_location import ExportLocation
from malamute.spark.manifest import load

STREAM = "s"
FORMS = ("parquet", "delta", "iceberg")
RING = 60_000
BATCH = 1000
BASE = 20_000 * 86_400 * 10**9
FAST = 86_400
"""Times go so many times as fast."""

DAYS_KEPT = 90
FIRST_SECONDS, LIFE_SECONDS = 0.5, 6.0
"""An exporter is killed when it has worked as long as the first, and up to the second more."""


class Counted(NamedTuple):
    """The sequences of a target as one reader has them, and how many bodies are not theirs."""

    rows: int
    different: int
    first: int
    last: int
    wrong: int


# The exporter


def export(form: str, target: str, data: str, begun_ns: int, *more: str) -> None:
    """Run the command on fast time; without further options it only catches up."""

    def fast(time_ns: int) -> int:
        return BASE + (time_ns - begun_ns) * FAST

    read = history.StoreHistory.read

    def faster(*arguments: Any) -> Iterator[Any]:
        for item in read(*arguments):
            if isinstance(item, history.ExportGap):
                yield item
            else:
                first, times, *others = tuple(item)
                yield Columns(first, fast(times), *others)

    history.StoreHistory.read = faster  # type: ignore[method-assign]
    clock = SimpleNamespace(time_ns=lambda: fast(time.time_ns()))
    maintenance.time = table_formats.time = clock  # type: ignore[assignment,attr-defined]
    care = (*(("--compact", "--expire", f"{DAYS_KEPT}d") if more else ()), *more)
    print("ready", flush=True)
    cli(["journal", "export", "--data", data, "--stream", STREAM, "--to", target, "--format", form, *care])


def exporter(form: str, target: str, data: Path, begun_ns: int, *more: str) -> subprocess.Popen[bytes]:
    """Start the command, which this script runs with another clock."""
    words = ["--export", form, target, str(data), str(begun_ns), *more]
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE)


# The counting


def counted(form: str, target: str) -> list[Counted]:
    """Return what two readers find."""
    if form == "parquet":
        place = ExportLocation(target)
        manifest = load(place, STREAM)
        assert manifest is not None
        paths = [place.full(file.path) for file in manifest.files]
        own = pa.concat_tables([pq.read_table(path, columns=["sequence", "body"]) for path in paths])
        return [_of(own), _by_duckdb([str(path) for path in Path(target).rglob("*.parquet")])]
    if form == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(f"{target}/{STREAM}")
        files = [str(path) for path in table.file_uris()]
        return [_of(pa.table(table.to_pyarrow_table(columns=["sequence", "body"]))), _by_duckdb(files)]
    from pyiceberg.catalog import load_catalog

    found = load_catalog("default").load_table((target.partition(".")[2], STREAM)).scan()
    files = [task.file.file_path.removeprefix("file://") for task in found.plan_files()]
    return [_of(found.to_arrow().select(["sequence", "body"])), _by_duckdb(files)]


def _of(rows: pa.Table) -> Counted:
    """Count by Arrow."""
    numbers = rows.column("sequence").to_numpy()
    bodies = rows.column("body").cast(pa.string()).cast(pa.int64()).to_numpy()
    different = len(set(numbers.tolist()))
    return Counted(
        len(numbers), different, int(numbers.min()), int(numbers.max()), int((numbers != bodies).sum())
    )


def _by_duckdb(paths: Sequence[str]) -> Counted:
    query = """
        select count(*), count(distinct sequence), min(sequence), max(sequence),
            count(*) filter (cast(cast(body as varchar) as bigint) <> sequence)
        from read_parquet(?, hive_partitioning = false)
    """
    with duckdb.connect() as connection:
        row = connection.execute(query, [list(paths)]).fetchone()
    assert row is not None
    return Counted(*row)


def lacking(form: str, target: str, found: Counted) -> tuple[int, int]:
    """Return the messages in gaps and the expired ones; a table has no place to record them."""
    if form != "parquet":
        return found.last - found.first + 1 - found.rows, found.first - 1
    manifest = load(ExportLocation(target), STREAM)
    assert manifest is not None
    # An export begins with the oldest message that the ring has: earlier ones are no gap.
    begin = manifest.files[0].part
    expired = manifest.expired.last or min([begin.first, *(gap.first for gap in begin.gaps)]) - 1
    gaps = [gap for file in manifest.files for gap in file.part.gaps if gap.last > expired]
    return sum(gap.last - max(gap.first - 1, expired) for gap in gaps), expired


def commits(root: Path, form: str) -> list[int]:
    """Return what changes with each commit of a target."""
    place = {"parquet": "parquet.manifest", "delta": f"delta/{STREAM}/_delta_log", "iceberg": "warehouse"}
    return sorted(path.stat().st_mtime_ns for path in (root / place[form]).rglob("*.json"))


# The run


class Publisher(Thread):
    """Publishes numbers until `stop`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.stop, self.count = url, Event(), 0

    def run(self) -> None:
        with malamute.connect(self.url, timeout=120) as client, client.publisher(STREAM, batch=BATCH) as out:
            while not self.stop.is_set():
                numbers = range(self.count + 1, self.count + BATCH + 1)
                out.publish_many(["a.b"] * BATCH, [b"%d" % number for number in numbers], None)
                self.count += BATCH
            out.flush()


def play(kills: int, seed: int, root: Path) -> tuple[str, bool]:
    """Kill exporters, and return what was found and whether it is right."""
    chance = random.Random(seed)
    os.environ |= {
        "PYICEBERG_CATALOG__DEFAULT__URI": f"sqlite:///{root}/catalog.db",
        "PYICEBERG_CATALOG__DEFAULT__WAREHOUSE": f"file://{root}/warehouse",
    }
    targets = {form: f"default.n{seed}" if form == "iceberg" else str(root / form) for form in FORMS}
    begun_ns, done, committed = time.time_ns(), dict.fromkeys(FORMS, 0), dict.fromkeys(FORMS, 0)
    with BrokerProcess(root, "--set", f"streams.count={RING}") as broker:
        publisher = Publisher(broker.url)
        publisher.start()
        data = broker.directory / "data"
        try:
            for number in range(kills):
                form = FORMS[number % len(FORMS)]
                process = exporter(form, targets[form], data, begun_ns, "--follow", "--every", "0.1")
                before = commits(root, form)
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(FIRST_SECONDS + chance.random() * LIFE_SECONDS)
                process.send_signal(signal.SIGKILL)
                done[form] += process.wait() == -signal.SIGKILL
                process.stdout.close()
                committed[form] += commits(root, form) != before
                print(f"{number + 1} kills, {publisher.count:,} published", end="\r", flush=True)
        finally:
            publisher.stop.set()
            publisher.join()
        for form in FORMS:
            process = exporter(form, targets[form], data, begun_ns)
            process.communicate()
            assert process.returncode == 0, form
    faults = []
    for form in FORMS:
        one, other = counted(form, targets[form])
        gone, expired = lacking(form, targets[form], one)
        whole = one.rows + gone + expired == publisher.count
        right = one == other and one.rows == one.different and not one.wrong
        print(f"{form}: {done[form]} kills; {one.rows:,} messages, {gone:,} in gaps, {expired:,} expired")
        if not (right and whole and one.last == publisher.count):
            faults.append(f"{form}: {one} {other} {gone} of {publisher.count}")
    kinds = ", ".join(f"{done[form]} {form}, {committed[form]} after a commit" for form in FORMS)
    words = f"{sum(done.values())} kills of exports ({kinds})"
    return f"{words}, {publisher.count:,} messages published: {'; '.join(faults) or '0 failed'}", not faults


def main() -> int:
    """Play the run, and return the exit code."""
    if sys.argv[1:2] == ["--export"]:
        form, target, data, begun, *more = sys.argv[2:]
        export(form, target, data, int(begun), *more)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="malamute-") as root:
        words, is_right = play(options.kills, options.seed, Path(root))
    print(words)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
