"""Qwen 3 (dense): q/k norms, and heads whose size is independent of the hidden size."""

from __future__ import annotations

from dataclasses import replace

from wellhead.models.fields import Fields
from wellhead.models.plain import Defaults, plain_decoder
from wellhead.models.qwen2 import qwen_windows
from wellhead.models.spec import ModelSpec

_QWEN3 = Defaults(151936, 4096, 32, 32, 32, 22016, 32768, head_dim=128)


def qwen3(fields: Fields) -> ModelSpec:
    """``Qwen3ForCausalLM``."""
    plain, bias = plain_decoder(fields, _QWEN3), fields.flag("attention_bias", False)
    return replace(plain, qk_norm=True, qkv_bias=bias, o_bias=bias, windows=qwen_windows(fields, plain.layers))
