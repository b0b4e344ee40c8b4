"""Replicas behind one address: the API of one server, whoever dies or is replaced in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.cluster import actors
from support.live import read_events, wait_for
from wellhead.client import Client
from wellhead.errors import InvalidConfig
from wellhead.frontends.cli import main
from wellhead.frontends.engine import Engine
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.scale.app import application
from wellhead.frontends.scale.options import ScaleOptions
from wellhead.frontends.scale.serve import Deployed

pytestmark = pytest.mark.slow
ENGINE = {"return_hidden_states_mode": "full", "max_total_tokens": 16384, "page_size": 16, "served_model_name": "tiny"}
ORIGIN = "https://app.example"
LONG = {"max_new_tokens": 200, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(family: Callable[..., Path]) -> Path:
    """With room for streams that are long enough to be disturbed."""
    return family("llama", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def deployed(cluster: Any, model: Path) -> Iterator[Deployed]:
    options = ServerOptions(port=0, drain_timeout=20.0, cors_allow_origins=(ORIGIN,))
    made = Deployed({"model_path": str(model), **ENGINE}, options, ScaleOptions(replicas=2))
    try:
        made.deploy()
        wait_for(lambda: len(health(made)[1]["replicas"]) == 2)
        yield made
    finally:
        made.close()


@pytest.fixture
def http(deployed: Deployed) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=deployed.address, timeout=60) as client:
        yield client


def health(deployed: Deployed) -> tuple[int, Any]:
    answer = httpx.get(f"{deployed.address}/health", timeout=30)
    return answer.status_code, answer.json()


def test_the_api_of_one_server(deployed: Deployed, http: httpx.Client, model: Path) -> None:
    texts = [f"text {i} " + "x" * (i * 7 % 40) for i in range(12)]
    with Engine(model_path=str(model), **ENGINE) as engine, Client(deployed.address) as client:
        np.testing.assert_array_equal(client.extract(texts), engine.extract(texts))
        for ours, theirs in zip(client.extract(texts, mode="full"), engine.extract(texts, mode="full"), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        alone = engine.generate("a text", sampling_params=LONG)
    with http.stream("POST", "/generate", json={"text": "a text", "sampling_params": LONG, "stream": True}) as answer:
        events = list(read_events(answer))
    assert events[-1] == "[DONE]" and len(events) > 20
    assert json.loads(events[-2])["output_ids"] == alone["output_ids"]
    refused = http.post("/generate", json={"text": "x", "nonsense": 1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "nonsense"
    assert http.get("/nowhere").status_code == 404
    assert http.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_health_metrics_and_switches_reach_every_replica(http: httpx.Client) -> None:
    names = set(http.get("/health").json()["replicas"])
    assert len(names) == 2

    def finished(path: str) -> list[str]:
        return [line for line in http.get(path).text.split("\n") if line.startswith("wellhead_finished_total")]

    apart = finished("/metrics/replicas")
    assert {line.split('replica="')[1].split('"')[0] for line in apart} == names
    (total,) = finished("/metrics")
    assert float(total.split()[-1]) == sum(float(line.split()[-1]) for line in apart) > 0
    wait_for(lambda: http.post("/flush_cache").json() == {"flushed": True})
    assert http.post("/abort_request", json={"abort_all": True}).json() == {"aborted": 0}


def test_pages_of_a_browser_and_head(http: httpx.Client) -> None:
    """Answers of a replica and of the front, streams and refusals: each with the headers once."""
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-custom"}
    for path in ("/generate", "/flush_cache", "/nowhere"):
        answer = http.options(path, headers={"Origin": ORIGIN, **wish})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-custom" in answer.headers["access-control-allow-headers"] and "x-wellhead-replica" not in answer.headers
        assert http.options(path, headers={"Origin": "https://evil.example", **wish}).status_code == 400
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 4}}
    for wanted in ({}, {"stream": True}, {"nonsense": 1}):
        answer = http.post("/generate", json={**body, **wanted}, headers={"Origin": ORIGIN})
        assert answer.status_code == (400 if "nonsense" in wanted else 200)
        assert answer.headers.get_list("access-control-allow-origin") == [ORIGIN]
        assert "X-Wellhead-Replica" in answer.headers["access-control-expose-headers"] and "x-wellhead-replica" in answer.headers
    for path in ("/health", "/metrics", "/metrics/replicas", "/v1/models"):
        assert http.get(path, headers={"Origin": ORIGIN}).headers.get_list("access-control-allow-origin") == [ORIGIN]
        assert "access-control-allow-origin" not in http.get(path, headers={"Origin": "https://evil.example"}).headers
        head = http.head(path)
        assert head.status_code == 200 and not head.content and "content-type" in head.headers
        assert http.get(path, headers={"X-Request-ID": "mine"}).headers.get_list("x-request-id") == ["mine"]


def test_a_prompt_goes_where_its_prefix_is(http: httpx.Client) -> None:
    prompts = [f"Topic {t}. " + f"What we know of {t} so far. " * 12 for t in range(4)]
    found: dict[int, set[str]] = {}
    for k in range(5):
        for t, prompt in enumerate(prompts):
            answer = http.post("/generate", json={"text": f"{prompt}Question {k}", "sampling_params": {"max_new_tokens": 0}})
            found.setdefault(t, set()).add(answer.headers["x-wellhead-replica"])
            cached = answer.json()["meta_info"]["cached_tokens"]
            assert cached > 200 or k == 0, "the prefix was not there"
    assert all(len(names) == 1 for names in found.values())
    assert len(set.union(*found.values())) == 2, "all prefixes went to one replica"


def test_a_client_that_leaves_ends_its_request(http: httpx.Client) -> None:
    more = {"text": "a text", "sampling_params": {**LONG, "max_new_tokens": 3500}, "stream": True}
    with http.stream("POST", "/generate", json=more) as answer:
        next(read_events(answer))

    def running() -> float:
        lines = http.get("/metrics").text.split("\n")
        return float(next(line for line in lines if line.startswith("wellhead_running_sequences")).split()[-1])

    wait_for(lambda: running() == 0)


def under_load(deployed: Deployed, disturb: Callable[[], None]) -> list[httpx.Response]:
    """Answers to requests of eight clients, from before ``disturb`` until after it."""
    over, answers = threading.Event(), list[httpx.Response]()
    asked: dict[str, Any] = {"sampling_params": {**LONG, "max_new_tokens": 20}, "return_hidden_states": "last"}

    def ask(client: int) -> None:
        with httpx.Client(base_url=deployed.address, timeout=120) as http:
            k = 0
            while not over.is_set():
                answers.append(http.post("/generate", json={"text": f"client {client} asks {k}", **asked}))
                k += 1

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, c) for c in range(8)]
        try:
            wait_for(lambda: len(answers) >= 40)
            disturb()
            seen = len(answers)
            wait_for(lambda: len(answers) >= seen + 40)
        finally:
            over.set()
        for one in asking:
            one.result()
    return answers


def test_a_killed_replica_loses_no_request(deployed: Deployed) -> None:
    before = set(health(deployed)[1]["replicas"])
    answers = under_load(deployed, lambda: actors("ServeReplica:wellhead:Engine")[0].kill())
    assert [a.text for a in answers if a.status_code != 200] == []
    wait_for(lambda: len(set(health(deployed)[1]["replicas"]) - before) == 1)
    assert len(health(deployed)[1]["replicas"]) == 2


def test_a_stream_that_has_begun_ends_with_an_error_event(deployed: Deployed, http: httpx.Client) -> None:
    wait_for(lambda: len(actors("ServeReplica:wellhead:Engine")) == 2)
    more = {"text": "a text", "sampling_params": {**LONG, "max_new_tokens": 3500}, "stream": True}
    with http.stream("POST", "/generate", json=more) as answer:
        events = read_events(answer)
        next(events)
        for replica in actors("ServeReplica:wellhead:Engine"):
            replica.kill()
        rest = list(events)
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["error"]["code"] == "engine_closed"
    started = time.monotonic()
    assert http.post("/generate", json={"text": "after that", "sampling_params": LONG}).status_code == 200, (
        time.monotonic() - started
    )


def test_a_rolling_restart_loses_no_request(deployed: Deployed) -> None:
    wait_for(lambda: len(health(deployed)[1]["replicas"]) == 2)
    before = set(health(deployed)[1]["replicas"])
    answers = under_load(deployed, deployed.deploy)
    assert [a.text for a in answers if a.status_code != 200] == []
    wait_for(lambda: len(set(health(deployed)[1]["replicas"]) - before) == 2)


def test_options_are_checked_before_anything_is_deployed() -> None:

    for wrong in (
        {"nonsense": 1},
        {"engine": {"model_path": "x", "page_size": 5}},
        {"engine": {"model_path": "x"}, "server": {"prot": 1}},
    ):
        with pytest.raises(InvalidConfig):
            application(wrong)


def test_the_command_serves_until_it_is_told_to_stop(model: Path) -> None:
    command = [sys.executable, "-m", "wellhead.frontends.cli", "serve", "--model-path", str(model), "--max-total-tokens", "4096"]
    process = subprocess.Popen([*command, "--ray", "local", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = next(line for line in process.stdout if "ready on" in line)
        address = told.split()[-1]
        before = httpx.get(f"{address}/health", timeout=30).json()["replicas"]
        process.send_signal(signal.SIGHUP)
        next(line for line in process.stdout if "all replicas were replaced" in line)
        wait_for(lambda: not set(before) & set(httpx.get(f"{address}/health", timeout=30).json()["replicas"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_without_ray_it_says_how_to_get_it(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.serve", raising=False)
    assert main(["serve", "--model-path", str(model), "--ray", "local"]) == 2
    assert "invalid_config" in (error := capsys.readouterr().err) and "pip install 'wellhead[ray]'" in error
