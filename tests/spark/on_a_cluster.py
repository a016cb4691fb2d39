"""The jobs on a standalone master and two workers, through the script that is meant for it.

Driver and executors run in an environment of their own, which has the wheel of this checkout and not the
checkout itself; what the wheel needs, they borrow from the environment of the tests.

Not among the tests that always run: `make spark-cluster-test` names this file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from history_files import Sent, write
from quiet import quiet_broker
from test_spark_replay import origins

ROOT = Path(__file__).parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_SECONDS = 120
JOB_SECONDS = 600

Submit = Callable[..., dict[str, Any]]


def installed(place: Path) -> Path:
    """The interpreter of a new environment with the wheel."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", place, ROOT], check=True)
    [wheel] = place.glob("malamute-*.whl")
    home = place / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    # Files `.pth` of the other environment are not read there, so its own malamute is not found.
    [site] = home.glob("lib/*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


def environment(**more: str) -> dict[str, str]:
    """The variables of this process, but for what would show others the checkout, or the options of tests."""
    hidden = ("PYTHONPATH", "SPARK_CONF_DIR")
    plain = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**plain, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def daemon(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A part of the cluster, in a process group of its own."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(SPARK_CLASS), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
            cwd=log.parent,
            start_new_session=True,
        )


def said(log: Path, words: str) -> re.Match[str]:
    """Wait until a log says something."""
    with subprocess.Popen(
        ["timeout", str(START_SECONDS), "tail", "-n", "+1", "-F", str(log)], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        try:
            for line in tail.stdout:
                if match := re.search(words, line):
                    return match
        finally:
            tail.kill()
    raise AssertionError(f"{words!r} was not said: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers of one core each."""
    place = tmp_path_factory.mktemp("cluster")
    deploy = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    processes = [daemon(place / "master", f"{deploy}.master.Master", *local, "--port", "0")]
    try:
        url = said(place / "master", r"Starting Spark master at (spark://\S+)")[1]
        for number in (1, 2):
            log, work = place / f"worker-{number}", str(place / f"work-{number}")
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", work)
            processes.append(daemon(log, f"{deploy}.worker.Worker", *local, *sizes, url))
            said(log, "Successfully registered with master")
        yield url
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of driver and executors."""
    place = tmp_path_factory.mktemp("wheel")
    python = installed(place)
    where = subprocess.run(
        [python, "-c", "import malamute; print(malamute.__file__)"],
        env=environment(),
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(place)
    return python


@pytest.fixture
def submit(master: str, python: Path, tmp_path: Path) -> Submit:
    """Run a job by `submit.sh`; what it prints as JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(ROOT / "deploy" / "spark" / "submit.sh"), *arguments, "--json"],
            env=environment(
                MASTER=master,
                PYTHON=str(python),
                SUBMIT_ARGS="--executor-memory 512m --conf spark.ui.enabled=false",
            ),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        shown: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return shown

    return run


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two streams of several files."""
    for stream in ("one", "two"):
        for first in range(1, 4001, 1000):
            messages = [
                Sent(n, f"a.{n % 10}", b"x", {"n": n}, seconds=n / 10) for n in range(first, first + 1000)
            ]
            write(tmp_path / "h", stream, messages, rows=100)
    return tmp_path / "h"


@pytest.mark.timeout(900)
def test_analyze(submit: Submit, history: Path, tmp_path: Path) -> None:
    shown = submit("analyze", str(history), "--to", str(tmp_path / "out"))
    assert [(row["stream"], row["messages"], row["missing"]) for row in shown["streams"]] == [
        ("one", 4000, 0),
        ("two", 4000, 0),
    ]
    assert (tmp_path / "out" / "report.html").stat().st_size > 5000


@pytest.mark.timeout(900)
def test_match(submit: Submit, history: Path, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        '[[subscription]]\nname = "w"\ncriteria = [["topic", "a.3"]]\nwhere = "n > 2000"\n'
    )
    shown = submit("match", str(history), str(tmp_path / "w.toml"))
    assert [(row["stream"], row["messages"]) for row in shown["hits"]] == [("one", 200), ("two", 200)]


@pytest.mark.timeout(900)
def test_replay(submit: Submit, history: Path, tmp_path: Path) -> None:
    with quiet_broker(tmp_path / "data") as broker:
        shown = submit("replay", str(history), "--url", broker.url, "--name", "r")
        assert {row["stream"]: row["published"] for row in shown["streams"]} == {"one": 4000, "two": 4000}
        for stream in ("one", "two"):
            assert origins(broker.url, stream) == list(range(1, 4001))
