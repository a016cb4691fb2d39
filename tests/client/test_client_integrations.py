"""Logs for programs, and a broker for tests."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import structlog

import malamute
from malamute import errors
from malamute.client.events import Gap, Recalled, Refusal, Slow, log_event

TEST = """
import malamute

pytest_plugins = ["malamute.pytest_plugin"]

def test_it_is_reported(malamute_broker):
    with malamute.connect(malamute_broker.url) as client:
        assert client.publish("weather", "temp.oslo", b"-3.5", assurance="stored") == 1

def test_each_test_has_its_own(malamute_broker):
    with malamute.connect(malamute_broker.url) as client:
        assert "weather" not in [stream["name"] for stream in client.query("streams")]
"""


def test_the_fields_of_an_event_are_the_fields_of_its_log_line():
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("malamute")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        for event in (
            Gap("weather", 3, 9, "overwritten"),
            Slow("weather", 100),
            Recalled("svc", (1, 2), "timeout"),
            Refusal(errors.TryLater("full")),
        ):
            log_event(event)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    gap, slow, recalled, refusal = map(json.loads, stream.getvalue().splitlines())
    assert gap.items() >= {"event_type": "Gap", "stream": "weather", "first": 3, "last": 9}.items()
    assert (gap["level"], slow["waiting"], recalled["sequences"]) == ("warning", 100, [1, 2])
    assert refusal["error"] == "full (error 503)"


def test_pytest_has_a_broker_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_weather.py").write_text(TEST)
    root = str(Path(malamute.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_weather.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith(".."), run.stdout


def test_the_plugin_costs_other_projects_nothing():
    code = "import sys, malamute.pytest_plugin; print('zmq' in sys.modules or 'lmdb' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
