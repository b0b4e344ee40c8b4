"""Qwen 2 and 2.5: biases on q, k and v; optional sliding windows on the upper layers."""

from __future__ import annotations

from dataclasses import replace

from wellhead.models.fields import Fields
from wellhead.models.plain import Defaults, plain_decoder, windows_from_layer_types
from wellhead.models.spec import ModelSpec

_QWEN2 = Defaults(151936, 4096, 32, 32, 32, 22016, 32768)


def qwen2(fields: Fields) -> ModelSpec:
    """``Qwen2ForCausalLM``."""
    plain = plain_decoder(fields, _QWEN2)
    return replace(plain, qkv_bias=True, windows=qwen_windows(fields, plain.layers))


def qwen_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Layers from ``max_window_layers`` on slide, unless ``layer_types`` says which."""
    slides = fields.config.get("use_sliding_window") and fields.config.get("sliding_window", 4096) is not None
    first = fields.config.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise fields.refuse(f"max_window_layers must be a whole number, not {first!r}")
    types = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]
    return windows_from_layer_types(fields, layers, types)
