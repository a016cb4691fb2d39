"""The docstrings of the fields of a class, which Python does not keep."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import Any


@cache
def docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring after each field of a class, from its source."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(option.target): str(words.value.value)
        for option, words in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(option, ast.AnnAssign)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }
