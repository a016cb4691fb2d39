"""The files of a wheel beside code: it is the directory of the package as it is (`pyproject.toml`).

Decision 31 says why each of these is in it.
"""

from __future__ import annotations

from pathlib import Path

import malamute

PACKAGE = Path(malamute.__file__).parent

CONSOLE = {
    f"gateway/console/{name}"
    for name in (
        "static/console.css",
        "static/console.js",
        "static/malamute.svg",
        "static/uplot-LICENSE.txt",
        "static/uplot.css",
        "static/uplot.js",
        "templates/change.html",
        "templates/base.html",
        "templates/client.html",
        "templates/clients.html",
        "templates/confirm.html",
        "templates/consumers.html",
        "templates/door.html",
        "templates/explain.html",
        "templates/feeds.html",
        "templates/links.html",
        "templates/history.html",
        "templates/overview.html",
        "templates/parts.html",
        "templates/problem.html",
        "templates/message.html",
        "templates/queue.html",
        "templates/queues.html",
        "templates/selection.html",
        "templates/settings.html",
        "templates/sign_in.html",
        "templates/stranger.html",
        "templates/stream.html",
        "templates/stream_head.html",
        "templates/streams.html",
        "templates/subjects.html",
        "templates/tail.html",
        "templates/users.html",
    )
}
"""The pages of the console, and the files that they load."""

DATA = {
    "cli/demo_data/README.md",
    "cli/demo_data/airlines.csv",
    "cli/demo_data/airports.csv",
    "cli/demo_data/flights.csv.gz",
    "cli/demo_data/weather.csv.gz",
    *CONSOLE,
    "py.typed",
    "spark/log4j2.properties",
}
DATA_BYTES_MAX = 384 * 1024
BENCH_BYTES_MAX = 64 * 1024


def _files() -> dict[str, int]:
    """The files of the package, with their sizes."""
    return {
        str(path.relative_to(PACKAGE)): path.stat().st_size
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_has_no_data_but_what_is_listed() -> None:
    data = {name: size for name, size in _files().items() if not name.endswith(".py")}
    assert set(data) == DATA
    assert sum(data.values()) < DATA_BYTES_MAX


def test_the_benchmarks_are_a_small_part_of_a_wheel() -> None:
    assert 0 < sum(size for name, size in _files().items() if name.startswith("bench/")) < BENCH_BYTES_MAX
