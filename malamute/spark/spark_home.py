"""A directory of Spark whose library in Python is compiled.

Each process in Python that Spark's Java starts imports pyspark from archives in `SPARK_HOME/python/lib`.
Archives have no byte code, so every process compiles each module anew: that takes a second of the processor,
and a first query needs five such processes. Where pip installed pyspark, the same modules are compiled beside
them. So here is a `SPARK_HOME` of links with these in place of the archives.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

LIBRARY = Path("python", "lib")
"""Where Spark looks for its library in Python."""

YARN = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""One of them is set where a session may be on YARN, which wants to send the archives as files."""


@contextmanager
def compiled_spark() -> Iterator[None]:
    """Start Java with a compiled library meanwhile, unless there is a `SPARK_HOME` or may be YARN."""
    home = None if {"SPARK_HOME", *YARN} & os.environ.keys() else compiled_home()
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = home
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


@cache
def compiled_home() -> str | None:
    """Return such a directory, kept as long as this process; None if pip has not installed a whole Spark."""
    installed = _package("pyspark")
    archives = [*(installed / LIBRARY).glob("*.zip")]
    if not archives or not (installed / "jars").is_dir():
        return None
    home = Path(mkdtemp(prefix="malamute-spark-"))
    atexit.register(rmtree, home, ignore_errors=True)
    for entry in installed.iterdir():
        if entry.name != LIBRARY.parts[0]:
            (home / entry.name).symlink_to(entry)
    for archive in archives:
        place = home / LIBRARY / archive.name
        place.mkdir(parents=True)
        package = archive.name.partition("-")[0].removesuffix(".zip")
        (place / package).symlink_to(_package(package))
    return str(home)


def _package(name: str) -> Path:
    """Return the directory of a package, which is not imported."""
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent
