"""How many files a process may have open: each connection is one."""

from __future__ import annotations

import resource
import sys


def raise_file_limit() -> int:
    """Let this process open as many files as it may, and return how many that is.

    A connection is a file, and the usual soft limit of 1,024 is for old programs' sake.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # the system has a limit of its own, below that one
            hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
