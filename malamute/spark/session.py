"""A Spark session with Malamute; and advice on the installation when there can be none.

Spark is a program in Java, started by pyspark. Without a recent Java pyspark has poor errors, so Java is
checked first. On a cluster the driver's Java is started by spark-submit and is there already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from malamute.errors import NotInstalled
from malamute.spark.dependencies import need
from malamute.spark.spark_home import compiled_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
"""The log configuration of Java in a session without one."""

INCUBATOR = b"WARNING: Using incubator modules:"
"""The first output of Java with the options of Spark."""

TRACEBACK = rb"Traceback \(most recent call last\):\n(?: .*\n)*"

CLOSED = re.compile(
    TRACEBACK + rb' .*daemon\.py", line.*\n +outfile\.flush\(\)\n(?: .*\n)*BrokenPipeError.*\n'
)
"""Output of pyspark's workers when Java closes their socket with a path, after a minute without work or at
the end: they answer once more, which only a TCP socket would accept. The error is harmless."""

UNFINISHED = re.compile(TRACEBACK + rb"(?: .*|B.*)?\Z")

STDERR = 2

_ending = threading.Event()
"""Whether output of Java and its workers on standard error is dropped."""

JAVA_MIN = 17
"""The oldest Java that Spark 4 runs on."""

INSTALL_JAVA = (
    f"install a Java runtime of version {JAVA_MIN} or later, for example with:"
    f" apt install openjdk-{JAVA_MIN}-jre-headless; or set JAVA_HOME to one"
)

SETTINGS = {
    # Times of the broker are UTC, and so is the date that an export is partitioned by.
    "spark.sql.session.timeZone": "UTC",
    # Names of streams are text, also those that look like numbers.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Python's input comes by sockets that take less of the processor than those of TCP. Their paths may have
    # some 100 bytes, which temporary directories of clusters exceed.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.unix.domain.socket.dir": "/tmp",
}
"""Default settings of a session."""


def open_session(name: str = "malamute", master: str = "", **settings: str) -> SparkSession:
    """Return a session with the data source `malamute`; the one of this process, if there is one already.

    `master` is Spark's address of a cluster; without it that of spark-submit, or all cores of this machine.
    `settings` are more options of Spark, with `__` for each dot. Raises `NotInstalled` when pyspark or Java
    is missing.
    """
    from malamute.spark import register

    pyspark = need("pyspark.sql")
    check_java()
    _ending.clear()
    # The executors on this machine take the interpreter of the driver.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = pyspark.SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    options = SETTINGS | {option.replace("__", "."): value for option, value in settings.items()}
    for option, value in options.items():
        builder = builder.config(option, value)
    with _quiet_start(), compiled_spark():
        session: SparkSession = builder.getOrCreate()
    register(session)
    return session


def close_session(session: SparkSession) -> None:
    """Stop a session, and drop later output of Java and its workers on standard error.

    Workers in Python that wait for their next task find that Java has closed the pipe, and print tracebacks.
    """
    _ending.set()
    session.stop()


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Start Java during the block without warnings that a user could not act upon.

    Its log has errors alone, unless there is a configuration of the user's own. Its output before the log
    comes through a pipe, which Java keeps.
    """
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" not in options and not _has_log_configuration():
        os.environ["SPARK_SUBMIT_OPTS"] = f"{options} -Dlog4j2.configurationFile={LOGGING.as_uri()}".strip()
    errors = os.dup(STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, STDERR)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, os.dup(errors)), daemon=True).start()
    try:
        yield
    finally:
        os.dup2(errors, STDERR)
        os.close(errors)


def _has_log_configuration() -> bool:
    places = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    return any(place and os.path.exists(os.path.join(place, LOGGING.name)) for place in places)


def _pass_on(reading: int, errors: int) -> None:
    """Pass on standard error, except for `CLOSED` and Java's first words about a module."""
    with open(reading, "rb", buffering=0) as source, open(errors, "wb", buffering=0) as target:
        begin = b""
        while INCUBATOR.startswith(begin[: len(INCUBATOR)]) and b"\n" not in begin:
            some = source.read(4096)
            if not some:
                break
            begin += some
        if begin.startswith(INCUBATOR):
            begin = begin.partition(b"\n")[2]
        for wanted in without_closed(chain([begin], iter(lambda: source.read(65536), b""))):
            if not _ending.is_set():
                target.write(wanted)


def without_closed(written: Iterable[bytes]) -> Iterator[bytes]:
    """Yield written data, in lines or larger pieces, without `CLOSED`; a traceback once it is whole."""
    held = b""
    for some in written:
        held = CLOSED.sub(b"", held + some)
        unfinished = UNFINISHED.search(held)
        end = unfinished.start() if unfinished else len(held)
        yield held[:end]
        held = held[end:]
    yield held


def check_java() -> None:
    """Raise `NotInstalled` unless Spark can start a Java that is new enough."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # spark-submit has started it
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        raise NotInstalled(f"no Java{f' in {home}' if home else ''}, which Spark needs: {INSTALL_JAVA}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = java_version(answer.stderr + answer.stdout)
    if version < JAVA_MIN:
        raise NotInstalled(f"{java} is version {version}: Spark needs Java {JAVA_MIN}; {INSTALL_JAVA}")


def java_version(words: str) -> int:
    """Return the major version in the output of `java -version`; 0 without one."""
    found = re.search(r'version "(?:1\.)?(\d+)', words)
    return int(found[1]) if found else 0
