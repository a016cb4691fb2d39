"""Programs whose threads are greenlets: gevent and eventlet replace them, and a call that waits holds all up.

libzmq waits in C, where neither of them can switch, and the blocking client is made for threads.
"""

from __future__ import annotations

import sys
import warnings

_PATCHES = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
"""The modules that replace threads, and what each says whether it has."""


def warn_of_greenlets() -> None:
    """Warn if threads are greenlets, in the name of who has called `connect`."""
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
