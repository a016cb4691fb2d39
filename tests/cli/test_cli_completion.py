"""Completions of a shell: commands, options, and names that the broker knows."""

from __future__ import annotations

import json
import shutil
import subprocess

import click
import pytest
from cli_commands import Run
from click.shell_completion import ShellComplete

import malamute
from malamute.cli.root import cli


def _completed(*words: str) -> list[str]:
    """Return the completions of the last word."""
    *before, last = words
    return [item.value for item in ShellComplete(cli, {}, "malamute", "").get_completions(before, last)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert "_MALAMUTE_COMPLETE" in script
    assert json.loads(run("completion", shell, "--json").stdout) == {"shell": shell, "script": script[:-1]}
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_commands_are_completed_without_loading_them() -> None:
    assert _completed("s") == ["sub", "send", "stream", "service", "spark"]
    assert "--version" in _completed("--v")
    assert _completed("stream", "sh") == ["show"]
    assert _completed("stream", "show", "--dry") == []


def test_every_lazy_command_can_be_completed() -> None:
    assert isinstance(cli, click.Group)
    assert set(_completed("")) == set(cli.list_commands(click.Context(cli)))


def test_names_come_from_the_broker(client: malamute.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.publish("weather", "a", b"", assurance="stored")
    client.publish("wind", "a", b"", assurance="stored")
    client.change("cursor.set", stream="wind", cursor="reader", start="first")
    client.send("walter", "a", b"")
    monkeypatch.setenv("MALAMUTE_URL", client.url)
    assert _completed("stream", "show", "w") == ["weather", "wind"]
    assert _completed("sub", "wi") == ["wind"]
    assert _completed("cursor", "delete", "wind", "") == ["reader"]
    assert _completed("cursor", "delete", "weather", "") == []
    assert _completed("mailbox", "browse", "wa") == ["walter"]
    assert _completed("client", "show", "te") == ["test"]
    monkeypatch.delenv("MALAMUTE_URL")
    assert _completed("stream", "show", "--url", client.url, "wea") == ["weather"]


def test_without_a_broker_nothing_is_completed_and_nothing_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("malamute.cli.completion.PATIENCE_SECONDS", 0.01)
    assert _completed("stream", "show", "--url", "tcp://127.0.0.1:1", "w") == []
    assert _completed("stream", "show", "--context", "none", "w") == []
    assert capsys.readouterr() == ("", "")


def test_contexts_are_completed(run: Run) -> None:
    run("context", "add", "here", "--url", "tcp://here:1")
    assert _completed("context", "use", "h") == _completed("stream", "list", "--context", "h") == ["here"]
