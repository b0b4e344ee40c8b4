"""Bulk extraction: a row for each text, in every mode, layer and dtype, with errors in their places."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.checks import wait_until_idle
from wellhead.errors import EmptyPrompt, EngineClosed, InvalidRequest, Overloaded, WellheadError
from wellhead.frontends.bulk.options import Options
from wellhead.frontends.bulk.run import open_input
from wellhead.frontends.bulk.work.sources import Local
from wellhead.frontends.cli import build_parser
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


@contextlib.contextmanager
def company(made: Engine) -> Iterator[None]:
    """Other callers who keep the queue full while this runs, and were refused at least once."""
    stop, full = threading.Event(), threading.Event()

    def generate() -> None:
        while not stop.is_set():
            try:
                made.generate(["company"] * 2, {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True})
            except Overloaded:
                full.set()

    threads = [threading.Thread(target=generate) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert full.wait(60)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_a_queue_that_others_have_filled_is_waited_for(engine: MakeEngine) -> None:
    made = engine(max_queued_requests=2, max_running_requests=1)
    texts: list[Any] = [f"text number {i}" for i in range(40)]
    texts[11] = ""
    alone = dict(made.extract_iter(texts))
    with company(made):
        found = dict(made.extract_iter(texts))
    assert [getattr(found[i], "code", None) for i in range(40)] == [None if i != 11 else "empty_prompt" for i in range(40)]
    for i in set(range(40)) - {11}:
        np.testing.assert_array_equal(found[i].numpy(), alone[i].numpy())  # type: ignore[union-attr]
    wait_until_idle(made)


def test_bulk_waits_for_a_queue_that_others_have_filled(engine: MakeEngine, tmp_path: Path) -> None:
    made = engine(max_queued_requests=2, max_running_requests=1)
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"text number {i}"}) + "\n" for i in range(40)))
    command = ["extract", "--model-path", "unused", "--input", str(source), "--output", str(tmp_path / "out")]
    options = Options.from_args(build_parser().parse_args(command))
    with company(made):
        found = list(Local(made, options).extract(open_input(options, []).rows(0, None)))
    assert [done.error for done in found] == [None] * 40
    wait_until_idle(made)


def test_one_text_that_fails_does_not_lose_the_others(engine: MakeEngine) -> None:
    made = engine(capture_layers=[0, -1])
    texts: list[Any] = ["good", "", "fine", "x" * 600]
    want = made.extract(["good", "fine"])
    with pytest.raises(EmptyPrompt, match="text 1") as caught:
        made.extract(texts[:3])
    assert (caught.value.index, caught.value.to_dict()["index"]) == (1, 1)
    assert pickle.loads(pickle.dumps(caught.value)).index == 1
    rows, indices = made.extract(texts, on_error="skip")
    np.testing.assert_array_equal(rows, want)
    assert (indices.dtype, indices.tolist()) == (np.int64, [0, 2])
    by_layer = made.extract(texts, "full", layers=[0, -1], on_error="return")
    for layer, found in by_layer.items():
        assert [getattr(one, "code", None) for one in found] == [None, "empty_prompt", None, "prompt_too_long"]
        assert [one.index for one in found if isinstance(one, WellheadError)] == [1, 3]
        if layer == -1:
            np.testing.assert_array_equal(np.stack([found[0][-1], found[2][-1]]), want)
    nothing, none = made.extract([""], on_error="skip")
    assert (nothing.shape, none.tolist()) == ((0, 64), [])
    with pytest.raises(InvalidRequest, match="on_error"):
        made.extract(texts, on_error="ignore")  # type: ignore[arg-type]


def test_an_engine_that_is_closed_is_no_text_to_skip(engine: MakeEngine) -> None:
    made = engine()
    made.shutdown()
    for how in ("raise", "skip", "return"):
        with pytest.raises(EngineClosed):
            made.extract(["a", "b"], on_error=how)
