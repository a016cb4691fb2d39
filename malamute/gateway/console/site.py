"""The pages of the console as paths of the gateway."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from malamute.errors import InternalError, LoginNeeded, MalamuteError, MethodRefused
from malamute.gateway import problems
from malamute.gateway.console import (
    changes,
    clients,
    explain,
    governance,
    overview,
    publishing,
    queues,
    sign_in,
    stream_pages,
    streams,
)
from malamute.gateway.console.rendering import STATIC, render, static
from malamute.gateway.console.visits import SIGN_IN, Visit, redirect, visit_of
from malamute.gateway.console.words import link
from malamute.gateway.routes import Endpoint, Parameter

STATIC_FILE = Endpoint(
    "GET",
    f"{STATIC}{{name}}",
    static,
    "A file of the console.",
    (Parameter("name", "Its name.", place="path"), Parameter("v", "The version of its content.")),
)

OPEN: tuple[Endpoint, ...] = (STATIC_FILE, *sign_in.ENDPOINTS)
"""The paths for requests without a session."""

PAGES: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *streams.ENDPOINTS,
    *stream_pages.ENDPOINTS,
    *queues.ENDPOINTS,
    *publishing.ENDPOINTS,
    *clients.ENDPOINTS,
    *governance.ENDPOINTS,
    *explain.ENDPOINTS,
    *changes.ENDPOINTS,
    *sign_in.SIGNED_IN,
)

log = logging.getLogger("malamute.gateway")


class ConsolePath:
    """The methods of one path of the console, as an ASGI application. Errors become pages."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = {**endpoints}
        if "GET" in endpoints and endpoints["GET"].handler is not stream_pages.events:
            # HEAD is served except for endless answers, which have no answer without a body either.
            self._endpoints["HEAD"] = endpoints["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope, receive, send)
        try:
            response = await self._respond(request)
        except LoginNeeded:
            response = _to_sign_in(request)
        except MalamuteError as error:
            response = _problem(request, error)
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            response = _problem(request, InternalError("the gateway met a fault of its own: see its log"))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        endpoint = self._endpoints.get(request.method)
        if endpoint is None:
            raise MethodRefused(f"{request.method[:20]} of {request.url.path}: expected a method that it has")
        if endpoint not in OPEN:
            visit = visit_of(request)
            if endpoint.method == "POST":
                # The secret of the form is checked before anything else is read.
                request.state.form = await visit.form()
        return await endpoint.handler(request, endpoint.read(request))


def _to_sign_in(request: Request) -> Response:
    if request.method != "GET":
        return redirect(SIGN_IN)
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return redirect(link(SIGN_IN, next=address))


def _problem(request: Request, error: MalamuteError) -> Response:
    if "text/event-stream" in request.headers.get("accept", ""):
        return problems.response(error)
    status = problems.status_of(type(error))
    visit: Visit | None = getattr(request.state, "visit", None)
    if visit is None:
        return render("stranger.html", status, error=error)
    return visit.page("problem.html", status, error=error)


def routes() -> Sequence[Route]:
    """Return the paths of the console."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in (*OPEN, *PAGES):
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, ConsolePath(methods)) for path, methods in by_path.items()]
