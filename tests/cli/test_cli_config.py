"""Configuration on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import zmq
from cli_commands import Run
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from malamute.cli.root import cli
from malamute.config import Config
from malamute.errors import ConfigError
from malamute.server.daemon import open_broker


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


def _public(kind: Any) -> bytes:
    key = kind.generate() if kind is Ed25519PrivateKey else generate_private_key(SECP256R1())
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


FAULTS: dict[str, tuple[str, int, str]] = {
    "no file of accounts": ('accounts = "{there}/none.toml"', 700, "accounts cannot be read"),
    "accounts that others read": ('accounts = "{there}/open.toml"', 700, "accounts are open to others"),
    "no key of the broker": ('key = "{there}/none.key_secret"', 700, "none.key_secret"),
    "a key that fits no algorithm": (
        '[[access.issuer]]\nname = "i"\naudience = "a"\nkeys = "{there}/ed.pem"\nalgorithms = ["ES256"]',
        700,
        "ES256",
    ),
    "no library for tokens": (
        '[[access.issuer]]\nname = "i"\naudience = "a"\nkeys = "{there}/ec.pem"\nalgorithms = ["ES256"]',
        701,
        "jwt is missing: pip install 'malamute[jwt]'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_broker_refuses_the_check_refuses_in_the_same_words(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, code, words = FAULTS[fault]
    (tmp_path / "open.toml").write_text("")
    (tmp_path / "open.toml").chmod(0o644)
    (tmp_path / "ed.pem").write_bytes(_public(Ed25519PrivateKey))
    (tmp_path / "ec.pem").write_bytes(_public(None))
    for name in ("ed.pem", "ec.pem"):
        (tmp_path / name).chmod(0o644)
    file = tmp_path / "malamute.toml"
    file.write_text("[access]\n" + text.format(there=tmp_path) + '\n[storage]\nkind = "memory"\n')
    if code == 701:
        monkeypatch.setitem(sys.modules, "jwt", None)
    done = CliRunner().invoke(cli, ["config", "check", str(file)])
    context: zmq.Context[Any] = zmq.Context()
    with pytest.raises(ConfigError) as refused:
        open_broker(Config.load(file, {}, {}), context)
    context.term()
    assert (done.exit_code, refused.value.code) == (1, code)
    assert words in refused.value.text
    assert refused.value.text in done.output
