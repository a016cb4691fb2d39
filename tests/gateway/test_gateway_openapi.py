"""The description says what the gateway does: every path of it is driven with what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_gateway import gateway_before

from malamute.gateway.app import ENDPOINTS
from malamute.gateway.openapi import document
from malamute.gateway.routes import Endpoint
from malamute.testing import Broker

NOT_WAITING = {"prefer": "respond-async"}
WITHOUT_END = ("text/event-stream",)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A client of one gateway for all paths: a description holds whatever was done before."""
    with Broker() as broker, gateway_before(broker) as gateway, gateway.client() as client:
        yield client


def test_the_description_is_served_with_every_path_and_a_page_beside_it(http: httpx.Client) -> None:
    served = http.get("/v1/openapi.json").json()
    assert served == document(ENDPOINTS)
    assert served["openapi"].startswith("3.1")
    paths = {(method.upper(), path) for path, methods in served["paths"].items() for method in methods}
    assert paths == {(route.method, route.path) for route in ENDPOINTS}
    page = http.get("/v1/")
    assert page.headers["content-type"].startswith("text/html")
    assert all(route.path in page.text for route in ENDPOINTS)
    # A WebSocket is no path of OpenAPI.
    assert "/v1/ws" in served["info"]["description"]
    assert "/v1/ws" in page.text


def test_the_description_has_what_the_standard_asks_for() -> None:
    described = document(ENDPOINTS)
    names: list[str] = []
    for path, methods in described["paths"].items():
        for operation in methods.values():
            names.append(operation["operationId"])
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert {f"{{{name}}}" for name in in_path} == {s for s in path.split("/") if s.startswith("{")}
            assert all(p["required"] for p in operation["parameters"] if p["in"] == "path")
            assert all(p["schema"]["type"] for p in operation["parameters"])
            assert all(answer["description"] for answer in operation["responses"].values())
    assert len(names) == len(set(names))


def _value(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return str(schema["enum"][0])
    return {"integer": str(schema.get("minimum", 1)), "number": "0", "boolean": "true"}.get(
        schema["type"], "x"
    )


@pytest.mark.parametrize("route", ENDPOINTS, ids=lambda route: f"{route.method} {route.path}")
def test_every_path_answers_what_it_is_described_to_answer(http: httpx.Client, route: Endpoint) -> None:
    operation = document([route])["paths"][route.path][route.method.lower()]
    path = route.path
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", _value(parameter["schema"]))
    body = b"{}" if route.bodies else None
    with http.stream(route.method, path, content=body, headers=NOT_WAITING) as answer:
        described = operation["responses"][str(answer.status_code)]
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in described["content"] or not described["content"]
        if kind not in WITHOUT_END:
            answer.read()


@pytest.mark.parametrize("route", ENDPOINTS, ids=lambda route: f"{route.method} {route.path}")
def test_every_parameter_is_held_to_its_schema(http: httpx.Client, route: Endpoint) -> None:
    path = route.path.replace("{name}", "x").replace("{code}", "416")
    for parameter in route.parameters:
        if parameter.place == "query" and parameter.schema["type"] in ("integer", "number", "boolean"):
            answer = http.request(route.method, path, params={parameter.name: "neither"})
            assert (answer.status_code, answer.json()["code"]) == (400, 416)
    if not route.ignores_unknown:
        answer = http.request(route.method, path, params={"unheard-of": "1"})
        assert (answer.status_code, answer.json()["code"]) == (400, 416)
