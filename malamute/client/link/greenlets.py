"""Greenlets: where gevent or eventlet has replaced threads, a wait of one greenlet lets the others run.

libzmq waits in C, where greenlets cannot switch. So a wait looks at the socket without waiting, and then at
its files, with the function of `select` that the library has replaced.
"""

from __future__ import annotations

import importlib
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

import zmq

_PATCHES = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
"""Modules that replace others, and the function of each that reports it."""

Sources = Sequence[tuple[Any, int]]
Poll = Callable[[Sources, int], list[tuple[Any, int]]]


def poll_function() -> Poll:
    """Return the function for waits at the socket, by whether waits have to let greenlets run."""
    return _poll_of_greenlets if _library() else zmq.zmq_poll


def original(module: str) -> Any:
    """Return a module as it is without greenlets."""
    library = _library()
    if library == "gevent.monkey":
        return _Original(sys.modules[library].get_original, module)
    if library:
        return sys.modules[library].original(module)
    return importlib.import_module(module)


class _Original:
    """A module of which gevent has replaced or removed some names."""

    def __init__(self, get_original: Callable[[str, str], Any], module: str) -> None:
        self._get_original = get_original
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return self._get_original(self._module, name)


def _library() -> str:
    for module, asks in _PATCHES.items():
        loaded = sys.modules.get(module)
        if loaded is not None and getattr(loaded, asks)("select"):
            return module
    return ""


def _poll_of_greenlets(sources: Sources, timeout_ms: int) -> list[tuple[Any, int]]:
    ready = zmq.zmq_poll([*sources], 0)
    if ready or not timeout_ms:
        return ready
    files = [source if isinstance(source, int) else int(source.get(zmq.FD)) for source, _ in sources]
    # A file that is readable says that something has changed at its socket, whatever that is.
    if (make := getattr(select, "poll", None)) is not None:
        waiting = make()
        for file in files:
            waiting.register(file, select.POLLIN)
        waiting.poll(timeout_ms)
    else:
        select.select(files, (), (), timeout_ms / 1000)
    return zmq.zmq_poll([*sources], 0)
