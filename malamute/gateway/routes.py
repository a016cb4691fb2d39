"""Paths of the gateway: rows of a table, from which application and description are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from malamute.errors import InvalidValue
from malamute.gateway.header_text import text_of
from malamute.protocol.quantities import DURATION_EXAMPLES, parse_duration

Schema = Mapping[str, Any]
Arguments = dict[str, Any]
"""The parameters of a request by name, checked, with their defaults."""

TEXT: Schema = {"type": "string"}
DURATION: Schema = {"type": "number", "format": "duration", "minimum": 0}
"""A duration: seconds as a number, or a text with a unit."""


class Parameter(NamedTuple):
    """A parameter of a path. Its JSON schema defines the accepted values."""

    name: str
    words: str
    schema: Schema = TEXT
    place: str = "query"
    """`query`, `header` or `path`."""
    many: bool = False
    """Whether the parameter may be repeated."""

    @property
    def key(self) -> str:
        """The name in Python."""
        return self.name.lower().replace("-", "_")


class Documented(NamedTuple):
    """A successful answer of a path."""

    words: str
    types: Sequence[str] = ("application/json",)
    schema: Schema = {}


Handler = Callable[[Request, Arguments], Awaitable[Response]]


class Endpoint(NamedTuple):
    """A method of a path, with its handler and its description."""

    method: str
    path: str
    handler: Handler
    summary: str
    parameters: Sequence[Parameter] = ()
    bodies: Sequence[str] = ()
    """The media types of the body; empty: no body."""
    answers: Mapping[int, Documented] = {200: Documented("Done.")}
    problems: Sequence[int] = ()
    """Problem statuses particular to the endpoint."""
    ignores_unknown: bool = False
    """Whether unknown parameters are ignored: clients of a foreign protocol add some."""
    body_schema: Schema | None = None
    """The JSON schema of the body."""

    def read(self, request: Request) -> Arguments:
        """Return the checked parameters of a request. Raises `InvalidValue`."""
        query = _query(request.scope["query_string"])
        known = {p.name for p in self.parameters if p.place == "query"}
        if not self.ignores_unknown and (unknown := sorted(query.keys() - known)):
            raise InvalidValue(f"unknown parameter {unknown[0]!r}: expected {_either(sorted(known))}")
        return {p.key: _value(p, _given(p, request, query)) for p in self.parameters}


def _query(text: bytes) -> Mapping[str, list[str]]:
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
        query.setdefault(name, []).append(value)
    return query


def _either(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _given(parameter: Parameter, request: Request, query: Mapping[str, list[str]]) -> list[str]:
    if parameter.place == "path":
        return [request.path_params[parameter.name]]
    if parameter.place == "header":
        return [text_of(value) for value in request.headers.getlist(parameter.name)]
    return query.get(parameter.name, [])


def _value(parameter: Parameter, given: list[str]) -> Any:
    if parameter.many:
        return [_parse(parameter, text) for text in given]
    if len(given) > 1:
        raise InvalidValue(f"parameter {parameter.name!r} {len(given)} times: expected one")
    return _parse(parameter, given[0]) if given else parameter.schema.get("default")


def _parse(parameter: Parameter, text: str) -> Any:
    schema = parameter.schema
    try:
        value = _READ[schema.get("format", schema["type"])](text)
    except (ValueError, KeyError, RecursionError):
        raise _wrong(parameter, text) from None
    # NaN is between no limits.
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            raise _wrong(parameter, text)
    elif value not in schema.get("enum", (value,)):
        raise _wrong(parameter, text)
    return value


def _wrong(parameter: Parameter, text: str) -> InvalidValue:
    schema = parameter.schema
    expected = _either([str(one) for one in schema["enum"]]) if "enum" in schema else _expected(schema)
    limits = [f"{words} {schema[name]}" for name, words in _LIMITS.items() if name in schema]
    return InvalidValue(f"invalid {parameter.name} {text[:100]!r}: expected {' '.join([expected, *limits])}")


def _expected(schema: Schema) -> str:
    if schema.get("format") == "duration":
        return f"a duration such as {DURATION_EXAMPLES},"
    return str(schema["type"])


_LIMITS = {"minimum": "from", "maximum": "to"}


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(text)
    return int(text)


_READ: Mapping[str, Callable[[str], Any]] = {
    "object": msgspec.json.Decoder(dict[str, Any]).decode,
    "string": str,
    "integer": _integer,
    "duration": parse_duration,
    "boolean": {"true": True, "false": False}.__getitem__,
}
