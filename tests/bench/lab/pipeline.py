"""The pipeline from a journal to tables and back into a broker, with the processor time of each side.

A broker gets a history; its data directory is exported to Parquet, Delta Lake and Iceberg, small files of it
are joined, and it is counted, analysed and published again. Times are of the work alone: Spark's session has
been started, and does each thing once before it is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from malamute.bench import replay as history
from malamute.bench import workspace
from malamute.bench.figures import extent, middle
from malamute.bench.machine import ProcessWatch
from malamute.bench.processes import run_together
from malamute.bench.workloads import Workload, publish_columns
from malamute.server.process import BrokerProcess
from malamute.spark import columns, local, maintenance
from malamute.spark import export as exports
from malamute.spark.analyze_tables import AnalyzeOptions
from malamute.spark.export_location import ExportLocation
from malamute.spark.history import open_history
from malamute.spark.replay import ReplaySettings, replay, replay_here
from malamute.spark.scan import ExportedHistory
from malamute.spark.table_formats import FORMATS, export_to_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 1000
SMALL_FILES = 100
"""Files that are joined into few."""

MINUTE_SECONDS = 60
TICKS = os.sysconf("SC_CLK_TCK")


class PipelineOptions(NamedTuple):
    """How much, how often, and where."""

    messages: int
    size_bytes: int
    rounds: int
    directory: Path


class PipelineRow(NamedTuple):
    """One kind of work: messages a second, and processor seconds of the broker and of all other processes.

    `load` is that of the machine in the last minute, this work included.
    """

    what: str
    messages: int
    per_second: float
    extent: list[float]
    cpu_seconds: float
    broker_cpu_seconds: float
    load: float


@contextmanager
def catalog(directory: Path) -> Iterator[None]:
    """Have the catalog of Iceberg in a temporary directory; pyiceberg reads its name once."""
    with workspace.temporary_directory(directory) as place:
        uri, warehouse = f"sqlite:///{place.absolute()}/catalog.db", f"file://{place.absolute()}/warehouse"
        named = {"URI": uri, "WAREHOUSE": warehouse}
        with mock.patch.dict(os.environ, {f"PYICEBERG_CATALOG__DEFAULT__{n}": v for n, v in named.items()}):
            yield


def measure(options: PipelineOptions, spark: SparkSession | None) -> Iterator[PipelineRow]:
    """Do each kind of work in every round, so that all see the same machine."""
    size = 3 * workspace.store_bytes(options.messages * (options.size_bytes + 2 * history.RECORD_BYTES))
    workspace.check_free_space(options.directory, size)
    taken: dict[str, list[tuple[float, float, float]]] = {}
    with ExitStack() as stack:
        place = stack.enter_context(workspace.temporary_directory(options.directory))
        broker = stack.enter_context(workspace.broker(options.directory, f"storage.size={size}"))
        workload = Workload(broker.url, history.STREAM, options.messages, options.size_bytes, BATCH, 0)
        run_together((publish_columns, workload, history.history_columns))
        names = map("{:03}".format, count())
        warm = [work for what, work in _works(broker, place, spark).items() if "Spark" in what]
        for number in range(options.rounds):
            if number == 0:
                _prepare(broker, place)
                for work in warm:
                    work(next(names))
            for what, work in _works(broker, place, spark).items():
                name = next(names)
                if what.startswith("compact"):
                    _small_files(broker, place / name, options.messages)
                taken.setdefault(what, []).append(_timed(work, name, broker))
    for what, rounds in taken.items():
        rates = [options.messages / seconds for seconds, _, _ in rounds]
        cpu, brokers = (round(middle(one[place] for one in rounds), 2) for place in (1, 2))
        yield PipelineRow(
            what, options.messages, middle(rates), extent(rates), cpu, brokers, round(os.getloadavg()[0], 1)
        )


def _prepare(broker: BrokerProcess, place: Path) -> None:
    with open_history(data=str(broker.directory / "data")) as found:
        exports.export(found, history.STREAM, ExportLocation(str(place / "history")))


def _small_files(broker: BrokerProcess, target: Path, messages: int) -> None:
    with (
        mock.patch.object(exports, "FILE_ROWS", messages // SMALL_FILES),
        mock.patch.object(columns, "BATCH_ROWS", messages // SMALL_FILES),
        open_history(data=str(broker.directory / "data")) as found,
    ):
        exports.export(found, history.STREAM, ExportLocation(str(target)))


Work = Callable[[str], object]


def _works(broker: BrokerProcess, place: Path, spark: SparkSession | None) -> Mapping[str, Work]:
    """Return the kinds of work, each of which gets a name for what it makes."""
    data, whole = str(broker.directory / "data"), str(place / "history")
    minute = AnalyzeOptions(window_seconds=MINUTE_SECONDS)

    def to_files(name: str) -> None:
        with open_history(data=data) as found:
            exports.export(found, history.STREAM, ExportLocation(str(place / name)))

    def to_table(form: str, target: str) -> None:
        with open_history(data=data) as found:
            export_to_table(found, history.STREAM, FORMATS[form](target, history.STREAM))

    def analysed(name: str) -> None:
        with local.analysed(ExportedHistory(whole), minute) as (engine, tables):
            local.save(engine, tables, str(place / name))

    def joined(name: str) -> None:
        with mock.patch.multiple(maintenance, SMALL_PARTS=1, OPEN_FILES=2):
            assert maintenance.compact(ExportLocation(str(place / name)), history.STREAM).files

    def counted(_: str) -> None:
        query = f"select subject, time_ns // {MINUTE_SECONDS}000000000, count(*), sum(size) from history"
        with local.opened(ExportedHistory(whole)) as engine:
            assert engine.reader(f"{query} group by all").read_all().num_rows

    def settings(name: str) -> ReplaySettings:
        return ReplaySettings(broker.url, into=name)

    def again(name: str) -> None:
        replay_here(ExportedHistory(whole), settings(name))

    works: dict[str, Work] = {
        "export to Parquet": to_files,
        "export to Delta Lake": lambda name: to_table("delta", str(place / name)),
        "export to Iceberg": lambda name: to_table("iceberg", f"default.n{name}"),
        f"compact {SMALL_FILES} files": joined,
        "counts by subject and minute": counted,
        "journal analyze": analysed,
        "journal replay": again,
    }
    if spark is None:
        return works
    from malamute.spark import analyze

    return works | {
        "analyze by Spark": lambda name: analyze.analyze(
            spark, ExportedHistory(whole), str(place / name), minute
        ),
        "replay by Spark": lambda name: replay(spark, ExportedHistory(whole), settings(name)),
    }


def _timed(work: Work, name: str, broker: BrokerProcess) -> tuple[float, float, float]:
    """Return seconds, and processor seconds of this process with its children and of the broker."""
    before, begun = _cpu_seconds(broker.pid), time.perf_counter()
    with ProcessWatch(broker.pid) as watch:
        work(name)
    seconds = time.perf_counter() - begun
    return seconds, _cpu_seconds(broker.pid) - before, watch.cpu_seconds or 0.0


def _cpu_seconds(but: int) -> float:
    """Return the processor time of this process and all that it has started, but for one of these."""
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found[int(path.parent.name)] = int(words[1]), sum(map(int, words[11:15]))
    own = {os.getpid()}
    for _ in found:
        more = {pid for pid, (parent, _) in found.items() if parent in own and pid != but} - own
        if not more:
            break
        own |= more
    return sum(found[pid][1] for pid in own if pid in found) / TICKS
