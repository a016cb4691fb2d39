"""Limit of open files of a process: each connection is one."""

from __future__ import annotations

import resource
import sys


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it.

    A connection is a file, and the usual soft limit of 1,024 is for old programs' sake.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # the system has a limit of its own, below that one
            hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
