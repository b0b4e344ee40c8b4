"""A real model as transformers reads it: a folder written from our own dequantised weights, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from wellhead.models.locate import load_spec
from wellhead.models.spec import ModelSpec
from wellhead.models.weights import open_weights

_KINDS = {"LlamaForCausalLM": "llama", "Gemma3ForCausalLM": "gemma3_text", "Qwen2ForCausalLM": "qwen2"}


def write_folder(model: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """``config.json`` and ``model.safetensors`` in ``dtype``: the numbers that an engine of this dtype starts from."""
    with open_weights(model, load_spec(model)) as weights:
        tensors = {name: weights.get(name).to(dtype).contiguous().clone() for name in weights.names()}
        spec = weights.spec
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(spec)))
    return folder


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """A spec in the words of transformers."""
    config: dict[str, Any] = {
        "architectures": [spec.architecture], "model_type": _KINDS[spec.architecture], "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size, "num_hidden_layers": spec.layers, "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim, "intermediate_size": spec.ffn_size,
        "rms_norm_eps": spec.norm_eps, "tie_word_embeddings": spec.tied_head, "max_position_embeddings": spec.context_length,
        "rope_theta": max(table.theta for table in spec.rope_tables), "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(spec.eos_token_ids),
    }  # fmt: skip
    if spec.architecture.startswith("Gemma3"):
        config |= {
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": round(spec.attn_scale**-2),
            "sliding_window": next(w for w in spec.windows if w is not None),
            "layer_types": ["full_attention" if w is None else "sliding_attention" for w in spec.windows],
            "rope_local_base_freq": min(table.theta for table in spec.rope_tables),
        }  # fmt: skip
    return config
