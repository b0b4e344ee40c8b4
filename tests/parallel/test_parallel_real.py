"""SmolLM2 over three processes: nine query heads, three key-value heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import assets
from support.checks import rows_of
from support.direct import Direct
from support.reference import furthest
from wellhead.errors import InvalidConfig

pytestmark = [pytest.mark.real, pytest.mark.slow]
TEXTS = ["The capital of France is", "A film that nobody needed, and that I liked all the same. Overall, it was"]


@pytest.fixture(scope="module")
def model() -> Path:
    return assets.fetch_smollm2()


def test_two_do_not_divide_it(model: Path) -> None:
    with pytest.raises(InvalidConfig, match="tp_size 2 does not divide the model's 9 attention heads"):
        Direct(model, tp_size=2)


def test_three_give_the_rows_and_tokens_of_one(model: Path, direct: Callable[..., Direct]) -> None:
    options = {"dtype": "float32", "page_size": 64, "context_length": 512}
    params = {"max_new_tokens": 12, "temperature": 0}
    ask = [{"text": text, "sampling_params": params, "return_hidden_states": True} for text in TEXTS]
    one, three = (direct(model, tp_size=size, **options).run(ask) for size in (1, 3))
    for mine, other in zip(three, one, strict=True):
        assert mine.output_ids == other.output_ids
        assert furthest(rows_of(mine), rows_of(other)) < 1e-5
        assert np.isfinite(rows_of(mine)).all()
