"""The exit codes of all commands."""

from __future__ import annotations

from malamute.errors import MalamuteError, StoreLost, TimedOut

OK = 0
ERROR = 1
UNREACHABLE = 2
TIMED_OUT = 3
FAILED = 4
STORE_LOST = 5
INTERRUPTED = 130

EPILOG = """\b
Exit codes:
  0    done; also when a signal or a closed pipe ended sub, recv, work or broker run
  1    an error, printed on standard error with its number (malamute errors explains it)
  2    wrong usage; for broker status: no broker answers
       (broker check has codes of its own)
  3    no message or reply came in time
  4    the worker reported that it failed; for send --outcome: the message was not acknowledged
  5    for broker run: the store broke and could not be opened again (error 804)
  130  interrupted

\b
MALAMUTE_URL is where commands connect, or a context (malamute context), or tcp://127.0.0.1:9999.
"""


def code_of(error: MalamuteError) -> int:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, StoreLost):
        return STORE_LOST
    return TIMED_OUT if isinstance(error, TimedOut) else ERROR
