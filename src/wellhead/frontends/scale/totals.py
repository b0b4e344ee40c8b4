"""Answers of all replicas to one question, made into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from wellhead.encoding import json

#: Gauges of which a sum says nothing. Divide sums instead: cached by prompt tokens.
RATIOS = ("wellhead_cache_hit_ratio", "wellhead_spec_accept_length")


def labelled(texts: Mapping[str, bytes]) -> bytes:
    """Prometheus's text of several replicas, each sample with a label ``replica``."""
    families: dict[str, Metric] = {}
    for name, text in texts.items():
        for metric in _families(text):
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {**sample.labels, "replica": name}, sample.value)
    return _text(families.values())


def summed(texts: Mapping[str, bytes]) -> bytes:
    """Prometheus's text of several replicas, added up; ratios are left out."""
    families: dict[str, Metric] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text in texts.values():
        for metric in _families(text):
            if metric.name in RATIOS:
                continue
            families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            found = sums.setdefault(metric.name, {})
            for sample in metric.samples:
                key = sample.name, tuple(sample.labels.items())
                found[key] = found.get(key, 0.0) + sample.value
    for name, family in families.items():
        for (sample_name, labels), value in sums[name].items():
            family.add_sample(sample_name, dict(labels), value)
    return _text(families.values())


def _families(text: bytes) -> Iterable[Metric]:
    """Without the times at which counters were made."""
    return [m for m in text_string_to_metric_families(text.decode()) if not m.name.endswith("_created")]


class _Given:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _text(metrics: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Given(list(metrics)))
    return generate_latest(registry)


def health(answers: Mapping[str, tuple[int, bytes]]) -> tuple[int, bytes]:
    """Status and body: well if one replica is."""
    well = any(status == 200 for status, _ in answers.values())
    replicas = {name: json.loads(body) for name, (_, body) in answers.items()}
    return 200 if well else 503, json.dumps({"status": "ok" if well else "unavailable", "replicas": replicas})


def added(answers: Mapping[str, tuple[int, bytes]]) -> tuple[int, bytes]:
    """The numbers in JSON answers added up; of answers that are errors, the first."""
    refused = next((answer for answer in answers.values() if answer[0] != 200), None)
    if refused is not None:
        return refused
    bodies: list[dict[str, Any]] = [json.loads(body) for _, body in answers.values()]
    total = {name: value if isinstance(value, bool) else sum(body[name] for body in bodies) for name, value in bodies[0].items()}
    return 200, json.dumps(total)
