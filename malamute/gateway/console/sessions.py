"""Sessions of the console: a random name in a cookie, the credentials in this process alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from secrets import token_urlsafe
from time import monotonic

from starlette.requests import HTTPConnection

from malamute.gateway.users import ANONYMOUS, Identity

COOKIE = "malamute_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""The cookie over TLS: browsers accept a cookie of this name from this very host alone."""

SESSIONS_MAX = 1_000
"""Maximum sessions. One more ends the longest unused session of the user with the most."""

IDLE_SECONDS = 3600.0
"""Time without a request after which a session ends. An open page sends one every few seconds."""

LIFE_SECONDS = 12 * 3600.0
"""Time after which a session ends in any case."""

NOTES_MAX = 5


class ConsoleSession:
    """A signed-in browser, or all others where anonymous requests are served."""

    def __init__(self, identity: Identity, now: float, user: str = "") -> None:
        self.identity = identity
        self.user = user
        self.name = token_urlsafe(32)
        self.csrf = token_urlsafe(32)
        self.started_at = self.used_at = now
        self.notes: list[str] = []
        """Messages for the next page."""

    def note(self, words: str) -> None:
        """Add a message for the next page."""
        self.notes = [*self.notes, words][-NOTES_MAX:]

    def pop_notes(self) -> list[str]:
        """Return the messages and forget them: each is shown once."""
        notes, self.notes = self.notes, []
        return notes


class ConsoleSessions:
    """The sessions by name, the most recently used last."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._by_name: OrderedDict[str, ConsoleSession] = OrderedDict()
        self.anonymous = ConsoleSession(ANONYMOUS, clock())
        """The session of requests without a cookie. Its secret is on pages only, which no other site can
        read."""

    def __len__(self) -> int:
        return len(self._by_name)

    def start(self, identity: Identity, user: str) -> ConsoleSession:
        """Begin a session for credentials that the broker has accepted."""
        self._forget_old()
        while len(self._by_name) >= SESSIONS_MAX:
            # The user with the most sessions loses one, so that no user can sign all others out.
            most, _ = Counter(one.user for one in self._by_name.values()).most_common(1)[0]
            self.end_named(next(name for name, one in self._by_name.items() if one.user == most))
        session = ConsoleSession(identity, self._clock(), user)
        self._by_name[session.name] = session
        return session

    def of(self, connection: HTTPConnection) -> ConsoleSession | None:
        """Return the session of a request, by its cookie; None without one, or after its end."""
        cookies = connection.cookies
        name = cookies.get(SECURE_COOKIE, "")
        if connection.url.scheme != "https":
            # A proxy may terminate TLS.
            name = name or cookies.get(COOKIE, "")
        return self.find(name) if name else None

    def find(self, name: str) -> ConsoleSession | None:
        """Return the session of this name; None after its end."""
        self._forget_old()
        session = self._by_name.get(name)
        if session is not None:
            session.used_at = self._clock()
            self._by_name.move_to_end(name)
        return session

    def lasts(self, session: ConsoleSession) -> bool:
        """Return whether a session goes on, for an endless answer that uses it."""
        now = self._clock()
        if session is self.anonymous:
            return True
        if self._by_name.get(session.name) is not session or now - session.started_at > LIFE_SECONDS:
            return False
        session.used_at = now
        self._by_name.move_to_end(session.name)
        return True

    def has(self, identity: Identity) -> bool:
        """Return whether some session has these credentials."""
        return any(session.identity == identity for session in self._by_name.values())

    def end(self, session: ConsoleSession) -> None:
        """Remove a session with its credentials."""
        self.end_named(session.name)

    def end_named(self, name: str) -> None:
        """Remove the session of a cookie, if it has one."""
        self._by_name.pop(name, None)

    def _forget_old(self) -> None:
        now = self._clock()
        over = [
            name
            for name, session in self._by_name.items()
            if now - session.used_at > IDLE_SECONDS or now - session.started_at > LIFE_SECONDS
        ]
        for name in over:
            del self._by_name[name]
