"""The tests of kombu, Celery and Django's tasks against a broker of ours: `make upstream`.

Their sources come from PyPI, pinned by digest, into a cache; nothing of them is in the repository. Tasks of
Celery's tests want a `redis-server` beside the broker under test, and the package `redis`. Django's want
Python 3.12, in an environment of their own in the cache.
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
from sdists import CACHE, fetch, tests_of  # noqa: E402
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


def run_django() -> int:
    """Run Django's own tests of tasks, beside our app and with our backend as default; return the exit code.

    Most override the backend, so success shows that ours breaks nothing.
    """
    pythons = [sys.executable, *filter(None, map(shutil.which, ("python3.14", "python3.13", "python3.12")))]
    is_new = "import sys; sys.exit(sys.version_info < (3, 12))"
    python = next((p for p in pythons if not subprocess.run([p, "-c", is_new]).returncode), None)
    if python is None:
        print("skipped: the tests of Django 6.0 want Python 3.12, as a command python3.12")
        return 0
    place = CACHE / "environment-django-6.0"
    ours = str(place / "bin" / "python")
    if not (place / "is-there").exists():
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
        install = [ours, "-m", "pip", "install", "-q", "django==6.0", "-e", str(HERE.parents[1])]
        subprocess.run(install, check=True)
        (place / "is-there").touch()
    tests = fetch("django-6.0", ours) / "tests"
    paths = os.pathsep.join([str(tests), str(HERE), str(HERE.parents[1])])
    env = {**os.environ, "PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "django_settings"}
    return subprocess.run([ours, "-m", "django", "test", "tasks"], env=env, cwd=tests).returncode


def is_cached() -> Path | None:
    """Return the sources of kombu, if they are in the cache."""
    return tests_of("kombu-5.7.0")


if __name__ == "__main__":
    suites = {"kombu": run_kombu, "celery": run_celery, "django": run_django}
    codes = [suites[name]() for name in sys.argv[1:] or suites]
    sys.exit(max(codes))
