"""Configuration on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_commands import Run

from malamute.config import Config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "malamute.toml"
    path.write_text('[storage]\nsize = "2GiB"\n')
    return path


def test_a_good_file_is_good(run: Run, file: Path) -> None:
    assert run("config", "check", str(file)).stdout == f"{file}: good\n"
    assert json.loads(run("config", "check", str(file), "--json").stdout) == {"file": str(file), "good": True}


def test_without_a_file_the_environment_is_checked(run: Run) -> None:
    assert run("config", "check").stdout == "the environment: good\n"
    wrong = run("config", "check", exit_code=1, MALAMUTE_STORAGE__SIZE="much")
    assert "MALAMUTE_STORAGE__SIZE: storage.size = 'much'" in wrong.stderr


def test_a_bad_file_is_reported_with_its_place(run: Run, file: Path) -> None:
    file.write_text("[storage]\nsice = 5\n")
    wrong = run("config", "check", str(file), exit_code=1)
    assert wrong.stderr.startswith(
        f"error 700: {file}: [storage]: unknown option 'sice': did you mean 'size'?"
    )
    assert "hint: " in wrong.stderr
    error = json.loads(run("config", "check", str(file), "--json", exit_code=1).stderr)["error"]
    assert error["code"] == 700
    assert set(error) == {"code", "text", "hint"}


def test_show_writes_toml_that_reads_back(run: Run, file: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown.toml"
    shown.write_text(run("config", "show", "--config", str(file)).stdout)
    assert Config.load(shown, {}) == Config.load(file, {})


def test_an_option_comes_before_the_environment_and_that_before_the_file(run: Run, file: Path) -> None:
    def size(*more: str, **environ: str) -> int:
        shown = run("config", "show", "--json", "--config", str(file), *more, **environ).stdout
        return int(json.loads(shown)["storage"]["size"])

    assert size() == 2 << 30
    assert size(MALAMUTE_STORAGE__SIZE="3GiB") == 3 << 30
    assert size("--set", "storage.size=4GiB", MALAMUTE_STORAGE__SIZE="3GiB") == 4 << 30


def test_the_short_options(run: Run) -> None:
    options = ("--data", "here", "--memory", "--listen", "tcp://127.0.0.1:1", "--listen", "ipc://@a")
    shown = json.loads(run("config", "show", "--json", *options).stdout)
    assert (shown["storage"]["directory"], shown["storage"]["kind"]) == ("here", "memory")
    assert shown["listen"]["endpoints"] == ["tcp://127.0.0.1:1", "ipc://@a"]


@pytest.mark.parametrize("setting", ["storage.size", "storage=5", "=5", "a.b.c=5"])
def test_a_setting_has_a_form(run: Run, setting: str) -> None:
    assert "expected section.option=value" in run("config", "show", "--set", setting, exit_code=2).stderr


def test_a_wrong_setting_is_reported_as_it_was_given(run: Run) -> None:
    wrong = run("config", "show", "--set", "storage.size=much", exit_code=1)
    assert wrong.stderr.startswith("error 700: --set storage.size: storage.size = 'much': expected a size")
