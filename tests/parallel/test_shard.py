"""Which part of which tensor: parts that make up the whole, and models that cannot be cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from wellhead.config import EngineConfig
from wellhead.errors import InvalidConfig
from wellhead.models.locate import load_spec
from wellhead.models.names import EMBEDDING, HEAD
from wellhead.models.weights import open_weights
from wellhead.parallel.leader import start_ranks
from wellhead.parallel.shard import Shard

Family = Callable[..., Path]
CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["llama-biased", "gemma3", "qwen2"])
def test_the_parts_of_a_tensor_are_the_tensor(name: str, size: int, family: Family) -> None:
    folder = family(name)
    with open_weights(folder, load_spec(folder)) as weights:
        readers = [Shard(rank, size).read(weights) for rank in range(size)]
        keys = weights.spec.kv_heads
        for tensor in weights.names():
            whole, parts = weights.get(tensor), [read(tensor) for read in readers]
            module, kind = tensor.split(".")[-2:]
            if "norm" in tensor:
                assert all(torch.equal(part, whole) for part in parts)
            elif module in ("o_proj", "down_proj"):
                made = torch.cat(parts, dim=1) if kind == "weight" else torch.stack(parts).sum(0)
                assert torch.equal(made, whole), tensor
            elif module in ("k_proj", "v_proj") and size > keys:
                assert torch.equal(torch.cat(parts[:: size // keys]), whole)
                assert torch.equal(torch.cat(parts[1 :: size // keys]), whole)
            else:
                assert len({len(part) for part in parts}) == 1
                assert torch.equal(torch.cat(parts)[: len(whole)], whole), tensor


@pytest.mark.parametrize(("vocab", "size"), [(271, 2), (272, 3), (5, 4)])
def test_a_vocabulary_that_does_not_divide_is_filled_up_with_zeros(vocab: int, size: int, family: Family) -> None:
    folder = family("llama", vocab_size=vocab, hidden_size=96, num_attention_heads=12, num_key_value_heads=12, eos_token_id=2)
    with open_weights(folder, load_spec(folder)) as weights:
        for name in (EMBEDDING, HEAD):
            parts = [Shard(rank, size).read(weights)(name) for rank in range(size)]
            made = torch.cat(parts)
            assert len({len(part) for part in parts}) == 1
            assert torch.equal(made[:vocab], weights.get(name))
            assert not made[vocab:].any()


@pytest.mark.parametrize(("changes", "size", "numbers"), [
    ({"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3}, 2, ("2", "9 attention heads")),
    ({"intermediate_size": 98}, 4, ("4", "98 channels")),
    ({"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 3}, 2, ("2", "3 key-value heads")),
])  # fmt: skip
def test_a_model_that_cannot_be_cut_is_refused_with_both_numbers(
    changes: dict[str, int], size: int, numbers: tuple[str, str], family: Family
) -> None:
    spec = load_spec(family("llama", **changes))
    with pytest.raises(InvalidConfig) as refused:
        start_ranks(size, 60, spec, CPU)
    assert refused.value.param == "tp_size" and refused.value.code == "invalid_config"
    assert all(number in refused.value.message for number in numbers)


@pytest.mark.parametrize(("options", "word"), [
    ({"tp_size": 2, "enable_torch_compile": True}, "enable_torch_compile"),
    ({"tp_size": 2, "speculative_algorithm": "EAGLE", "speculative_draft_model_path": "d"}, "EAGLE"),
    ({"tp_size": 2, "speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "d"}, "STANDALONE"),
    ({"dist_timeout": 5}, "tp_size is 1"),
    ({"tp_size": 0}, "at least 1"),
    ({"tp_size": True}, "whole number"),
    ({"tp_size": 2, "dist_timeout": 0}, "at least 1"),
])  # fmt: skip
def test_options_that_do_not_go_together(options: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidConfig, match=word):
        EngineConfig(model_path="m", **options)  # type: ignore[arg-type]


def test_graphs_of_a_gpu_are_left_out() -> None:
    assert EngineConfig(model_path="m", tp_size=2).graph_sizes("cuda", 512) == ((), ())
    with pytest.raises(InvalidConfig, match="tp_size"):
        EngineConfig(model_path="m", tp_size=2, cuda_graph_max_bs=8).graph_sizes("cuda", 512)
