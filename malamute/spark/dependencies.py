"""The libraries of the extra `spark`, and what to do where they are not installed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from malamute.errors import NotInstalled

INSTALL = "install it with: pip install 'malamute[spark]'"


def need(module: str) -> ModuleType:
    """Import a library of the extra `spark`. Raises `NotInstalled`, which names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalled(f"this needs {module.partition('.')[0]}: {INSTALL}") from error
