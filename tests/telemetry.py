"""Where the spans and metrics of a test go, in whatever provider the process has already.

There is one provider in a process, and nobody can replace it: a page of the guide may have been the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind


class Telemetry:
    """The finished spans of a test, and the metrics of the process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        if not isinstance(trace.get_tracer_provider(), TracerProvider):
            trace.set_tracer_provider(TracerProvider())
        tracers = trace.get_tracer_provider()
        assert isinstance(tracers, TracerProvider)
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def clear(self) -> None:
        self._exporter.clear()
        self._before = self.sums()

    @property
    def spans(self) -> list[ReadableSpan]:
        return [*self._exporter.get_finished_spans()]

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is kind]

    def counted(self, name: str, **labels: Any) -> float:
        """How much was added to a counter or a histogram in this test, where labels have these values.

        A label is named by the last two parts of its name, as in `operation_name`.
        """
        wanted = {(key, value) for key, value in labels.items()}
        return sum(
            value - self._before.get((metric, of), 0)
            for (metric, of), value in self.sums().items()
            if metric == name and wanted <= {("_".join(k.split(".")[-2:]), v) for k, v in of}
        )

    def sums(self) -> Mapping[tuple[str, frozenset[tuple[str, Any]]], float]:
        data = self._reader.get_metrics_data()
        return {
            (metric.name, frozenset((point.attributes or {}).items())): getattr(
                point, "count", getattr(point, "value", 0)
            )
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }
