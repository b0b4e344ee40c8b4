"""Rotary tables against transformers' own frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from wellhead.models.registry import spec_from_config
from wellhead.models.rope import inverse_frequencies, rope_table
from wellhead.models.spec import RopeSpec

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
    {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    {**LLAMA3, "factor": 8.0, "rope_theta": 500_000.0},
    {**LLAMA3, "factor": 32.0, "rope_theta": 500_000.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1_000_000.0},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "attention_factor": 1.3, "truncate": False},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda parameters: parameters["rope_type"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_are_those_of_transformers(parameters: dict[str, Any], head_dim: int) -> None:
    given = {"rope_theta": 10_000.0, **parameters}
    config = transformers.LlamaConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=dict(given))
    theirs, scaling = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    (spec,) = spec_from_config({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}).rope_tables
    torch.testing.assert_close(inverse_frequencies(spec), theirs, rtol=2e-7, atol=0)
    angles = torch.arange(600, dtype=torch.float32)[:, None] * theirs
    expected = torch.cat((angles.cos() * scaling, angles.sin() * scaling), dim=-1)
    torch.testing.assert_close(rope_table(spec, 600), expected, rtol=0, atol=2e-4)


def test_default_table_equals_a_models_own() -> None:
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=8, intermediate_size=8
    )
    rotary = transformers.LlamaModel(config).rotary_emb
    cos, sin = rotary(torch.zeros(1), torch.arange(2048)[None])
    table = rope_table(RopeSpec(theta=10_000.0, dim=16), 2048)
    assert table.dtype == torch.float32
    assert table.shape == (2048, 16)
    assert torch.equal(table[:, :8], cos[0, :, :8])
    assert torch.equal(table[:, 8:], sin[0, :, :8])


def test_dynamic_is_default_within_the_context() -> None:
    dynamic = RopeSpec(theta=10_000.0, dim=64, kind="dynamic", factor=8.0)
    assert torch.equal(rope_table(dynamic, 128), rope_table(RopeSpec(theta=10_000.0, dim=64), 128))


def test_a_row_does_not_depend_on_how_many_there_are() -> None:
    spec = RopeSpec(theta=10_000.0, dim=64)
    assert torch.equal(rope_table(spec, 7), rope_table(spec, 4096)[:7])
