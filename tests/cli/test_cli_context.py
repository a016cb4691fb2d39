"""Contexts, and which of all that may say where to connect is the one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from cli_commands import PATIENCE, Run

from malamute.cli.options import ConnectionOptions
from malamute.client.contexts import Context, Contexts, InvalidContext, file_of, load, save
from malamute.testing import Broker

NOBODY = {"user": None, "curve": None, "server_key": None, "act_as": None}
HERE = {"url": "tcp://here:1", "address": "alice", "timeout": 2.5, **NOBODY}


@pytest.fixture
def known(run: Run) -> None:
    """Two contexts, neither of them in use."""
    run("context", "add", "here", "--url", "tcp://here:1", "--address", "alice", "--timeout", "2.5")
    run("context", "add", "there", "--url", "tcp://there:2")


def _shown(run: Run, *arguments: str, **environ: str) -> dict[str, object]:
    shown: dict[str, object] = json.loads(run("context", "show", "--json", *arguments, **environ).stdout)
    return shown


def test_a_context_is_used_by_its_name(run: Run, known: None) -> None:
    assert _shown(run, "--context", "here") == {"context": "here", **HERE}
    assert _shown(run, MALAMUTE_CONTEXT="here") == {"context": "here", **HERE}
    assert "no context 'where': expected here, there" in run("context", "use", "where", exit_code=1).stderr
    run("context", "show", "--context", "where", exit_code=1)


def test_the_command_line_comes_before_the_environment_and_that_before_the_current(
    run: Run, known: None
) -> None:
    assert _shown(run)["url"] == "tcp://127.0.0.1:9999"
    run("context", "use", "there")
    assert _shown(run)["url"] == "tcp://there:2"
    variable = {"MALAMUTE_CONTEXT": "here"}
    assert _shown(run, **variable)["url"] == "tcp://here:1"
    variable["MALAMUTE_URL"] = "tcp://variable:3"
    assert [*_shown(run, **variable).values()][:4] == [None, "tcp://variable:3", "", PATIENCE]
    assert _shown(run, "--context", "there", **variable)["url"] == "tcp://there:2"
    assert _shown(run, "--url", "tcp://option:4", **variable)["url"] == "tcp://option:4"


def test_options_come_before_what_a_context_says(run: Run, known: None) -> None:
    shown = _shown(run, "--context", "here", "--url", "tcp://option:4", "--address", "", "--timeout", "9")
    assert shown == {"context": "here", "url": "tcp://option:4", "address": "", "timeout": 9.0, **NOBODY}


def test_contexts_are_listed_replaced_and_deleted(run: Run, known: None) -> None:
    run("context", "add", "here", "--url", "tcp://new:5", exit_code=1)
    run("context", "add", "here", "--url", "tcp://new:5", "--replace", "--use")
    rows = json.loads(run("context", "list", "--json").stdout)
    assert [(row["name"], row["current"], row["url"]) for row in rows] == [
        ("here", True, "tcp://new:5"),
        ("there", False, "tcp://there:2"),
    ]
    run("context", "delete", "here", "--yes")
    assert _shown(run)["context"] is None
    run("context", "delete", "there", "--yes")
    assert run("context", "list").stderr == "no contexts\n"


def test_a_command_reaches_the_broker_of_a_context(run: Run) -> None:
    with Broker() as broker:
        run("context", "add", "test", "--url", broker.url, "--use")
        printed = json.loads(run("broker", "status", "--json").stdout)
    assert printed["url"] == broker.url


def test_a_context_keeps_a_password_and_never_shows_it(run: Run) -> None:
    arguments = ("context", "add", "lab", "--url", "tcp://lab:1", "--user", "ann", "--use")
    printed = [run(*arguments, stdin="s3cret\n").stdout]
    assert load(file_of(os.environ)).get("lab").credentials() == {"user": "ann", "password": "s3cret"}
    assert _shown(run)["user"] == "ann"
    printed += [run("context", command).stdout for command in ("list", "show")]
    printed.append(run("context", "delete", "lab", "--yes").stdout)
    assert "s3cret" not in "".join(printed)


def test_a_context_keeps_a_token_and_never_shows_it(run: Run) -> None:
    arguments = ("context", "add", "lab", "--url", "tcp://lab:1", "--token", "--use")
    printed = [run(*arguments, stdin="s3cret\n").stdout]
    assert load(file_of(os.environ)).get("lab").credentials() == {"token": "s3cret"}
    printed += [run("context", command).stdout for command in ("list", "show")]
    assert "s3cret" not in "".join(printed)


def test_a_key_of_a_context_is_found_from_everywhere(run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("keys", "new", "ann", "--dir", "keys")
    arguments = ("--curve", "keys/ann.key_secret", "--server-key", "keys/ann.key")
    run("context", "add", "lab", "--url", "tcp://lab:1", *arguments)
    keys = tmp_path.resolve() / "keys"
    found = {"curve": str(keys / "ann.key_secret"), "server_key": str(keys / "ann.key")}
    assert load(file_of(os.environ)).get("lab").credentials() == found
    arguments = ("--user", "ann", "--server-key", "keys/ann.key", "--replace")
    run("context", "add", "lab", "--url", "tcp://lab:1", *arguments, stdin="s3cret\n")
    found = {"user": "ann", "password": "s3cret", "server_key": str(keys / "ann.key")}
    assert load(file_of(os.environ)).get("lab").credentials() == found


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("--user", "ann"), "\n", "invalid password"),
        (("--user", "ann"), "x\0\n", "invalid password"),
        (("--token",), "\n", "no token"),
        (("--token", "--user", "ann"), "x\ny\n", "expected one of them"),
        (("--curve", "none.key_secret"), "", "no server_key"),
        (("--user", "ann", "--curve", "none.key_secret"), "x\n", "expected one of them"),
    ],
)
def test_a_context_of_nobody_is_refused(run: Run, arguments: tuple[str, ...], stdin: str, words: str) -> None:
    refused = run("context", "add", "lab", "--url", "tcp://lab:1", *arguments, stdin=stdin, exit_code=1)
    assert words in refused.stderr
    assert not file_of(os.environ).exists()


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contexts.toml"
    save(path, Contexts("", {"lab": Context("tcp://lab:1", user="ann", password="s3cret")}))
    path.chmod(0o640)
    with pytest.raises(InvalidContext, match="chmod 600"):
        load(path)


def test_the_password_for_one_broker_goes_to_no_other() -> None:
    lab = ConnectionOptions("tcp://lab:1", credentials={"user": "ann", "password": "s3cret"})
    there, _ = lab.to("malamute://example.org/stream/weather", "stream")
    assert not there.credentials
    same, _ = lab.to("malamute://lab:1/stream/weather", "stream")
    assert same.credentials == lab.credentials
    assert "s3cret" not in repr(lab)


def test_what_is_saved_is_loaded_whatever_the_names_are(tmp_path: Path) -> None:
    odd = {'a "b" \\ ä.\u2028\x7f\n': Context("tcp://x:1", "\t", 1.0), "": Context()}
    contexts = Contexts("ä", odd)
    path = tmp_path / "new" / "contexts.toml"
    save(path, contexts)
    assert load(path) == contexts
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    "text",
    [
        "current = 5",
        "current",
        "contexts = 5",
        "contexts.a = 5",
        "contexts.a.url = 5",
        "contexts.a.timeout = true",
        "contexts.a.colour = 'red'",
        "contexts.a.password = 51387",
        "contexts.a.token = 51387",
        pytest.param("current = " + "[" * 100_000, id="nested"),
    ],
)
def test_a_file_that_is_none_is_reported(run: Run, text: str) -> None:
    path = file_of(os.environ)
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidContext, match=r"contexts\.toml"):
        load(path)
    shown = run("stream", "list", exit_code=1).stderr
    assert "contexts.toml" in shown
    assert "51387" not in shown


def test_a_file_that_cannot_be_written_is_reported(run: Run) -> None:
    path = file_of(os.environ)
    path.parent.parent.joinpath("malamute").write_text("a file where the directory belongs")
    assert "error: " in run("context", "add", "a", "--url", "tcp://x:1", exit_code=1).stderr


def test_the_place_is_that_of_the_user_unless_it_is_given() -> None:
    assert file_of({"XDG_CONFIG_HOME": "/x"}) == Path("/x/malamute/contexts.toml")
    assert file_of({}) == Path("~/.config/malamute/contexts.toml").expanduser()


@pytest.mark.parametrize(
    "context",
    [
        Context(address="\U0001f600"),
        Context(timeout=float("inf")),
        Context(user='a\x01\x7f\x85é\u2028\\"\n'),
    ],
)
def test_what_is_saved_can_be_loaded(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "contexts.toml"
    contexts = Contexts("\U0001f600", {"\U0001f600": context})
    save(path, contexts)
    assert load(path) == contexts
