"""The address of a host, looked up in a thread.

libzmq would ask for it in the thread that serves all connections of a context: while a server of names does
not answer, no client of the process would get a byte.
"""

from __future__ import annotations

import os
import re
import socket
import threading

_NAMED = re.compile(r"tcp://(?P<host>[A-Za-z0-9_-][A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})")
_NUMBERS = re.compile(r"[0-9.]+|localhost")


class Lookup:
    """The question for one host, which all connections to it share while it is under way."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.address = ""
        """The first address of the host, once the lookup is `over`; empty if the name is not known."""
        self.over = threading.Event()
        threading.Thread(target=self._ask, name="malamute-lookup", daemon=True).start()

    def _ask(self) -> None:
        try:
            found = socket.getaddrinfo(self.host, None, socket.AF_INET, socket.SOCK_STREAM)
            self.address = str(found[0][4][0])
        except (OSError, UnicodeError):  # no address
            pass
        finally:
            with _lock:
                _under_way.pop(self.host, None)
            self.over.set()


_lock = threading.Lock()
_under_way: dict[str, Lookup] = {}


def lookup_of(url: str) -> Lookup | None:
    """Return the lookup that a URL needs; None without a name, or with an error that libzmq finds."""
    named = _NAMED.fullmatch(url)
    if named is None or _NUMBERS.fullmatch(named["host"]):
        return None
    with _lock:
        # A lookup takes the lock at its end, so it cannot be removed before it is here.
        lookup = _under_way.get(named["host"])
        if lookup is None:
            lookup = _under_way[named["host"]] = Lookup(named["host"])
        return lookup


def with_address(url: str, address: str) -> str:
    """Return the URL with an address in place of the host's name."""
    return f"tcp://{address}:{url.rpartition(':')[2]}"


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _under_way.clear()


os.register_at_fork(after_in_child=_after_fork)
