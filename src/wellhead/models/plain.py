"""The decoder that every family varies: its spec from a config, and the defaults of the keys that it leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wellhead.models.fields import Fields
from wellhead.models.rope_config import flat_rope, rope_context
from wellhead.models.spec import ModelSpec


@dataclass(frozen=True)
class Defaults:
    """What transformers assumes, family by family, where ``config.json`` says nothing.

    ``kv_heads=None``: as many as heads. ``head_dim=None``: hidden size over heads.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int | None
    ffn_size: int
    context: int
    head_dim: int | None = None
    theta: float = 10_000.0
    tied_head: bool = False
    activation_key: str = "hidden_act"
    activation: str = "silu"
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def plain_decoder(fields: Fields, defaults: Defaults) -> ModelSpec:
    """Full attention, one rotary table, no biases, no q/k norms; families ``dataclasses.replace`` what differs."""
    layers = fields.layers(defaults.layers)
    heads = fields.integer("num_attention_heads", defaults.heads)
    hidden = fields.integer("hidden_size", defaults.hidden_size)
    head_dim = fields.integer("head_dim", head_dim_default(fields, defaults, hidden, heads))
    kv_default = heads if defaults.kv_heads is None or "num_key_value_heads" in fields.config else defaults.kv_heads
    context = fields.integer("max_position_embeddings", defaults.context)
    rope = flat_rope(fields, head_dim, context, defaults.theta)
    return ModelSpec(
        architecture=fields.architecture,
        vocab_size=fields.integer("vocab_size", defaults.vocab_size),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", kv_default),
        head_dim=head_dim,
        ffn_size=fields.integer("intermediate_size", defaults.ffn_size),
        activation=fields.activation(defaults.activation_key, defaults.activation),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        norm_plus_one=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        post_norms=False,
        embed_scale=1.0,
        attn_scale=head_dim**-0.5,
        tied_head=fields.flag("tie_word_embeddings", defaults.tied_head),
        logit_softcap=None,
        windows=(None,) * layers,
        ropes=(0,) * layers,
        rope_tables=(rope,),
        context_length=rope_context(rope, context),
        dtype=fields.dtype(),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", defaults.bos_token_id)), None),
        eos_token_ids=fields.token_ids("eos_token_id", defaults.eos_token_id),
    )


def head_dim_default(fields: Fields, defaults: Defaults, hidden: int, heads: int) -> int:
    """The head size of a config that names none. Errors: UnsupportedModel if it does not divide."""
    if defaults.head_dim is not None and "head_dim" not in fields.config:
        return defaults.head_dim
    if fields.config.get("head_dim") is None and hidden % heads:
        raise fields.refuse(f"hidden_size {hidden} is not a multiple of {heads} heads")
    return max(1, hidden // heads)


def windows_from_layer_types(fields: Fields, layers: int, default_types: list[Any]) -> tuple[int | None, ...]:
    """Qwen's and SmolLM3's windows: ``sliding_window`` counts only with ``use_sliding_window``."""
    types = fields.layer_list("layer_types", layers) or default_types
    sliding = fields.flag("use_sliding_window", False) and fields.config.get("sliding_window", 0) is not None
    return fields.windows(layers, fields.integer("sliding_window", 4096) if sliding else None, types)
