"""Mistral: Llama with a sliding window on every layer, or on none."""

from __future__ import annotations

from dataclasses import replace

from wellhead.models.fields import Fields
from wellhead.models.plain import Defaults, plain_decoder
from wellhead.models.spec import ModelSpec

_MISTRAL = Defaults(32000, 4096, 32, 32, 8, 14336, 4096 * 32, bos_token_id=1, eos_token_id=2)


def mistral(fields: Fields) -> ModelSpec:
    """``MistralForCausalLM``: a missing ``sliding_window`` is 4096, an explicit ``null`` is none, as in transformers."""
    plain = plain_decoder(fields, _MISTRAL)
    window = None if fields.config.get("sliding_window", 4096) is None else fields.integer("sliding_window", 4096)
    kind = "full_attention" if window is None else "sliding_attention"
    if any(other != kind for other in fields.layer_list("layer_types", plain.layers) or []):
        raise fields.refuse("layer_types that differ from layer to layer, or from sliding_window, are not supported")
    return replace(plain, windows=(window,) * plain.layers)
