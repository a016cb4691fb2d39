"""Bars: on a terminal, on standard error, and nowhere else."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from cli_commands import Run

import malamute
from malamute.cli.progress import Counted, bar


@pytest.mark.parametrize("counted", ["bytes", "messages", "seconds"])
def test_a_bar_is_for_a_terminal(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bar("copy", counted) as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar("copy", counted) as progress:
        progress(1, None)
        progress(2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "copy" in err


def test_publishing_shows_how_far_it_is(
    run: Run, client: malamute.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []

    class Bar:
        def __init__(self, label: str, counted: str) -> None:
            shown.append((label, counted))

        def __enter__(self) -> Any:
            return lambda done, total: shown.append((done, total))

        def __exit__(self, *exception: object) -> None: ...

    monkeypatch.setattr("malamute.cli.publish.bar", Bar)
    run("pub", "weather", "a", "b", "--count", "2500")
    assert shown == [("publish", "messages"), (1000, 2500), (2000, 2500), (2500, 2500)]
