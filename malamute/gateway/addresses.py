"""Addresses in answers: made of names, which may hold any character, below the prefix of the site.

A proxy may serve the gateway below a path of its site. `PathPrefix` takes that path off requests, whether the
proxy has done so or not, and `outside` puts it before each path that goes into an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

from malamute.gateway.settings import GatewaySettings

_prefix: ContextVar[str] = ContextVar("prefix", default="")


class PathPrefix:
    """ASGI middleware: the paths behind it begin at the gateway itself."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._app = app
        self._prefix = settings.prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if scope["type"] != "lifespan" and (prefix := self._prefix or scope.get("root_path", "")):
            scope = {**scope, "root_path": ""}
            if f"{scope['path']}/".startswith(f"{prefix}/"):
                scope["path"] = scope["path"].removeprefix(prefix) or "/"
                if raw := scope.get("raw_path"):
                    scope["raw_path"] = raw.removeprefix(quote(prefix).encode()) or b"/"
            _prefix.set(prefix)
        await self._app(scope, receive, send)


def outside(path: str) -> str:
    """Return the address of a path of the gateway for clients, below the prefix."""
    return quote(_prefix.get()) + path


def inside(path: str) -> str:
    """Return the gateway's own path for an address that clients use."""
    return path.removeprefix(quote(_prefix.get()))


def address(*segments: str, query: Iterable[tuple[str, str]] = ()) -> str:
    """Return a path of segments, each percent-encoded as a whole, and its query: ASCII, for any header."""
    path = outside("".join(f"/{quote(segment, safe='')}" for segment in segments))
    parameters = urlencode([*query])
    return f"{path}?{parameters}" if parameters else path
