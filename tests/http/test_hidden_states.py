"""``/v1/hidden_states`` and ``/v1/embeddings``: the engine's own bits in every format, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from support.families import HIDDEN, byte_ids
from support.live import LiveServer
from wellhead.encoding import base64
from wellhead.encoding.registry import FORMATS
from wellhead.encoding.vectors import Vectors

TEXTS = ["one text", "another, longer text", "3"]
SAFETENSORS, NPY, ARROW = "application/vnd.safetensors", "application/x-npy", "application/vnd.apache.arrow.stream"


def ask(server: LiveServer, accept: str | None, status: int = 200, **body: Any) -> httpx.Response:
    headers = {"Accept": accept} if accept is not None else {}
    answer = server.http.post("/v1/hidden_states", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer


def decoded(server: LiveServer, accept: str, **body: Any) -> Vectors:
    answer = ask(server, accept, **body)
    assert answer.headers["content-type"] == accept
    return FORMATS[accept].decode(answer.content)


@pytest.mark.parametrize("accept", [SAFETENSORS, ARROW, "application/json"])
@pytest.mark.parametrize("mode", ["last", "full", "mean"])
def test_every_format_has_the_engines_own_rows(shared: LiveServer, mode: Any, accept: str) -> None:
    right = shared.engine.extract(TEXTS, mode=mode)
    got = decoded(shared, accept, input=TEXTS, mode=mode)
    assert got.full is (mode == "full")
    assert got.facts["mode"] == mode
    assert got.facts["prompt_tokens"] == [len(text) for text in TEXTS]
    for i, states in enumerate(got.states):
        np.testing.assert_array_equal(states.numpy(), right[i])


def test_npy_is_one_array(shared: LiveServer) -> None:
    got = np.load(io.BytesIO(ask(shared, NPY, input=TEXTS).content))
    np.testing.assert_array_equal(got, shared.engine.extract(TEXTS))
    whole = np.load(io.BytesIO(ask(shared, NPY, input=TEXTS[0], mode="full").content))
    np.testing.assert_array_equal(whole, shared.engine.extract(TEXTS[:1], mode="full")[0])
    error = ask(shared, NPY, 400, input=TEXTS, mode="full").json()["error"]
    assert error["param"] == "input" and "one array" in error["message"]


@pytest.mark.parametrize("value", ["one text", ["one text"], list(byte_ids("one text")), [list(byte_ids("one text"))]])
def test_all_four_shapes_of_input(shared: LiveServer, value: Any) -> None:
    (states,) = decoded(shared, SAFETENSORS, input=value).states
    np.testing.assert_array_equal(states.numpy(), shared.engine.extract(["one text"])[0])


def test_binary_answers_carry_any_dtype(shared: LiveServer) -> None:
    right = shared.engine.extract(TEXTS)
    for dtype, nbytes in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        got = decoded(shared, SAFETENSORS, input=TEXTS, dtype=dtype)
        assert got.dtype == dtype and got.states[0].arrays[0].nbytes == HIDDEN * nbytes
        np.testing.assert_allclose(np.stack([s.numpy() for s in got.states]), right, rtol=0.01, atol=0.01)
    auto = decoded(shared, SAFETENSORS, input=TEXTS)
    assert auto.dtype == shared.engine.assembled.config.dtype
    assert ask(shared, None, 400, input=TEXTS, dtype="float16").json()["error"]["param"] == "dtype"


def test_layers_by_number(live: Callable[..., LiveServer]) -> None:
    server = live(capture_layers=[0, 2, -1])
    right = server.engine.extract(TEXTS, layers=[0, -1])
    for accept in (SAFETENSORS, ARROW, "application/json"):
        got = decoded(server, accept, input=TEXTS, layers=[0, -1])
        assert got.layers == (0, -1)
        for layer in (0, -1):
            np.testing.assert_array_equal(np.stack([s.numpy(layer) for s in got.states]), right[layer])
    assert ask(server, None, 400, input=TEXTS, layers=[1]).json()["error"]["code"] == "capture_above_ceiling"


def test_generated_tokens_have_rows_too(shared: LiveServer) -> None:
    params = {"temperature": 0, "ignore_eos": True}
    got = decoded(shared, SAFETENSORS, input="one text", mode="full", max_new_tokens=4, sampling_params=params)
    same = shared.ok(
        "/generate", text="one text", sampling_params={**params, "max_new_tokens": 4}, return_hidden_states=True,
        hidden_states_format="base64",
    )  # fmt: skip
    assert got.facts["output_ids"] == [same["output_ids"]] and got.facts["text"] == [same["text"]]
    assert got.facts["finish_reason"] == [{"type": "length", "length": 4}]
    np.testing.assert_array_equal(got.states[0].numpy(), base64.decode(same["meta_info"]["hidden_states"]))
    assert got.states[0].numpy().shape == (8 + 3, HIDDEN) and got.states[0].prompt_rows == 8


def test_base64_inside_json_and_the_ids_that_were_used(shared: LiveServer) -> None:
    value = ask(shared, None, input=TEXTS, hidden_states_format="base64", return_input_ids=True).json()
    assert value["input_ids"] == [list(byte_ids(text)) for text in TEXTS]
    right = shared.engine.extract(TEXTS)
    for i, item in enumerate(value["data"]):
        assert item["index"] == i
        np.testing.assert_array_equal(base64.decode(item["hidden_states"]), right[i])
    assert ask(shared, NPY, 400, input="a", hidden_states_format="base64").json()["error"]["param"] == "hidden_states_format"


def test_several_accept_lines_are_one_list(shared: LiveServer) -> None:
    lines = [("accept", "text/html"), ("accept", "application/x-npy;q=0.9, */*;q=0.1")]
    answer = shared.http.post("/v1/hidden_states", json={"input": "a"}, headers=lines)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-npy")


def test_an_accept_that_we_cannot_meet_is_406(shared: LiveServer) -> None:
    error = ask(shared, "text/html, application/x-parquet", 406, input="a").json()["error"]
    assert error["code"] == "not_acceptable" and SAFETENSORS in error["message"]
    assert ask(shared, "*/*", input="a").headers["content-type"] == "application/json"


def test_large_answers_are_chunked_and_have_their_length_where_it_is_known(live: Callable[..., LiveServer]) -> None:
    server = live(max_total_tokens=16384)
    texts = [f"{i:03}" * 150 for i in range(30)]
    right = server.engine.extract(texts, mode="full")
    for accept in (SAFETENSORS, ARROW, "application/json"):
        answer = ask(server, accept, input=texts, mode="full")
        assert ("content-length" in answer.headers) is (accept == SAFETENSORS)
        for states, rows in zip(FORMATS[accept].decode(answer.content).states, right, strict=True):
            np.testing.assert_array_equal(states.numpy(), rows)
    reader = pa.ipc.open_stream(ask(server, ARROW, input=texts, mode="full").content)
    assert len(list(reader)) > 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"), ({"input": ["a", ""]}, "input"),
        ({"input": 3}, "input"), ({"input": [[]]}, "input"), ({"input": [-1]}, "input"), ({"input": [[1], "a"]}, "input"),
        ({"input": "a", "mode": "all"}, "mode"), ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "dtype": "float64"}, "dtype"), ({"input": "a", "layers": []}, "layers"),
        ({"input": "a", "layers": [99]}, "layers"), ({"input": "a", "max_new_tokens": -1}, "max_new_tokens"),
        ({"input": "a", "sampling_params": {"n": 2}}, "sampling_params"), ({"input": "a", "text": "b"}, "text"),
        ({"input": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"input": "a", "model": "other"}, "model"),
        ({"input": "a", "return_input_ids": 1}, "return_input_ids"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_field(shared: LiveServer, body: dict[str, Any], param: str) -> None:
    error = ask(shared, None, 404 if param == "model" else 400, **body).json()["error"]
    assert error["param"] == param
    assert error["type"] in ("invalid_request_error", "not_found_error")


# --- embeddings ---------------------------------------------------------------------------------------------------


def test_embeddings_are_scaled_rows_and_dimensions_cut_before_scaling(shared: LiveServer) -> None:
    rows = shared.engine.extract(TEXTS)
    means = shared.engine.extract(TEXTS, mode="mean")
    for body, right in (
        ({}, rows / np.linalg.norm(rows, axis=1, keepdims=True)),
        ({"normalize": False}, rows),
        ({"pooling": "mean", "normalize": False}, means),
        ({"dimensions": 8}, rows[:, :8] / np.linalg.norm(rows[:, :8], axis=1, keepdims=True)),
        ({"dimensions": 8, "normalize": False}, rows[:, :8]),
    ):
        found = shared.ok("/v1/embeddings", input=TEXTS, model="tiny", **body)
        got = np.array([item["embedding"] for item in found["data"]], np.float32)
        np.testing.assert_allclose(got, right, rtol=1e-5)
        assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] == sum(map(len, TEXTS))


def test_embeddings_in_base64_are_the_same_numbers(shared: LiveServer) -> None:
    plain = shared.ok("/v1/embeddings", input=TEXTS, encoding_format=None)
    coded = shared.ok("/v1/embeddings", input=TEXTS, encoding_format="base64")
    for a, b in zip(plain["data"], coded["data"], strict=True):
        np.testing.assert_array_equal(np.array(a["embedding"], np.float32), base64.decode_array(b["embedding"]))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"dimensions": 0}, "dimensions"), ({"dimensions": HIDDEN + 1}, "dimensions"), ({"dimensions": True}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"), ({"pooling": "cls"}, "pooling"), ({"normalize": "yes"}, "normalize"),
        ({"user": 3}, "user"), ({"foo": 1}, "foo"),
    ],
)  # fmt: skip
def test_embeddings_refuse_by_name(shared: LiveServer, body: dict[str, Any], param: str) -> None:
    assert shared.refused("/v1/embeddings", input="a", **body)["param"] == param
