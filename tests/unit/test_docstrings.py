"""A docstring names every error that the function raises itself, in `Raises:` or in words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import malamute

PACKAGE = Path(malamute.__file__).parent

BESIDE = ("bench", "cli")
"""Packages whose functions nobody calls but the command line, where the docstring is the help."""

NOT_RAISED = {"NotImplementedError", "AssertionError", "AttributeError", "KeyboardInterrupt"}
"""Errors that are raised, and are not to be named, or never leave the function."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST) -> Iterator[Function]:
    """The public functions and methods of public classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            if isinstance(node, Function):
                yield node
            yield from _functions(node) if isinstance(node, ast.ClassDef) else ()


def _raised(function: Function) -> set[str]:
    """The classes of errors that it raises itself, but for those that it may catch again."""
    found: set[str] = set()
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(error, ast.Name) and error.id[0].isupper():
                found.add(error.id)
        if isinstance(node, ast.Try) and node.handlers:
            # An error that is raised in it may be caught in it.
            nodes += [*node.handlers, *node.orelse, *node.finalbody]
        elif not isinstance(node, ast.ClassDef | Function | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found - NOT_RAISED


def test_a_public_function_says_what_it_raises() -> None:
    missing = []
    for path in sorted(PACKAGE.glob("**/*.py")):
        place = path.relative_to(PACKAGE)
        source = path.read_text(encoding="utf-8")
        if place.parts[0] in BESIDE or "raise " not in source:
            continue
        for function in _functions(ast.parse(source)):
            words = ast.get_docstring(function) or ""
            if unsaid := sorted(error for error in _raised(function) if error not in words):
                missing.append(f"{place}:{function.lineno} {function.name}: {', '.join(unsaid)}")
    assert missing == []
