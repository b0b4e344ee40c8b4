"""Requests drawn from the OpenAPI description, right and wrong ones: whatever comes, no 5xx but 503, and nothing stays behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from support.live import LiveServer
from wellhead.frontends.http.schemas import PLACES

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def fuzzed(chat_model: Path) -> Iterator[LiveServer]:
    server = LiveServer(chat_model, {"request_timeout": 1.0, "max_request_tokens": 400, "max_batch_size": 8}, context_length=128)
    yield server
    server.check_all_given_back()
    assert server.http.get("/health").status_code == 200
    server.stop()


ROUTES = (
    "POST /generate", "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/embeddings", "POST /v1/hidden_states",
    "POST /tokenize", "POST /detokenize", "POST /abort_request", "GET /v1/models/{model}", "GET /server_info", "GET /metrics",
)  # fmt: skip


@pytest.fixture(scope="module")
def api(fuzzed: LiveServer) -> Any:
    return schemathesis.openapi.from_url(fuzzed.url + "/openapi.json")


@pytest.mark.parametrize(
    ("route", "mode"),
    [(route, mode) for route in ROUTES for mode in ("positive", "negative") if mode == "positive" or "POST" in route],
)
def test_no_5xx_but_503(fuzzed: LiveServer, api: Any, route: str, mode: str) -> None:
    method, path = route.split()
    operation = api[path][method]

    @settings(
        max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def check(case: Any) -> None:
        answer = case.call(base_url=fuzzed.url, timeout=60)
        assert answer.status_code < 500 or answer.status_code == 503, (answer.status_code, answer.text[:300])
        if answer.status_code >= 400:
            error = json.loads(answer.content)["error"]
            assert error["message"] and error["code"]

    check()


@pytest.fixture(scope="module")
def described(fuzzed: LiveServer) -> dict[str, Any]:
    found: dict[str, Any] = fuzzed.http.get("/openapi.json").json()
    return found


def test_every_route_is_described(fuzzed: LiveServer, described: dict[str, Any]) -> None:
    for path in (
        "/generate", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/hidden_states", "/tokenize", "/detokenize",
        "/health", "/health_generate", "/v1/models", "/model_info", "/server_info", "/metrics", "/flush_cache", "/abort_request",
    ):  # fmt: skip
        assert path in described["paths"], path
    assert fuzzed.http.get("/docs").status_code == 200
    operations = [op["operationId"] for methods in described["paths"].values() for op in methods.values()]
    assert len(set(operations)) == len(operations)


def examples(described: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Method, path and body of every example in the description."""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            bodies = [e["value"] for e in content.get("examples", {}).values()]
            bodies += [content["example"]] if "example" in content else []
            bodies += content.get("schema", {}).get("examples", [])
            for body in bodies:
                yield method, path, body


def test_every_example_of_the_description_works(fuzzed: LiveServer, scoring: LiveServer, described: dict[str, Any]) -> None:
    found = list(examples(described))
    with_body = {(m, p) for p, ms in described["paths"].items() for m, op in ms.items() if "requestBody" in op}
    files = {("post", "/v1/heads")}  # its body is a file, and has no example
    assert {(m, p) for m, p, _ in found} == with_body - files
    for method, path, body in found:
        server = scoring if PLACES.get(path) in ("classify", "rerank", "score") else fuzzed
        answer = server.http.request(method, path, json=body)
        assert answer.status_code == 200, (path, body, answer.text)


FIELDS_OF_OTHERS = ("lora_path", "image_data", "session_params", "custom_logit_processor", "input_embeds")


@pytest.mark.parametrize("field", FIELDS_OF_OTHERS)
def test_fields_that_are_not_served_are_refused_by_name(fuzzed: LiveServer, field: str) -> None:
    assert fuzzed.refused("/generate", text="a", **{field: "x"})["param"] == field
    assert fuzzed.ok("/generate", text="a", sampling_params={"max_new_tokens": 0}, **{field: None})["text"] == ""


def test_the_table_of_statuses_has_every_code() -> None:
    import inspect

    from wellhead import errors
    from wellhead.frontends.http import errors as http_errors

    kinds: list[Callable[..., Any]] = [
        kind
        for module in (errors, http_errors)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, errors.WellheadError)
    ]
    assert {kind.code for kind in kinds} == set(http_errors.STATUS)  # type: ignore[attr-defined]
