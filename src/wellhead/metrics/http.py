"""Prometheus metrics of one server: its own registry, filled by the HTTP side, and by a snapshot of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from wellhead.metrics.histogram import LATENCY_BOUNDS
from wellhead.metrics.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: name, of the engine's counters -> help
COUNTERS = {
    "steps": "Steps that the engine has run",
    "requests": "Sequences that were taken",
    "finished": "Sequences that ended with a result",
    "failed": "Sequences that ended with an error",
    "aborted": "Sequences that were aborted",
    "prompt_tokens": "Prompt tokens of finished sequences",
    "cached_tokens": "Prompt tokens that came from the prefix cache",
    "computed_tokens": "Tokens that passed through the model",
    "output_tokens": "Tokens that were generated",
    "rows": "Rows of hidden states that left the model",
    "row_bytes": "Bytes of hidden states in finished sequences",
    "proposed_tokens": "Drafts of speculative decoding that were judged",
    "accepted_tokens": "Drafts that stood",
    "verify_steps": "Times that a sequence's drafts were judged",
    "draft_seconds": "Time that went into making drafts",
    "verify_seconds": "Time of steps in which drafts were judged, without that",
    "preemptions": "Sequences that went back to the queue for want of pages",
    "evictions": "Cached pages that were given up for new ones",
}
#: name -> attribute of the snapshot, help
GAUGES = {
    "running_sequences": ("running", "Sequences that run"),
    "waiting_sequences": ("waiting", "Sequences that wait"),
    "spec_accept_length": ("accept_length", "Tokens per judging of a sequence's drafts, since the start; 0 before the first"),
    "cache_hit_ratio": ("cache_hit_ratio", "Cached prompt tokens over prompt tokens, since the start"),
}


class HttpMetrics:
    """All metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._snapshot = Snapshot()
        self._up = True
        self._registry.register(_EngineCollector(self))
        self.requests = Counter(
            "wellhead_http_requests", "Requests by endpoint and status", ["endpoint", "status"], registry=self._registry
        )
        self.seconds = Histogram(
            "wellhead_http_request_seconds",
            "Time to the last byte",
            ["endpoint"],
            buckets=LATENCY_BOUNDS,
            registry=self._registry,
        )
        self.sent = Counter("wellhead_http_sent_bytes", "Bytes of answers", ["endpoint"], registry=self._registry)
        self.in_flight = Gauge("wellhead_http_requests_in_flight", "Requests that are being served", registry=self._registry)
        self.encode_seconds = Histogram(
            "wellhead_encode_seconds", "Time to encode one answer", ["format"], buckets=LATENCY_BOUNDS, registry=self._registry
        )
        self.encoded = Counter("wellhead_encoded_bytes", "Bytes that encoders made", ["format"], registry=self._registry)

    @property
    def snapshot(self) -> Snapshot:
        """The engine's numbers that ``render`` shows."""
        return self._snapshot

    @property
    def up(self) -> bool:
        """Did the engine run when it was last asked?"""
        return self._up

    def update(self, snapshot: Snapshot) -> None:
        """Take newer numbers of the engine, which runs."""
        self._snapshot, self._up = snapshot, True

    def engine_died(self) -> None:
        """Keep the last numbers, and say that nobody makes new ones."""
        self._up = False

    def encoding(self, name: str, seconds: float, size: int) -> None:
        """One answer was encoded."""
        self.encode_seconds.labels(name).observe(seconds)
        self.encoded.labels(name).inc(size)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _EngineCollector:
    def __init__(self, metrics: HttpMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        snapshot = self._metrics.snapshot
        yield GaugeMetricFamily("wellhead_up", "1 while the engine runs", value=float(self._metrics.up))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"wellhead_{name}", text, value=snapshot.counters.get(name, 0))
        for name, (attribute, text) in GAUGES.items():
            yield GaugeMetricFamily(f"wellhead_{name}", text, value=float(getattr(snapshot, attribute)))
        pages = GaugeMetricFamily("wellhead_pages", "KV pages by state", labels=["state"])
        for state, count in snapshot.pages.items():
            pages.add_metric([state], count)
        yield pages
        for name, buckets in snapshot.latencies.items():
            yield HistogramMetricFamily(
                f"wellhead_{name}_seconds", f"Latency of sequences: {name}", buckets=buckets.cumulative(), sum_value=buckets.sum
            )
