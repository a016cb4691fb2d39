"""Warning for programs with greenlets: gevent and eventlet replace threads, and a waiting call blocks all.

libzmq waits in C, where greenlets cannot switch, and the blocking client is made for threads.
"""

from __future__ import annotations

import sys
import warnings

_PATCHES = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
"""Modules that replace threads, and the function of each that reports it."""


def warn_of_greenlets() -> None:
    """Warn if threads are greenlets, in the name of the caller of `connect`."""
    for module, asks in _PATCHES.items():
        loaded = sys.modules.get(module)
        if loaded is not None and getattr(loaded, asks)("thread" if "eventlet" in module else "threading"):
            warnings.warn(
                f"threads are patched by {module.partition('.')[0]}: a call of this client that waits holds "
                "up every greenlet; use it in a thread of gevent.threadpool or eventlet.tpool, or speak HTTP "
                "to `malamute gateway`",
                RuntimeWarning,
                stacklevel=3,
            )
