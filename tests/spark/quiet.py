"""Brokers with the streams of their tests alone: without that of the broker's own events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from malamute.config import Config
from malamute.config.sections import EventsConfig
from malamute.testing import Broker, small_config


def quiet_config() -> Config:
    """The configuration of such a broker."""
    return replace(small_config(), events=EventsConfig(lifecycle=False))


def quiet_broker(directory: Path) -> Broker:
    """A broker on a directory that tells nothing of itself."""
    return Broker(directory, config=quiet_config())
