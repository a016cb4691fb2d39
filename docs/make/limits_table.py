"""The tables of the limits of the protocol, from the module that has them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise

from malamute.door.docstrings import docstrings
from malamute.protocol import limits

PAGE = """\
# Limits

From `malamute/protocol/limits.py`. The [protocol](../protocol.md) uses them; the
[configuration](configuration.md#limits) derives those of a broker.

## Constants

Part of the protocol: client and broker refuse values past them.

| constant | value | meaning |
|---|---|---|
{constants}

## Of a broker

With the defaults. WELCOME has them.

| limit | default | meaning |
|---|---|---|
{broker}
"""


def page() -> str:
    """Return the page: the constants, and the fields of `Limits`."""
    words_of = docstrings(limits.Limits)
    broker = (_row(name, value, words_of[name]) for name, value in limits.Limits()._asdict().items())
    return PAGE.format(constants="\n".join(_constants()), broker="\n".join(broker))


def _constants() -> Iterator[str]:
    body = ast.parse(inspect.getsource(limits)).body
    for node, following in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name):
            assert isinstance(following, ast.Expr)
            yield _row(name.id, getattr(limits, name.id), str(ast.literal_eval(following.value)))


def _row(name: str, value: int, words: str) -> str:
    return f"| `{name}` | {value} | {' '.join(words.split())} |"
