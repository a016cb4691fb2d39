"""The table of all errors, from the tree of their classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from malamute.errors import BY_CODE, MalamuteError

INTRODUCTION = """\
# Errors

Every error is a class under `malamute.MalamuteError`, in `malamute.errors`. It has a number that never
changes its meaning (`.code`), words that say what was wrong with this one (`.text`), and a hint for what to
do (`.hint`). The broker raises the same classes that the client raises again. `malamute errors` prints this
table, and `malamute errors 503` one line of it. Catch the class of an error, or one of its bases.
"""


def page() -> str:
    """The page: one table for each class that others derive from."""
    return "\n".join([INTRODUCTION, *_branches(MalamuteError)]) + "\n"


def _branches(base: type[MalamuteError]) -> Iterator[str]:
    children = base.__subclasses__()
    # Others derive errors of their own, such as those of the command line; they have no number of their own.
    leaves = sorted(
        (e for e in children if BY_CODE.get(e.code) is e and not e.__subclasses__()), key=lambda e: e.code
    )
    if base is not MalamuteError or leaves:
        yield from _table(base, leaves)
    for child in children:
        if child.__subclasses__():
            yield from _branches(child)


def _table(base: type[MalamuteError], leaves: list[type[MalamuteError]]) -> Iterator[str]:
    yield f"\n## {base.__name__}\n\n{_first_line(base)}\n"
    yield "| number | class | raised | hint |\n|---|---|---|---|"
    for error in ([base] if base.code in BY_CODE else []) + leaves:
        raised = _first_line(error).removeprefix("Raised ")
        yield f"| {error.code} | `{error.__name__}` | {raised} | {error.hint} |"


def _first_line(error: type[MalamuteError]) -> str:
    return (inspect.getdoc(error) or "").partition("\n")[0]
