"""Traces: a request's `traceparent` is taken in, and given on with the messages that it sends."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import httpx
import pytest
from running_gateway import RunningGateway

import malamute

if TYPE_CHECKING:
    from telemetry import Telemetry

pytest.importorskip("opentelemetry", reason="opentelemetry is not installed: see the extra dev")

from opentelemetry.trace import SpanKind, StatusCode

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01", "user-agent": "the test"}


def test_a_trace_goes_from_http_into_the_messages(
    gateway: RunningGateway, http: httpx.Client, client: malamute.Client, telemetry: Telemetry
) -> None:
    path = "/v1/streams/weather/messages"
    http.post(f"{path}?subject=", content=b"-3.5", headers=HEADERS).raise_for_status()
    lines = {"content-type": "application/x-ndjson", **HEADERS}
    http.post(
        f"{path}?subject=", content=b'{"headers": {"unit": "C"}}\n{}\n', headers=lines
    ).raise_for_status()
    found = client.subscribe("weather", start="first")
    headers = [found.receive(60).headers for _ in range(3)]
    gateway.stop()
    one, many = telemetry.of(SpanKind.PRODUCER)
    assert [h["traceparent"].split("-")[1:3] for h in headers] == [
        [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"] for span in (one, many, many)
    ]
    assert (f"{one.context.trace_id:032x}", headers[1]["unit"]) == (TRACE, "C")
    assert (one.name, many.attributes["messaging.batch.message_count"]) == ("publish weather", 2)
    assert one.attributes["server.port"] == int(client.url.rpartition(":")[2])
    served = telemetry.of(SpanKind.SERVER)[0]
    assert one.parent.span_id == served.context.span_id
    assert f"{served.parent.span_id:016x}" == CALLER
    route = "/v1/streams/{name}/messages"
    attributes = dict(served.attributes)
    assert attributes.pop("client.port") > 0
    assert served.name == f"POST {route}"
    assert attributes == {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": 201,
        "url.scheme": "http",
        "url.path": path,
        "network.protocol.version": "1.1",
        "server.address": gateway.host,
        "server.port": gateway.port,
        "client.address": "127.0.0.1",
        "user_agent.original": "the test",
    }
    assert telemetry.counted("http.server.request.duration", http_route=route) == 2
    assert telemetry.counted("messaging.client.sent.messages") == 3


def test_leases_and_replies_are_linked_to_who_sent(
    gateway: RunningGateway, http: httpx.Client, telemetry: Telemetry
) -> None:
    http.post("/v1/mailboxes/bob/messages", content=b"x").raise_for_status()
    [mail] = http.post("/v1/mailboxes/bob/leases?wait=60").json()["messages"]
    http.post(f"/v1/mailboxes/bob/leases/{mail['lease']}/acknowledge").raise_for_status()
    http.post("/v1/services/svc/requests", headers={"prefer": "respond-async"}).raise_for_status()
    [asked] = http.post("/v1/services/svc/leases?wait=60").json()["messages"]
    http.post(f"/v1/services/svc/leases/{asked['lease']}/reply", content=b"y").raise_for_status()
    gateway.stop()
    by_name = {span.name: span for span in telemetry.spans}
    for names in (
        ("send bob", "receive bob", "acknowledge bob"),
        ("request svc", "receive svc", "reply svc"),
    ):
        sent, *later = (by_name[name] for name in names)
        for span in later:
            assert span.links[0].context.span_id == sent.context.span_id
            assert span.context.trace_id != sent.context.trace_id
    assert by_name["acknowledge bob"].kind is SpanKind.CLIENT
    assert telemetry.counted("messaging.client.consumed.messages") == 2


ATTRIBUTES = ("messaging", "http", "server", "client", "url", "user_agent", "network", "error")
OWN = "messaging.malamute."
"""How attributes may begin that only this system has."""


def _published() -> set[str]:
    """All names of attributes and metrics in the package of the conventions."""
    modules = [f"_incubating.attributes.{name}_attributes" for name in ATTRIBUTES]
    modules += ["_incubating.metrics.messaging_metrics", "metrics.http_metrics"]
    found = [vars(import_module(f"opentelemetry.semconv.{name}")) for name in modules]
    return {value for names in found for name, value in names.items() if name.isupper()}


def test_names_are_those_of_the_published_conventions(
    gateway: RunningGateway, http: httpx.Client, telemetry: Telemetry
) -> None:
    http.post("/v1/mailboxes/bob/messages?correlation=c", content=b"x", headers=HEADERS).raise_for_status()
    [mail] = http.post("/v1/mailboxes/bob/leases?wait=60").json()["messages"]
    http.post(f"/v1/mailboxes/bob/leases/{mail['lease']}/acknowledge").raise_for_status()
    assert http.post("/v1/mailboxes/bob/leases/9-9/acknowledge").status_code == 410
    gateway.stop()
    published = _published()
    names = {name for span in telemetry.spans for name in span.attributes}
    assert {name for name in names - published if not name.startswith(OWN)} == set()
    assert {"messaging.message.conversation_id", "messaging.batch.message_count", "http.route"} < names
    metrics = {name for name, _ in telemetry.sums()}
    assert {name for name in metrics if not name.startswith("otel.")} <= published
    assert {"messaging.client.operation.duration", "http.server.request.duration"} <= metrics


def test_nobody_invents_names_of_spans_and_labels(
    gateway: RunningGateway, http: httpx.Client, telemetry: Telemetry
) -> None:
    http.request("PROPFIND", "/v1/nothing/here")
    http.get("/v1/streams/x/messages", params={"limit": "none"})
    gateway.stop()
    brewed, refused = telemetry.of(SpanKind.SERVER)
    assert (brewed.name, brewed.attributes["http.request.method"]) == ("HTTP", "_OTHER")
    assert brewed.attributes["http.response.status_code"] == 404
    assert "http.route" not in brewed.attributes
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.status.status_code is StatusCode.UNSET
    assert telemetry.counted("http.server.request.duration", request_method="_OTHER") == 1


def test_a_fault_is_an_error_of_the_span(
    gateway: RunningGateway, http: httpx.Client, telemetry: Telemetry
) -> None:
    gateway.state.requests._settings = None
    assert http.post("/v1/services/svc/requests").status_code == 500
    gateway.stop()
    [failed] = telemetry.of(SpanKind.SERVER)
    assert (failed.status.status_code, failed.attributes["error.type"]) == (StatusCode.ERROR, "500")
