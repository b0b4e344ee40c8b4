"""Real models in bfloat16: as close to transformers in float32 as its own bfloat16, and the same bits in any company."""

from __future__ import annotations

import bz2
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import assets
from support.checks import all_same, check_shape, head_check, rows_of
from support.company import MODES
from support.direct import Direct
from support.real import write_folder
from support.reference import cosine, load, truth

pytestmark = [pytest.mark.real, pytest.mark.slow]


@dataclass(frozen=True)
class Real:
    gguf: Path
    folder: Path


@pytest.fixture(scope="module")
def reviews() -> list[str]:
    with bz2.open(assets.fetch_rotten_tomatoes(), "rt", encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    return [text[:400] for text in texts[::900][:12]]


@pytest.fixture(scope="module", params=[assets.fetch_smollm2, assets.fetch_gemma3_270m], ids=["smollm2", "gemma3"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    fetch: Callable[[], Path] = request.param
    gguf = fetch()
    yield Real(gguf, write_folder(gguf, tmp_path_factory.mktemp("real")))
    load.cache_clear()


def test_the_last_vector_is_as_close_to_float32_as_transformers_own_bfloat16(real: Real, reviews: list[str]) -> None:
    direct = Direct(real.gguf, dtype="bfloat16", return_hidden_states_mode="last", max_total_tokens=8192, page_size=64)
    assert direct.made.tokenizer is not None
    payloads = [{"text": text, "sampling_params": {"max_new_tokens": 0}, **MODES["last"]} for text in reviews]
    ours, theirs = [], []
    for text, reply in zip(reviews, direct.run(payloads), strict=True):
        ids = direct.made.tokenizer.encode(text)
        exact = truth(real.folder, ids).layers[-1][-1]
        ours.append(cosine(rows_of(reply), exact))
        theirs.append(cosine(truth(real.folder, ids, torch.bfloat16).layers[-1][-1], exact))
    for name, found in (("ours", ours), ("transformers' bfloat16", theirs)):
        print(f"cosine to float32, mean and worst, {name}: {np.mean(found):.6f} {min(found):.6f}")
    assert np.mean(ours) >= np.mean(theirs)
    assert min(ours) >= min(theirs)


def test_company_changes_no_bit_and_the_head_agrees(real: Real, reviews: list[str]) -> None:
    payloads = [
        {"text": text[: 40 + 60 * (i % 5)], **MODES[list(MODES)[i % 4]],
         "sampling_params": {"max_new_tokens": (0, 6, 3)[i % 3], "temperature": 0}, "return_logprob": True}
        for i, text in enumerate(reviews[:8])
    ]  # fmt: skip
    size = {"dtype": "bfloat16", "page_size": 64}
    wanted = Direct(real.gguf, **size, chunked_prefill_size=-1, disable_radix_cache=True).alone(payloads)
    crowd = Direct(real.gguf, **size, chunked_prefill_size=48)
    for _ in range(2):
        replies = crowd.run(payloads)
        all_same(replies, wanted)
    for reply in replies:
        check_shape(reply, crowd.hidden_size)
        if reply.hidden_states is not None and reply.output_ids and reply.request.reads[0].reduce != "mean":
            head_check(reply, crowd)
