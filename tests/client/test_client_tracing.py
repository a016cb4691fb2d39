"""Traces: the span that publishes is the parent of the spans that process."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

import malamute
from malamute.client.session.message import Message
from malamute.errors import TimedOut
from malamute.protocol.batch import pack_record
from malamute.testing import Broker

if TYPE_CHECKING:
    from telemetry import Telemetry

pytest.importorskip("opentelemetry", reason="opentelemetry is not installed: see the extra dev")

from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from malamute.client import tracing

PRODUCER, CONSUMER, CLIENT = SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT


def same(*contexts: SpanContext) -> bool:
    """Whether all are of one span, here or elsewhere."""
    return len({(context.trace_id, context.span_id) for context in contexts}) == 1


def message(headers: dict[str, object]) -> Message:
    return Message(7, 0, "", "temp.oslo", pack_record(headers, b""))


def test_headers_carry_the_context_and_keep_what_they_had(telemetry: Telemetry) -> None:
    with tracing.publishing("weather", "temp.oslo", {"unit": "C", "n": 1}) as headers:
        assert headers.keys() == {"unit", "n", "traceparent"}
        assert tracing.inject()["traceparent"] == headers["traceparent"]
    with tracing.processing(message(dict(headers)), destination="weather"):
        pass
    [sent], [processed] = telemetry.of(PRODUCER), telemetry.of(CONSUMER)
    assert (sent.name, processed.name) == ("publish weather", "process weather")
    assert sent.attributes == {
        "messaging.system": "malamute",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "weather",
        "messaging.malamute.subject": "temp.oslo",
    }
    assert processed.attributes == {
        "messaging.system": "malamute",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "weather",
        "messaging.malamute.subject": "temp.oslo",
        "messaging.message.id": "7",
    }
    assert same(processed.parent, sent.context, processed.links[0].context)
    assert telemetry.counted("messaging.client.sent.messages", operation_name="publish") == 1
    assert telemetry.counted("messaging.client.operation.duration", operation_type="send") == 1
    assert telemetry.counted("messaging.client.consumed.messages") == 1
    assert telemetry.counted("messaging.process.duration", operation_type="process") == 1


def test_a_context_that_is_in_the_headers_stays(telemetry: Telemetry) -> None:
    with tracing.publishing("s", "a") as first, tracing.publishing("s", "a", first) as second:
        assert second == first
    [linked], [created] = telemetry.of(CLIENT), telemetry.of(PRODUCER)
    assert same(linked.links[0].context, created.context)


def test_a_batch_is_sent_and_processed_as_one(telemetry: Telemetry) -> None:
    with tracing.publishing_batch("weather", [{"n": 1}, None]) as headers:
        assert [one.keys() for one in headers] == [{"n", "traceparent"}, {"traceparent"}]
    with tracing.processing(*map(message, map(dict, headers))):
        pass
    [sent], [processed] = telemetry.of(PRODUCER), telemetry.of(CONSUMER)
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert processed.attributes["messaging.batch.message_count"] == 2
    assert (processed.name, processed.parent) == ("process", None)
    assert len(processed.links) == 2
    assert same(sent.context, *(link.context for link in processed.links))
    assert telemetry.counted("messaging.client.sent.messages") == 2
    assert telemetry.counted("messaging.client.consumed.messages") == 2


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": 5}])
def test_a_message_without_a_context_begins_a_trace(telemetry: Telemetry, headers: dict[str, object]) -> None:
    with tracing.processing(message(headers)):
        pass
    [processed] = telemetry.of(CONSUMER)
    assert (processed.parent, processed.links) == (None, ())


def test_within_another_span_a_message_is_processed_as_its_child(telemetry: Telemetry) -> None:
    with tracing.publishing("s", "a") as headers:
        pass
    tracer = trace.get_tracer("the program")
    with tracer.start_as_current_span("loop"), tracing.processing(message(dict(headers))):
        pass
    [sent], [processed] = telemetry.of(PRODUCER), telemetry.of(CONSUMER)
    [loop] = telemetry.of(SpanKind.INTERNAL)
    assert same(processed.parent, loop.context)
    assert same(processed.links[0].context, sent.context)


def test_a_handler_that_fails_is_seen_in_its_span(telemetry: Telemetry) -> None:
    @tracing.traced
    def fail(message: Message) -> None:
        raise ValueError("no paper")

    @tracing.traced
    async def later(message: Message) -> str:
        return message.subject

    with pytest.raises(ValueError, match="no paper"):
        fail(message({}))
    assert asyncio.run(later(message({}))) == "temp.oslo"
    failed, fine = telemetry.of(CONSUMER)
    assert (failed.status.status_code, fine.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert failed.attributes["error.type"] == "ValueError"
    assert telemetry.counted("messaging.process.duration", error_type="ValueError") == 1


def test_mail_is_received_and_settled_with_links_to_its_sender(telemetry: Telemetry) -> None:
    with Broker() as broker, malamute.connect(broker.url, address="bob") as client:
        with tracing.publishing("bob", "hello", operation="send", client=client) as headers:
            client.send("bob", "hello", b"x", headers, correlation="c")
        with client.mailbox(auto_ack=False) as mailbox:
            with tracing.receiving("bob", client=client) as received:
                mail = mailbox.receive(60)
                received(mail)
            with tracing.settling(mail, destination="bob", client=client):
                mail.ack()
            with pytest.raises(TimedOut), tracing.receiving("bob"):
                mailbox.receive(0)
    [sent] = telemetry.of(PRODUCER)
    taken, settled, failed = telemetry.of(CLIENT)
    host, port = broker.url.removeprefix("tcp://").split(":")
    for span in (sent, taken, settled):
        assert span.attributes["messaging.client.id"] == "bob"
        assert (span.attributes["server.address"], span.attributes["server.port"]) == (host, int(port))
    assert [span.name for span in (sent, taken, settled)] == ["send bob", "receive bob", "ack bob"]
    assert same(taken.links[0].context, settled.links[0].context, sent.context)
    assert settled.attributes["messaging.message.conversation_id"] == "c"
    assert failed.attributes["error.type"] == "TimedOut"
    assert telemetry.counted("messaging.client.consumed.messages", server_port=int(port)) == 1


def test_where_a_broker_is(telemetry: Telemetry) -> None:
    class Near:
        url, address = "ipc:///run/malamute.sock", ""

    with tracing.publishing("s", client=Near()):
        pass
    [sent] = telemetry.of(PRODUCER)
    assert sent.attributes["server.address"] == "/run/malamute.sock"
    assert sent.attributes.keys().isdisjoint({"server.port", "messaging.client.id"})


def test_a_request_is_one_trace_over_the_broker(telemetry: Telemetry) -> None:
    with Broker() as broker, malamute.connect(broker.url) as asker:

        def work() -> None:
            with malamute.connect(broker.url) as worker:

                @worker.service("svc")
                @tracing.traced
                def answer(request: malamute.Request) -> bytes:
                    with tracing.publishing("log", "done") as headers:
                        worker.publish("log", "done", b"", headers)
                    worker.stop()
                    return b"!"

                worker.run()

        thread = threading.Thread(target=work)
        thread.start()
        with tracing.publishing("svc", "a") as headers:
            assert [reply.body for reply in asker.request("svc", "a", b"", headers)] == [b"!"]
        thread.join()
        logged = asker.subscribe("log", start="first").receive(10)
        with tracing.processing(logged):
            pass
    assert len({span.context.trace_id for span in telemetry.spans}) == 1
    assert len(telemetry.spans) == 4


def test_the_client_does_not_need_it() -> None:
    import subprocess
    import sys

    code = """
import sys
sys.modules["opentelemetry"] = None  # as where it is not installed
import malamute, malamute.aio
from malamute.testing import Broker
with Broker() as broker, malamute.connect(broker.url) as client:
    print(client.publish("s", "a", b"", assurance="stored"))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"
