"""``quantization="int8"``: what it rounds, that nothing else changes, and that a vector still does not depend on its company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checks import all_same, check_shape, rows_of
from support.company import MODES, company, prompt
from support.direct import Direct
from support.reference import furthest, load, truth
from wellhead.config import EngineConfig
from wellhead.core.assemble import assemble
from wellhead.errors import InvalidConfig
from wellhead.kernels.int8 import rounded, widened

Family = Callable[..., Path]
INT8 = {"quantization": "int8"}
MIX = ["full", "off", "last", "mean", "last"]


@contextmanager
def rounding(folder: Path) -> Iterator[None]:
    """transformers' model with the linear layers of its blocks, and their inputs, rounded."""
    model, undo = load(folder, torch.float32), []  # the very one that ``truth`` asks
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and ".layers." in name:
            weight = layer.weight.data
            layer.weight.data = widened(*rounded(weight))
            hook = layer.register_forward_pre_hook(
                lambda _, args: (widened(*rounded(args[0].flatten(0, -2))).view_as(args[0]), *args[1:])
            )
            undo.append((layer, weight, hook))
    assert undo
    try:
        yield
    finally:
        for layer, weight, hook in undo:
            layer.weight.data = weight
            hook.remove()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2", "qwen3"])
def test_rows_are_those_of_rounded_layers(name: str, native: bool, family: Family) -> None:
    direct, folder = Direct(family(name), dtype="float32", native_kernels=native, **INT8), family(name)
    ids = [prompt(n, seed=n) for n in (1, 7, 60)]
    payloads = [{"input_ids": i, "sampling_params": {"max_new_tokens": 0}, **MODES["full"]} for i in ids]
    for found, reply in zip(ids, direct.run(payloads), strict=True):
        exact = truth(folder, found).layers[-1]
        with rounding(folder):
            wanted = truth(folder, found).layers[-1]
        # A number that lies between two steps may fall to either side; without the rounding it is ten times as far.
        assert furthest(rows_of(reply), wanted) < 0.2 * furthest(rows_of(reply), exact)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "how", [{}, {"chunked_prefill_size": 7}, {"max_total_tokens": 14 * 16}, {"speculative_algorithm": "NGRAM"}], ids=str
)
def test_company_changes_no_bit(dtype: str, how: dict[str, Any], family: Family) -> None:
    payloads = company(MIX)
    wanted = Direct(family("llama"), dtype=dtype, chunked_prefill_size=-1, disable_radix_cache=True, **INT8).alone(payloads)
    direct = Direct(family("llama"), dtype=dtype, **INT8, **how)
    for _ in range(2):
        replies = direct.run(payloads)
        all_same(replies, wanted)
    for reply in replies:
        check_shape(reply, direct.hidden_size)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quantization": "int4"}, "must be int8 .* not 'int4'"),
        ({"quantization": 8}, "must be int8"),
        ({"quantization": "int8", "tp_size": 2}, "tp_size 2 does not go with quantization int8"),
    ],
)
def test_what_it_is_not_for_is_refused(options: dict[str, Any], said: str, family: Family) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        EngineConfig.from_options({"model_path": str(family("llama")), **options})
    assert caught.value.param == "quantization"


def test_a_gpu_is_refused(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InvalidConfig, match="runs on the CPU, not on cuda") as caught:
        assemble(EngineConfig(model_path=str(family("llama")), device="cuda", quantization="int8"))
    assert caught.value.param == "quantization"


def test_it_is_said(family: Family) -> None:
    assert Direct(family("llama"), quantization="w8a8_int8").made.info()["quantization"] == "int8"
    assert Direct(family("llama")).made.info()["quantization"] is None
