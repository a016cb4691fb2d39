"""The guard in front of every path: allowed hosts and sites, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from malamute.errors import InvalidValue, Malformed, OriginRefused
from malamute.gateway import problems
from malamute.gateway.settings import GatewaySettings

SECURITY_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    # Contents of messages keep their media type, so they may be pages of publishers: sandboxed, such a page
    # has no origin and sends no forms.
    "content-security-policy": (
        "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; sandbox"
    ),
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer that does not set them itself."""

ONLY_TLS: Mapping[str, str] = {"strict-transport-security": "max-age=31536000"}
"""HSTS, for answers over TLS, except on loopback: other programs have ports there."""


class OtherSites(CORSMiddleware):
    """CORS, which answers a forbidden preflight request with a problem."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer a preflight request."""
        answer = super().preflight_response(request_headers)
        if answer.status_code == HTTPStatus.OK:
            return answer
        asked = request_headers["access-control-request-method"][:100]
        named = request_headers.get("access-control-request-headers", "")[:1000]
        refused = problems.response(
            InvalidValue(
                f"request of another site with method {asked!r} and headers {named!r}: expected of the "
                f"methods {', '.join(self.allow_methods)}, and of the headers {', '.join(self.allow_headers)}"
            )
        )
        refused.headers["vary"] = answer.headers["vary"]
        return refused


WITH_COOKIES = (b"access-control-allow-credentials", b"true")


class SiteGuard:
    """ASGI middleware: refuses requests from pages of other sites, and adds the security headers.

    Pages of allowed sites may also send cookies to `cookie_paths`.
    """

    def __init__(self, app: ASGIApp, settings: GatewaySettings, cookie_paths: Collection[str] = ()) -> None:
        self._app = app
        self._cookie_paths = cookie_paths
        self._hosts = frozenset(settings.hosts)
        self._origins = frozenset(settings.origins)
        self._added = _raw(SECURITY_HEADERS)
        self._added_tls = self._added if settings.anonymous else _raw({**SECURITY_HEADERS, **ONLY_TLS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        added = self._added_tls if scope["scheme"] in ("https", "wss") else self._added
        if self._origins and scope["path"] in self._cookie_paths:
            added = [*added, WITH_COOKIES]

        async def send_guarded(message: Message) -> None:
            if message["type"].endswith(".response.start"):
                given = [*message.get("headers", ())]
                own = {name for name, _ in given}
                message["headers"] = given + [pair for pair in added if pair[0] not in own]
            await send(message)

        try:
            self._check(scope)
        except (Malformed, OriginRefused) as error:
            await problems.response(error)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 and scope["http_version"] != "1.0":
            raise Malformed(f"{len(hosts)} headers Host: expected one")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        if self._hosts and _name_of(host) not in self._hosts:
            raise OriginRefused(f"request to the host {host[:100]!r}: expected a name of this gateway")
        for origin in (value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"):
            if origin not in self._origins and origin.lower().partition("://")[2] != host:
                raise OriginRefused(f"request from a page of {origin[:100]!r}: expected one of this gateway")


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _name_of(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
