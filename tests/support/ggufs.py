"""A Hugging Face folder of the Llama family, written as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_llama(folder: Path, path: Path, metadata: dict[str, Any]) -> Path:
    """``metadata``: keys below ``llama.``, beside those of the shape. float32; the file."""
    config = json.loads((folder / "config.json").read_text())
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for key, value in metadata.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(f"llama.{key}", value, gguf.GGUFValueType.UINT32 if kind is gguf.GGUFValueType.INT32 else kind)
    for name, values in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module in _TOP:
            writer.add_tensor(f"{_TOP[module]}.weight", values)
            continue
        layer, _, kind = module.removeprefix("model.layers.").partition(".")
        for which, count in (("q", heads), ("k", keys)):
            if kind == f"self_attn.{which}_proj":  # the halves of each head interleaved
                values = np.ascontiguousarray(values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{_LAYER[kind]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
