"""The integration tests of kombu and Celery against a broker of ours: `make upstream`.

Their sources come from PyPI, pinned by digest, into a cache; nothing of them is in the repository. Tasks of
Celery's tests want a `redis-server` beside the broker under test, and the package `redis`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent)]

from free_ports import free_port  # noqa: E402
from sdists import fetch, tests_of  # noqa: E402
from shared_folders import PATHS  # noqa: E402

PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "-rs"]
CELERY = [
    f"t/integration/test_{name}.py"
    for name in ("tasks", "inspect", "canvas", "worker", "connection_recovery")
]


def _environment(sources: Path) -> dict[str, str]:
    paths = [str(sources), str(HERE), str(HERE / "processes"), *PATHS, str(HERE.parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "default"}


def run_kombu(*options: str, sources: Path | None = None) -> int:
    """Run kombu's 47 tests, or some of them, and return the exit code."""
    sources = sources or fetch("kombu-5.7.0")
    command = [*PYTEST, "--rootdir", str(HERE), "-c", os.devnull, "--timeout", "120", *options]
    return subprocess.run(
        [*command, str(HERE / "kombu_suite.py")], env=_environment(sources), cwd=sources
    ).returncode


def run_celery(*options: str) -> int:
    """Run Celery's integration tests, and return the exit code."""
    server = shutil.which("redis-server")
    if server is None or importlib.util.find_spec("redis") is None:
        print("skipped: Celery's tests want redis-server and the package redis; install the extra peers")
        return 0
    sources, port = fetch("celery-5.7.0"), free_port()
    # As in the settings of Celery, whose classes of tests are written small.
    plugins = [
        "-o",
        "python_classes=test_*",
        "-p",
        "celery_suite",
        "-p",
        "celery.contrib.pytest",
        "-p",
        "no:rerunfailures",
    ]
    redis = subprocess.Popen(
        [server, "--port", str(port), "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL
    )
    try:
        env = {**_environment(sources), "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port)}
        command = [*PYTEST, *plugins, "--timeout", "120", *CELERY, *options]
        return subprocess.run(command, env=env, cwd=sources).returncode
    finally:
        redis.kill()
        redis.wait()


def is_cached() -> Path | None:
    """Return the sources of kombu, if they are in the cache."""
    return tests_of("kombu-5.7.0")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["kombu", "celery"]
    codes = [{"kombu": run_kombu, "celery": run_celery}[name]() for name in chosen]
    sys.exit(max(codes))
