"""The URLs to connect to, and the backoff of reconnects: the next URL, and the wait before it.

URLs are tried in the order given, one after the other; after the last comes the first again, a *round* later.
The first round begins at once, every later one after a backoff that doubles from round to round. A lost
connection counts as the end of a first round. The waits have jitter, by a random number of the edge, so that
the clients of a broker that was restarted do not all reconnect in the same instant.

A broker of a pair names the URLs of both: they are *learned*, behind those given. The one that is no primary
names that of the primary, which is next if it is known, or if the key of the server proves it, since
a stranger's word must not lead passwords to a stranger. One such word counts in a round, so two brokers that
name each other are not asked in circles. A URL where nobody answered is tried last until somebody does, and
so is that of a lost broker of a pair.
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

    def __init__(self, urls: Sequence[str], *, proved: bool = False) -> None:
        """Begin with the first URL. `proved`: the key of the server proves the broker at any URL."""
        if not urls:
            raise InvalidValue("no URL: expected at least one")
        self.given = tuple(urls)
        self.urls = self.given
        """The URLs given, and those learned behind them."""
        self._proved = proved
        self._left: list[str] = []
        """The rest of this round."""
        self._round = 0
        self._named = ""
        """The URL that is next by the word of a broker."""
        self._is_led = False
        """Whether such a word has counted in this round."""
        self._last = ""
        """The URL that is tried last."""
        self._is_pair = False
        """Whether the last broker that has answered is one of a pair."""

    def next(self, chance: float) -> tuple[str, float]:
        """Return the URL to try, and the seconds to wait before. `chance` is a random number from 0 to 1."""
        if self._named:
            named, self._named = self._named, ""
            return named, 0.0
        wait = 0.0
        if not self._left:
            if self._round:
                wait = min(WAIT * 2.0 ** min(self._round - 1, 16), WAIT_MAX) * (1 + chance) / 2
            self._left = sorted(self.urls, key=self._last.__eq__)
            self._round += 1
            self._is_led = False
        return self._left.pop(0), wait

    def arrived(self, url: str, learned: Sequence[str]) -> None:
        """Note that the broker at a URL has answered, and names these: next time a new round begins."""
        self.urls = tuple(dict.fromkeys((*self.given, *learned)))
        self._is_pair = bool(learned)
        self._left, self._round, self._named, self._is_led = [], 1, "", False
        if self._last == url:
            self._last = ""

    def moved(self, urls: Sequence[str]) -> None:
        """Note that a broker is not the primary of its pair, which is at one of these URLs."""
        if not self._is_led:
            self._named = next((url for url in urls if self._proved or url in self.urls), "")
            self._is_led = bool(self._named)

    def silent(self, url: str) -> None:
        """Note that nobody has answered at a URL."""
        self._last = url

    def patience(self, url: str, seconds: float) -> float:
        """Return how many of these seconds to wait at a URL: few at first where nobody answered last."""
        return seconds * min(1.0, 2.0 ** (self._round - 4)) if url == self._last else seconds

    def lost(self, url: str) -> None:
        """Note that the connection to a URL broke; in a pair, another broker may be the primary now."""
        if self._is_pair:
            self._last = url

    def forget(self, url: str) -> bool:
        """Forget a URL that cannot be used; return False for one that was given."""
        self.urls = tuple(known for known in self.urls if known != url or known in self.given)
        return url not in self.given

    def __str__(self) -> str:
        return ", ".join(self.given)


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
