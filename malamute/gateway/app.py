"""The ASGI application: the tables of routes, behind the guard."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from malamute.errors import InternalError, MalamuteError, Malformed, MethodRefused, NoSuchResource
from malamute.gateway import (
    admin,
    health,
    mailboxes,
    mercure,
    metrics,
    problems,
    services,
    sse,
    streams,
    tracing,
)
from malamute.gateway.addresses import PathPrefix
from malamute.gateway.console import site
from malamute.gateway.console.rendering import render
from malamute.gateway.console.visits import Console
from malamute.gateway.door import DoorGuard
from malamute.gateway.guard import OtherSites, SiteGuard
from malamute.gateway.openapi import described
from malamute.gateway.rates import RateGuard
from malamute.gateway.restms.endpoints import ENDPOINTS as RESTMS_ENDPOINTS
from malamute.gateway.restms.endpoints import HEADERS as RESTMS_HEADERS
from malamute.gateway.routes import Endpoint
from malamute.gateway.settings import GatewaySettings
from malamute.gateway.state import Gateway
from malamute.gateway.users import ANONYMOUS
from malamute.gateway.ws import page_socket

ENDPOINTS: tuple[Endpoint, ...] = described(
    (
        *streams.ENDPOINTS,
        *health.ENDPOINTS,
        *metrics.ENDPOINTS,
        *mailboxes.ENDPOINTS,
        *services.ENDPOINTS,
        *mercure.ENDPOINTS,
        *admin.ENDPOINTS,
        *RESTMS_ENDPOINTS,
    )
)

log = logging.getLogger("malamute.gateway")


class Methods:
    """The methods of one path, as an ASGI application."""

    def __init__(self, routes: Mapping[str, Endpoint]) -> None:
        self.path = next(iter(routes.values())).path
        self._routes = {**routes}
        if "GET" in routes and sse.MEDIA_TYPE not in routes["GET"].answers[200].types:
            # HEAD is served except for endless answers, which have no answer without a body either.
            self._routes["HEAD"] = routes["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Every error becomes a problem document."""
        request = Request(scope, receive, send)
        try:
            response = await self._respond(request)
        except MalamuteError as error:
            response = problems.response(error)
            if isinstance(error, MethodRefused):
                response.headers["allow"] = ", ".join(sorted(self._routes))
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            response = problems.response(InternalError("the gateway met a fault of its own: see its log"))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        _check_text(request.scope)
        route = self._routes.get(request.method)
        if route is None:
            raise MethodRefused(f"{request.method[:20]} of {request.url.path}: expected a method that it has")
        return await route.handler(request, route.read(request))


def _check_text(scope: Scope) -> None:
    """Check that the path is UTF-8: other bytes would be read as another name. Raises `Malformed`."""
    address = b"%b?%b" % (scope.get("raw_path") or b"", scope["query_string"])
    try:
        if b"%" in address or not address.isascii():
            unquote_to_bytes(address).decode()
    except UnicodeDecodeError:
        raise Malformed("invalid address: expected UTF-8, percent-encoded") from None


def paths(routes: Sequence[Endpoint]) -> list[Path]:
    """Return the routes of a table. Names in their paths may have slashes, percent-encoded or not."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [
        Path(path.replace("{name}", "{name:path}"), Methods(methods)) for path, methods in by_path.items()
    ]


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await WebSocketClose()(scope, receive, send)
        return
    error = NoSuchResource(f"there is no path {scope['path'][:200]!r}")
    is_browser = "text/html" in Headers(scope=scope).get("accept", "")
    answer = render("stranger.html", 404, error=error) if is_browser else problems.response(error)
    await answer(scope, receive, send)


class GatewayApp(Starlette):
    """Return the guards with the paths behind them; both turn their own errors into problems."""

    def build_middleware_stack(self) -> ASGIApp:
        """Add the guards in front of the paths."""
        app: ASGIApp = self.router
        for kind, arguments, options in reversed(self.user_middleware):
            app = kind(app, *arguments, **options)
        return app


def make_app(settings: GatewaySettings) -> Starlette:
    """Return the gateway as an ASGI application, for any server with the lifespan protocol."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.gateway = Gateway(settings)
        async with app.state.gateway.run():
            app.state.console = Console(app.state.gateway)
            if settings.anonymous:
                app.state.console.watches.of(ANONYMOUS, lasts=True)
            try:
                yield
            finally:
                await app.state.console.watches.close()

    middleware = [Middleware(PathPrefix, settings)]
    if tracing.IS_INSTALLED:
        middleware.append(Middleware(tracing.ServerSpans))
    middleware.append(Middleware(DoorGuard))
    middleware.append(Middleware(SiteGuard, settings, cookie_paths=(mercure.PATH,)))
    if settings.user_rate or settings.address_rate:
        middleware.append(Middleware(RateGuard, settings))
    if settings.origins:
        middleware.append(
            Middleware(
                OtherSites,
                allow_origins=settings.origins,
                allow_methods=("GET", "POST", "PUT", "DELETE"),
                allow_headers=(
                    "authorization",
                    "content-type",
                    "idempotency-key",
                    "last-event-id",
                    "prefer",
                    *RESTMS_HEADERS,
                ),
                expose_headers=(
                    "content-location",
                    "etag",
                    "last-event-id",
                    "link",
                    "location",
                    "retry-after",
                ),
            )
        )
    routes: list[BaseRoute] = [*paths(ENDPOINTS), WebSocketRoute("/v1/ws", page_socket), *site.routes()]
    app = GatewayApp(routes=routes, middleware=middleware, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.router.default = _no_such_path
    return app
