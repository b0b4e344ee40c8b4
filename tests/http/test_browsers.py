"""What browsers, proxies and load balancers ask before and beside the real requests: preflights, origins, HEAD."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import httpx
import openai
import pytest

from support.live import LiveServer
from wellhead.errors import InvalidConfig
from wellhead.frontends.http.app import ROUTES
from wellhead.frontends.http.options import ServerOptions, add_server_arguments, server_options

PAGE, OTHER = "https://app.example:8443", "https://evil.example"
#: What the browser builds of openai's client send beside the key.
CUSTOM = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"


def preflight(server: LiveServer, path: str, origin: str, method: str = "POST", headers: str = CUSTOM) -> httpx.Response:
    """As a browser sends it: without a key."""
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return httpx.options(server.url + path, headers=asked, timeout=60)


@pytest.mark.parametrize("allowed", [["*"], ["http://localhost:5173", PAGE]])
def test_a_page_can_ask_and_read_with_a_key_set(live: Callable[..., LiveServer], allowed: list[str]) -> None:
    server = live({"api_key": "secret", "cors_allow_origins": allowed})
    named = "*" if allowed == ["*"] else PAGE
    for path, (methods, _) in ROUTES.items():
        answer = preflight(server, path, PAGE, methods[0])
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == named, path
        assert methods[0] in answer.headers["access-control-allow-methods"]
        assert set(CUSTOM.split(",")) <= {
            name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")
        }
    body = {"prompt": "abc", "max_tokens": 2}
    answer = server.http.post("/v1/completions", json=body, headers={"Origin": PAGE})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == named
    assert {"Retry-After", "X-Wellhead-Replica", "X-Request-ID"} <= {
        n.strip() for n in answer.headers["access-control-expose-headers"].split(",")
    }
    assert "access-control-allow-credentials" not in answer.headers
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}, headers={"Origin": PAGE}) as stream:
        assert stream.headers["access-control-allow-origin"] == named and b"[DONE]" in stream.read()
    refused = httpx.post(f"{server.url}/v1/completions", json=body, headers={"Origin": PAGE})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == named
    wrong = server.http.post("/v1/completions", json={"prompt": 3}, headers={"Origin": PAGE})
    assert wrong.status_code == 400 and wrong.headers["access-control-allow-origin"] == named
    assert "access-control-allow-origin" not in server.http.get("/health").headers  # no page, no header


def test_other_origins_are_not_let_in(live: Callable[..., LiveServer]) -> None:
    server = live({"cors_allow_origins": [PAGE]})
    assert preflight(server, "/v1/completions", OTHER).status_code == 400
    answer = server.http.get("/health", headers={"Origin": OTHER})
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
    named = server.http.get("/health", headers={"Origin": PAGE})
    assert named.headers["vary"] == "Origin"  # a shared cache must not give one page's answer to another
    plain = server.http.options("/v1/completions")
    assert plain.status_code == 405


def test_nobody_is_let_in_by_default(shared: LiveServer) -> None:
    answer = preflight(shared, "/v1/completions", PAGE)
    assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-origin" not in shared.http.get("/health", headers={"Origin": PAGE}).headers


@pytest.mark.parametrize("path", [*(p for p, (methods, _) in ROUTES.items() if "GET" in methods), "/openapi.json", "/docs"])
def test_head_is_get_without_a_body(shared: LiveServer, path: str) -> None:
    path = path.replace("{model:path}", "tiny")
    got, head = shared.http.get(path), shared.http.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"") and got.status_code == 200
    assert head.headers["content-type"] == got.headers["content-type"] and "content-length" in head.headers
    if path in ("/health", "/v1/models/tiny"):
        assert head.headers["content-length"] == got.headers["content-length"]


def test_head_is_in_no_page_and_refused_where_get_is(shared: LiveServer) -> None:
    assert not [p for p, kinds in shared.http.get("/openapi.json").json()["paths"].items() if "head" in kinds]
    assert shared.http.head("/generate").status_code == 405


@pytest.mark.parametrize(
    "wrong", ["example.org", "https://a.example/", "https://a.example/page", "https://*.example", "HTTPS://A", ""]
)
def test_what_no_browser_calls_an_origin_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidConfig, match="origin") as caught:
        ServerOptions(cors_allow_origins=(PAGE, wrong))
    assert caught.value.param == "cors_allow_origins"
    with pytest.raises(InvalidConfig):
        ServerOptions(cors_allow_origins="*")  # type: ignore[arg-type]


def test_the_flag() -> None:
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    assert server_options(parser.parse_args([])).cors_allow_origins == ()
    given = ["--cors-allow-origins", PAGE, "http://[::1]:3000", "null", "--port", "0"]
    assert server_options(parser.parse_args(given)).cors_allow_origins == (PAGE, "http://[::1]:3000", "null")


def test_every_answer_has_the_requests_id(live: Callable[..., LiveServer]) -> None:
    server = live({"api_key": "secret"})
    for answer in (
        server.http.get("/health"),
        server.post("/generate", text=3),
        httpx.get(server.url + "/v1/models"),
        server.post("/x"),
    ):
        assert len(answer.headers["x-request-id"]) == 32
    mine = server.http.post("/generate", json={"text": "a", "stream": True}, headers={"X-Request-ID": "mine/1"})
    assert mine.headers.get_list("x-request-id") == ["mine/1"]
    for bad in ("two words", "x" * 129, "é"):
        answer = server.http.get("/health", headers=[(b"X-Request-ID", bad.encode())])
        assert answer.status_code == 200 and len(answer.headers["x-request-id"]) == 32
    with openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0) as client:
        assert client.completions.create(model="tiny", prompt="a", max_tokens=1)._request_id
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt="a" * 5000, max_tokens=1)
        assert caught.value.request_id
