"""A data directory on a disk that cannot read some of it: a job says so, and reads on once the disk does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lossy_disk
import pytest
from histories import DAY, START, Told, operations, store
from lossy_disk import ALL_BLOCKS, BLOCK, NO_BLOCKS, LossyDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNKS, BAD_CHUNK = 4, 2
BODY_BYTES = 100_000

# The test takes FUSE and the right to mount: CI installs the one where it can, and has the other.
pytestmark = pytest.mark.skipif(bool(lossy_disk.why_not()), reason=lossy_disk.why_not() or "it is there")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    disk = LossyDisk(tmp_path / "place", tmp_path)
    yield disk
    disk.close()


def test_a_job_says_that_it_cannot_read_and_the_next_one_reads_once_it_can(
    spark: SparkSession, disk: LossyDisk
) -> None:
    bodies = [bytes([0xA0 + n]) * BODY_BYTES for n in range(CHUNKS)]
    chunks = [operations("s", 1 + n, [Told("a", {}, body)], START + n * DAY) for n, body in enumerate(bodies)]
    store(disk.place, *chunks)
    bad = (disk.place / "data.mdb").read_bytes().index(bodies[BAD_CHUNK]) // BLOCK + 1

    def read() -> list[tuple[int, bytes]]:
        frame = spark.read.format("malamute").option("data", str(disk.place)).load()
        return sorted((row.sequence, bytes(row.body)) for row in frame.collect())

    disk.fail_reads(range(bad, bad + 1))
    with pytest.raises(Exception, match=r"cannot be read; page \d+: .*Input/output error \(error 803\)"):
        read()
    disk.fail_reads(ALL_BLOCKS)
    with pytest.raises(Exception, match=r"Input/output error \(error 800\)"):
        read()
    disk.fail_reads(NO_BLOCKS)
    assert read() == [(1 + n, body) for n, body in enumerate(bodies)]
