"""A server of a model without an LM head: rows are given, tokens are refused by a stable code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from support.families import HIDDEN
from support.live import LiveServer, add_chat_template
from wellhead.client import Client


@pytest.fixture(scope="module")
def headless(family: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    model = Path(shutil.copytree(family("qwen3", headless=True), tmp_path_factory.mktemp("headless") / "tiny"))
    server = LiveServer(add_chat_template(model))
    yield server
    server.stop()


def test_rows_are_served(headless: LiveServer) -> None:
    for path in ("/health", "/health_generate"):
        assert headless.http.get(path).status_code == 200
    answer = headless.ok("/generate", text="abc", sampling_params={"max_new_tokens": 0}, return_hidden_states=True)
    assert answer["output_ids"] == [] and np.shape(answer["meta_info"]["hidden_states"]) == (1, 3, HIDDEN)
    assert np.shape(headless.ok("/v1/embeddings", input="abc")["data"][0]["embedding"]) == (HIDDEN,)
    with Client(headless.url) as client:
        assert np.shape(client.extract(["abc", "d"])[1]) == (HIDDEN,)
    headless.check_all_given_back()


def test_it_says_what_it_is(headless: LiveServer) -> None:
    for path in ("/model_info", "/get_model_info", "/server_info"):
        assert headless.http.get(path).json()["is_generation"] is False
    assert headless.http.get("/v1/models").json()["data"][0]["is_generation"] is False


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/generate", {"text": "abc"}, "max_new_tokens"),
        ("/generate", {"text": "abc", "stream": True}, "max_new_tokens"),
        ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 3}}, "max_new_tokens"),
        ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}, "return_logprob"),
        ("/v1/completions", {"prompt": "abc"}, "max_tokens"),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}, "logprobs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}]}, "max_tokens"),
        ("/v1/hidden_states", {"input": "abc", "max_new_tokens": 2}, "max_new_tokens"),
    ],
)
def test_tokens_are_refused(path: str, body: dict[str, object], param: str, headless: LiveServer) -> None:
    before = headless.engine.assembled.core.counters.requests
    error = headless.refused(path, **body)
    assert (error["code"], error["param"]) == ("no_lm_head", param)
    assert headless.engine.assembled.core.counters.requests == before
