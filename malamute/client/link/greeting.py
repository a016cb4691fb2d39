"""The mechanism of a listener, read from its greeting (ZMTP 3.1, RFC 37).

Each side closes the connection when it has read that the other has another mechanism. If the listener is the
first, it may do so before it has named its own, and libzmq reports a broken pipe only, each time again. So a
client that distinguishes an absent broker from one that wants another proof has to ask, without a greeting of
its own.

A name has to be resolved for that, and a listener may be slow. So a thread asks, and its program continues.
A command that has waited in vain asks in its own thread, for the reason in words.
"""

from __future__ import annotations

import socket
import threading
from contextlib import closing

from malamute.client.link.lookup import lookup_of, with_address

ANSWER_SECONDS = 1.0
"""Time for the listener's answer."""

MECHANISMS = (b"NULL", b"PLAIN", b"CURVE")

_SIGNATURE = b"\xff\0\0\0\0\0\0\0\1\x7f"
_VERSION = b"\3\1"
_SIZE = 64
_MECHANISM = slice(12, 32)


class Inquiry:
    """Asks a listener whether it wants another proof than that of a client whose mechanism is `own`."""

    def __init__(self, url: str, own: bytes) -> None:
        self.url = url
        self._own = own
        self.wants_another: bool | None = None
        """The answer; None as long as there is none."""
        threading.Thread(target=self._ask, name="malamute-greeting", daemon=True).start()

    def _ask(self) -> None:
        wanted = mechanism_of(self.url)
        self.wants_another = wanted in MECHANISMS and wanted != self._own


def mechanism_of(url: str, seconds: float = ANSWER_SECONDS) -> bytes:
    """Return the mechanism of a listener, such as `b"NULL"`; empty without an answer."""
    greeting = b""
    try:
        with closing(_connect(url, seconds)) as connection:
            connection.settimeout(seconds)
            connection.sendall(_SIGNATURE + _VERSION)
            while len(greeting) < _SIZE and (some := connection.recv(_SIZE - len(greeting))):
                greeting += some
    except (OSError, ValueError):
        # The listener is away or slow, or the URL is invalid: libzmq will find out, too.
        pass
    return greeting[_MECHANISM].rstrip(b"\0") if greeting[:1] == _SIGNATURE[:1] else b""


def trouble_with(url: str, seconds: float = ANSWER_SECONDS) -> str:
    """Return in words why no broker answers at a URL; nothing if that is unknown."""
    try:
        with closing(_connect(url, seconds)) as connection:
            connection.settimeout(seconds)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = connection.recv(_SIZE)
    except socket.gaierror:
        return f"the name {url.partition('://')[2].rpartition(':')[0]!r} is not known here"
    except (ConnectionRefusedError, FileNotFoundError):
        return "nothing listens there"
    except TimeoutError:
        return "what is there says nothing"
    except (OSError, ValueError):
        return ""
    return next((words for begin, words in _OTHERS.items() if answer.startswith(begin)), "")


_OTHERS = {
    b"HTTP/": "what listens there speaks HTTP, as a gateway",
    b"\x15\x03": "what listens there speaks TLS",
}


def _connect(url: str, seconds: float) -> socket.socket:
    kind, _, place = url.partition("://")
    if kind == "tcp":
        lookup = lookup_of(url)
        if lookup is not None:
            if not lookup.over.wait(seconds) or not lookup.address:
                raise socket.gaierror(f"no address of {lookup.host}")
            place = with_address(url, lookup.address).partition("://")[2]
        host, _, port = place.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), seconds)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    try:
        connection.connect("\0" + place[1:] if place.startswith("@") else place)
    except OSError:
        connection.close()
        raise
    return connection
