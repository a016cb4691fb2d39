"""How many files the broker may open."""

from __future__ import annotations

import resource

import pytest

from malamute.door.files import raise_file_limit


def test_where_the_system_has_a_lower_limit_of_its_own_the_one_in_force_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, where the hard limit is none and none is refused."""

    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 256
