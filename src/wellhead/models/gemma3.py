"""Gemma 3 (text): four norms a layer that multiply by 1 + w, q/k norms, sliding layers with a rotary table of their own."""

from __future__ import annotations

from dataclasses import replace

from wellhead.models.fields import Fields
from wellhead.models.plain import Defaults, plain_decoder
from wellhead.models.rope_config import layered_ropes
from wellhead.models.spec import ModelSpec

_GEMMA3 = Defaults(
    262_208,
    2304,
    26,
    8,
    4,
    9216,
    131_072,
    head_dim=256,
    tied_head=True,
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
    bos_token_id=2,
    eos_token_id=1,
)
_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0
_PATTERN = 6


def gemma3(fields: Fields) -> ModelSpec:
    """``Gemma3ForCausalLM``: every sixth layer has full attention, the others a window and the local table.

    float16 cannot hold this model's residual (above 65,504 before the final norm); nothing here refuses it.
    """
    own_ropes = {key: value for key, value in fields.config.items() if key not in ("rope_parameters", "rope_scaling")}
    plain = plain_decoder(Fields(own_ropes, fields.architecture), _GEMMA3)
    pattern = fields.integer("sliding_window_pattern", fields.config.get("_sliding_window_pattern") or _PATTERN)
    types = fields.layer_list("layer_types", plain.layers) or [
        "full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(plain.layers)
    ]
    window = None if fields.config.get("sliding_window", 4096) is None else fields.integer("sliding_window", 4096)
    ropes = layered_ropes(fields, plain.head_dim, plain.context_length, _GLOBAL_THETA, _LOCAL_THETA)
    bias = fields.flag("attention_bias", False)
    windows = fields.windows(plain.layers, window, types)
    kinds = list(dict.fromkeys(types))
    return replace(
        plain,
        norm_plus_one=True,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        post_norms=True,
        embed_scale=plain.hidden_size**0.5,
        attn_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping"),
        windows=windows,
        ropes=tuple(kinds.index(kind) for kind in types),
        rope_tables=tuple(ropes[kind] for kind in kinds),
    )


def gemma3_text_part(fields: Fields) -> ModelSpec:
    """``Gemma3ForConditionalGeneration``: the language model alone; images are not served."""
    text = fields.config.get("text_config")
    if not isinstance(text, dict):
        raise fields.refuse("config.json has no text_config")
    outer = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings")
    merged = {**text, **{key: fields.config[key] for key in outer if fields.config.get(key) is not None}}
    return gemma3(Fields(merged, fields.architecture))
