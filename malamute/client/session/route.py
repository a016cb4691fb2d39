"""The URLs to connect to, and the backoff of reconnects: the next URL, and the wait before it.

URLs are tried in the order given, one after the other; after the last comes the first again, a *round* later.
The first round begins at once, every later one after a backoff that doubles from round to round. A lost
connection counts as the end of a first round. The waits have jitter, by a random number of the edge, so that
the clients of a broker that was restarted do not all reconnect in the same instant.
"""

from __future__ import annotations

from collections.abc import Sequence

from malamute.errors import InvalidValue
from malamute.protocol.names import SCHEME, endpoint_of

PORT = 9999
"""The port of an address that has none."""
WAIT = 0.05
"""Seconds before the second round, at most."""
WAIT_MAX = 2.0
"""Seconds before any round, at most."""


class Route:
    """The URLs of one client. Raises `InvalidValue` when there is none."""

    def __init__(self, urls: Sequence[str]) -> None:
        if not urls:
            raise InvalidValue("no URL: expected at least one")
        self.urls = tuple(urls)
        self._place = 0
        self._round = 0

    def next(self, chance: float) -> tuple[str, float]:
        """Return the URL to try, and the seconds to wait before. `chance` is a random number from 0 to 1."""
        url, wait = self.urls[self._place], 0.0
        if not self._place and self._round:
            wait = min(WAIT * 2.0 ** min(self._round - 1, 16), WAIT_MAX) * (1 + chance) / 2
        self._place += 1
        if self._place == len(self.urls):
            self._place = 0
            self._round += 1
        return url, wait

    def arrived(self) -> None:
        """Note that the broker has answered: after this connection the first URL is tried first."""
        self._place, self._round = 0, 1

    def __str__(self) -> str:
        return ", ".join(self.urls)


def urls_of(url: str | Sequence[str]) -> list[str]:
    """Return one URL, several in a text with commas between them, or a sequence of them, as a list.

    Only the broker of a `malamute://` URI counts. HOST, HOST:PORT and a path of the file system are addresses
    of TCP and of IPC. Raises `InvalidName` for an invalid URI, `InvalidValue` for one of HTTP.
    """
    parts = (part.strip() for part in (url.split(",") if isinstance(url, str) else url))
    return [_endpoint(part) for part in parts if part]


def _endpoint(text: str) -> str:
    scheme, separator, _ = text.lower().partition("://")
    if f"{scheme}{separator}" == SCHEME:
        return endpoint_of(text)
    if scheme in ("http", "https"):
        raise InvalidValue(
            f"invalid URL {text!r}: a gateway speaks HTTP, and clients connect to the broker: expected one "
            f"such as tcp://127.0.0.1:{PORT}"
        )
    if separator:
        return text
    if text.startswith("/"):
        return f"ipc://{text}"
    has_port = text.rpartition(":")[2].isdecimal() and not text.endswith("]")
    return f"tcp://{text}" if has_port else f"tcp://{text}:{PORT}"
