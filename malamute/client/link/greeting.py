"""What a listener asks of those who connect, read from its greeting (ZMTP 3.1, RFC 37).

Each side closes the connection when it has read that the other has another mechanism. If the listener is the
first, it may do so before it has named its own, and libzmq reports a broken pipe only, each time again. So
whoever is to tell a broker that is away from one that wants another proof has to ask, and say nothing itself.
"""

from __future__ import annotations

import socket
from contextlib import closing

ANSWER_SECONDS = 1.0
"""How long the listener may take."""

_SIGNATURE = b"\xff\0\0\0\0\0\0\0\1\x7f"
_VERSION = b"\3\1"
_SIZE = 64
_MECHANISM = slice(12, 32)


def mechanism_of(url: str, seconds: float = ANSWER_SECONDS) -> bytes:
    """The mechanism of a listener, such as `b"NULL"`; empty if it does not say."""
    greeting = b""
    try:
        with closing(_connect(url, seconds)) as connection:
            connection.settimeout(seconds)
            connection.sendall(_SIGNATURE + _VERSION)
            while len(greeting) < _SIZE and (some := connection.recv(_SIZE - len(greeting))):
                greeting += some
    except (OSError, ValueError):
        # It is away, or slow, or the URL is none: libzmq will find out, too.
        pass
    return greeting[_MECHANISM].rstrip(b"\0") if greeting[:1] == _SIGNATURE[:1] else b""


def _connect(url: str, seconds: float) -> socket.socket:
    kind, _, place = url.partition("://")
    if kind == "tcp":
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
