"""A checkpoint that makes NaN for one token: whoever sends it gets an error that names it, and nobody else notices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from support.checks import all_same
from support.company import MODES, company, prompt
from support.direct import Direct
from wellhead.errors import NonFinite

Family = Callable[..., Path]
BAD_TOKEN = 123


@pytest.fixture
def broken(family: Family, tmp_path: Path) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(family("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][BAD_TOKEN] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without_bad_token(payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those neighbours that neither send the token nor can draw it."""
    for payload in payloads:
        payload["input_ids"] = [t if t != BAD_TOKEN else 1 for t in payload["input_ids"]]
        payload["sampling_params"] = {**payload["sampling_params"], "logit_bias": {BAD_TOKEN: -1000.0}}
    return payloads


ASKS: list[dict[str, Any]] = [
    {**MODES["last"], "sampling_params": {"max_new_tokens": 0}},
    {**MODES["full"], "sampling_params": {"max_new_tokens": 0}},
    {**MODES["mean"], "sampling_params": {"max_new_tokens": 3}},
    {**MODES["off"], "sampling_params": {"max_new_tokens": 3}},
    {**MODES["off"], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0},
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", [0, 15, 16, 39])
@pytest.mark.parametrize("ask", ASKS, ids=str)
def test_nan_in_one_request(ask: dict[str, Any], place: int, dtype: str, broken: Path, family: Family) -> None:
    neighbours = without_bad_token(company(list(MODES))[:8])
    wanted = Direct(family("llama"), dtype=dtype).alone(neighbours)
    direct = Direct(broken, dtype=dtype, chunked_prefill_size=64)
    ids = prompt(40, seed=3)
    ids[place] = BAD_TOKEN
    for _ in range(2):
        batches = [direct.submit(p) for p in neighbours[:4]]
        bad = direct.submit({"input_ids": ids, "rid": "the bad one", **ask})
        batches += [direct.submit(p) for p in neighbours[4:]]
        direct.finish()
        all_same([r for batch in batches for r in direct.replies(batch)], wanted)
        error = direct.errors[bad.requests[0].key]
        assert isinstance(error, NonFinite)
        assert "the bad one" in str(error)
