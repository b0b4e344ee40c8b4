"""The config that tests of models begin with: small, and Llama unless they change it."""

from __future__ import annotations

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "dtype": "float32",
}
