"""The libraries of the extras `parquet` and `spark`, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from malamute.errors import NotInstalled


def need(module: str) -> ModuleType:
    """Import a library of an extra.

    Raises:
        NotInstalled: It is missing; the text has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalled.module(module) from error
