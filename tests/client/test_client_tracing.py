"""Traces: the span that publishes is the parent of the spans that process."""

from __future__ import annotations

import asyncio
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import malamute
from malamute.client import tracing
from malamute.client.session.message import Message
from malamute.protocol.batch import pack_record
from malamute.testing import Broker

exporter = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    exporter.clear()
    return exporter


def by_kind(kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is kind]


def message(headers: dict[str, object]) -> Message:
    return Message(7, 0, "", "temp.oslo", pack_record(headers, b""))


def test_headers_carry_the_context_and_keep_what_they_had(spans):
    with tracing.publishing("weather", "temp.oslo", {"unit": "C", "n": 1}) as headers:
        assert headers.keys() == {"unit", "n", "traceparent"}
        assert tracing.inject()["traceparent"] == headers["traceparent"]
    with tracing.processing(message(dict(headers))) as span:
        pass
    (sent,), (processed,) = by_kind(SpanKind.PRODUCER), by_kind(SpanKind.CONSUMER)
    assert sent.name == "send weather"
    assert processed.parent.span_id == sent.context.span_id
    assert span.get_span_context().trace_id == sent.context.trace_id
    assert processed.attributes["messaging.message.id"] == "7"


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": 5}])
def test_a_message_without_a_context_begins_a_trace(spans, headers):
    with tracing.publishing("s", "a"), tracing.processing(message(headers)):
        pass
    (processed,) = by_kind(SpanKind.CONSUMER)
    assert processed.parent is None


def test_a_handler_that_fails_is_seen_in_its_span(spans):
    @tracing.traced
    def fail(message: Message) -> None:
        raise ValueError("no paper")

    @tracing.traced
    async def later(message: Message) -> str:
        return message.subject

    with pytest.raises(ValueError, match="no paper"):
        fail(message({}))
    assert asyncio.run(later(message({}))) == "temp.oslo"
    failed, fine = by_kind(SpanKind.CONSUMER)
    assert (failed.status.status_code, fine.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)


def test_a_request_is_one_trace_over_the_broker(spans):
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
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1
    assert len(exporter.get_finished_spans()) == 4


def test_the_client_does_not_need_it():
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
