"""Texts that users read name no file of the source tree: who has installed a wheel does not have it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from malamute.errors import BY_CODE, MalamuteError

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "malamute"

DIRECTORIES = sorted(
    each.name for each in ROOT.iterdir() if each.is_dir() and each != PACKAGE and each.name[0].isalpha()
)
NAMED = re.compile(
    rf"(?<![\w.~/-])(?:{'|'.join(DIRECTORIES)})/[\w-]+\.[\w./-]*\w|\b[\w-]+\.md\b|\bmake [a-z]+`"
)
"""A file in a directory that is beside the package, a page, or a target of the Makefile."""
MAY_NAME = re.compile("/|".join(DIRECTORIES) + r"/|\.md\b|make ")
"""Every source with such a name has this: to take a file apart takes long."""


def _texts(path: Path) -> Iterator[str]:
    """The texts of a file that a user may read: all but docstrings, unless they are the help of a command."""
    if path.suffix == ".html":
        yield path.read_text()
        return
    source = path.read_text()
    if not MAY_NAME.search(source):
        return
    tree = ast.parse(source)
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.value)
        for owner in ast.walk(tree)
        if isinstance(owner, owners) and not _is_command(owner)
        for node in owner.body
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _is_command(owner: ast.AST) -> bool:
    decorators = map(ast.unparse, getattr(owner, "decorator_list", ()))
    return any(".command" in one or ".group" in one for one in decorators)


def test_no_text_of_the_package_names_a_file_that_a_wheel_lacks() -> None:
    paths = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]
    found = {
        f"{path.relative_to(ROOT)}: {named}"
        for path in paths
        for text in _texts(path)
        for named in NAMED.findall(text)
    }
    assert sorted(found) == []


@pytest.mark.parametrize("error", BY_CODE.values(), ids=lambda error: error.__name__)
def test_a_hint_names_no_file_that_a_wheel_lacks(error: type[MalamuteError]) -> None:
    assert NAMED.findall(error.hint) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("see docs/protocol.md", ["docs/protocol.md"]),
        ("deploy/malamute.service is an example", ["deploy/malamute.service"]),
        ("SIZING.md says it", ["SIZING.md"]),
        ("> ~/.config/fish/completions/malamute.fish", []),
        ("/v1/openapi.json, /etc/malamute/config/x.toml", []),
    ],
)
def test_the_test_sees_what_it_is_for(text: str, named: list[str]) -> None:
    assert NAMED.findall(text) == named


ABOUT_VALUES = {
    *("InvalidValue", "InvalidName", "InvalidSelector", "InvalidRule"),
    *("ConfigError", "LinkError", "NotInstalled", "TooLarge"),
}
"""Errors about something that a caller gave, or left out."""

SAYS_MORE = re.compile(r"expected|: \S|; \S")
"""An expectation, or advice."""


def _words(node: ast.AST) -> str | None:
    """Return a text with its values left out; None if it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
    return None


def _faults_without_expectation(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(call := node.exc, ast.Call) and call.args:
            text = _words(call.args[0])
            if ast.unparse(call.func) in ABOUT_VALUES and text is not None and not SAYS_MORE.search(text):
                yield text


def test_every_fault_of_a_value_is_said_with_the_expectation() -> None:
    """`hint`, which each error has, is the next step."""
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in PACKAGE.rglob("*.py")
        for text in _faults_without_expectation(path.read_text(encoding="utf-8"))
    }
    assert sorted(found) == []


def test_a_fault_alone_would_be_found() -> None:
    assert [*_faults_without_expectation('raise InvalidValue(f"bad {x}")')] == ["bad {}"]
    assert [*_faults_without_expectation('raise InvalidValue(f"bad {x}: expected y")')] == []
