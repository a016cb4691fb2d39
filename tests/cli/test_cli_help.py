"""Commands that need no broker: help, versions, errors, and what is loaded for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NoReturn

import click
import pytest
from cli_commands import ROOT, Run
from click.testing import CliRunner

from malamute import __version__
from malamute.cli.lazy import LazyGroup, in_order
from malamute.cli.root import cli
from malamute.errors import BY_CODE, MalamuteError


def _commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


COMMANDS = dict(_commands(cli))
LEAVES = {words: command for words, command in COMMANDS.items() if not isinstance(command, click.Group)}


def test_every_command_has_help(run: Run) -> None:
    for words, command in COMMANDS.items():
        assert command.help
        assert run(*words, "--help").stdout.startswith(f"Usage: malamute {' '.join(words)}")


def test_every_option_has_help() -> None:
    options = [(words, p) for words, command in COMMANDS.items() for p in command.params]
    assert [(words, p.name) for words, p in options if isinstance(p, click.Option) and not p.help] == []


def test_every_command_takes_json() -> None:
    taking = {words for words, command in COMMANDS.items() for p in command.params if "--json" in p.opts}
    others = {words for words, command in LEAVES.items() if words[:1] != ("bench",)} - taking
    assert others == set()


def test_no_command_takes_a_secret_where_ps_would_show_it() -> None:
    secrets = re.compile("password|token|secret")
    options = [(words, p) for words, command in COMMANDS.items() for p in command.params]
    named = [(words, p) for words, p in options if secrets.search(f"{p.name} {p.opts}")]
    assert [(words, p.opts) for words, p in named if not (isinstance(p, click.Option) and p.is_flag)] == []


def test_the_table_of_commands_leads_to_the_commands(run: Run) -> None:
    assert isinstance(cli, LazyGroup)
    words = " ".join(run("--help").stdout.split())
    for name, lazy in cli.table.items():
        assert COMMANDS[name,].name == name
        assert f"{name} {lazy.help}" in words


def test_the_help_shows_the_exit_codes(run: Run) -> None:
    assert "Exit codes:" in run("--help").stdout


def test_the_version(run: Run) -> None:
    assert run("--version").stdout == f"malamute {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nonsense",), "No such command 'nonsense'."),
        (("streams", "list"), "No such command 'streams'. Did you mean stream?"),
        (("publish",), "No such command 'publish'. Did you mean pub?"),
        (("stream", "--json", "lst"), "No such command 'lst'. Did you mean list?"),
    ],
)
def test_an_unknown_command_is_wrong_usage_and_those_like_it_are_named(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    assert run(*words, exit_code=2).stderr.endswith(f"Error: {said}\n")


def test_options_of_all_commands_may_stand_before_any_word_of_one() -> None:
    options = ["--url", "tcp://127.0.0.1:1", "--json", "--timeout=3"]
    for words in LEAVES:
        for place in range(len(words) + 1 if words[:1] != ("bench",) else 0):
            given = [*words[:place], *options, *words[place:], "x", "--", "--json"]
            assert in_order(cli, click.Context(cli), given) == [*words, *options, "x", "--", "--json"]


def test_options_stay_where_no_command_is_named() -> None:
    for given in (["--json"], ["--json", "--help"], ["--url"], ["--nonsense", "pub"], []):
        assert in_order(cli, click.Context(cli), given) == given


def test_n_has_one_meaning() -> None:
    counts = {tuple(p.opts) for command in COMMANDS.values() for p in command.params if "-n" in p.opts}
    assert counts == {("--count", "-n")}


def test_the_usage_of_work_has_its_command_at_the_end(run: Run) -> None:
    usage = "Usage: malamute work [OPTIONS] SERVICE [PATTERN]... -- COMMAND...\n"
    assert run("work", "--help").stdout.startswith(usage)


def test_an_argument_that_looks_like_an_option_is_refused_with_how_it_is_given(run: Run) -> None:
    wrong = run("pub", "weather", "temp.oslo", "-3.5", exit_code=2).stderr
    assert "stands behind --: malamute pub ... -- ARGUMENT" in " ".join(wrong.split())
    assert "behind --" not in run("pub", "weather", "--nonsense", exit_code=2).stderr
    assert "behind --" not in run("client", "list", "-3", exit_code=2).stderr


SLOW = {"pyspark", "pyarrow", "pandas", "lmdb", "textual", "zmq", "msgpack", "structlog", "rich", "asyncio"}
"""Modules that no help needs."""


def _loaded(code: str) -> set[str]:
    """The libraries that are loaded after some code has run in a new interpreter."""
    code += "; import sys; print(*(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


def test_the_help_loads_nothing_that_is_slow() -> None:
    help_ = "from malamute.cli.root import cli; cli(['--help'], standalone_mode=False)"
    assert not _loaded(help_) & {*SLOW, "tomllib", "subprocess"}


def test_the_help_of_no_command_loads_anything_that_is_slow() -> None:
    # A module that any of them needs would be loaded here, so none needs one.
    quick = [name for name in cli.list_commands(click.Context(cli)) if name not in ("bench", "demo")]
    load = "import click; from malamute.cli.root import cli; c = click.Context(cli)"
    assert not _loaded(f"{load}; [cli.get_command(c, name) for name in {quick}]") & SLOW
    # These two start clients in processes of their own, and say what they measure in their help.
    measuring = f"{load}; [cli.get_command(c, name) for name in ('bench', 'demo')]"
    assert not _loaded(measuring) & (SLOW - {"zmq", "msgpack", "asyncio"})


def test_a_client_command_does_not_load_the_broker() -> None:
    code = (
        "import sys, malamute.cli.publish, malamute.cli.subscribe, malamute.cli.broker; print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & {
        "pyspark",
        "pyarrow",
        "lmdb",
        "malamute.core",
        "malamute.server.daemon",
    }


def test_the_module_is_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "malamute", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout == f"malamute {__version__}\n"


def test_every_error_with_a_number_is_of_a_kind_and_has_a_hint(run: Run) -> None:
    rows = json.loads(run("errors", "--json").stdout)
    assert [row["name"] for row in rows if not (row["hint"] and row["meaning"].startswith("Raised "))] == []
    kinds = {row["name"]: row["kind"] for row in rows}
    assert (kinds["TryLater"], kinds["StoreLocked"], kinds["ConfigError"]) == (
        "Failed",
        "StoreError",
        "MalamuteError",
    )


def test_errors_without_a_number_are_kinds_or_show_all_by_their_words() -> None:
    assert {error.__name__ for error in _without_number(MalamuteError)} == {
        "Refused",  # kinds: what is raised is of a class below
        "Failed",
        "HttpRefused",
        "LinkError",  # also raised itself, in a wrong thread or process: the text says what to do
        "InvalidContext",  # the text names the file
        "BadInput",  # of the command line: the text names the file or the line
    }


def _without_number(error: type[MalamuteError]) -> Iterator[type[MalamuteError]]:
    for child in error.__subclasses__():
        if not child.code and child.__module__.startswith("malamute."):
            yield child
        yield from _without_number(child)


def test_errors_are_listed_and_explained(run: Run) -> None:
    assert {row["code"] for row in json.loads(run("errors", "--json").stdout)} == set(BY_CODE)
    assert "StorageFull" in run("errors").stdout
    assert "TryLater" in run("errors", "503").stdout
    assert json.loads(run("errors", "503", "--json").stdout)["name"] == "TryLater"
    assert run("errors", "999", exit_code=1).stderr.startswith("error 404: no error has the number 999")


REMOVALS = re.compile(r"\b(delete|remove|purge|disconnect|forget|drop|clear|prune|wipe|erase|kill)")


@pytest.mark.parametrize(
    "words",
    [
        words
        for words, command in COMMANDS.items()
        if REMOVALS.search(words[-1]) and not isinstance(command, click.Group)
    ],
    ids=" ".join,
)
def test_what_removes_something_asks_first_and_has_a_dry_run(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of a broker, and nothing is opened, before a person has said yes."""
    command = COMMANDS[words]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {"--yes", "--dry-run"} <= options
    for place in ("malamute.cli.options.ConnectionOptions.open", "malamute.cli.journal._opened"):
        monkeypatch.setattr(place, _refuse)
    for name in ("malamute.cli.context.save", "malamute.cli.users.FileBook.remove"):
        monkeypatch.setattr(name, _refuse)
    # Several kinds of arguments are taken: a name, a place, and a stream with its cursor.
    given = [
        "stream/x" if p.name == "source" else "x" for p in command.params if isinstance(p, click.Argument)
    ]
    for answer in ("n\n", ""):
        result = CliRunner().invoke(cli, [*words, *given, *NEEDED.get(words, ())], input=answer)
        assert (result.exit_code, "[y/N]" in result.stderr) == (1, True), result.output


NEEDED = {("stream", "delete-messages"): ("--sequence", "1")}
"""Options without which nothing is removed, by command."""


def _refuse(*args: object, **more: object) -> NoReturn:
    raise AssertionError("something was done before the answer")


def test_the_removals_are_found_by_their_names() -> None:
    found = {" ".join(words) for words in COMMANDS if REMOVALS.search(words[-1])}
    assert found >= {"user remove", "group remove", "cursor delete", "feed delete", "context delete"}
    assert found >= {"stream purge", "stream delete", "client disconnect"}
