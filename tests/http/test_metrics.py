"""What ``/metrics`` counts, and that the engine's histograms add up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.live import LiveServer
from wellhead.metrics.histogram import Histogram


def read(server: LiveServer) -> dict[str, float]:
    """Samples by name and labels, read when the engine's numbers are fresh."""
    assert server.server.application.service is not None
    server.server.application.service.refreshed = float("-inf")
    answer = server.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_requests_tokens_rows_bytes_and_latencies_are_counted(live: Callable[..., LiveServer]) -> None:
    server = live()
    text = "a text of some length, the same each time"
    for _ in range(2):
        server.ok("/generate", text=text, sampling_params={"max_new_tokens": 3, "ignore_eos": True}, return_hidden_states=True)
    server.ok("/v1/hidden_states", input=[text, "b"])
    server.refused("/generate", text="")
    found = read(server)
    assert found["wellhead_up{}"] == 1
    assert found["wellhead_finished_total{}"] == 4
    assert found["wellhead_prompt_tokens_total{}"] == 3 * len(text) + 1
    assert found["wellhead_output_tokens_total{}"] == 6
    assert found["wellhead_cached_tokens_total{}"] > 0
    assert 0 < found["wellhead_cache_hit_ratio{}"] < 1
    assert found["wellhead_rows_total{}"] == 2 * (len(text) + 2) + 2
    assert found["wellhead_row_bytes_total{}"] == found["wellhead_rows_total{}"] * 64 * 4
    for name in ("queue", "prefill", "total"):
        assert found[f"wellhead_{name}_seconds_count{{}}"] == 4
        assert found[f"wellhead_{name}_seconds_sum{{}}"] > 0
    assert found["wellhead_pages{state=free}"] + found["wellhead_pages{state=cached}"] == found["wellhead_pages{state=total}"]
    assert found["wellhead_http_requests_total{endpoint=/generate,status=200}"] == 2
    assert found["wellhead_http_requests_total{endpoint=/generate,status=400}"] == 1
    assert found["wellhead_encode_seconds_count{format=json}"] == 3
    assert found["wellhead_http_sent_bytes_total{endpoint=/generate}"] > 1000
    assert found["wellhead_running_sequences{}"] == found["wellhead_waiting_sequences{}"] == 0


def test_speculation_is_counted(live: Callable[..., LiveServer]) -> None:
    server = live(speculative_algorithm="NGRAM")
    params = {"max_new_tokens": 60, "temperature": 0, "ignore_eos": True, "logit_bias": {"65": 50.0}}
    meta = server.ok("/generate", text="abc", sampling_params=params)["meta_info"]
    assert 1 < meta["spec_accept_length"] == 60 / meta["spec_verify_ct"]
    found = read(server)
    accepted, proposed = found["wellhead_accepted_tokens_total{}"], found["wellhead_proposed_tokens_total{}"]
    assert 0 < accepted <= proposed
    judged = found["wellhead_verify_steps_total{}"]
    assert found["wellhead_spec_accept_length{}"] == (accepted + judged) / judged
    assert found["wellhead_draft_seconds_total{}"] > 0
    assert found["wellhead_verify_seconds_total{}"] > 0


def test_strangers_paths_do_not_make_new_series(live: Callable[..., LiveServer]) -> None:
    server = live()
    for i in range(20):
        server.http.get(f"/no/{i}")
    assert read(server)["wellhead_http_requests_total{endpoint=other,status=404}"] == 20


def test_metrics_can_be_turned_off(live: Callable[..., LiveServer]) -> None:
    assert live(options={"enable_metrics": False}).http.get("/metrics").status_code == 404


def test_two_servers_in_one_process_count_apart(live: Callable[..., LiveServer]) -> None:
    one, other = live(), live()
    one.ok("/generate", text="a", sampling_params={"max_new_tokens": 1})
    assert read(one)["wellhead_finished_total{}"] == 1
    assert read(other)["wellhead_finished_total{}"] == 0


def test_histogram_buckets_are_cumulative() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == pytest.approx(10.0)
    kept = histogram.copy()
    histogram.observe(1.0)
    assert kept.cumulative()[-1] == ("+Inf", 4.0)
