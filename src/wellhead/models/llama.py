"""Llama and its kin: Llama 1 to 3, SmolLM2, and SmolLM3, some of whose layers do not rotate."""

from __future__ import annotations

from dataclasses import replace

from wellhead.models.fields import Fields
from wellhead.models.plain import Defaults, plain_decoder, windows_from_layer_types
from wellhead.models.spec import ModelSpec

_LLAMA = Defaults(32000, 4096, 32, 32, None, 11008, 2048, bos_token_id=1, eos_token_id=2)
_SMOLLM3 = Defaults(
    128256, 2048, 36, 16, 4, 11008, 32768, theta=2_000_000.0, tied_head=True, bos_token_id=128000, eos_token_id=128001
)


def llama(fields: Fields) -> ModelSpec:
    """``LlamaForCausalLM``: ``attention_bias`` is on all four attention matrices, ``mlp_bias`` on all three others."""
    bias = fields.flag("attention_bias", False)
    return replace(plain_decoder(fields, _LLAMA), qkv_bias=bias, o_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def smollm3(fields: Fields) -> ModelSpec:
    """``SmolLM3ForCausalLM``: Llama, with layers that do not rotate and may have a sliding window.

    In ``no_rope_layers`` a 1 means, despite the name, that the layer does rotate.
    """
    plain = plain_decoder(fields, _SMOLLM3)
    bias, interval = fields.flag("attention_bias", False), fields.integer("no_rope_layer_interval", 4)
    rotates = fields.layer_list("no_rope_layers", plain.layers) or [(i + 1) % interval != 0 for i in range(plain.layers)]
    slides = fields.config.get("use_sliding_window") and fields.config.get("sliding_window") is not None
    types = ["sliding_attention" if slides and not rotates[i] else "full_attention" for i in range(plain.layers)]
    return replace(
        plain,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        windows=windows_from_layer_types(fields, plain.layers, types),
        ropes=tuple(0 if rotates[i] else None for i in range(plain.layers)),
    )
