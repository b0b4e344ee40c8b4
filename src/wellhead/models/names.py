"""The tensors of a model, by the names that Hugging Face gives them."""

from __future__ import annotations

from wellhead.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder reads, with its shape (matrices are ``[out, in]``); no head when it is tied or absent."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    for layer in range(spec.layers):
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in layer_tensors(spec).items()})
    shapes[FINAL_NORM] = (spec.hidden_size,)
    if spec.has_head and not spec.tied_head:
        shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    return shapes


def layer_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """One layer's tensors, without the prefix ``model.layers.{i}.``."""
    hidden, ffn, dim = spec.hidden_size, spec.ffn_size, spec.head_dim
    queries, keys = spec.heads * dim, spec.kv_heads * dim
    matrices = {
        "self_attn.q_proj": (queries, hidden, spec.qkv_bias),
        "self_attn.k_proj": (keys, hidden, spec.qkv_bias),
        "self_attn.v_proj": (keys, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, queries, spec.o_bias),
        "mlp.gate_proj": (ffn, hidden, spec.mlp_bias),
        "mlp.up_proj": (ffn, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, ffn, spec.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (out, into, bias) in matrices.items():
        shapes[f"{name}.weight"] = (out, into)
        if bias:
            shapes[f"{name}.bias"] = (out,)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if spec.post_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes.update({f"{name}.weight": (hidden,) for name in norms})
    if spec.qk_norm:
        shapes.update({"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)})
    return shapes
