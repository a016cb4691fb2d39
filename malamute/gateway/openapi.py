"""The description of the gateway as OpenAPI 3.1 and as a page, both made from the table of routes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from malamute.gateway import bodies, problems
from malamute.gateway.addresses import outside
from malamute.gateway.admin import SCHEMAS
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter
from malamute.version import __version__

OPENAPI = "3.1.0"

DESCRIPTION = (
    "Errors are problem documents. Besides these paths there is the WebSocket /v1/ws, with many "
    "subscriptions that have credit each; OpenAPI cannot describe it."
)

COMMON_PROBLEMS = (400, 401, 403, 503, 504)
"""Problem statuses that any path may answer."""

_ITSELF = {200: Documented("The description.")}
_ITS_PAGE = {200: Documented("The page.", ("text/html",))}

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "hint"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "integer", "description": "The number of the error; `malamute errors` lists all."},
        "hint": {"type": "string", "description": "The next step."},
    },
}


def described(routes: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The routes, with the routes of this description."""

    async def description(request: Request, arguments: Arguments) -> Response:
        """Answer with the description of all paths."""
        below = {"servers": [{"url": prefix}]} if (prefix := outside("")) else {}
        return bodies.answer({**document(everything), **below})

    async def page(request: Request, arguments: Arguments) -> Response:
        """Answer with the description as a page."""
        return HTMLResponse(_page(everything))

    own = (
        Endpoint("GET", "/v1/openapi.json", description, "This description.", answers=_ITSELF),
        Endpoint("GET", "/v1/", page, "It as a page.", answers=_ITS_PAGE),
    )
    everything = (*routes, *own)
    return everything


def document(routes: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the description of routes in OpenAPI."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": OPENAPI,
        "info": {"title": "Malamute gateway", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM, **SCHEMAS},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        # An empty requirement: a gateway on loopback serves anonymous requests.
        "security": [{"basic": []}, {"bearer": []}, {}],
    }


def _operation(route: Endpoint) -> dict[str, Any]:
    responses = {str(status): _answer(answer) for status, answer in route.answers.items()}
    for status in sorted({*COMMON_PROBLEMS, *route.problems}):
        content = {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": responses,
    }
    if route.bodies:
        schema = {"schema": route.body_schema} if route.body_schema else {}
        operation["requestBody"] = {"content": {kind: schema for kind in route.bodies}}
    return operation


def _answer(answer: Documented) -> dict[str, Any]:
    schema = {"schema": answer.schema} if answer.schema else {}
    return {"description": answer.words, "content": {kind: schema for kind in answer.types}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "array", "items": parameter.schema} if parameter.many else parameter.schema
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.words,
        "required": parameter.place == "path",
        "schema": schema,
    }


def _page(routes: Sequence[Endpoint]) -> str:
    rows = "".join(
        f"<dt><code>{route.method} {escape(route.path)}</code></dt><dd><p>{escape(route.summary)}</p>"
        f"<ul>{''.join(map(_item, route.parameters))}</ul></dd>"
        for route in routes
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Malamute gateway</title>'
        '<meta name="viewport" content="width=device-width"><h1>Malamute gateway</h1>'
        f'<p>{escape(DESCRIPTION)}</p><p><a href="openapi.json">As OpenAPI</a></p><dl>{rows}</dl></html>'
    )


def _item(parameter: Parameter) -> str:
    return f"<li><code>{escape(parameter.name)}</code> ({parameter.place}) {escape(parameter.words)}</li>"
