"""`malamute errors`: the meaning of error numbers."""

from __future__ import annotations

import click

from malamute.cli.options import examples, json_option
from malamute.cli.tables import show_map, show_rows
from malamute.errors import BY_CODE, MalamuteError, NotFound


@click.command(epilog=examples("malamute errors", "malamute errors 503"))
@click.argument("code", type=int, required=False)
@json_option
def errors(code: int | None, *, as_json: bool) -> None:
    """Explain the error with the number CODE, or list all errors.

    A program can catch an error by its class, or several by a base class.
    """
    if code is None:
        show_rows([_fields(number, error) for number, error in sorted(BY_CODE.items())], as_json=as_json)
    elif code in BY_CODE:
        show_map(_fields(code, BY_CODE[code]), as_json=as_json)
    else:
        raise NotFound(f"no error has the number {code}", hint="`malamute errors` lists all numbers")


def _fields(code: int, error: type[MalamuteError]) -> dict[str, object]:
    meaning = (error.__doc__ or "").partition("\n")[0]
    kind = error.__mro__[1].__name__
    return {"code": code, "name": error.__name__, "kind": kind, "meaning": meaning, "hint": error.hint}
