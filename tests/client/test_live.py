"""The clients against a real server: the same values, shapes and errors as the engine itself."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from support.live import LiveServer
from wellhead.client import AsyncClient, Client
from wellhead.errors import (
    BatchTooLarge,
    CaptureAboveCeiling,
    EmptyPrompt,
    InvalidRequest,
    PromptTooLong,
    TokenOutOfRange,
    WellheadError,
)
from wellhead.types import HiddenStates, widen

TEXTS = [f"text number {i} " + "x" * (i * 7 % 40) for i in range(50)]


@pytest.fixture
def client(server: LiveServer) -> Any:
    with Client(server.url) as made:
        yield made


def run_async(server: LiveServer, work: Any) -> Any:
    async def go() -> Any:
        async with AsyncClient(server.url) as made:
            return await work(made)

    return asyncio.run(go())


def same(got: Any, want: Any) -> None:
    """Equal values, equal shapes: arrays, lists and dicts of them."""
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key])
    elif isinstance(want, list):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    else:
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["last", "mean", "full"])
@pytest.mark.parametrize("layers", [None, [0, -1]])
def test_extract_gives_what_the_engine_gives(server: LiveServer, client: Client, mode: Any, layers: Any) -> None:
    want = server.engine.extract(TEXTS, mode, layers=layers)
    same(client.extract(TEXTS, mode, layers=layers), want)
    same(run_async(server, lambda c: c.extract(TEXTS, mode, layers=layers)), want)


def test_token_ids_go_as_they_are(server: LiveServer, client: Client) -> None:
    ids: Any = [[1, 2, 3], np.array([4, 5], np.int64), (6,)]
    same(client.extract(ids), server.engine.extract([[1, 2, 3], [4, 5], [6]]))


@pytest.mark.parametrize("mode", ["last", "full"])
def test_narrow_dtypes(server: LiveServer, client: Client, mode: Any) -> None:
    exact, half, brain = (client.extract(TEXTS[:5], mode, dtype=d) for d in ("float32", "float16", "bfloat16"))
    for a, b, c in zip(exact, half, brain, strict=True):
        assert (b.dtype, c.dtype) == (np.float16, np.uint16)
        np.testing.assert_allclose(b.astype(np.float32), a, rtol=2e-3, atol=1e-3)
        np.testing.assert_allclose(widen(c, "bfloat16"), a, rtol=1e-2, atol=1e-3)


def test_no_texts(server: LiveServer, client: Client) -> None:
    assert client.extract([]).shape == (0, server.engine.hidden_size)
    assert client.extract([], "full") == []


def test_bad_texts_have_errors_in_their_places(client: Client) -> None:
    texts: list[Any] = [*TEXTS[:20], "", *TEXTS[20:30], "y" * 3000, None, [1, 10**6], TEXTS[30]]
    found = dict(client.extract_iter(texts))
    assert sorted(found) == list(range(len(texts)))
    kinds = {i: type(found[i]) for i in found if isinstance(found[i], WellheadError)}
    assert kinds == {20: EmptyPrompt, 31: PromptTooLong, 32: InvalidRequest, 33: TokenOutOfRange}
    want = client.extract([TEXTS[30]])[0]
    last = found[34]
    assert isinstance(last, HiddenStates)
    np.testing.assert_allclose(last.numpy(), want, rtol=1e-5, atol=1e-5)


def test_extract_names_the_text(client: Client) -> None:
    with pytest.raises(EmptyPrompt, match="text 3"):
        client.extract(["a", "b", "c", ""])


def test_a_text_that_fails_is_skipped_or_returned_on_request(server: LiveServer, client: Client) -> None:
    texts = ["a", "b", "", "c"]
    with pytest.raises(EmptyPrompt) as caught:
        client.extract(texts)
    assert caught.value.index == 2
    want = client.extract(["a", "b", "c"])
    for rows, indices in (
        client.extract(texts, on_error="skip"),
        run_async(server, lambda c: c.extract(texts, on_error="skip")),
    ):
        np.testing.assert_allclose(rows, want, rtol=1e-5, atol=1e-5)
        assert indices.tolist() == [0, 1, 3]
    listed = client.extract(texts, on_error="return")
    assert [type(one) for one in listed] == [np.ndarray, np.ndarray, EmptyPrompt, np.ndarray]


def test_limits_have_codes_and_name_the_callers_field(server: LiveServer) -> None:
    with pytest.raises(BatchTooLarge) as caught, Client(server.url) as one:
        one.generate(["a"] * 17, {"max_new_tokens": 1})
    assert (caught.value.code, caught.value.param) == ("batch_too_large", "text")
    answer = server.http.post("/v1/hidden_states", json={"input": ["a"] * 17})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
        400,
        "batch_too_large",
        "input",
    )


def test_what_is_wrong_for_all_is_raised(client: Client) -> None:
    with pytest.raises(CaptureAboveCeiling):
        list(client.extract_iter(TEXTS, layers=[1]))
    for wrong in ({"mode": "all"}, {"dtype": "int8"}):
        with pytest.raises(InvalidRequest):
            client.extract(TEXTS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="not one text"):
        client.extract("a text")


def test_generate_and_stream_give_the_engines_dicts(server: LiveServer, client: Client) -> None:
    fields: dict[str, Any] = {"sampling_params": {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}}
    want = server.engine.generate("hello", **fields, return_hidden_states=True)
    answers = [
        client.generate("hello", **fields, return_hidden_states=True),
        list(client.stream("hello", **fields, return_hidden_states=True))[-1],
        run_async(server, lambda c: c.generate("hello", **fields, return_hidden_states=True)),
        run_async(server, lambda c: last_event(c, fields)),
    ]
    for got in answers:
        assert (got["text"], got["output_ids"]) == (want["text"], want["output_ids"])
        same(got["meta_info"]["hidden_states"], want["meta_info"]["hidden_states"])


async def last_event(client: AsyncClient, fields: dict[str, Any]) -> Any:
    return [event async for event in client.stream("hello", **fields, return_hidden_states=True)][-1]


def test_generate_a_batch_with_modes_of_its_own(client: Client) -> None:
    params = {"max_new_tokens": 1, "temperature": 0}
    a, b, c = client.generate(["one", "two", "three"], params, return_hidden_states=[False, "last", True])
    assert "hidden_states" not in a["meta_info"]
    assert b["meta_info"]["hidden_states"].ndim == 1
    assert [e.shape[0] for e in c["meta_info"]["hidden_states"]] == [5]


def test_leaving_a_stream_aborts_it(server: LiveServer, client: Client) -> None:
    stream = client.stream("hello", {"max_new_tokens": 400, "ignore_eos": True})
    next(stream)
    stream.close()
    server.check_all_given_back()


def test_health_info_and_keys(server: LiveServer, client: Client) -> None:
    assert client.health() is True
    assert client.server_info()["hidden_size"] == server.engine.hidden_size
    with Client("http://127.0.0.1:9") as nobody:
        assert nobody.health() is False
    for url in ("127.0.0.1:30000", "ftp://x", ""):
        with pytest.raises(InvalidRequest):
            Client(url)
