"""Administration over HTTP: a path for each query and each change of the broker, made from their tables.

A query is a GET with its arguments as parameters, a change a POST with its arguments as JSON, with `dry_run`
among them. The broker answers as to the command line, with the rights of the user. Bytes are in base64.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from functools import partial
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import InvalidValue, MediaTypeRefused
from malamute.gateway import bodies
from malamute.gateway.console.changes import hashed
from malamute.gateway.console.visits import check_origin
from malamute.gateway.elements import ELEMENT_BYTES, check_elements
from malamute.gateway.routes import Arguments, Documented, Endpoint, Parameter, Schema
from malamute.gateway.state import gateway_of
from malamute.protocol.admin import CHANGES, QUERIES, AdminChange, AdminQuery, AdminTopic, Row, encode
from malamute.protocol.admin.topic import SECRET, answer_of, arguments_of

PATH = "/v1/admin/"

PROBLEMS = (404, 409, 410, 412, 413, 415, 429, 500, 501, 507)


def _rows_of(kind: type[AdminTopic[Any]]) -> tuple[type[Row], ...]:
    """Return the types of the answer, or of the rows of a list: one, or several of more and fewer fields."""
    answer: Any = answer_of(kind)
    (row,) = get_args(answer) if get_origin(answer) is list else (answer,)
    return get_args(row) if isinstance(row, UnionType) else (row,)


_KINDS: tuple[type[AdminTopic[Any]], ...] = (*QUERIES.values(), *CHANGES.values())

_components = msgspec.json.schema_components(
    {*_KINDS, *(row for kind in _KINDS for row in _rows_of(kind))}, ref_template="#/components/schemas/{name}"
)[1]

SCHEMAS: Mapping[str, Schema] = msgspec.json.decode(msgspec.json.encode(_components))
"""The JSON schemas of all queries, changes and answers by their names."""


def _ref(kind: type[Any]) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _answer(kind: type[AdminTopic[Any]]) -> Documented:
    rows = [_ref(row) for row in _rows_of(kind)]
    schema = rows[0] if len(rows) == 1 else {"anyOf": rows}
    is_list = get_origin(answer_of(kind)) is list
    return Documented("The answer.", schema={"type": "array", "items": schema} if is_list else schema)


def _parameters(kind: type[AdminQuery[Any]]) -> list[Parameter]:
    properties: Mapping[str, Any] = SCHEMAS[kind.__name__].get("properties", {})
    found = []
    for name, schema in properties.items():
        plain, *_ = schema.get("anyOf", [schema])
        found.append(Parameter(name, str(schema.get("description") or plain.get("title")), plain))
    return found


async def _ask(kind: type[AdminQuery[Any]], request: Request, arguments: Arguments) -> Response:
    query = kind.parse({name: value for name, value in arguments.items() if value is not None})
    return await _answered(request, query)


async def _change(kind: type[AdminChange[Any]], request: Request, arguments: Arguments) -> Response:
    if bodies.media_type(request) != bodies.JSON:
        raise MediaTypeRefused(f"a change as {bodies.media_type(request)[:50]!r}: expected {bodies.JSON}")
    gateway = gateway_of(request)
    body = await gateway.body(request)
    gateway.bodies.take_more(request, check_elements(body) * ELEMENT_BYTES)
    values = await gateway.bodies.built(body, partial(bodies.decoded, _decode_map, body))
    for name, rule in arguments_of(kind).rules.items():
        if isinstance(value := values.get(name), str):
            if name in SECRET:
                values[name] = await asyncio.to_thread(hashed, value)
            elif rule.words == "binary":
                values[name] = _bytes_of(name, value)
    return await _answered(request, kind.parse(values))


_decode_map = msgspec.json.Decoder(dict[str, Any]).decode


def _bytes_of(name: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidValue(f"invalid {name} {text[:50]!r}: expected base64") from None


async def _answered(request: Request, topic: AdminQuery[Any] | AdminChange[Any]) -> Response:
    if "origin" in request.headers:
        # The sites of `--allow-origin` may use the API, and not this.
        check_origin(request)
    gateway = gateway_of(request)
    timeout = gateway.settings.timeout_seconds
    async with gateway.session(request) as client:
        if isinstance(topic, AdminQuery):
            answer = await client.query(topic, timeout=timeout)
        else:
            answer = await client.change(topic, timeout=timeout)
    return bodies.answer(encode(answer))


def _endpoint(topic: str, kind: Any) -> Endpoint:
    is_query = topic in QUERIES
    handler: Any = partial(_ask if is_query else _change, kind)
    handler.__name__ = f"admin_{topic.replace('.', '_')}"
    summary = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    method, parameters = ("GET", _parameters(kind)) if is_query else ("POST", ())
    return Endpoint(
        method,
        f"{PATH}{topic}",
        handler,
        summary,
        parameters,
        () if is_query else (bodies.JSON,),
        {200: _answer(kind)},
        PROBLEMS,
        body_schema=None if is_query else _ref(kind),
    )


ENDPOINTS = tuple(_endpoint(topic, kind) for topic, kind in (*QUERIES.items(), *CHANGES.items()))
