"""Specs against transformers: every family, configs of both styles, defaults, and refusals by name."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import TINY  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM

from wellhead.errors import ModelError, UnsupportedModel
from wellhead.models.locate import load_spec
from wellhead.models.names import expected_tensors
from wellhead.models.registry import FAMILIES, spec_from_config
from wellhead.models.spec import ModelSpec

SIZES = {key: value for key, value in TINY.items() if key not in ("architectures", "dtype")}
GEMMA = {**SIZES, "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}

CONFIGS: list[tuple[type, dict[str, Any]]] = [
    (transformers.LlamaConfig, {}),
    (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    (transformers.LlamaConfig, {"head_dim": 16, "rope_parameters": YARN}),
    (transformers.MistralConfig, {}),
    (transformers.MistralConfig, {"sliding_window": None, "head_dim": 12}),
    (transformers.MistralConfig, {"sliding_window": 8}),
    (transformers.Qwen2Config, {}),
    (transformers.Qwen2Config, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    (transformers.Qwen2Config, {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}),
    (transformers.Qwen3Config, {}),
    (transformers.Qwen3Config, {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    (transformers.SmolLM3Config, {"pad_token_id": 0}),
    (transformers.SmolLM3Config, {"pad_token_id": 0, "no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 8}),
    (transformers.Gemma3TextConfig, GEMMA),
    (transformers.Gemma3TextConfig, {**GEMMA, "sliding_window_pattern": 3, "final_logit_softcapping": 30.0}),
]


@pytest.mark.parametrize(("kind", "changes"), CONFIGS, ids=lambda value: getattr(value, "__name__", None))
def test_a_saved_config_gives_the_model_that_transformers_builds(kind: type, changes: dict[str, Any], tmp_path: Path) -> None:
    config = kind(**{**SIZES, **changes})
    config.save_pretrained(tmp_path)
    spec = spec_from_config(json.loads((tmp_path / "config.json").read_text()))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert_same_model(spec, model)


def assert_same_model(spec: ModelSpec, model: Any) -> None:
    config = model.config
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if spec.tied_head:
        del shapes["lm_head.weight"]
    assert expected_tensors(spec) == shapes
    assert spec.tied_head == config.tie_word_embeddings
    assert spec.norm_eps == config.rms_norm_eps
    assert spec.attn_scale == pytest.approx(model.model.layers[0].self_attn.scaling)
    assert spec.embed_scale == pytest.approx(getattr(model.model.embed_tokens, "scalar_embed_scale", 1.0))
    assert spec.logit_softcap == getattr(config, "final_logit_softcapping", None)
    whole = config.sliding_window if config.model_type == "mistral" else None
    assert spec.windows == tuple(getattr(layer.self_attn, "sliding_window", whole) for layer in model.model.layers)
    rotates = getattr(config, "no_rope_layers", [1] * spec.layers)
    assert [rope is not None for rope in spec.ropes] == [bool(flag) for flag in rotates]
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    assert spec.eos_token_ids == tuple(end for end in ends if end is not None)
    assert spec.bos_token_id == config.bos_token_id


@pytest.mark.parametrize("kind", [kind for kind, changes in CONFIGS if not changes or "pad_token_id" in changes])
def test_missing_keys_have_transformers_defaults(kind: type) -> None:
    spec, theirs = spec_from_config({"model_type": kind.model_type}), kind()  # type: ignore[attr-defined]
    assert (spec.vocab_size, spec.hidden_size, spec.layers) == (theirs.vocab_size, theirs.hidden_size, theirs.num_hidden_layers)
    assert (spec.heads, spec.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (spec.ffn_size, spec.context_length) == (theirs.intermediate_size, theirs.max_position_embeddings)
    assert spec.rope_tables[0].theta == theirs.rope_parameters["rope_theta"]
    assert spec.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)


def test_gemma_defaults() -> None:
    spec, theirs = spec_from_config({"model_type": "gemma3_text"}), transformers.Gemma3TextConfig()
    assert (spec.vocab_size, spec.hidden_size, spec.layers, spec.head_dim) == (262208, 2304, 26, theirs.head_dim)
    assert [table.theta for table in spec.rope_tables] == [10_000.0, 1_000_000.0]
    assert [spec.windows[i] for i in (0, 4, 5, 6, 11)] == [4096, 4096, None, 4096, None]
    assert (spec.norm_plus_one, spec.post_norms, spec.qk_norm, spec.activation) == (True, True, True, "gelu_tanh")
    assert (spec.bos_token_id, spec.eos_token_ids, spec.tied_head) == (2, (1,), True)


def test_old_and_new_style_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    new = {**TINY, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}}
    old = {**TINY, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}}
    older = {**TINY, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}, "rope_parameters": None}
    assert spec_from_config(new) == spec_from_config(old) == spec_from_config(older)
    gemma = {**TINY, **GEMMA, "architectures": ["Gemma3ForCausalLM"]}
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7.0},
        "sliding_attention": {"rope_theta": 3.0},
    }
    flat = {"rope_theta": 7.0, "rope_local_base_freq": 3.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert spec_from_config({**gemma, "rope_parameters": nested}) == spec_from_config({**gemma, **flat})


def test_the_text_part_of_a_gemma_with_images() -> None:
    text = {**GEMMA, "model_type": "gemma3_text"}
    outer = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "eos_token_id": [1, 106],
        "dtype": "bfloat16",
    }
    spec, alone = spec_from_config(outer), spec_from_config({**text, "dtype": "bfloat16"})
    assert (spec.windows, spec.rope_tables, spec.dtype) == (alone.windows, alone.rope_tables, "bfloat16")
    assert spec.eos_token_ids == (1, 106)


def test_stop_tokens_of_the_generation_config_win(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "eos_token_id": 7, "bos_token_id": 3}))
    assert load_spec(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 8, 9]}))
    spec = load_spec(tmp_path)
    assert (spec.eos_token_ids, spec.bos_token_id) == ((9, 8), 3)


def test_yarn_stretches_the_context() -> None:
    assert spec_from_config({**TINY, "rope_parameters": YARN}).context_length == 64
    assert spec_from_config({**TINY, "rope_parameters": {**YARN, "factor": 8.0}}).context_length == 128
    dynamic = {"rope_type": "dynamic", "factor": 8.0}
    assert spec_from_config({**TINY, "rope_parameters": dynamic}).context_length == 64


REFUSED = [
    ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
    ({"architectures": ["LlamaForQuestionAnswering"]}, "LlamaForSequenceClassification"),
    ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
    ({"num_local_experts": 8}, "num_local_experts"),
    ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({"hidden_act": "relu"}, "relu"),
    ({"dtype": "float8_e4m3fn"}, "float8"),
    ({"partial_rotary_factor": 0.5}, "partial"),
    ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    ({"rope_scaling": {"type": "su"}}, "su"),
    ({"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, "mrope_section"),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": "linear"}, "rope_scaling"),
    ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}}, "full_attention"),
    ({"architectures": ["Qwen3ForCausalLM"], "rope_parameters": {"sliding_attention": {"rope_theta": 5e5}}}, "sliding_attention"),
    ({"rope_scaling": {"rope_type": "default", "full_attention": {"rope_theta": 7.0}}}, r"by layer type \(full_attention\)"),
    ({"hidden_size": "32"}, "hidden_size"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"num_key_value_heads": 3}, "kv heads"),
    ({"head_dim": 7}, "odd"),
    ({"rms_norm_eps": True}, "rms_norm_eps"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ({"eos_token_id": "</s>"}, "eos_token_id"),
    ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 2}, "sliding_window"),
    ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]}, "layer_types"),
    ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ({"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"rope_theta": 5.0}}, "layer type"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        spec_from_config({**TINY, **changes})


VALUES: list[Any] = [None, True, -1, 0, 3, 2.5, 10**30, float("nan"), "x", [], [1, "a"], {}, {"rope_type": 7}, {"factor": "4"}]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_no_config_does_more_than_be_refused(architecture: str) -> None:
    rng = random.Random(0)
    keys = sorted({key for kind, changes in CONFIGS for key in [*kind().to_dict(), *changes]} | {"rope_scaling", "text_config"})
    for _ in range(300):
        config: dict[str, Any] = {**TINY, "text_config": dict(TINY), "architectures": [architecture]}
        for key in rng.sample(keys, rng.randint(1, 3)):
            (config if rng.random() < 0.5 else config["text_config"])[key] = rng.choice(VALUES)
            if not isinstance(config.get("text_config"), dict):
                break
        with contextlib.suppress(ModelError):
            spec_from_config(config)


def test_unknown_architectures_are_told_what_is_known() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        spec_from_config({})
    assert all(name in caught.value.message for name in FAMILIES)


def test_importing_specs_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, wellhead.models.registry, wellhead.models.names, wellhead.models.locate; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
