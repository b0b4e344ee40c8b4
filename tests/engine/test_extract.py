"""Bulk extraction: a row for each text, in every mode, layer and dtype, with errors in their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support.checks import wait_until_idle
from wellhead.errors import InvalidRequest
from wellhead.frontends.engine import Engine

MakeEngine = Callable[..., Engine]


def test_extract_in_every_mode_layer_and_dtype(engine: MakeEngine) -> None:
    made = engine(capture_layers=[0, 1, -1], dtype="bfloat16")
    texts = ["one text", "another one, longer", "x"]
    full = made.extract(texts, "full")
    assert [m.shape for m in full] == [(len(t), 64) for t in texts]
    vectors, means = made.extract(texts), made.extract(texts, "mean")
    assert vectors.shape == means.shape == (3, 64)
    assert vectors.dtype == means.dtype == np.float32
    for i, rows in enumerate(full):
        np.testing.assert_array_equal(vectors[i], rows[-1])
        np.testing.assert_array_equal(means[i], rows.mean(axis=0, dtype=np.float64).astype(np.float32))
    layers = made.extract(texts, layers=[0, -1])
    assert list(layers) == [0, -1]
    np.testing.assert_array_equal(layers[-1], vectors)
    raw = made.extract(texts, dtype="bfloat16")
    assert raw.dtype is torch.bfloat16
    assert torch.equal(raw.float(), torch.from_numpy(vectors))
    assert made.extract(texts, dtype="float16").dtype == np.float16
    ids = [made.assembled.tokenizer.encode(t) for t in texts]  # type: ignore[union-attr]
    np.testing.assert_array_equal(made.extract(ids), vectors)
    assert made.extract([]).shape == (0, 64)
    assert made.extract([], "full") == []


def test_extract_of_more_texts_than_the_queue_holds(engine: MakeEngine) -> None:
    made = engine(max_queued_requests=5, max_running_requests=3)
    texts = [f"text number {i}" for i in range(300)]
    vectors = made.extract(texts)
    for i in (0, 7, 299):
        np.testing.assert_array_equal(vectors[i], made.extract([texts[i]])[0])


def test_extract_of_repeated_texts_gives_a_row_for_each(engine: MakeEngine) -> None:
    vectors = engine().extract(["same", "other", "same", "same"])
    assert (vectors[0] == vectors[2]).all()
    assert (vectors[0] != vectors[1]).any()


def test_extract_iter_gives_an_error_in_its_place_and_goes_on(engine: MakeEngine) -> None:
    made = engine()
    texts: list[Any] = ["good", "", "fine", "x" * 600, "well", 5]
    found = dict(made.extract_iter(texts))
    assert sorted(found) == list(range(6))
    assert [getattr(found[i], "code", None) for i in range(6)] == [
        None,
        "empty_prompt",
        None,
        "prompt_too_long",
        None,
        "invalid_request",
    ]
    with pytest.raises(InvalidRequest, match="text 1"):
        made.extract(texts[:2])


def test_extract_refuses_what_is_wrong_for_all(engine: MakeEngine) -> None:
    made = engine(return_hidden_states_mode="last")
    for call in (
        lambda: made.extract("one text, not a list"), lambda: made.extract(["a"], "first"), lambda: made.extract(["a"], "full"),  # type: ignore[arg-type]
        lambda: made.extract(["a"], "mean"), lambda: made.extract(["a"], layers=[1]), lambda: made.extract(["a"], dtype="int8"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            call()


def test_leaving_an_extraction_early_aborts_the_rest(engine: MakeEngine) -> None:
    made = engine(max_running_requests=1)
    found = made.extract_iter([f"text {i}" for i in range(200)])
    next(found)
    found.close()  # type: ignore[attr-defined]
    wait_until_idle(made)
